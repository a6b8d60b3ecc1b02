// What control connections and listeners need of TCP sockets: addresses, deadlines, sockets that
// neither block nor leak into child processes.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/base/file_descriptor.h"
#include "verbena/status.h"

namespace verbena {

// The end of a time-out as the public calls take it: negative is never, 0 is now.
class Deadline {
 public:
  explicit Deadline(int64_t timeout_ns);
  static Deadline at(uint64_t end_ns);

  bool expired() const;
  // INT64_MAX for never.
  int64_t remaining_ns() const;
  Deadline earlier(const Deadline& other) const;

 private:
  uint64_t end_ns_ = UINT64_MAX;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size_bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  // "127.0.0.1:7471", "[::1]:7471".
  std::string name() const;
  uint16_t port() const;
  bool operator==(const SocketAddress& other) const;
};

// "node-a:7471"; brackets around a numeric IPv6 address.
std::string endpoint_name(const std::string& host, uint16_t port);

// The addresses of a host, an IPv6 one also in brackets. `to_listen`: an address of this host to
// bind to.
Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port, bool to_listen);

SocketAddress local_address(int socket);
SocketAddress peer_address(int socket);

// How long a peer's host may leave the system's packets unanswered before it counts as dead. Every
// living host answers, whatever the peer's process does.
inline constexpr int64_t kHostSilenceLimitNs = 5'000'000'000;

// For set_silence_limit(): a living host has time without limit. For a dead one the system's own
// limit holds: 15 to 30 minutes (net.ipv4.tcp_retries2) while data waits, else kHostSilenceLimitNs.
inline constexpr int64_t kNoSilenceLimit = 0;

// Small frames leave at once; a peer whose host died is noticed within kHostSilenceLimitNs.
void set_connection_options(int socket);
void set_silence_limit(int socket, int64_t limit_ns);
// Whether all that was written is on its way. What is not may wait for the peer to read.
bool nothing_waits_to_leave(int socket);

// poll() that goes on after signals. The number of descriptors with events; 0 when the deadline
// passed.
int poll_until(std::span<pollfd> descriptors, const Deadline& deadline);

}  // namespace verbena
