#include "src/base/device_settings.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string>

namespace verbena {
namespace {

constexpr size_t kMostShownChars = 64;

template <typename Value>
Result<Value> parse_variable(const char* name, Result<Value> (*parse)(std::string_view)) {
  const char* const text = std::getenv(name);
  Result<Value> parsed = parse(text != nullptr ? text : "");
  if (parsed.ok()) return parsed;
  return Status(parsed.status().code(),
                fmt::format("soft0: {} {}", name, parsed.status().message()));
}

}  // namespace

Result<LinkLayer> parse_link_layer(std::string_view text) {
  if (text.empty() || text == "infiniband") return LinkLayer::kInfiniBand;
  if (text == "ethernet") return LinkLayer::kEthernet;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("is '{}'; it can be infiniband, or ethernet for RoCE",
                            text.substr(0, kMostShownChars)));
}

Result<uint32_t> parse_soft_devices(std::string_view text) {
  if (text.empty()) return 1;
  uint32_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count >= 1 &&
      count <= kMostSoftDevices) {
    return count;
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("is '{}'; it can be 1 to {} devices", text.substr(0, kMostShownChars),
                            kMostSoftDevices));
}

Result<LinkLayer> link_layer_from_environment() {
  return parse_variable(kLinkLayerVariable, parse_link_layer);
}

Result<uint32_t> soft_devices_from_environment() {
  return parse_variable(kDevicesVariable, parse_soft_devices);
}

}  // namespace verbena
