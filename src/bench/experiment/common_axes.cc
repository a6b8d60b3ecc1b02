#include "src/bench/experiment/common_axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace verbena::bench {

namespace {

constexpr uint64_t kMaxThinkNs = 1'000'000'000;
constexpr ListLimits kInlineLimits{.what = "inline limit", .min = 0, .max = 4096};

}  // namespace

AxisValues parse_shares(std::string_view text) {
  std::vector<uint64_t> values;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    double share = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), share);
    const auto ppm = static_cast<int64_t>(std::llround(share * Point::kAlwaysActive));
    if (error != std::errc() || end != entry.data() + entry.size() || ppm < 1 ||
        ppm > int64_t{Point::kAlwaysActive}) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("'{}' is not a share of active requesters; give numbers above 0 and "
                      "up to 1, such as 0.1,0.5,1",
                      entry));
    }
    const auto value = static_cast<uint64_t>(ppm);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}
std::string share_text(uint64_t ppm) {
  return fmt::format("{}", static_cast<double>(ppm) / Point::kAlwaysActive);
}
nlohmann::json active_share_json(const Point& point) {
  return static_cast<double>(point.active_ppm) / Point::kAlwaysActive;
}
bool is_share(uint64_t ppm) { return ppm >= 1 && ppm <= Point::kAlwaysActive; }

AxisValues parse_think(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const uint64_t think_ns, parse_duration_ns(text));
  if (think_ns > kMaxThinkNs) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a pause of {} is too long; choose up to 1s", text));
  }
  return std::vector<uint64_t>{think_ns};
}
std::string nanoseconds_text(uint64_t value) { return fmt::format("{}ns", value); }
bool is_think(uint64_t value) { return value >= 1 && value <= kMaxThinkNs; }

AxisValues parse_inline(std::string_view text) {
  if (text == "device") return std::vector<uint64_t>{kDeviceInlineLimit};
  return parse_size_list(text, kInlineLimits);
}
std::string inline_text(uint64_t value) {
  return value == kDeviceInlineLimit ? "device" : number_text(value);
}
nlohmann::json inline_json(const Point& point) {
  if (point.inline_bytes == kDeviceInlineLimit) return "device";
  return point.inline_bytes;
}
bool is_inline(uint64_t value) { return value == kDeviceInlineLimit || value <= kInlineLimits.max; }

}  // namespace verbena::bench
