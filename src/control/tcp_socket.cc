#include "src/control/tcp_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "src/base/runtime.h"

namespace verbena {

Deadline::Deadline(int64_t timeout_ns) {
  if (timeout_ns < 0) return;
  const uint64_t start_ns = now_ns();
  end_ns_ = start_ns + std::min(static_cast<uint64_t>(timeout_ns), UINT64_MAX - start_ns);
}

Deadline Deadline::at(uint64_t end_ns) {
  Deadline deadline(-1);
  deadline.end_ns_ = end_ns;
  return deadline;
}

bool Deadline::expired() const { return end_ns_ != UINT64_MAX && now_ns() >= end_ns_; }

int64_t Deadline::remaining_ns() const {
  if (end_ns_ == UINT64_MAX) return INT64_MAX;
  const uint64_t at_ns = now_ns();
  if (at_ns >= end_ns_) return 0;
  return static_cast<int64_t>(std::min<uint64_t>(end_ns_ - at_ns, INT64_MAX));
}

Deadline Deadline::earlier(const Deadline& other) const {
  return end_ns_ <= other.end_ns_ ? *this : other;
}

std::string SocketAddress::name() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET6) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &address->sin6_addr, host, sizeof(host));
  } else if (family() == AF_INET) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &address->sin_addr, host, sizeof(host));
  }
  return endpoint_name(host, port());
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return 0;
}

bool SocketAddress::operator==(const SocketAddress& other) const {
  return size_bytes == other.size_bytes && std::memcmp(&storage, &other.storage, size_bytes) == 0;
}

std::string endpoint_name(const std::string& host, uint16_t port) {
  const bool bare_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return bare_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port, bool to_listen) {
  std::string bare = host;
  if (bare.size() > 2 && bare.front() == '[' && bare.back() == ']') {
    bare = bare.substr(1, bare.size() - 2);
  }
  if (bare.empty()) {
    return Status(StatusCode::kInvalidArgument, "the host is empty; give a name or an address");
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = getaddrinfo(bare.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("no address for the host '{}': {}; give its IP address or check the "
                    "name",
                    bare, error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_family != AF_INET && at->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.size_bytes = at->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  if (addresses.empty()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("the host '{}' has neither an IPv4 nor an IPv6 address", bare));
  }
  return addresses;
}

SocketAddress local_address(int socket) {
  SocketAddress address;
  address.size_bytes = sizeof(address.storage);
  if (getsockname(socket, address.get(), &address.size_bytes) != 0) address = {};
  return address;
}

SocketAddress peer_address(int socket) {
  SocketAddress address;
  address.size_bytes = sizeof(address.storage);
  if (getpeername(socket, address.get(), &address.size_bytes) != 0) address = {};
  return address;
}

void set_connection_options(int socket) {
  const auto set = [socket](int level, int option, int value) {
    // None is needed for correctness, so a system without one goes on.
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  // Together kHostSilenceLimitNs, for while there is no silence limit.
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_silence_limit(socket, kHostSilenceLimitNs);
}

void set_silence_limit(int socket, int64_t limit_ns) {
  // Takes the place of TCP_KEEPCNT, and also holds while data is on its way.
  const int limit_ms = static_cast<int>(limit_ns / 1'000'000);
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
}

bool nothing_waits_to_leave(int socket) {
  int waiting_bytes = 0;
  return ioctl(socket, SIOCOUTQNSD, &waiting_bytes) == 0 && waiting_bytes == 0;
}

int poll_until(std::span<pollfd> descriptors, const Deadline& deadline) {
  constexpr int64_t kNsPerSecond = 1'000'000'000;
  while (true) {
    const int64_t remaining_ns = deadline.remaining_ns();
    const timespec timeout{static_cast<time_t>(remaining_ns / kNsPerSecond),
                           static_cast<long>(remaining_ns % kNsPerSecond)};
    const int ready = ppoll(descriptors.data(), descriptors.size(),
                            remaining_ns == INT64_MAX ? nullptr : &timeout, nullptr);
    if (ready >= 0) return ready;
    if (errno != EINTR) {
      // Out of kernel memory: looks like a spurious wake-up to the caller, who tries its
      // descriptors.
      for (pollfd& descriptor : descriptors) descriptor.revents = descriptor.events;
      return static_cast<int>(descriptors.size());
    }
  }
}

}  // namespace verbena
