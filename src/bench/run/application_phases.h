// The phases of a thread that uses an application (apps/): what it posts and polls are operations
// of several kinds, and what is checked are their outcomes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/bench/run/coordination.h"
#include "src/bench/run/node_job.h"
#include "src/bench/run/request_phases.h"
#include "verbena/status.h"

namespace verbena::bench {

// `Requests` is what the closed loop drives (RequestPhases' Target), and has
//   void begin(const Phase&, bool verify)   before the loop
//   void draw(uint32_t slot)                decides what the slot's next operation is
//   uint32_t kind(uint32_t slot)            of WorkloadTraits::kinds
//   Status end(Report&)                     after the loop: adds to the phase's report
// and may have
//   Status prepare(const Phase&)            before all threads begin the phase together
//   bool complete()                         does what was answered before it was done; false:
//                                           nothing was left
template <typename Requests>
class ApplicationWork {
 public:
  static constexpr bool takes_time() { return false; }

  explicit ApplicationWork(Requests& requests) : requests_(&requests) {}
  uint32_t prepare(uint32_t slot, char* /*request*/) {
    requests_->draw(slot);
    return 0;
  }
  bool check(uint32_t /*slot*/, std::span<const char> /*response*/) { return true; }
  uint32_t kind(uint32_t slot) const { return requests_->kind(slot); }

 private:
  Requests* requests_;
};

template <typename Requests>
class ApplicationWorks {
 public:
  explicit ApplicationWorks(Requests& requests) : requests_(&requests) {}

  Status prepare(const Phase& phase) const requires requires(Requests& requests) {
    requests.prepare(phase);
  }
  { return requests_->prepare(phase); }
  std::vector<ApplicationWork<Requests>> make(const Phase& phase) const {
    requests_->begin(phase, phase.verify);
    return {ApplicationWork<Requests>(*requests_)};
  }
  bool complete() const requires requires(Requests& requests) { requests.complete(); }
  { return requests_->complete(); }
  Status ended(Report& report) const { return requests_->end(report); }

 private:
  Requests* requests_;
};

// Ends the step in which the thread has connected, and serves phases until the team leaves.
template <typename Requests>
void serve_application(NodeJob& job, uint32_t number, Requests& requests, Report& report,
                       const Step& step) {
  RequestPhases<Requests, ApplicationWorks<Requests>> phases(
      job, number, {&requests}, ApplicationWorks<Requests>(requests), report);
  job.team.finished();
  phases.serve(step);
}

}  // namespace verbena::bench
