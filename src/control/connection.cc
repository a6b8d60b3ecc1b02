#include "verbena/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/virtual_time.h"
#include "src/base/wire.h"
#include "src/control/connection_state.h"
#include "src/control/handshake.h"
#include "src/control/tcp_socket.h"

namespace verbena {

namespace {

constexpr uint64_t kFirstRetryNs = 5'000'000;
constexpr uint64_t kLastRetryNs = 200'000'000;
// With several addresses of a host, none may use up the time of the others.
constexpr int64_t kOneOfManyTimeoutNs = 3'000'000'000;

// What became of one try to connect to one address.
struct Attempt {
  FileDescriptor socket;
  std::unique_ptr<TlsStream> stream;
  Status failure;
  bool again = false;    // the listener may not be up yet
  bool refused = false;  // nobody listens
};

Attempt failed(Status status) { return {{}, nullptr, std::move(status), false, false}; }
Attempt failed_for_now(Status status) { return {{}, nullptr, std::move(status), true, false}; }

Attempt connect_failed(const std::string& peer, int error) {
  if (error == EMFILE || error == ENFILE) {
    return failed(Status(StatusCode::kLimitExceeded,
                         fmt::format("cannot connect to {}: {}; raise the limit of open files "
                                     "(ulimit -n)",
                                     peer, std::strerror(error))));
  }
  const Status status(
      error == EACCES || error == EPERM ? StatusCode::kPermissionDenied : StatusCode::kUnavailable,
      fmt::format("cannot connect to {}: {}; is the other side running, and are host, port and "
                  "firewall right?",
                  peer, std::strerror(error)));
  const bool permanent =
      error == EACCES || error == EPERM || error == EAFNOSUPPORT || error == EINVAL;
  return {{}, nullptr, status, !permanent, error == ECONNREFUSED};
}

Attempt connect_socket(const SocketAddress& address, const Deadline& deadline) {
  const std::string peer = address.name();
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return connect_failed(peer, errno);
  set_connection_options(socket.get());
  if (::connect(socket.get(), address.get(), address.size_bytes) != 0) {
    // Interrupted, it goes on in the background as well.
    if (errno != EINPROGRESS && errno != EINTR) return connect_failed(peer, errno);
    pollfd descriptor{socket.get(), POLLOUT, 0};
    if (poll_until({&descriptor, 1}, deadline) == 0) return connect_failed(peer, ETIMEDOUT);
    int error = 0;
    socklen_t error_size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &error_size);
    if (error != 0) return connect_failed(peer, error);
  }
  // On its own host a socket whose port the system picked can meet itself where nobody listens.
  if (local_address(socket.get()) == peer_address(socket.get())) {
    return connect_failed(peer, ECONNREFUSED);
  }
  return {std::move(socket), nullptr, {}, false, false};
}

Attempt shake_hands(FileDescriptor socket, const std::string& peer, const JobSecret& secret,
                    const Deadline& deadline) {
  Handshake handshake(ControlRole::kConnector, std::move(socket), secret);
  while (true) {
    switch (handshake.advance()) {
      case Handshake::State::kInProgress:
        break;
      case Handshake::State::kDone:
        return {handshake.take_socket(), handshake.take_stream(), {}, false, false};
      case Handshake::State::kRefused:
      case Handshake::State::kRefusedByPeer: {
        const Status why = handshake.failure(peer);
        return handshake.may_succeed_later() ? failed_for_now(why) : failed(why);
      }
      case Handshake::State::kEnded:
        return failed_for_now(
            Status(StatusCode::kUnavailable,
                   fmt::format("{} closed the connection during the handshake; is it a Verbena "
                               "peer, and still running?",
                               peer)));
    }
    const short output_event = handshake.wants_to_send() ? POLLOUT : 0;
    pollfd descriptor{handshake.socket(), static_cast<short>(POLLIN | output_event), 0};
    if (poll_until({&descriptor, 1}, deadline) == 0) {
      return failed_for_now(
          Status(StatusCode::kTimeout,
                 fmt::format("{} took the connection but did not answer; is it a Verbena peer, and "
                             "does it accept now?",
                             peer)));
    }
  }
}

Status not_verified(const std::string& peer, const TlsStream& stream) {
  return Status(StatusCode::kProtocolViolation,
                fmt::format("the connection to {} broke: its bytes do not verify ({}); something "
                            "alters them on the way, or writes to its descriptor",
                            peer, stream.error()));
}

Status hung_up_on(const std::string& peer) {
  return Status(StatusCode::kUnavailable,
                fmt::format("this side has closed the connection to {}", peer));
}

// In front of a value's bytes.
constexpr size_t kTypeBytes = 4;

std::string simulated_name(uint16_t port) { return fmt::format("simulated:{}", port); }

}  // namespace

