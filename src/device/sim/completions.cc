// Completion queues: what the RNIC adds, and what threads take.
#include <algorithm>

#include "src/base/assert.h"
#include "src/device/sim/objects.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

void push_completion(Cq& cq, const Cq::Entry& entry) {
  if (cq.own.entries.size() == cq.capacity()) {
    cq.own.overrun = true;
    return;
  }
  cq.own.entries.push_back(entry);
  Simulation& simulation = cq.node().simulation;
  simulation.note(simulation.now());
  simulation.note(uint64_t{entry.completion.qp_num} << 32 | entry.completion.status);
  if (cq.own.poller != nullptr) simulation.wake(*cq.own.poller, simulation.now());
  // On a crashed node nobody waits, and the channel may be gone.
  if (cq.own.armed && cq.channel() != nullptr && !cq.node().crashed) {
    cq.own.armed = false;
    cq.channel()->events.push_back(&cq);
    simulation.wake_waiting_at(cq.channel());
  }
}

void forget_completions(Cq& cq, const QueuePair& qp) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < cq.own.entries.size(); ++i) {
    if (cq.own.entries[i].completion.qp_num == qp.verbs.qp_num) continue;
    cq.own.entries[kept++] = cq.own.entries[i];
  }
  cq.own.entries.truncate(kept);
}

int poll_cq(ibv_cq* verbs, int count, ibv_wc* completions) {
  Cq& cq = as_cq(verbs);
  Simulation& simulation = cq.node().simulation;
  const Profile& profile = cq.node().profile;
  const SharedQueueGuard guard(cq.own.lock, simulation, profile);
  Fiber* const thread = simulation.running();
  if (thread != nullptr) cq.own.poller = thread;
  Recorder* const recorder = simulation.recorder();
  if (recorder != nullptr) recorder->next_charge(StepKind::kPollEmpty);
  simulation.charge(profile.poll_empty);
  simulation.keep_up();
  if (cq.own.overrun) return -1;
  const int found = std::min(count, static_cast<int>(cq.own.entries.size()));
  for (int i = 0; i < found; ++i) {
    const Cq::Entry& entry = cq.own.entries.front();
    completions[i] = entry.completion;
    if (entry.sender != nullptr) {
      VERBENA_DEBUG_ASSERT(entry.message <= entry.sender->posted);
      entry.sender->reclaimed = std::max(entry.sender->reclaimed, entry.message);
    }
    cq.own.entries.pop_front();
  }
  Received arrived;
  if (found > 0 && thread != nullptr) {
    bool messages = false;
    const uint32_t port = as_context(verbs->context).socket;  // queues lie there
    const Time line = profile.cpu_device_line + cq.node().remote_line(thread->socket, port, port);
    Time took = static_cast<Time>(found) * profile.poll_completion;
    for (int i = 0; i < found; ++i) {
      messages = messages || completions[i].opcode == IBV_WC_RDMA_READ;
      // Its completion, which the RNIC has written; the message itself is charged to who reads it.
      // That of a send is this thread's own, where it does the RNIC's work.
      const bool received = (completions[i].opcode & IBV_WC_RECV) != 0;
      messages = messages || received;
      arrived.messages += received ? 1 : 0;
      arrived.lines += received && completions[i].byte_len > 0 ? 1 : 0;
      if (received || profile.posts_move_payload == 0) took += line;
    }
    if (messages) thread->receives_at = port;
    if (recorder != nullptr) {
      recorder->next_charge(messages ? StepKind::kTake : StepKind::kReap);
    }
    simulation.charge(took);
  }
  // After its own charge, which is not for them.
  if (thread != nullptr) thread->received = arrived;
  return found;
}

int req_notify_cq(ibv_cq* verbs, int /*solicited_only*/) {
  Cq& cq = as_cq(verbs);
  cq.node().simulation.charge(cq.node().profile.post_doorbell);
  cq.own.armed = true;
  return 0;
}

}  // namespace verbena::sim
