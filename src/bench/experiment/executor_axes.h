// Axes of the shuffle and of what uses it.
#pragma once

#include <array>
#include <string_view>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/socket_place.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench {

inline constexpr const char* kSocketPlaceName = "socket";
using SocketPlaceNames = EnumNames<SocketPlace, kSocketPlaces, socket_place_name, kSocketPlaceName>;

inline constexpr std::array kShuffleMethods = {ShuffleMethod::kBasic, ShuffleMethod::kSp,
                                               ShuffleMethod::kSgl, ShuffleMethod::kAutomatic};
inline constexpr const char* kShuffleMethodName = "method";
using ShuffleMethodNames =
    EnumNames<ShuffleMethod, kShuffleMethods, shuffle_method_name, kShuffleMethodName>;

template <auto kMember>
constexpr Axis socket_place_axis(std::string_view help) {
  return name_axis<SocketPlaceNames, kMember>("socket", "socket", kSocketPlaceName, "any", help);
}
template <auto kMember>
constexpr Axis shuffle_method_axis(std::string_view help) {
  return name_axis<ShuffleMethodNames, kMember>("method", "method", kShuffleMethodName, "automatic",
                                                help);
}

}  // namespace verbena::bench
