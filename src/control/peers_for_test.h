// Peers, strangers and what lies between them, in the hands of tests of control connections.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/control/handshake.h"
#include "src/control/preface.h"
#include "src/control/tcp_socket.h"
#include "src/control/tls_stream.h"
#include "verbena/connection.h"

namespace verbena {

// Long enough that no test that passes waits for it.
inline constexpr int64_t kLongNs = 60'000'000'000;
inline constexpr int64_t kHourNs = 3'600'000'000'000;

inline JobSecret secret() { return *JobSecret::from_string("the secret of this job"); }
inline JobSecret other_secret() { return *JobSecret::from_string("the secret of that job"); }

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A frame as it is before it is encrypted.
inline std::vector<std::byte> frame_of(uint32_t announced, std::string_view body) {
  std::vector<std::byte> bytes(4);
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(announced >> (8 * i));
  const std::vector<std::byte> rest = bytes_of(body);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}
inline std::vector<std::byte> frame_of(std::string_view body) {
  return frame_of(static_cast<uint32_t>(body.size()), body);
}

// A program that speaks TCP, but not the control protocol.
class Stranger {
 public:
  explicit Stranger(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  explicit Stranger(FileDescriptor socket) : socket_(std::move(socket)), connected_(true) {}

  bool connected() const { return connected_; }
  int socket() const { return socket_.get(); }
  FileDescriptor take_socket() { return std::move(socket_); }
  // False where the other side has closed already.
  bool say(std::span<const std::byte> bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool say(std::string_view text) { return say(std::as_bytes(std::span(text))); }
  // The next `size` bytes, or what came before the other side closed.
  std::vector<std::byte> hear(size_t size) {
    std::vector<std::byte> bytes(size);
    size_t heard = 0;
    while (heard < size) {
      const ssize_t got = recv(socket_.get(), bytes.data() + heard, size - heard, 0);
      if (got <= 0) break;
      heard += static_cast<size_t>(got);
    }
    bytes.resize(heard);
    return bytes;
  }
  // What is there now, perhaps nothing.
  std::vector<std::byte> hear_available() {
    std::vector<std::byte> bytes;
    std::byte some[4096];
    ssize_t got = 0;
    while ((got = recv(socket_.get(), some, sizeof(some), MSG_DONTWAIT)) > 0) {
      bytes.insert(bytes.end(), some, some + got);
    }
    return bytes;
  }
  std::optional<Preface> hear_preface() {
    const std::vector<std::byte> heard = hear(kPrefaceBytes);
    EncodedPreface bytes;
    Preface preface;
    if (heard.size() != bytes.size()) return std::nullopt;
    std::copy(heard.begin(), heard.end(), bytes.begin());
    if (!decode_preface(bytes, &preface)) return std::nullopt;
    return preface;
  }
  bool other_side_is_silent() const {
    std::byte byte;
    return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  void reset_on_close() {
    const linger now{1, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  void close() { socket_.reset(); }

 private:
  FileDescriptor socket_;
  bool connected_ = false;
};

// Two sockets that are connected with each other.
inline std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// One side of a handshake whose every byte, to and from, passes the test.
struct TappedHandshake {
  TappedHandshake(ControlRole role, const JobSecret& key,
                  uint16_t version = kControlProtocolVersion)
      : TappedHandshake(socket_pair(), role, key, version) {}

  // What it says next, as long as it says something.
  std::vector<std::byte> next_output() {
    handshake.advance();
    return tap.hear_available();
  }
  void take(std::span<const std::byte> bytes) {
    tap.say(bytes);
    handshake.advance();
  }

  Handshake handshake;
  Stranger tap;

 private:
  TappedHandshake(std::pair<FileDescriptor, FileDescriptor> ends, ControlRole role,
                  const JobSecret& key, uint16_t version)
      : handshake(role, std::move(ends.first), key, version), tap(std::move(ends.second)) {}
};

// What a connector with this key says first.
inline std::vector<std::byte> first_words(const JobSecret& key,
                                          uint16_t version = kControlProtocolVersion) {
  TappedHandshake connector(ControlRole::kConnector, key, version);
  return connector.next_output();
}

// A port that is taken but where nobody listens: whoever connects is refused, and a ControlListener
// can still have it.
class QuietPort {
 public:
  QuietPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // Linux shares a port between sockets that allow it as long as none of them listens.
    const int on = 1;
    setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  uint16_t port() const { return local_address(socket_.get()).port(); }

 private:
  FileDescriptor socket_;
};

// A port where anything may listen: a listener of its own, for playing a peer byte by byte.
class BareListener {
 public:
  BareListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket_.get(), 16), 0);
  }
  uint16_t port() const { return local_address(socket_.get()).port(); }
  Stranger accept() {
    return Stranger(FileDescriptor(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

 private:
  FileDescriptor socket_;
};

// A connect() that goes on beside the test.
class Connecting {
 public:
  Connecting(uint16_t port, const JobSecret& key)
      : thread_(start_thread("connector", [this, port, key] {
          result_ = ControlConnection::connect("127.0.0.1", port, key, kLongNs);
        })) {}
  Result<ControlConnection> finish() {
    thread_.join();
    return *std::move(result_);
  }
  Status refusal() {
    const Result<ControlConnection> result = finish();
    EXPECT_FALSE(result.ok());
    return result.status();
  }

 private:
  std::optional<Result<ControlConnection>> result_;
  Thread thread_;
};

// Both ends of a connection inside this process.
struct Pair {
  ControlConnection here;
  ControlConnection there;
};

inline Pair connect_pair(ControlListener& listener, const char* host = "127.0.0.1") {
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect(host, listener.port(), secret(), kLongNs);
  });
  Result<ControlConnection> accepted = listener.accept(kLongNs);
  thread.join();
  EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
  return {std::move(accepted).value(), std::move(*connected).value()};
}

inline Pair connect_pair() {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  return connect_pair(listener);
}

// A peer that holds the secret and says what the test wants: any bytes in TLS, and those altered,
// cut and in another order on their way.
class RawPeer {
 public:
  // Takes the part of the listener on `wire`.
  explicit RawPeer(Stranger wire)
      : key_(secret()), wire_(std::move(wire)), side_(ControlRole::kListener, key_) {
    Handshake& handshake = side_.handshake;
    while (handshake.advance() == Handshake::State::kInProgress) {
      wire_.say(side_.tap.hear_available());
      pollfd more{wire_.socket(), POLLIN, 0};
      poll_until({&more, 1}, Deadline(kLongNs));
      const std::vector<std::byte> heard = wire_.hear_available();
      if (heard.empty()) break;
      side_.tap.say(heard);
    }
    wire_.say(side_.tap.hear_available());
    EXPECT_EQ(handshake.state(), Handshake::State::kDone);
    socket_ = handshake.take_socket();
    stream_ = handshake.take_stream();
  }

  // The records that carry `bytes`.
  std::vector<std::byte> encrypt(std::span<const std::byte> bytes) {
    EXPECT_EQ(stream_->write(bytes), TlsStream::Outcome::kDone);
    EXPECT_TRUE(stream_->flush() && stream_->all_sent());
    return side_.tap.hear_available();
  }
  std::vector<std::byte> close_notify() {
    stream_->close_notify();
    return side_.tap.hear_available();
  }
  void say(std::span<const std::byte> bytes) { wire_.say(encrypt(bytes)); }
  // Waits for something from the other side, and reads it.
  TlsStream::Outcome hear(std::span<std::byte> to, size_t* got) {
    side_.tap.say(wire_.hear(1));
    side_.tap.say(wire_.hear_available());
    return stream_->read(to, got);
  }
  Stranger& wire() { return wire_; }
  const TlsStream& stream() const { return *stream_; }

 private:
  JobSecret key_;
  Stranger wire_;
  TappedHandshake side_;
  FileDescriptor socket_;
  std::unique_ptr<TlsStream> stream_;
};

// A connection whose other end is in the hands of the test.
struct RawPair {
  ControlConnection connection;
  RawPeer raw;
};

inline RawPair connect_raw() {
  BareListener listener;
  Connecting connecting(listener.port(), secret());
  RawPeer raw(listener.accept());
  Result<ControlConnection> connection = connecting.finish();
  EXPECT_TRUE(connection.ok()) << connection.status().message();
  return {std::move(connection).value(), std::move(raw)};
}

// Accepts until the listener is destroyed, so that strangers get their answers.
class AcceptingListener {
 public:
  explicit AcceptingListener(const ControlListenerOptions& options = {})
      : listener_(*ControlListener::listen("127.0.0.1", 0, secret(), options)),
        port_(listener_.port()),
        thread_(start_thread("listener", [this] {
          while (!stop_.load()) {
            Result<ControlConnection> accepted = listener_.accept(10'000'000);
            if (accepted.ok()) accepted_.push_back(std::move(accepted).value());
          }
        })) {}
  ~AcceptingListener() { stop(); }
  void stop() {
    stop_.store(true);
    thread_.join();
  }
  uint16_t port() const { return port_; }
  // After stop().
  const std::vector<ControlConnection>& accepted() const { return accepted_; }

 private:
  std::atomic<bool> stop_{false};
  ControlListener listener_;
  uint16_t port_;
  std::vector<ControlConnection> accepted_;
  Thread thread_;
};

// Refusals are expected; they would fill the test's output.
class QuietLogTest : public testing::Test {
 protected:
  void SetUp() override {
    level_ = log_level();
    set_log_level(LogLevel::kOff);
  }
  void TearDown() override { set_log_level(level_); }

 private:
  LogLevel level_ = LogLevel::kWarning;
};

}  // namespace verbena
