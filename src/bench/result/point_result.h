// What all runs of a point say together.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/result/run_result.h"
#include "src/bench/result/statistics.h"

namespace verbena::bench {

// How far a result moves with what is not known exactly of a simulated device.
struct Band {
  double least = 0;
  double most = 0;
};

struct PointResult {
  Point point;
  uint64_t number = 0;    // in the plan
  bool verify = false;    // was asked for
  uint32_t variants = 1;  // RunOptions::variants, of which each run has one in its turn
  std::vector<RunResult> runs{};
  uint64_t errors = 0;
  std::string error{};  // the first one, in words
  // Where the time goes, as the result file has it; null where nobody asked.
  nlohmann::json profile{};

  bool measured() const { return !runs.empty(); }
  // Every payload byte of every measured message was checked, and right.
  bool verified() const { return verify && measured() && errors == 0; }

  // Over the runs; these need measured().
  Summary rate_per_s() const { return over_runs(&RunResult::rate_per_s); }
  Summary p50_ns() const { return over_runs(&RunResult::p50_ns); }
  Summary p99_ns() const { return over_runs(&RunResult::p99_ns); }
  Summary p999_ns() const { return over_runs(&RunResult::p999_ns); }
  // From the least to the most over the variants of a simulated device, each by the median of its
  // runs; nothing where there is one, or not all have a run yet.
  std::optional<Band> rate_band() const { return over_variants(&RunResult::rate_per_s); }
  std::optional<Band> p50_band_ns() const { return over_variants(&RunResult::p50_ns); }
  // Of an open loop; nothing for a closed one.
  std::optional<double> offered_rate_per_s() const;
  // An open loop whose requests were answered more slowly than they arrived: at less than 95 % of
  // the offered rate. Its latency grows with the length of the run.
  bool saturated() const;
  // OperationBytes::total.
  double total_bandwidth_bytes_per_s() const;
  // OperationBytes::value: of responses alone, as the papers count (messages per time x V).
  double value_bandwidth_bytes_per_s() const;
  // The same where every node requests, as the mean of a node ("msgproto" 4); else nothing.
  std::optional<double> value_bandwidth_per_node_bytes_per_s() const;
  // One of WorkloadTraits::metrics; nothing where no run has it.
  std::optional<double> metric(size_t index) const;
  // One of WorkloadTraits::kinds, its requests of all runs and else medians; nothing where no run
  // had such a request.
  std::optional<KindResult> kind(size_t index) const;
  uint64_t requests() const;
  std::optional<CpuCost> requester_cost() const { return cost(&RunResult::requester_cost); }
  std::optional<CpuCost> responder_cost() const { return cost(&RunResult::responder_cost); }

 private:
  Summary over_runs(double RunResult::*value) const;
  std::optional<Band> over_variants(double RunResult::*value) const;
  std::optional<CpuCost> cost(std::optional<CpuCost> RunResult::*side) const;
};

}  // namespace verbena::bench
