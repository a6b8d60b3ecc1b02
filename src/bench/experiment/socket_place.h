// Sockets of a machine as a point names them: by what an RNIC is attached to ("memsem" table III).
#pragma once

#include <array>
#include <cstdint>

namespace verbena::bench {

enum class SocketPlace : uint8_t {
  kAny,    // as the library does it: memory near the RNIC, threads wherever they are
  kRnic,   // that of the RNIC
  kOther,  // another one
};

inline constexpr std::array kSocketPlaces = {SocketPlace::kAny, SocketPlace::kRnic,
                                             SocketPlace::kOther};

inline constexpr const char* socket_place_name(SocketPlace place) {
  switch (place) {
    case SocketPlace::kRnic:
      return "rnic";
    case SocketPlace::kOther:
      return "other";
    case SocketPlace::kAny:
      break;
  }
  return "any";
}

}  // namespace verbena::bench
