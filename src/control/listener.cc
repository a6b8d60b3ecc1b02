#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/base/virtual_time.h"
#include "src/control/connection_state.h"
#include "src/control/handshake.h"
#include "src/control/tcp_socket.h"
#include "verbena/connection.h"

namespace verbena {

namespace {

// While all places are taken, a handshake that has taken that long is dropped for the next in the
// queue. A genuine peer needs two round trips.
constexpr uint64_t kGraceNs = 250'000'000;
// A refused peer has that long to read why and close: closing at once could take the reason from
// its socket.
constexpr uint64_t kFarewellNs = 200'000'000;
constexpr size_t kFarewellBytes = size_t{64} << 10;
// Descriptors that are missing no longer than that may come back, and peers wait for them.
constexpr uint64_t kShortageNs = 500'000'000;
constexpr uint32_t kRefusalLines = 5;
constexpr uint64_t kRefusalLinesPeriodNs = 5'000'000'000;

// One handshake under way.
struct Pending {
  Handshake handshake;
  std::string peer;
  uint64_t since_ns;
  uint64_t end_ns;
  bool finished = false;  // its place is free again
  bool leaving = false;   // refused; only waits for the peer to close
  size_t farewell_bytes = 0;

  uint64_t evictable_ns() const { return leaving ? since_ns : since_ns + kGraceNs; }
};

Status listen_failed(const std::string& name, int error) {
  switch (error) {
    case EADDRINUSE:
      return Status(StatusCode::kUnavailable,
                    fmt::format("port in use: another process listens on {}; choose another port, "
                                "or 0 for a free one",
                                name));
    case EACCES:
    case EPERM:
      return Status(StatusCode::kPermissionDenied,
                    fmt::format("not allowed to listen on {}: {}; choose a port above 1023", name,
                                std::strerror(error)));
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("cannot listen on {}: {}; choose an address of this host, or "
                                "0.0.0.0 for all",
                                name, std::strerror(error)));
    case EMFILE:
    case ENFILE:
      return Status(
          StatusCode::kLimitExceeded,
          fmt::format("cannot listen on {}: {}; raise the limit of open files (ulimit -n)", name,
                      std::strerror(error)));
    default:
      return Status(StatusCode::kUnavailable,
                    fmt::format("cannot listen on {}: {}", name, std::strerror(error)));
  }
}

Result<FileDescriptor> listen_on(const SocketAddress& address) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return listen_failed(address.name(), errno);
  const int on = 1;
  const int off = 0;
  // A port whose last connections are still in TIME_WAIT is free.
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // "::" serves IPv4 as well.
  if (address.family() == AF_INET6) {
    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (bind(socket.get(), address.get(), address.size_bytes) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return listen_failed(address.name(), errno);
  }
  return socket;
}

}  // namespace

struct ControlListener::State {
  State(FileDescriptor socket_in, const JobSecret& secret_in,
        const ControlListenerOptions& options_in)
      : socket(std::move(socket_in)),
        address(local_address(socket.get())),
        name(address.name()),
        secret(secret_in),
        options(options_in) {
    keep_spare();
    pending.reserve(options.max_pending);
    descriptors.reserve(options.max_pending + 1);
  }

  // Inside a simulation there are neither sockets nor strangers.
  State(std::unique_ptr<VirtualPort> port_in, const JobSecret& secret_in)
      : virtual_port(std::move(port_in)),
        name(fmt::format("simulated:{}", virtual_port->port())),
        secret(secret_in) {}

