#include "src/device/path_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace verbena {

namespace {

constexpr uint8_t kMaxEncodedTime = 31;

// The variable's value; nothing where it is unset or empty.
template <typename T>
Result<std::optional<T>> number_from(const char* variable, T min, T max) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::optional<T>();
  T value{};
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  if (error != std::errc() || rest != end || value < min || value > max) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{} is '{}' in the environment; it must be a number from {} to {}", variable,
                    text, static_cast<unsigned>(min), static_cast<unsigned>(max)));
  }
  return std::optional<T>(value);
}

}  // namespace

Result<PathSettings> path_settings() {
  PathSettings settings;
  VERBENA_ASSIGN_OR_RETURN(settings.gid_index,
                           number_from<uint8_t>("VERBENA_GID_INDEX", 0, UINT8_MAX));
  VERBENA_ASSIGN_OR_RETURN(settings.ack_timeout,
                           number_from<uint8_t>("VERBENA_ACK_TIMEOUT", 1, kMaxEncodedTime));
  VERBENA_ASSIGN_OR_RETURN(const auto level, number_from<uint8_t>("VERBENA_SERVICE_LEVEL", 0, 15));
  settings.service_level = level.value_or(0);
  VERBENA_ASSIGN_OR_RETURN(const auto traffic,
                           number_from<uint8_t>("VERBENA_TRAFFIC_CLASS", 0, UINT8_MAX));
  settings.traffic_class = traffic.value_or(0);
  VERBENA_ASSIGN_OR_RETURN(const auto pkey,
                           number_from<uint16_t>("VERBENA_PKEY_INDEX", 0, UINT16_MAX));
  settings.pkey_index = pkey.value_or(0);
  return settings;
}

uint8_t ack_timeout_for(uint8_t wanted, uint8_t device_delay) {
  if (wanted == 0) return 0;
  // Powers of two: a sum matters only where they are neighbours.
  const uint8_t longer = std::max(wanted, device_delay);
  const uint8_t shorter = std::min(wanted, device_delay);
  return std::min<uint8_t>(longer - shorter <= 1 ? longer + 1 : longer, kMaxEncodedTime);
}

}  // namespace verbena
