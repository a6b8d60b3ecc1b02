// One point on one node: its threads, and the steps that they take when the coordinator says so.
//
// Who drives it waits in its own way: a node's process for its control connection
// (node_service.cc), a simulation for virtual time (simulated_nodes.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/silence_watch.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/node_job.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

class PointNode {
 public:
  // `address`: where its threads listen. All references must outlive the node.
  PointNode(const Device& device, const ProtectionDomain& domain, const JobSecret& secret,
            std::string address, Setup setup, std::shared_ptr<const JobWiring> wiring);
  // Ends the threads and waits for them.
  ~PointNode();
  PointNode(const PointNode&) = delete;
  PointNode& operator=(const PointNode&) = delete;

  // Starts the threads and the first step: responding threads listen.
  Status start();
  // Begins the step that the message asks for. kProtocolViolation if none is due.
  Status begin(const Message& message);
  // Whether the step is over; then answer() says what the coordinator is to know.
  bool settled() { return job_.team.settled(); }
  Message answer();
  // The first failure of any thread; ok if there was none.
  Status failure() { return job_.team.failure(); }

  // To be called often by whoever drives it: kTimeout if a requesting thread has not returned from
  // a call for as long as the phase allows. Then the threads cannot be joined any more.
  Status stalled();

  // Readable once when the step is over, or after a failure.
  int descriptor() const { return job_.team.descriptor(); }
  void clear_event() { job_.team.clear_event(); }

 private:
  const WiredNode& node() const { return job_.node(); }
  uint32_t all_threads() const { return static_cast<uint32_t>(reports_.size()); }
  void begin_step(const Step& step, uint32_t participants);
  Status start_threads();
  Report merged(uint32_t first, uint32_t count) const;

  NodeJob job_;
  StepKind step_ = StepKind::kStart;
  uint64_t stall_ns_ = kStallNs;
  std::vector<SilenceWatch> watches_;  // of the requesting threads in this step
  std::vector<ThreadReport> reports_;  // requesting threads first
  std::vector<Thread> threads_;        // end before what they use
};

}  // namespace verbena::bench
