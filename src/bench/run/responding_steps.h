// The steps of a thread that responds, the same for all workloads: listen, connect with each
// requesting thread, and serve phases until the point ends. Control path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "src/bench/run/node_job.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::bench {

// What a workload does in these steps.
class RespondingTarget {
 public:
  virtual ~RespondingTarget() = default;

  // Makes what requesting threads connect to.
  virtual Status prepare() = 0;
  // How many connections come, once prepared, where so many requesting threads are wired to this
  // one.
  virtual uint32_t expected_connections(uint32_t requesters) const { return requesters; }
  // `requesting` is the number of the thread that has come, perhaps not for the first time, or what
  // it said instead.
  virtual Status connect(std::unique_ptr<ControlConnection> control, uint32_t requesting) = 0;
  // Serves the phase of a kPrepare step: calls finished() of the team once requests can be
  // answered, and returns when the team halts.
  virtual Status answer(const Step& step) = 0;
};

// The body of the responding thread with this number; returns when the point has ended. Where a
// step fails, the target's end tells the requesters that are connected.
void run_responding_steps(NodeJob& job, uint32_t number, std::unique_ptr<RespondingTarget> target,
                          ThreadReport& report);

// Calls `answer` with a fresh report in each phase, from the step after `step` until the point ends
// or `answer` fails.
Status serve_phases(ThreadTeam& team, Step step, Report& report,
                    const std::function<Status(const Step&)>& answer);

}  // namespace verbena::bench
