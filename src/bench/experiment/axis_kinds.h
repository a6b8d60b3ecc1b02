// The kinds of axes: numbers, sizes and names, each in a member of Point or of a workload's
// settings.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/size_list.h"

namespace verbena::bench {

using AxisValues = Result<std::vector<uint64_t>>;

// --- accessors ---

template <typename Class, typename Member>
Class class_of_member(Member Class::*);

// `kMember` of a point, or of its settings.
template <auto kMember, typename AnyPoint>
auto& member_of(AnyPoint& point) {
  using Class = decltype(class_of_member(kMember));
  if constexpr (std::is_same_v<Class, Point>) {
    return point.*kMember;
  } else {
    return settings_of<Class>(point).*kMember;
  }
}
template <auto kMember>
uint64_t get_number(const Point& point) {
  return static_cast<uint64_t>(member_of<kMember>(point));
}
template <auto kMember>
void set_number(Point& point, uint64_t value) {
  auto& member = member_of<kMember>(point);
  member = static_cast<std::remove_reference_t<decltype(member)>>(value);
}
template <auto kMember>
nlohmann::json number_json(const Point& point) {
  return member_of<kMember>(point);
}

inline std::string number_text(uint64_t value) { return fmt::format("{}", value); }
inline std::vector<std::string> no_choices() { return {}; }
inline bool always_applies(const Point& /*point*/) { return true; }

// --- numbers: counts and sizes differ in their units only ---

template <const ListLimits& kLimits>
AxisValues parse_counts(std::string_view text) {
  return parse_count_list(text, kLimits);
}
template <const ListLimits& kLimits>
AxisValues parse_sizes(std::string_view text) {
  return parse_size_list(text, kLimits);
}
template <const ListLimits& kLimits>
bool in_limits(uint64_t value) {
  return value >= kLimits.min && value <= kLimits.max;
}

template <const ListLimits& kLimits, auto kMember>
constexpr Axis count_axis(std::string_view name, std::string_view json_key,
                          std::string_view standard, std::string_view help) {
  return {.name = name,
          .alias = "",
          .json = json_key,
          .what = kLimits.what,
          .shape = "COUNTS",
          .standard = standard,
          .help = help,
          .compared = false,
          .depends_on = "",
          .parse = parse_counts<kLimits>,
          .text = number_text,
          .get = get_number<kMember>,
          .set = set_number<kMember>,
          .to_json = number_json<kMember>,
          .possible = in_limits<kLimits>,
          .choices = no_choices,
          .applies = always_applies};
}

template <const ListLimits& kLimits, auto kMember>
constexpr Axis size_axis(std::string_view name, std::string_view json_key,
                         std::string_view standard, std::string_view help) {
  Axis axis = count_axis<kLimits, kMember>(name, json_key, standard, help);
  axis.shape = "SIZES";
  axis.parse = parse_sizes<kLimits>;
  return axis;
}

// --- names, which `Names` gives: Value, all(), name(value), parse(text) ---

template <typename Names>
AxisValues parse_names(std::string_view text) {
  std::vector<uint64_t> values;
  if (text == "all") {
    for (const auto value : Names::all()) values.push_back(static_cast<uint64_t>(value));
    return values;
  }
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const auto value = Names::parse(rest.substr(0, comma));
    if (!value.ok()) {
      return Status(value.status().code(), value.status().message() + " and all");
    }
    const auto number = static_cast<uint64_t>(*value);
    if (std::find(values.begin(), values.end(), number) == values.end()) values.push_back(number);
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}
template <typename Names>
bool has_name(uint64_t value) {
  const auto all = Names::all();
  return std::any_of(all.begin(), all.end(),
                     [&](auto one) { return static_cast<uint64_t>(one) == value; });
}
template <typename Names>
std::string name_text(uint64_t value) {
  return Names::name(static_cast<typename Names::Value>(value));
}
template <typename Names>
std::vector<std::string> name_choices() {
  std::vector<std::string> names;
  for (const auto value : Names::all()) names.emplace_back(Names::name(value));
  names.emplace_back("all");
  return names;
}
template <typename Names, auto kMember>
nlohmann::json name_json(const Point& point) {
  return Names::name(member_of<kMember>(point));
}

template <typename Names, auto kMember>
constexpr Axis name_axis(std::string_view name, std::string_view json_key, std::string_view what,
                         std::string_view standard, std::string_view help) {
  return {.name = name,
          .alias = "",
          .json = json_key,
          .what = what,
          .shape = "LIST",
          .standard = standard,
          .help = help,
          .compared = true,
          .depends_on = "",
          .parse = parse_names<Names>,
          .text = name_text<Names>,
          .get = get_number<kMember>,
          .set = set_number<kMember>,
          .to_json = name_json<Names, kMember>,
          .possible = has_name<Names>,
          .choices = name_choices<Names>,
          .applies = always_applies};
}

// Names::parse() for a list of names that has no function of its own.
template <typename Names>
Result<typename Names::Value> parse_one_name(const char* what, std::string_view text) {
  std::string names;
  for (const auto value : Names::all()) {
    if (text == Names::name(value)) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", Names::name(value));
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("no {} '{}'; there are {}", what, text, names));
}

// Names of an enumeration: all of them, the name of one, and what they are in errors.
template <typename Enum, const auto& kAll, const char* (*kName)(Enum), const char* const& kWhat>
struct EnumNames {
  using Value = Enum;
  static std::span<const Enum> all() { return kAll; }
  static const char* name(Enum value) { return kName(value); }
  static Result<Enum> parse(std::string_view text) {
    return parse_one_name<EnumNames>(kWhat, text);
  }
};
}  // namespace verbena::bench
