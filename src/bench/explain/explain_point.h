// Runs one point on simulated nodes, and picks the message that stands for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/explain/message_path.h"
#include "src/bench/run/run.h"
#include "src/device/sim/recorder.h"
#include "verbena/status.h"

namespace verbena::bench {

// So many steps are kept, some 64 B each: of the beginning of a long or large run.
inline constexpr size_t kMostRecordedSteps = 2'000'000;

struct Explanation {
  RunResult run;
  uint64_t messages = 0;  // of the timed phase
  sim::Recorder::Taken chosen{};
  MessagePath path;
};

// The message whose latency is that of `quantile` (0 to 1) among all of the timed phase; of several
// the one in the middle of what was recorded. The first tenth, in which the queues fill, is not
// chosen from. `device` is "sim:PROFILE".
Result<Explanation> explain_point(const std::string& device, const Point& point,
                                  const RunLength& length, double quantile,
                                  sim::Recorder* recorder);

// The index in `taken` of that message. kNotFound if no message was recorded whole.
Result<size_t> choose_message(const std::vector<sim::Recorder::Taken>& taken,
                              sim::Time complete_until, double quantile);

}  // namespace verbena::bench
