// What the connections of this layer are called in the exchange of endpoints.
#pragma once

#include "src/connect/exchange.h"

namespace verbena::rpc {

inline constexpr connect::Layer kLayer = {
    .name = "request/response", .magic = 0x43505256 /* "VRPC" */, .version = 6};

}  // namespace verbena::rpc