Status ControlConnection::State::ended() const {
  if (hung_up) return hung_up_on(peer_name);
  const char* const what = stream->system_error() != 0
                               ? std::strerror(stream->system_error())
                               : "it did not close the connection; did its process die?";
  return Status(StatusCode::kUnavailable, fmt::format("peer {} is gone: {}", peer_name, what));
}

void ControlConnection::State::adapt_silence_limit() {
  const bool all_left = stream->all_sent() && nothing_waits_to_leave(socket.get());
  if (patient != all_left) return;
  patient = !all_left;
  set_silence_limit(socket.get(), patient ? kNoSilenceLimit : kHostSilenceLimitNs);
}

ControlConnection::ControlConnection(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlConnection::ControlConnection(ControlConnection&&) noexcept = default;
ControlConnection& ControlConnection::operator=(ControlConnection&&) noexcept = default;
ControlConnection::~ControlConnection() = default;

const std::string& ControlConnection::peer_name() const { return state_->peer_name; }
int ControlConnection::descriptor() const { return state_->socket.get(); }

Result<ControlConnection> ControlConnection::connect(const std::string& host, uint16_t port,
                                                     const JobSecret& secret, int64_t timeout_ns,
                                                     IfNobodyListens absent) {
  if (port == 0) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot connect to {}: nobody listens on port 0", host));
  }
  if (VirtualTime::current() != nullptr) {
    const bool waits = absent == IfNobodyListens::kTryAgain;
    std::unique_ptr<VirtualLink::End> link = VirtualPort::connect(port, waits ? timeout_ns : 0);
    if (link != nullptr) {
      return ControlConnection(std::make_unique<State>(std::move(link), simulated_name(port)));
    }
    if (!waits) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("nobody listens on port {} of the simulation", port));
    }
    return Status(StatusCode::kTimeout, fmt::format("nobody listened on port {} of the simulation "
                                                    "within {} ms",
                                                    port, timeout_ns / 1'000'000));
  }
  VERBENA_RETURN_IF_ERROR(TlsStream::prepare());
  const Deadline deadline(timeout_ns);
  VERBENA_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, resolve(host, port, false));
  uint64_t retry_ns = kFirstRetryNs;
  while (true) {
    Status failure;
    Status refusal;
    bool again = false;
    bool nobody_listens = absent == IfNobodyListens::kFail;
    for (const SocketAddress& address : addresses) {
      const Deadline address_deadline =
          addresses.size() == 1 ? deadline : deadline.earlier(Deadline(kOneOfManyTimeoutNs));
      Attempt attempt = connect_socket(address, address_deadline);
      if (attempt.socket.valid()) {
        attempt = shake_hands(std::move(attempt.socket), address.name(), secret, address_deadline);
        if (attempt.stream != nullptr) {
          return ControlConnection(std::make_unique<State>(
              std::move(attempt.socket), std::move(attempt.stream), address.name()));
        }
        if (!attempt.again) refusal = attempt.failure;
      }
      again = again || attempt.again;
      nobody_listens = nobody_listens && attempt.refused;
      failure = attempt.failure;
    }
    // Who answered and refused will refuse again; that says more than another address where nobody
    // is.
    if (!refusal.ok()) return refusal;
    if (!again || nobody_listens) return failure;
    if (deadline.expired()) {
      return Status(StatusCode::kTimeout, fmt::format("no connection within {} ms: {}",
                                                      timeout_ns / 1'000'000, failure.message()));
    }
    sleep_ns(std::min(retry_ns, static_cast<uint64_t>(deadline.remaining_ns())));
    retry_ns = std::min(2 * retry_ns, kLastRetryNs);
  }
}

