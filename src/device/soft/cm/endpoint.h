// IP addresses with ports, as the connection manager compares them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace verbena::soft::cm {

struct Endpoint {
  sa_family_t family = AF_UNSPEC;  // AF_INET or AF_INET6
  uint16_t port = 0;               // in the host's byte order
  uint32_t scope = 0;              // of link-local addresses
  std::array<uint8_t, 16> address{};

  bool is_wildcard() const;
  bool is_multicast() const;
  bool is_loopback() const;
  // The same interface, whatever the ports.
  bool same_address(const Endpoint& other) const;
};

// Null if it is none of IPv4 or IPv6, or too short. An IPv4 address in IPv6's clothes is IPv4.
std::optional<Endpoint> read_endpoint(const void* address, size_t size_bytes);
// Returns the length; AF_UNSPEC has none.
size_t write_endpoint(const Endpoint& from, sockaddr_in6& to);

// Whether an interface of this host has the address (127.0.0.0/8: all of it).
bool is_local(const Endpoint& endpoint);
// Where a connection to `target` starts from if the program names nothing: the address itself, for
// 127.0.0.0/8 the first one, for a multicast group that of an interface. Null if `target` is on
// another host.
std::optional<Endpoint> source_for(const Endpoint& target);

}  // namespace verbena::soft::cm
