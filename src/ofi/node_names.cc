#include "src/ofi/node_names.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <rdma/fi_errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "src/base/runtime.h"

namespace verbena::ofi {
namespace {

// Who is told a place often starts together with who listens there.
constexpr int64_t kAskNs = 3'000'000'000;
constexpr size_t kMostAsked = 128;  // at once
constexpr const char* kAnyHost = "::";
constexpr const char* kThisHost = "127.0.0.1";

struct FreeFound {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

// False: there is no memory.
bool set_address(const MessengerAddress& address, void*& at, size_t& size_bytes) {
  at = malloc(sizeof(address));
  if (at == nullptr) return false;
  memcpy(at, &address, sizeof(address));
  size_bytes = sizeof(address);
  return true;
}

// What hints have, if that is an address of this provider.
bool get_address(const void* from, size_t size_bytes, MessengerAddress* address) {
  if (size_bytes != sizeof(*address)) return false;
  memcpy(address, from, sizeof(*address));
  return true;
}

}  // namespace

Result<MessengerAddress> find_place(const char* node, const char* service, const char* no_node,
                                    uint64_t flags) {
  const char* const host = node == nullptr ? no_node : node;
  addrinfo* all = nullptr;
  const auto find = [&](int family, int resolver_flags) {
    addrinfo wanted{};
    wanted.ai_flags = resolver_flags;
    wanted.ai_family = family;
    wanted.ai_socktype = SOCK_STREAM;
    return getaddrinfo(host, service, &wanted, &all);
  };
  int error = find(AF_UNSPEC, AI_NUMERICHOST);
  const bool named = error == EAI_NONAME && node != nullptr && (flags & FI_NUMERICHOST) == 0;
  // Endpoints listen at addresses of IPv4, unless they are told otherwise by number.
  if (named) error = find(AF_INET, 0);
  if (error != 0 && named) error = find(AF_INET6, 0);
  if (error != 0) {
    return Status(StatusCode::kNotFound,
                  fmt::format("no node '{}' with service '{}': {}", host,
                              service == nullptr ? "" : service, gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, FreeFound> found(all);
  // Both families have the port at the same place.
  const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(found->ai_addr);
  const uint16_t port = ntohs(ipv4->sin_port);
  // The system's name may stand for another address of the loopback than the one that endpoints
  // have.
  const bool is_this_host =
      found->ai_family == AF_INET && ntohl(ipv4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  if (named && is_this_host) return place_at(kThisHost, port);
  char text[INET6_ADDRSTRLEN] = "";
  const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(found->ai_addr);
  const void* const address = found->ai_family == AF_INET
                                  ? static_cast<const void*>(&ipv4->sin_addr)
                                  : static_cast<const void*>(&ipv6->sin6_addr);
  inet_ntop(found->ai_family, address, text, sizeof(text));
  return place_at(text, port);
}

int fill_addresses(const char* node, const char* service, uint64_t flags, const fi_info* hints,
                   fi_info& info) {
  const bool names_source = (flags & FI_SOURCE) != 0;
  const bool named = node != nullptr || service != nullptr;
  MessengerAddress source;  // any
  if (!names_source && hints != nullptr && hints->src_addr != nullptr &&
      !get_address(hints->src_addr, hints->src_addrlen, &source))
    return -FI_ENODATA;
  MessengerAddress destination;
  const bool given = hints != nullptr && hints->dest_addr != nullptr;
  const bool has_destination = named && !names_source ? true : given;
  if (given && !get_address(hints->dest_addr, hints->dest_addrlen, &destination))
    return -FI_ENODATA;
  if (named) {
    const Result<MessengerAddress> place =
        find_place(node, service, names_source ? kAnyHost : kThisHost, flags);
    if (!place.ok()) return -FI_ENODATA;
    (names_source ? source : destination) = *place;
  }
  if (!set_address(source, info.src_addr, info.src_addrlen)) return -FI_ENOMEM;
  if (has_destination && !set_address(destination, info.dest_addr, info.dest_addrlen))
    return -FI_ENOMEM;
  return 0;
}

std::vector<Result<MessengerAddress>> known_addresses(std::span<const MessengerAddress> addresses,
                                                      const JobSecret& secret) {
  std::vector<Result<MessengerAddress>> known(addresses.begin(), addresses.end());
  std::vector<size_t> places;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i] != MessengerAddress{} && is_place(addresses[i])) places.push_back(i);
  }
  std::atomic<size_t> next = 0;
  const auto ask = [&] {
    for (size_t i = next++; i < places.size(); i = next++)
      known[places[i]] = ask_address(addresses[places[i]], secret, kAskNs);
  };
  // This thread asks, too: also where the system has no further one.
  std::vector<Thread> threads;
  while (threads.size() + 1 < std::min(places.size(), kMostAsked)) {
    threads.push_back(start_thread("vb-fi-ask", ask));
    if (!threads.back().joinable()) {
      threads.pop_back();
      break;
    }
  }
  ask();
  for (Thread& thread : threads) thread.join();
  return known;
}

}  // namespace verbena::ofi