Status ControlConnection::send(std::span<const std::byte> frame, int64_t timeout_ns) {
  State& state = *state_;
  if (!state.send_broken.ok()) return state.send_broken.get();
  if (frame.size() > kMaxControlFrameBytes) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format("a control frame of {} bytes was asked for, the limit is {}; split it",
                    frame.size(), kMaxControlFrameBytes));
  }
  if (state.link != nullptr) {
    if (state.link->send(frame)) return Status::ok_status();
    return state.send_broken =
               Status(StatusCode::kUnavailable, fmt::format("peer {} is gone", state.peer_name));
  }
  // Record by record, so that no long frame is in memory twice. The first has the header.
  size_t encrypted = std::min(frame.size(), TlsStream::kMaxRecordBytes - kFrameHeaderBytes);
  std::vector<std::byte> first(kFrameHeaderBytes + encrypted);
  store_little_endian(first.data(), static_cast<uint32_t>(frame.size()));
  std::copy_n(frame.begin(), encrypted, first.begin() + kFrameHeaderBytes);
  std::span<const std::byte> record = first;
  const Deadline deadline(timeout_ns);
  while (true) {
    if (state.stream->write(record) != TlsStream::Outcome::kDone) {
      return state.send_broken = not_verified(state.peer_name, *state.stream);
    }
    while (true) {
      if (!state.stream->flush()) {
        return state.send_broken = Status(StatusCode::kUnavailable,
                                          fmt::format("peer {} is gone: {}", state.peer_name,
                                                      std::strerror(state.stream->system_error())));
      }
      state.adapt_silence_limit();
      if (state.stream->all_sent()) break;
      pollfd descriptor{state.socket.get(), POLLOUT, 0};
      if (poll_until({&descriptor, 1}, deadline) == 0) {
        return state.send_broken = Status(
                   StatusCode::kTimeout,
                   fmt::format("peer {} did not read the whole of a frame of {} bytes within "
                               "{} ms; is it stuck?",
                               state.peer_name, frame.size(), timeout_ns / 1'000'000));
      }
    }
    if (encrypted == frame.size()) return Status::ok_status();
    record = frame.subspan(encrypted);
    record = record.first(std::min(record.size(), TlsStream::kMaxRecordBytes));
    encrypted += record.size();
  }
}

