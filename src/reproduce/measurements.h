// What was measured, by point.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/reproduce/experiments.h"

namespace verbena::reproduce {

// A row of a result file, or why there is none.
struct Measurement {
  nlohmann::json row{};
  std::string error{};

  // False: it was interrupted, or never began.
  bool ended() const { return !row.is_null() || !error.empty(); }
};

class Measurements {
 public:
  // `run`: which one of the point's, from 0; those of a simulated device differ in their seeds, and
  // behind those of the profile as given come those of its variants.
  void add(const bench::Point& point, Measurement measurement, size_t run = 0) {
    std::vector<Measurement>& runs = by_point_[key_of(point)];
    if (runs.size() <= run) runs.resize(run + 1);
    runs[run] = std::move(measurement);
  }
  // Empty where the point was not measured.
  std::span<const Measurement> runs(const bench::Point& point) const {
    const auto found = by_point_.find(key_of(point));
    if (found == by_point_.end()) return {};
    return found->second;
  }

 private:
  std::map<PointKey, std::vector<Measurement>> by_point_;
};

}  // namespace verbena::reproduce
