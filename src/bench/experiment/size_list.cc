#include "src/bench/experiment/size_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <optional>

namespace verbena::bench {

namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr Unit kSizeUnits[] = {
    {"", 1}, {"B", 1}, {"KiB", 1u << 10}, {"MiB", 1u << 20}, {"GiB", 1u << 30}};
constexpr Unit kCountUnits[] = {{"", 1}};
constexpr Unit kTimeUnits[] = {
    {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}, {"min", 60'000'000'000}};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return (x | 0x20) == (y | 0x20); });
}

template <size_t kCount>
const Unit* find_unit(const Unit (&units)[kCount], std::string_view name) {
  for (const Unit& unit : units) {
    if (same_letters(unit.name, name)) return &unit;
  }
  return nullptr;
}

// Errors quote what was typed, but not pages of it.
std::string_view quoted(std::string_view text) { return text.substr(0, 40); }

Status not_a_number(std::string_view entry, const ListLimits& limits, bool sizes) {
  const char* list =
      sizes ? ", or a list such as 64,4KiB or 64,…,1MiB" : ", or a list such as 1,16 or 1,…,64";
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("'{}' is not a valid {}: give a whole number{}{}", quoted(entry), limits.what,
                  sizes ? " with or without B, KiB, MiB or GiB" : "", limits.single ? "" : list));
}

template <size_t kCount>
Result<uint64_t> parse_entry(std::string_view entry, const ListLimits& limits,
                             const Unit (&units)[kCount]) {
  const bool sizes = kCount > 1;
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  const Unit* unit = nullptr;
  if (error != std::errc::invalid_argument) {
    unit = find_unit(units, trimmed(entry.substr(static_cast<size_t>(rest - entry.data()))));
  }
  if (unit == nullptr) return not_a_number(entry, limits, sizes);
  const bool too_large = error == std::errc::result_out_of_range ||
                         number > UINT64_MAX / unit->factor || number * unit->factor > limits.max;
  if (too_large || number * unit->factor < limits.min) {
    const auto shown = [sizes](uint64_t value) {
      return sizes ? size_text(value) : fmt::format("{}", value);
    };
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the {} {} is out of range: {} to {} can be measured", limits.what,
                              quoted(entry), shown(limits.min), shown(limits.max)));
  }
  return number * unit->factor;
}

template <size_t kCount>
Result<std::vector<uint64_t>> parse_list(std::string_view text, const ListLimits& limits,
                                         const Unit (&units)[kCount]) {
  const bool sizes = kCount > 1;
  std::vector<uint64_t> values;
  const auto add = [&values](uint64_t value) {
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  };
  std::optional<uint64_t> previous;
  bool range = false;  // an ellipsis stands between `previous` and the next entry
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view entry = trimmed(rest.substr(0, comma));
    if (entry == "…" || entry == "...") {
      if (!previous || range) return not_a_number(text, limits, sizes);
      range = true;
    } else {
      VERBENA_ASSIGN_OR_RETURN(const uint64_t value, parse_entry(entry, limits, units));
      if (range && value <= *previous) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("the list of each {} '{}' runs from a larger to a smaller value; "
                                  "put the smaller one first",
                                  limits.what, quoted(text)));
      }
      if (range) {
        for (uint64_t power = std::bit_ceil(*previous + 1); power < value; power *= 2) add(power);
      }
      add(value);
      previous = value;
      range = false;
    }
    if (values.size() > kMaxListEntries) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("more than {} values of the {} are too many for one run; split it",
                                kMaxListEntries, limits.what));
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (range || (limits.single && values.size() > 1)) return not_a_number(text, limits, sizes);
  return values;
}

}  // namespace

Result<std::vector<uint64_t>> parse_size_list(std::string_view text, const ListLimits& limits) {
  return parse_list(text, limits, kSizeUnits);
}

Result<std::vector<uint64_t>> parse_count_list(std::string_view text, const ListLimits& limits) {
  return parse_list(text, limits, kCountUnits);
}

Result<uint64_t> parse_duration_ns(std::string_view text) {
  constexpr double kMaxSeconds = 3600;
  const std::string_view entry = trimmed(text);
  double number = 0;
  const auto [rest, error] =
      std::from_chars(entry.data(), entry.data() + entry.size(), number, std::chars_format::fixed);
  const Unit* unit = nullptr;
  if (error == std::errc()) {
    unit = find_unit(kTimeUnits, trimmed(entry.substr(static_cast<size_t>(rest - entry.data()))));
  }
  const double ns = unit == nullptr ? 0 : number * static_cast<double>(unit->factor);
  if (!(ns >= 1) || ns > kMaxSeconds * 1e9) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("'{}' is not a duration: give a number followed by us, ms, s or min, "
                              "at most {} s, such as 500ms or 1s",
                              quoted(text), kMaxSeconds));
  }
  return static_cast<uint64_t>(std::llround(ns));
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  // Whole numbers without a point; others with what they need, at most two digits.
  std::string number = fmt::format("{:.2f}", value);
  while (number.back() == '0') number.pop_back();
  if (number.back() == '.') number.pop_back();
  return fmt::format("{} {}", number, kNames[unit]);
}

}  // namespace verbena::bench
