// What the connections of this layer are called in the exchange of endpoints.
#pragma once

#include "src/connect/exchange.h"

namespace verbena::message {

inline constexpr connect::Layer kLayer = {
    .name = "tagged message", .magic = 0x474d5256 /* "VRMG" */, .version = 4};

}  // namespace verbena::message