Result<std::vector<std::byte>> ControlConnection::receive(int64_t timeout_ns) {
  State& state = *state_;
  if (!state.receive_broken.ok()) return state.receive_broken.get();
  if (state.link != nullptr) {
    std::vector<std::byte> frame;
    const StatusCode code = state.link->receive(timeout_ns, &frame);
    if (code == StatusCode::kOk) return frame;
    if (code == StatusCode::kTimeout) {
      return Status(code, fmt::format("peer {} sent no whole frame within {} ms", state.peer_name,
                                      timeout_ns / 1'000'000));
    }
    return state.receive_broken =
               Status(code, fmt::format("peer {} closed the connection", state.peer_name));
  }
  const Deadline deadline(timeout_ns);
  State::Arriving& arriving = *state.arriving;
  while (true) {
    const bool in_header = arriving.header_bytes < kFrameHeaderBytes;
    if (!in_header && arriving.body_bytes == arriving.body.size()) {
      // Whatever followed in the same record poll() would not tell of.
      if (!state.stream->at_record_end()) {
        return state.receive_broken = Status(
                   StatusCode::kProtocolViolation,
                   fmt::format("peer {} sent more than a frame at a time; run the same release "
                               "on both sides",
                               state.peer_name));
      }
      arriving.header_bytes = 0;
      arriving.body_bytes = 0;
      return std::exchange(arriving.body, {});
    }
    const std::span<std::byte> to = in_header
                                        ? std::span(arriving.header).subspan(arriving.header_bytes)
                                        : std::span(arriving.body).subspan(arriving.body_bytes);
    size_t got = 0;
    switch (state.stream->read(to, &got)) {
      case TlsStream::Outcome::kDone:
        break;
      case TlsStream::Outcome::kWait: {
        if (state.patient) state.adapt_silence_limit();
        const Deadline until =
            state.patient ? deadline.earlier(Deadline(kHostSilenceLimitNs)) : deadline;
        pollfd descriptor{state.socket.get(), POLLIN, 0};
        if (poll_until({&descriptor, 1}, until) > 0 || !deadline.expired()) continue;
        return Status(StatusCode::kTimeout, fmt::format("peer {} sent no whole frame within {} ms",
                                                        state.peer_name, timeout_ns / 1'000'000));
      }
      case TlsStream::Outcome::kClosed:
        return state.receive_broken =
                   Status(StatusCode::kUnavailable,
                          fmt::format("peer {} closed the connection", state.peer_name));
      case TlsStream::Outcome::kEnded:
        return state.receive_broken = state.ended();
      case TlsStream::Outcome::kFailed:
        // The peer learns why, where it still listens.
        state.stream->flush();
        return state.receive_broken = not_verified(state.peer_name, *state.stream);
    }
    if (!in_header) {
      arriving.body_bytes += got;
      continue;
    }
    arriving.header_bytes += got;
    if (arriving.header_bytes < kFrameHeaderBytes) continue;
    const auto frame_bytes = load_little_endian<uint32_t>(arriving.header.data());
    if (frame_bytes > kMaxControlFrameBytes) {
      return state.receive_broken = Status(
                 StatusCode::kProtocolViolation,
                 fmt::format("peer {} announced a frame of {} bytes, the limit is {}; run the "
                             "same release on both sides",
                             state.peer_name, frame_bytes, kMaxControlFrameBytes));
    }
    arriving.body.resize(frame_bytes);
  }
}

void ControlConnection::hang_up() {
  State& state = *state_;
  if (state.link != nullptr) return state.link->close();
  state.stream->close_notify();
  shutdown(state.socket.get(), SHUT_RDWR);
  state.hung_up = true;
  if (state.send_broken.ok()) state.send_broken = hung_up_on(state.peer_name);
}

bool ControlConnection::peer_closed() const {
  if (state_->receive_broken.code() == StatusCode::kUnavailable ||
      state_->send_broken.code() == StatusCode::kUnavailable) {
    return true;
  }
  if (state_->link != nullptr) return state_->link->peer_closed();
  if (state_->patient) state_->adapt_silence_limit();
  pollfd descriptor{state_->socket.get(), POLLRDHUP, 0};
  return poll(&descriptor, 1, 0) == 1 &&
         (descriptor.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

Status ControlConnection::send_typed(uint32_t type, const void* value, size_t size_bytes,
                                     int64_t timeout_ns) {
  std::array<std::byte, kTypeBytes + kMaxValueBytes> frame;
  store_little_endian(frame.data(), type);
  std::memcpy(frame.data() + kTypeBytes, value, size_bytes);
  return send(std::span(frame).first(kTypeBytes + size_bytes), timeout_ns);
}

Status ControlConnection::receive_typed(uint32_t type, void* value, size_t size_bytes,
                                        int64_t timeout_ns) {
  VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> frame, receive(timeout_ns));
  const bool has_type = frame.size() >= kTypeBytes;
  const uint32_t peer_type = has_type ? load_little_endian<uint32_t>(frame.data()) : 0;
  if (!has_type || peer_type != type || frame.size() != kTypeBytes + size_bytes) {
    return state_->receive_broken = Status(
               StatusCode::kProtocolViolation,
               has_type ? fmt::format("peer {} sent a value of type {} and {} bytes, expected "
                                      "was type {} and {} bytes; run the same release on both "
                                      "sides",
                                      peer_name(), peer_type, frame.size() - kTypeBytes, type,
                                      size_bytes)
                        : fmt::format("peer {} sent a frame of {} bytes where a value of type "
                                      "{} and {} bytes was expected",
                                      peer_name(), frame.size(), type, size_bytes));
  }
  std::memcpy(value, frame.data() + kTypeBytes, size_bytes);
  return Status::ok_status();
}

}  // namespace verbena
