// What is measured with one peer, and which parameter of a profile it tells.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/result/run_result.h"
#include "verbena/status.h"

namespace verbena::calibrate {

using AxisValue = std::pair<std::string_view, std::string_view>;  // name of the axis, value

// A point of a workload that has a topology, or of one that has none (""). The axes that are not
// named are at what is usual.
Result<bench::Point> make_point(const bench::Workload& workload, std::string_view topology,
                                const std::vector<AxisValue>& axes);

enum class Quantity : uint8_t {
  kOperation,  // time for one operation, by their rate
  kMedian,     // latency
  kRequester,  // time of the requesting thread for one operation, without its waiting
  kResponder,
};

// In nanoseconds, on a processor of so many cycles in each. kUnavailable: the run does not have it.
Result<double> quantity_ns(Quantity quantity, const bench::RunResult& result, double cycles_per_ns);

struct Observation {
  std::string parameters_text() const;

  std::vector<std::string_view> parameters;  // which it tells: all get the same value
  bench::Point point;
  Quantity quantity = Quantity::kOperation;
  double per_unit = 1;  // nanoseconds more, for each by which the parameter grows
  std::string text;     // "WRITE, 8 B, 64 pending: time for each"
};

// Of a device whose posting threads do all the work, from what depends on one parameter to what
// depends on many. All are of one requesting thread and one responding one.
Result<std::vector<Observation>> software_observations();

}  // namespace verbena::calibrate
