// What the software RNIC presents itself as, as text: `verbena run --link-layer TEXT --devices N`,
// which reach it as VERBENA_SOFT_LINK_LAYER and VERBENA_SOFT_DEVICES.
#pragma once

#include <cstdint>
#include <string_view>

#include "verbena/status.h"

namespace verbena {

inline constexpr const char* kLinkLayerVariable = "VERBENA_SOFT_LINK_LAYER";
inline constexpr const char* kDevicesVariable = "VERBENA_SOFT_DEVICES";
inline constexpr uint32_t kMostSoftDevices = 8;

// Of the devices' ports. Ethernet is RoCE, versions 1 and 2.
enum class LinkLayer : uint8_t { kInfiniBand, kEthernet };

// "infiniband" or "ethernet"; an empty text is InfiniBand. "1" to "8"; an empty text is one device.
// kInvalidArgument says what is wrong and what is possible.
Result<LinkLayer> parse_link_layer(std::string_view text);
Result<uint32_t> parse_soft_devices(std::string_view text);

// What the variables ask for now; an error names the variable, too.
Result<LinkLayer> link_layer_from_environment();
Result<uint32_t> soft_devices_from_environment();

}  // namespace verbena
