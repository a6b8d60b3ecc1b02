// The phases of a thread that sends requests and measures them, over its own queue pairs or through
// a dispatcher.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "src/bench/load/closed_loop.h"
#include "src/bench/load/open_loop.h"
#include "src/bench/run/node_job.h"
#include "src/bench/run/request_phases_base.h"

namespace verbena::bench {

// The work of a target that has no payload to write and to check.
struct NoPayload {
  static constexpr bool takes_time() { return false; }
  uint32_t prepare(uint32_t /*slot*/, char* /*request*/) { return 0; }
  bool check(uint32_t /*slot*/, std::span<const char> /*response*/) { return true; }
};
struct NoPayloads {
  std::vector<NoPayload> make(const Phase& /*phase*/) const { return std::vector<NoPayload>(1); }
};

// `Target` has a requester's request_buffer, try_post, poll, wait, status and mark_layout. `Works`
// makes what the loop does to the payloads: make(phase) returns a vector with one work per target
// (ClosedLoop). Where it has Status prepare(const Phase&), that makes each phase ready;
// where it has bool complete(), that does what was answered before it was done, in the measured
// time (false: nothing was left; a window is steady, so its end waits for nothing);
// where it has Status ended(Report&), that adds to the phase's report; where it has kMayArrive, the
// timed phase is an open loop at points with an arrival rate.
template <typename Target, typename Works>
class RequestPhases final : public RequestPhasesBase {
 public:
  RequestPhases(NodeJob& job, uint32_t number, std::vector<Target*> targets, Works works,
                Report& report)
      : RequestPhasesBase(job, number, report),
        targets_(std::move(targets)),
        works_(std::move(works)) {}

 private:
  Status prepare() override {
    if constexpr (requires { works_.prepare(phase_); }) return works_.prepare(phase_);
    return Status::ok_status();
  }

  // Each loop is compiled for each design: only those that measure are without what they need not.
  LoopOutcome run_closed(const LoopOrders& orders) override {
    return orders.steered() ? run_loop<true>(orders) : run_loop<false>(orders);
  }
  template <bool kSteered>
  LoopOutcome run_loop(const LoopOrders& orders) {
    auto works = works_.make(phase_);
    ClosedLoop<Target, Work, kSteered> loop(targets_, works, orders, job_.team.halt());
    return cost_ != nullptr ? loop.run_costed(*cost_) : loop.run_timed(latencies_);
  }

  bool may_arrive() const override { return kMayArrive; }
  OpenLoopOutcome run_open(const LoopOrders& orders, const ArrivalOrders& arrivals) override {
    if constexpr (kMayArrive) {
      auto works = works_.make(phase_);
      OpenLoop<Target, Work> loop(targets_, works, orders, arrivals, job_.team.halt());
      return loop.run_timed(latencies_);
    }
    VERBENA_ASSERT(kMayArrive);
    return {};
  }

  bool complete() override {
    if constexpr (requires { works_.complete(); }) return works_.complete();
    return false;
  }
  Status ended(Report& report) override {
    if constexpr (requires { works_.ended(report); }) return works_.ended(report);
    return Status::ok_status();
  }
  MarkLayout mark_layout() const override { return targets_.front()->mark_layout(); }

  using Work = typename decltype(std::declval<const Works&>().make(Phase()))::value_type;
  static constexpr bool kMayArrive = requires { Works::kMayArrive; };

  std::vector<Target*> targets_;
  Works works_;
};

}  // namespace verbena::bench
