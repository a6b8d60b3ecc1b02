// How much load a design bears: what a sweep over arrival rates says.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/bench/result/point_result.h"

namespace verbena::bench {

// The latency at the knee is at most so many times that of the lowest rate, by p99.
inline constexpr double kKneeLatencyFactor = 5;

// The results of points that differ in nothing but their arrival rate.
struct Knee {
  const PointResult* lowest = nullptr;  // by offered rate
  // The highest offered rate that is not saturated and whose p99 is within the factor; null where
  // the lowest is saturated already.
  const PointResult* knee = nullptr;
  const PointResult* next = nullptr;  // the lowest offered rate above; null: the sweep ends before
};

// One for each point that has two arrival rates at least, in the order of `results`, which must
// outlive it. Results without measurements, those that failed, and those of closed loops are left
// out.
std::vector<Knee> find_knees(const std::vector<PointResult>& results);

// One line each: "knee of one-to-one ...: 1.2 M/s offered, p99 4 us (...)".
std::string knees_text(const std::vector<PointResult>& results);

}  // namespace verbena::bench
