// Where the time of a point goes: the share of each function on each side ("patterns" table 1).
//
// perf samples the nodes of this host during a timed phase of its own: by the processor's cycles
// where it counts them, else by the clock, which says the same of threads that poll. Only what runs
// in user space counts. Sampling disturbs, so nothing else is measured in that phase.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/bench/node_pool.h"
#include "src/bench/point.h"
#include "src/bench/run.h"
#include "verbena/status.h"

namespace verbena::bench {

struct FunctionShare {
  std::string function;  // without parameters and template arguments
  double share = 0;      // of the samples of its side
};

struct Profile {
  std::string event;  // "cycles" or "cpu-clock"
  // The largest first; small ones are left out.
  std::vector<FunctionShare> requester;
  std::vector<FunctionShare> responder;
};

// kUnsupported, with what to install or to allow, where perf cannot sample.
Status check_profiler();

// Carries the point out once more, with the profiler.
Result<Profile> profile_point(NodePool& pool, const Point& point, const RunOptions& options);

// What `perf report -F overhead,comm,sym -t ';'` prints, by the names of the threads. Pure.
Profile parse_profile(std::string_view report);
// "request_loop<A, B>(int) const" is "request_loop". Pure.
std::string short_function_name(std::string_view symbol);

}  // namespace verbena::bench
