// Where the time of a point goes: the share of each function on each side ("patterns" table 1), and
// the instructions of a message where the point's own runs could not count them.
//
// perf samples the nodes of this host during a timed phase of its own: by the processor's cycles
// where it counts them, else by the clock, which says the same of threads that poll. Only what runs
// in user space counts. Sampling disturbs, so nothing else is measured in that phase. Where the
// processor counts no instructions, valgrind does (instruction_profile.h).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/explain/function_share.h"
#include "src/bench/explain/instruction_profile.h"
#include "src/bench/run/node_pool.h"
#include "src/bench/run/run.h"
#include "verbena/status.h"

namespace verbena::bench {

struct SampleProfile {
  std::string event;  // "cycles" or "cpu-clock"
  // Shares of the samples of the side, the largest first; small ones are left out.
  std::vector<FunctionShare> requester;
  std::vector<FunctionShare> responder;
};

struct Profile {
  std::optional<SampleProfile> samples{};            // where there is perf
  std::optional<InstructionProfile> instructions{};  // where valgrind counts them
};

class Profiler {
 public:
  // What works here: perf, valgrind, or both. kUnsupported, with what to install or to allow, where
  // neither does. `nodes_here`: all nodes are processes that the coordinator may start on this
  // host, on `device`; for others valgrind cannot count.
  static Result<Profiler> create(const std::string& device, bool nodes_here);

  // Why nothing counts instructions; empty if something does.
  const std::string& without_instructions() const { return without_instructions_; }

  // Carries the point out once more with each profiler.
  Result<Profile> profile(NodePool& pool, const Point& point, const RunOptions& options);

 private:
  Profiler() = default;

  bool samples_ = false;
  std::unique_ptr<InstructionProfiler> instructions_;
  std::string without_instructions_;
};

// As the result file has it.
nlohmann::json to_json(const Profile& profile, const Point& point);

// What `perf report -F overhead,comm,sym -t ';'` prints, by the names of the threads. Pure.
SampleProfile parse_profile(std::string_view report);

}  // namespace verbena::bench
