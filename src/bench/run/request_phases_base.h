// What the phases of a thread that sends requests have in common, whatever it sends them by.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/histogram.h"
#include "src/bench/load/open_loop.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/load/request_loop.h"
#include "src/bench/run/node_job.h"

namespace verbena::bench {

class RequestPhasesBase {
 public:
  RequestPhasesBase(const RequestPhasesBase&) = delete;
  RequestPhasesBase& operator=(const RequestPhasesBase&) = delete;

  // Serves phases until the team leaves.
  void serve(Step step);

 protected:
  RequestPhasesBase(NodeJob& job, uint32_t number, Report& report)
      : job_(job), number_(number), report_(report) {}
  ~RequestPhasesBase() = default;

  // Makes the phase ready.
  virtual Status prepare() = 0;
  // Sends requests in a closed loop, or as they arrive where they may.
  virtual LoopOutcome run_closed(const LoopOrders& orders) = 0;
  virtual OpenLoopOutcome run_open(const LoopOrders& orders, const ArrivalOrders& arrivals) = 0;
  virtual bool may_arrive() const = 0;
  // Does what was answered before it was done; false: nothing was left.
  virtual bool complete() = 0;
  // Adds to the phase's report.
  virtual Status ended(Report& report) = 0;
  virtual MarkLayout mark_layout() const = 0;

  NodeJob& job_;
  Phase phase_;
  std::unique_ptr<PollCost> cost_;    // of a phase that measures it
  std::vector<Histogram> latencies_;  // by kind

 private:
  void prepare_phase();
  LoopOrders orders(const Step& step) const;
  void run(const Step& step);
  void report_latencies();

  uint32_t number_;
  Report& report_;
};

}  // namespace verbena::bench
