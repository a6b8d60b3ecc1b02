// How threads reach memory that lies on several sockets ("memsem" III-D).
#pragma once

#include <array>
#include <cstdint>

namespace verbena::bench {

enum class SocketLinks : uint8_t {
  kOne,      // each thread is connected to each part, all through the ports of the first socket
  kMesh,     // the same, through the port of its own socket and that of the part's
  kMatched,  // sockets are connected to their like only, and reach the others by proxies
  kProxied,  // the same, and threads have no connections but those of the proxies
};

inline constexpr std::array kSocketLinks = {SocketLinks::kOne, SocketLinks::kMesh,
                                            SocketLinks::kMatched, SocketLinks::kProxied};

inline constexpr const char* socket_links_name(SocketLinks links) {
  switch (links) {
    case SocketLinks::kOne:
      return "one";
    case SocketLinks::kMesh:
      return "mesh";
    case SocketLinks::kMatched:
      return "matched";
    case SocketLinks::kProxied:
      break;
  }
  return "proxied";
}

inline constexpr bool has_proxies(SocketLinks links) {
  return links == SocketLinks::kMatched || links == SocketLinks::kProxied;
}

// Of a point: a back-end has a part of its memory on each of so many sockets, and threads run there
// in turn.
struct SocketUse {
  uint32_t sockets = 1;
  SocketLinks links = SocketLinks::kMatched;
};
// As the settings of a workload have it.
template <typename Settings>
SocketUse socket_use(const Settings& settings) {
  return {settings.sockets, settings.links};
}

}  // namespace verbena::bench
