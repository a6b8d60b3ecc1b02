#include "src/device/soft/cm/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace verbena::soft::cm {
namespace {

// Of every interface that is up.
std::vector<Endpoint> own_addresses() {
  std::vector<Endpoint> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const size_t size_bytes =
        entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (const auto endpoint = read_endpoint(entry->ifa_addr, size_bytes)) {
      found.push_back(*endpoint);
    }
  }
  freeifaddrs(list);
  return found;
}

Endpoint first_loopback(sa_family_t family) {
  Endpoint loopback;
  loopback.family = family;
  if (family == AF_INET) {
    loopback.address[0] = 127;
    loopback.address[3] = 1;
  } else {
    loopback.address[15] = 1;
  }
  return loopback;
}

}  // namespace

bool Endpoint::is_wildcard() const {
  return std::all_of(address.begin(), address.end(), [](uint8_t byte) { return byte == 0; });
}

bool Endpoint::is_multicast() const {
  return family == AF_INET ? (address[0] & 0xf0) == 0xe0 : address[0] == 0xff;
}

bool Endpoint::is_loopback() const {
  return family == AF_INET ? address[0] == 127 : same_address(first_loopback(AF_INET6));
}

bool Endpoint::same_address(const Endpoint& other) const {
  return family == other.family && address == other.address &&
         (scope == other.scope || scope == 0 || other.scope == 0);
}

std::optional<Endpoint> read_endpoint(const void* address, size_t size_bytes) {
  Endpoint endpoint;
  if (size_bytes < sizeof(endpoint.family)) return std::nullopt;
  std::memcpy(&endpoint.family, address, sizeof(endpoint.family));
  if (endpoint.family == AF_INET && size_bytes >= sizeof(sockaddr_in)) {
    sockaddr_in ip{};
    std::memcpy(&ip, address, sizeof(ip));
    endpoint.port = ntohs(ip.sin_port);
    std::memcpy(endpoint.address.data(), &ip.sin_addr, sizeof(ip.sin_addr));
    return endpoint;
  }
  if (endpoint.family == AF_INET6 && size_bytes >= sizeof(sockaddr_in6)) {
    sockaddr_in6 ip{};
    std::memcpy(&ip, address, sizeof(ip));
    endpoint.port = ntohs(ip.sin6_port);
    std::memcpy(endpoint.address.data(), &ip.sin6_addr, sizeof(ip.sin6_addr));
    // Not by the macros of netinet/in.h: the kernel's headers have other names for the parts.
    constexpr std::array<uint8_t, 12> kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    if (std::equal(kIpv4Prefix.begin(), kIpv4Prefix.end(), endpoint.address.begin())) {
      endpoint.family = AF_INET;
      std::copy_n(endpoint.address.begin() + kIpv4Prefix.size(), 4, endpoint.address.begin());
      std::fill(endpoint.address.begin() + 4, endpoint.address.end(), uint8_t{0});
    } else if (endpoint.address[0] == 0xfe && (endpoint.address[1] & 0xc0) == 0x80) {
      endpoint.scope = ip.sin6_scope_id;  // a link's own address
    }
    return endpoint;
  }
  return std::nullopt;
}

size_t write_endpoint(const Endpoint& from, sockaddr_in6& to) {
  std::memset(&to, 0, sizeof(to));
  if (from.family == AF_INET) {
    sockaddr_in ip{};
    ip.sin_family = AF_INET;
    ip.sin_port = htons(from.port);
    std::memcpy(&ip.sin_addr, from.address.data(), sizeof(ip.sin_addr));
    std::memcpy(&to, &ip, sizeof(ip));
    return sizeof(ip);
  }
  if (from.family != AF_INET6) return 0;
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(from.port);
  to.sin6_scope_id = from.scope;
  std::memcpy(&to.sin6_addr, from.address.data(), sizeof(to.sin6_addr));
  return sizeof(to);
}

bool is_local(const Endpoint& endpoint) {
  if (endpoint.is_loopback()) return true;
  const std::vector<Endpoint> own = own_addresses();
  return std::any_of(own.begin(), own.end(),
                     [&](const Endpoint& address) { return address.same_address(endpoint); });
}

std::optional<Endpoint> source_for(const Endpoint& target) {
  Endpoint source = first_loopback(target.family);
  if (target.is_multicast()) {
    for (const Endpoint& own : own_addresses()) {
      if (own.family != target.family || own.is_loopback()) continue;
      source = own;
      break;
    }
  } else if (!target.is_loopback() && !target.is_wildcard()) {
    if (!is_local(target)) return std::nullopt;
    source = target;
  }
  source.port = 0;
  return source;
}

}  // namespace verbena::soft::cm