  // The next that has proved that it has the secret.
  Status accept(int64_t timeout_ns, std::unique_ptr<ControlConnection::State>* accepted);
  // Handshakes stand still while nobody accepts, so that time is not the peers'.
  void go_on();
  // One poll() over all pending handshakes and the listening socket, at most until `deadline`.
  void wait(const Deadline& deadline);
  // Reads what the peers sent. The first that has proved that it has the secret.
  std::unique_ptr<ControlConnection::State> advance_all();
  // Reads what one peer sent; true once it has proved that it has the secret.
  bool advance(Pending& peer);
  // Takes new connections off the system's queue while there are places.
  Status take_new();
  void end_overdue();
  // Tells the next in the queue that no descriptor is left, by the spare one.
  void refuse_for_shortage(uint64_t at_ns);
  // Where the spare descriptor is in use, the one that has just been closed replaces it.
  void keep_spare() {
    if (!spare.valid()) spare = FileDescriptor(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  }

  bool crowded() const { return pending.size() >= places; }
  bool room_for_more(uint64_t at_ns) const;
  bool anybody_waits() const {
    pollfd waiting{socket.get(), POLLIN, 0};
    return poll(&waiting, 1, 0) == 1;
  }
  // Makes a place free; false where no handshake may be dropped yet.
  bool evict_one(uint64_t at_ns);
  uint64_t next_event_ns(uint64_t at_ns) const;
  void refuse(Pending& stranger, Refusal refusal);
  // Waits for the peer to read the reason and to close.
  void leave(Pending& stranger);
  void drain(Pending& stranger);
  void log_failure(const Pending& stranger);
  void forget_finished() {
    if (std::erase_if(pending, [](const Pending& peer) { return peer.finished; }) > 0) {
      places = options.max_pending;
      keep_spare();
    }
  }

  FileDescriptor socket;
  FileDescriptor spare;            // by it, peers are told that no descriptor is left
  uint64_t shortage_since_ns = 0;  // 0: the last connection found a descriptor
  uint64_t left_ns = 0;            // when accept() last returned
  SocketAddress address;
  std::unique_ptr<VirtualPort> virtual_port;
  std::string name;
  JobSecret secret;
  ControlListenerOptions options;
  size_t places = options.max_pending;  // for handshakes; fewer where descriptors run out
  std::vector<Pending> pending;         // oldest first
  std::vector<pollfd> descriptors;
  LogRateLimit refusal_lines{kRefusalLines, kRefusalLinesPeriodNs};
};

void ControlListener::State::log_failure(const Pending& stranger) {
  uint64_t suppressed = 0;
  if (!refusal_lines.allow(now_ns(), &suppressed)) return;
  const Status why = stranger.handshake.failure(stranger.peer);
  if (suppressed > 0) {
    log_warning("{}: no connection: {} (and {} more since the last such line)", name, why.message(),
                suppressed);
  } else {
    log_warning("{}: no connection: {}", name, why.message());
  }
}

void ControlListener::State::leave(Pending& stranger) {
  log_failure(stranger);
  shutdown(stranger.handshake.socket(), SHUT_WR);
  stranger.leaving = true;
  stranger.end_ns = now_ns() + kFarewellNs;
}

void ControlListener::State::refuse(Pending& stranger, Refusal refusal) {
  stranger.handshake.refuse(refusal);
  leave(stranger);
}

bool ControlListener::State::advance(Pending& peer) {
  if (peer.leaving) {
    drain(peer);
    return false;
  }
  switch (peer.handshake.advance()) {
    case Handshake::State::kInProgress:
      return false;
    case Handshake::State::kDone:
      peer.finished = true;
      return true;
    case Handshake::State::kEnded:
      log_info("{}: {} left during the handshake", name, peer.peer);
      peer.finished = true;
      return false;
    case Handshake::State::kRefused:
    case Handshake::State::kRefusedByPeer:
      leave(peer);
      drain(peer);
      return false;
  }
  return false;
}

void ControlListener::State::drain(Pending& stranger) {
  std::array<std::byte, 512> bytes;
  while (!stranger.finished) {
    const ssize_t got = recv(stranger.handshake.socket(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got > 0) stranger.farewell_bytes += static_cast<size_t>(got);
    stranger.finished = got <= 0 || stranger.farewell_bytes >= kFarewellBytes;
  }
}

void ControlListener::State::wait(const Deadline& deadline) {
  descriptors.clear();
  for (const Pending& peer : pending) {
    descriptors.push_back({peer.handshake.socket(), POLLIN, 0});
  }
  const uint64_t at_ns = now_ns();
  // Last, and a negative descriptor is passed over.
  descriptors.push_back({room_for_more(at_ns) ? socket.get() : -1, POLLIN, 0});
  poll_until(descriptors, deadline.earlier(Deadline::at(next_event_ns(at_ns))));
}

Status ControlListener::State::accept(int64_t timeout_ns,
                                      std::unique_ptr<ControlConnection::State>* accepted) {
  const Deadline deadline(timeout_ns);
  while (true) {
    wait(deadline);
    *accepted = advance_all();
    if (*accepted != nullptr) return Status::ok_status();
    VERBENA_RETURN_IF_ERROR(take_new());
    // After what had arrived was handled: this thread may have been away for long.
    end_overdue();
    if (deadline.expired()) {
      return Status(StatusCode::kTimeout,
                    fmt::format("no peer of this job connected to {} within {} ms; {} handshakes "
                                "are under way",
                                name, timeout_ns / 1'000'000, pending.size()));
    }
  }
}

void ControlListener::State::go_on() {
  if (pending.empty()) return;
  const uint64_t away_ns = now_ns() - left_ns;
  for (Pending& peer : pending) {
    peer.since_ns += away_ns;
    peer.end_ns += away_ns;
  }
}

std::unique_ptr<ControlConnection::State> ControlListener::State::advance_all() {
  std::unique_ptr<ControlConnection::State> accepted;
  for (size_t i = 0; i < pending.size() && accepted == nullptr; ++i) {
    if (descriptors[i].revents == 0 || !advance(pending[i])) continue;
    accepted = std::make_unique<ControlConnection::State>(
        pending[i].handshake.take_socket(), pending[i].handshake.take_stream(), pending[i].peer);
  }
  forget_finished();
  return accepted;
}

Status ControlListener::State::take_new() {
  if (descriptors.back().revents == 0) return Status::ok_status();
  // As many at a time as there are places: a flood of strangers does not delay pending handshakes.
  for (size_t i = 0; i < options.max_pending; ++i) {
    const uint64_t at_ns = now_ns();
    if (!room_for_more(at_ns)) return Status::ok_status();
    if (crowded()) {
      // First, since its descriptor may be the one that the next needs.
      if (!anybody_waits()) return Status::ok_status();
      evict_one(at_ns);
    }
    SocketAddress peer;
    peer.size_bytes = sizeof(peer.storage);
    FileDescriptor accepted(
        accept4(socket.get(), peer.get(), &peer.size_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!accepted.valid()) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK) return Status::ok_status();
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        // The system takes a descriptor before it checks whether a connection waits.
        if (!anybody_waits()) return Status::ok_status();
        // Pending ones may be genuine, and get their time; those that exceed it are dropped then.
        if (!pending.empty()) {
          places = pending.size();
          return Status::ok_status();
        }
        refuse_for_shortage(at_ns);
        return Status(StatusCode::kLimitExceeded,
                      fmt::format("cannot accept a connection on {}: {}; raise the limit of open "
                                  "files (ulimit -n)",
                                  name, std::strerror(error)));
      }
      // Interrupted, or the peer closed it before it was accepted.
      continue;
    }
    shortage_since_ns = 0;
    keep_spare();
    set_connection_options(accepted.get());
    pending.push_back({.handshake = Handshake(ControlRole::kListener, std::move(accepted), secret),
                       .peer = peer.name(),
                       .since_ns = at_ns,
                       .end_ns = at_ns + static_cast<uint64_t>(options.handshake_timeout_ns)});
  }
  return Status::ok_status();
}

