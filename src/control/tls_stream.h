// One side of TLS 1.3 over a non-blocking TCP socket, authenticated by a key that both sides hold
// (RFC 8446, external pre-shared key with ECDHE). There are no certificates, no session tickets and
// no early data.
//
// Reads take no more from the socket than the record that they need, so where a record was read to
// its end (at_record_end()), poll() on the socket tells whether there is more. What is written
// collects in memory until flush().
#pragma once

#include <openssl/ssl.h>
#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena {

enum class ControlRole : uint8_t { kConnector, kListener };

class TlsStream {
 public:
  enum class Outcome {
    kDone,
    kWait,    // until the peer has sent more
    kClosed,  // the peer said that it closes
    kEnded,   // the byte stream ended without that, or broke: system_error()
    kFailed,  // what the peer sent does not verify, or the peer said so of ours: error()
  };

  static constexpr size_t kMaxRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;

  // An error where OpenSSL cannot do what is needed here. The first call takes a millisecond.
  static Status prepare();

  // After prepare(). The socket must outlive the stream. `preface` goes out before the first bytes
  // of TLS. Nothing is read before start_reading().
  TlsStream(ControlRole role, const JobSecret& secret, int socket,
            std::span<const std::byte> preface);
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;
  ~TlsStream();

  void start_reading() { may_read_ = true; }

  // Takes the handshake as far as what has arrived allows.
  Outcome handshake();
  // At least one byte, into `to`.
  Outcome read(std::span<std::byte> to, size_t* got);
  bool at_record_end() const { return SSL_pending(ssl_.get()) == 0; }

  // Encrypts `bytes` as one record of at most kMaxRecordBytes: kDone or kFailed.
  Outcome write(std::span<const std::byte> bytes);
  // Sends close_notify to the peer, as far as the socket takes it. Does nothing in a process
  // that inherited the connection by fork(): it is its parent's.
  void close_notify();

  // Sends what is buffered, as far as the socket takes it; false where the connection broke.
  bool flush();
  bool all_sent() const { return output_.empty(); }

  // Why kFailed: OpenSSL's words, and whether they mean that the peer has another key.
  const std::string& error() const { return error_; }
  bool wrong_key() const { return wrong_key_; }
  // The errno with which the connection broke; 0 where it ended in order.
  int system_error() const { return system_error_; }

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  static constexpr size_t kKeyBytes = 32;

  // OpenSSL's calls to what is below it and beside it.
  struct Callbacks;

  Outcome outcome_of(int result);
  void forget_key();

  std::unique_ptr<SSL, FreeSsl> ssl_;
  int socket_;
  pid_t process_;
  std::array<unsigned char, kKeyBytes> key_{};
  bool may_read_ = false;
  bool established_ = false;
  bool ended_ = false;
  int system_error_ = 0;
  bool failed_ = false;
  bool wrong_key_ = false;
  std::string error_;
  std::vector<std::byte> preface_;
  std::vector<std::byte> output_;
  size_t sent_bytes_ = 0;  // of output_
};

}  // namespace verbena
