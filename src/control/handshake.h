// The handshake of a control connection: prefaces (preface.h), then TLS 1.3 with the job's secret.
// It reads what has arrived on a non-blocking socket, and never blocks.
//
// The connector's first TLS message already proves that it knows the secret. The listener checks
// it before it sends anything, so a stranger who connects gets nothing to test guesses against.
// The connector is done only when the listener has admitted it: what ends a handshake on either
// side is known to both before a frame is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "src/base/file_descriptor.h"
#include "src/control/preface.h"
#include "src/control/tls_stream.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena {

class Handshake {
 public:
  enum class State {
    kInProgress,
    kDone,     // take_socket(), take_stream()
    kRefused,  // by this side, which has told the peer where it may
    kRefusedByPeer,
    kEnded,  // the peer closed the connection, or it broke
  };

  // After TlsStream::prepare(). The secret must outlive the handshake. `version` differs from this
  // library's only in tests.
  Handshake(ControlRole role, FileDescriptor socket, const JobSecret& secret,
            uint16_t version = kControlProtocolVersion);

  // Reads what has arrived, and sends what is due.
  State advance();
  State state() const { return state_; }
  // Whether advance() is due when the socket takes bytes again, not only when it has some.
  bool wants_to_send() const { return stream_ != nullptr && !stream_->all_sent(); }

  // Refuses because of the listener's limits: the time for this handshake is up, or its place is
  // needed.
  void refuse(Refusal refusal);

  // Why the handshake was refused, for the side that this is: "peer" names the other one.
  Status failure(const std::string& peer) const;
  // After a refusal: a listener that is only busy may have time later.
  bool may_succeed_later() const {
    return refusal_ == Refusal::kTooSlow || refusal_ == Refusal::kCrowded;
  }

  int socket() const { return socket_.get(); }
  FileDescriptor take_socket() { return std::move(socket_); }
  std::unique_ptr<TlsStream> take_stream() { return std::move(stream_); }

 private:
  enum class Stage { kPreface, kTls, kAdmission };

  // One step; false where nothing more can be done now.
  bool step();
  bool read_preface();
  void take_hello(const Preface& hello);
  void take_welcome(const Preface& welcome);
  bool do_tls();
  bool read_admission();
  // What the stream's outcome other than kDone means.
  bool stopped_by(TlsStream::Outcome outcome);
  bool end(State state);

  ControlRole role_;
  FileDescriptor socket_;
  const JobSecret* secret_;
  uint16_t version_;
  State state_ = State::kInProgress;
  Stage stage_ = Stage::kPreface;
  Refusal refusal_ = Refusal::kNone;
  uint16_t peer_version_ = 0;

  EncodedPreface input_{};
  size_t input_bytes_ = 0;
  // Of a listener, only once the connector's preface is right: a silent stranger costs little.
  std::unique_ptr<TlsStream> stream_;
  bool spoke_ = false;  // the listener has sent its part of TLS
};

}  // namespace verbena
