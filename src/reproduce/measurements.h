// What was measured, by point.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "src/bench/experiment/point.h"
#include "src/reproduce/experiments.h"

namespace verbena::reproduce {

// A row of a result file, or why there is none.
struct Measurement {
  nlohmann::json row{};
  std::string error{};
};

class Measurements {
 public:
  void add(const bench::Point& point, Measurement measurement) {
    by_point_[key_of(point)] = std::move(measurement);
  }
  // Null where the point was not measured.
  const Measurement* find(const bench::Point& point) const {
    const auto found = by_point_.find(key_of(point));
    return found == by_point_.end() ? nullptr : &found->second;
  }

 private:
  std::map<PointKey, Measurement> by_point_;
};

}  // namespace verbena::reproduce