void ControlListener::State::refuse_for_shortage(uint64_t at_ns) {
  if (shortage_since_ns == 0) shortage_since_ns = at_ns;
  if (at_ns - shortage_since_ns < kShortageNs || !spare.valid()) return;
  spare.reset();
  SocketAddress peer;
  peer.size_bytes = sizeof(peer.storage);
  FileDescriptor accepted(
      accept4(socket.get(), peer.get(), &peer.size_bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!accepted.valid()) return keep_spare();
  pending.push_back({.handshake = Handshake(ControlRole::kListener, std::move(accepted), secret),
                     .peer = peer.name(),
                     .since_ns = at_ns,
                     .end_ns = at_ns});
  refuse(pending.back(), Refusal::kNoDescriptors);
}

void ControlListener::State::end_overdue() {
  const uint64_t at_ns = now_ns();
  for (Pending& peer : pending) {
    if (at_ns < peer.end_ns) continue;
    if (peer.leaving) {
      peer.finished = true;
    } else {
      refuse(peer, Refusal::kTooSlow);
    }
  }
  forget_finished();
}

bool ControlListener::State::room_for_more(uint64_t at_ns) const {
  return !crowded() || std::any_of(pending.begin(), pending.end(), [at_ns](const Pending& peer) {
    return peer.evictable_ns() <= at_ns;
  });
}

bool ControlListener::State::evict_one(uint64_t at_ns) {
  const auto next = std::min_element(
      pending.begin(), pending.end(),
      [](const Pending& a, const Pending& b) { return a.evictable_ns() < b.evictable_ns(); });
  if (next == pending.end() || next->evictable_ns() > at_ns) return false;
  if (!next->leaving) refuse(*next, Refusal::kCrowded);
  pending.erase(next);
  keep_spare();
  return true;
}

// When something is due without an event of a peer: a deadline, or a place that becomes free.
uint64_t ControlListener::State::next_event_ns(uint64_t at_ns) const {
  uint64_t next_ns = UINT64_MAX;
  for (const Pending& peer : pending) {
    next_ns = std::min(next_ns, peer.end_ns);
    if (crowded() && peer.evictable_ns() > at_ns) next_ns = std::min(next_ns, peer.evictable_ns());
  }
  return next_ns;
}

ControlListener::ControlListener(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlListener::ControlListener(ControlListener&&) noexcept = default;
ControlListener& ControlListener::operator=(ControlListener&&) noexcept = default;
ControlListener::~ControlListener() = default;

uint16_t ControlListener::port() const {
  return state_->virtual_port != nullptr ? state_->virtual_port->port() : state_->address.port();
}
const std::string& ControlListener::name() const { return state_->name; }

Result<ControlListener> ControlListener::listen(const std::string& address, uint16_t port,
                                                const JobSecret& secret,
                                                const ControlListenerOptions& options) {
  constexpr size_t kMostPending = 4096;
  constexpr int64_t kLongestHandshakeNs = 3'600'000'000'000;
  if (options.max_pending < 1 || options.max_pending > kMostPending ||
      options.handshake_timeout_ns < 1 || options.handshake_timeout_ns > kLongestHandshakeNs) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a listener for {} pending handshakes of {} ns was asked for; there "
                              "can be 1 to {}, each of 1 to {} ns",
                              options.max_pending, options.handshake_timeout_ns, kMostPending,
                              kLongestHandshakeNs));
  }
  if (VirtualTime::current() != nullptr) {
    std::unique_ptr<VirtualPort> virtual_port = VirtualPort::listen(port);
    if (virtual_port != nullptr) {
      return ControlListener(std::make_unique<State>(std::move(virtual_port), secret));
    }
    return Status(StatusCode::kUnavailable,
                  fmt::format("port {} of the simulation is in use, or none is left", port));
  }
  VERBENA_RETURN_IF_ERROR(TlsStream::prepare());
  VERBENA_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses,
                           resolve(address, port, true));
  Status failure;
  for (const SocketAddress& candidate : addresses) {
    Result<FileDescriptor> socket = listen_on(candidate);
    if (socket.ok()) {
      return ControlListener(std::make_unique<State>(std::move(socket).value(), secret, options));
    }
    // Of several reasons, the one about the first address is what the caller meant.
    if (failure.ok()) failure = socket.status();
  }
  return failure;
}

Result<ControlConnection> ControlListener::accept(int64_t timeout_ns) {
  State& state = *state_;
  if (state.virtual_port != nullptr) {
    std::unique_ptr<VirtualLink::End> link = state.virtual_port->accept(timeout_ns);
    if (link != nullptr) {
      return ControlConnection(
          std::make_unique<ControlConnection::State>(std::move(link), state.name));
    }
    return Status(StatusCode::kTimeout, fmt::format("nobody connected to {} within {} ms",
                                                    state.name, timeout_ns / 1'000'000));
  }
  state.go_on();
  std::unique_ptr<ControlConnection::State> accepted;
  const Status status = state.accept(timeout_ns, &accepted);
  state.left_ns = now_ns();
  VERBENA_RETURN_IF_ERROR(status);
  log_debug("{}: {} connected", state.name, accepted->peer_name);
  return ControlConnection(std::move(accepted));
}

}  // namespace verbena
