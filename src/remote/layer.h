// What the connections of this layer are called in the exchange of endpoints.
#pragma once

#include "src/connect/exchange.h"

namespace verbena::remote {

inline constexpr connect::Layer kLayer = {
    .name = "remote memory", .magic = 0x4d525256 /* "VRRM" */, .version = 1};

}  // namespace verbena::remote
