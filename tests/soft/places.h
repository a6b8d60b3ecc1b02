// Tests that run with their responder in this process and in another one: the parameters, and what
// the cases are called.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <tuple>

#include "tests/soft/responder.h"

namespace verbena::soft_test {

inline auto all_places() { return testing::Values(Place::kThisProcess, Place::kOtherProcess); }
inline std::string place_name(Place place) {
  return place == Place::kThisProcess ? "ThisProcess" : "OtherProcess";
}
inline std::ostream& operator<<(std::ostream& out, Place place) { return out << place_name(place); }
inline std::string name_by_place(const testing::TestParamInfo<Place>& info) {
  return place_name(info.param);
}

// With receives of the queue pair's own, and with a shared receive queue of that depth.
using PlaceAndDepth = std::tuple<Place, uint32_t>;
inline auto all_places_and_receives() {
  return testing::Combine(all_places(), testing::Values(0u, 8u));
}
inline std::string name_by_place_and_receives(const testing::TestParamInfo<PlaceAndDepth>& info) {
  const auto [place, srq_depth] = info.param;
  return place_name(place) + (srq_depth != 0 ? "SharedReceiveQueue" : "");
}

}  // namespace verbena::soft_test
