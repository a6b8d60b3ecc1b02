// With what each connection between machines with several sockets begins: which sockets it joins.
#pragma once

#include <cstdint>

namespace verbena::remote {

inline constexpr uint32_t kSocketHello = 0x4b534c48;  // "HLSK"

struct SocketHello {
  uint32_t sockets = 0;  // of the sender
  uint32_t socket = 0;   // that a front-end wants
};

}  // namespace verbena::remote
