// Doorbells: the processor's stores reach the RNIC in their order and are handled in that order.
//
// Handling one takes the queue pair's context. Where that is not on chip, its fetch keeps the
// doorbells behind it waiting, whatever queue pair they are of: one fetch at a time, other than for
// packets (context_misses_at_once). So what many queue pairs cost depends on who rings for whom: a
// responder rings for a queue pair whose request has just come, a requester for one that it has not
// used since its last turn.
//
// A plain doorbell only says that there is more to fetch; several of a queue pair are as good as
// one. A WQE that came along takes room, and when there is none, the bus takes no more: the
// thread that posts the next one stands still in its store. The bus itself holds what it carries
// at its full rate, so how long the way takes limits no rate.
#include <algorithm>

#include "src/base/assert.h"
#include "src/device/sim/datagrams.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

constexpr uint64_t kAlong = uint64_t{1} << 63;
constexpr uint32_t kGenerationMask = INT32_MAX;

}  // namespace

// Its place is given back in take_doorbell().
void Rnic::await_wqe_room() {
  Fiber* const thread = simulation_.running();
  if (thread == nullptr || wqes_along_ < wqe_room_) {
    ++wqes_along_;
    return;
  }
  stalled_.push_back(thread);
  simulation_.stand_still();
}

void Rnic::make_wqe_room() {
  VERBENA_ASSERT(wqes_along_ > 0);
  if (stalled_.empty()) {
    --wqes_along_;
    return;
  }
  // Its place is the next one's.
  simulation_.go_on(*stalled_.front());
  stalled_.pop_front();
}

// What it says fits an event: how many WQEs there are, by the lower half, and of which
// generation of the queue pair.
void Rnic::ring(QueuePair& qp, bool along) {
  if (qp.own.chosen.peer_node != nullptr) {
    const QueuePair* const peer =
        qp.own.chosen.peer_node->rnic.find_queue_pair(qp.own.chosen.dest_qp_num);
    if (peer != nullptr) prefetch(*peer);
  }
  const uint64_t generation = qp.generation & kGenerationMask;
  simulation_.at(simulation_.local() + node_.profile.pcie_one_way, doorbell_arrived, &qp,
                 generation << 32 | static_cast<uint32_t>(qp.posted) | (along ? kAlong : 0));
}

void Rnic::doorbell_arrived(void* object, uint64_t argument) {
  auto& qp = *static_cast<QueuePair*>(object);
  Rnic& rnic = qp.node->rnic;
  const bool along = (argument & kAlong) != 0;
  if (rnic.note_doorbell(qp, static_cast<uint32_t>(argument >> 32) & kGenerationMask,
                         static_cast<uint32_t>(argument), along) ||
      along) {
    rnic.doorbells_.push_back({&qp, qp.generation, along});
    if (!rnic.handles_doorbell_) rnic.handle_doorbells();
  }
}

// True if the queue pair waits for its turn only since now.
bool Rnic::note_doorbell(QueuePair& qp, uint32_t generation, uint32_t count, bool along) {
  if ((qp.generation & kGenerationMask) != generation || qp.state() != IBV_QPS_RTS) return false;
  const uint32_t ahead = count - static_cast<uint32_t>(qp.announced);
  if (ahead == 0 || ahead > qp.own.chosen.depth) return false;  // another thread's announced it
  const bool first = qp.announced == qp.handled;
  record_doorbell_wait(qp);
  qp.announced += ahead;
  VERBENA_DEBUG_ASSERT(qp.handled <= qp.announced && qp.announced <= qp.posted);
  qp.own.announced_at = simulation_.now();
  qp.all_along = along && (first || qp.all_along);
  return first;
}

void Rnic::record_doorbell_wait(const QueuePair& qp) {
  Recorder* const recorder = simulation_.recorder();
  if (recorder == nullptr) return;
  for (uint64_t number = qp.handled; number < qp.announced; ++number) {
    recorder->step(StepKind::kDoorbellWait, node_.number, Recorder::of(qp, number),
                   qp.own.announced_at, simulation_.now());
  }
}

void Rnic::handle_doorbells() {
  while (!doorbells_.empty()) {
    const Doorbell doorbell = doorbells_.front();
    QueuePair& qp = *doorbell.qp;
    const bool news = qp.generation == doorbell.generation && qp.announced > qp.handled;
    if (news && !contexts_.touch(qp.context, dice_)) {
      handles_doorbell_ = true;
      const Time done = simulation_.now() + node_.profile.context_miss;
      doorbells_busy_ += node_.profile.context_miss;
      if (Recorder* const recorder = simulation_.recorder()) {
        record_doorbell_wait(qp);
        for (uint64_t number = qp.handled; number < qp.announced; ++number) {
          recorder->step(StepKind::kSendMiss, node_.number, Recorder::of(qp, number),
                         simulation_.now(), done);
        }
        qp.own.announced_at = done;
      }
      simulation_.at(done, doorbell_context, this);
      return;
    }
    take_doorbell();
  }
}

void Rnic::doorbell_context(void* object, uint64_t) {
  Rnic& rnic = *static_cast<Rnic*>(object);
  rnic.handles_doorbell_ = false;
  rnic.take_doorbell();
  rnic.handle_doorbells();
}

// The first one, whose context is on chip.
void Rnic::take_doorbell() {
  const Doorbell doorbell = doorbells_.front();
  doorbells_.pop_front();
  if (doorbell.along) make_wqe_room();
  QueuePair& qp = *doorbell.qp;
  if (qp.generation != doorbell.generation || qp.state() != IBV_QPS_RTS ||
      qp.announced == qp.handled)
    return;
  record_doorbell_wait(qp);
  const uint64_t entries = qp.announced - qp.handled;
  qp.handled = qp.announced;
  // A copy that came along is used at once or not at all.
  const bool is_free = node_.profile.blueflame_idle_only == 0 || qp.retired == qp.fetched;
  if (qp.all_along && qp.fetched + entries == qp.handled && is_free) {
    kept_wqes_ += qp.handled - qp.fetched;
    for (; qp.fetched < qp.handled; ++qp.fetched) {
      if (qp.send_message < qp.fetched) qp.wqe(qp.fetched).late = true;
    }
    fetch_payloads(qp);
    schedule_requests(qp);
    return;
  }
  uint64_t blocks = 0;
  for (uint64_t number = qp.handled - entries; number < qp.handled; ++number) {
    blocks += wqe_blocks(qp.wqe(number), datagram_address_bytes(qp));
  }
  const Time free = bus_down_.free_at();
  const Time there = qp.own.fetched_at =
      std::max(bus_read(blocks * kWqeBlockBytes), qp.own.fetched_at);
  if (Recorder* const recorder = simulation_.recorder()) {
    for (uint64_t number = qp.handled - entries; number < qp.handled; ++number) {
      recorder->served(StepKind::kBusWait, StepKind::kWqeFetch, node_.number,
                       Recorder::of(qp, number), simulation_.now(), free, there);
    }
  }
  simulation_.at(there, wqes_fetched, &qp,
                 uint64_t{qp.generation} << 32 | static_cast<uint32_t>(qp.handled));
}

// The WQEs that a doorbell announced have been fetched.
void Rnic::wqes_fetched(void* object, uint64_t argument) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.generation != argument >> 32 || qp.state() != IBV_QPS_RTS) return;
  // The count's lower half: no two that are under way are so far apart.
  const uint32_t came = static_cast<uint32_t>(argument) - static_cast<uint32_t>(qp.fetched);
  if (came > qp.own.chosen.depth) return;  // they have failed meanwhile
  qp.fetched += came;
  VERBENA_ASSERT(qp.fetched <= qp.handled);
  Rnic& rnic = qp.node->rnic;
  rnic.kept_wqes_ += came;
  rnic.fetch_payloads(qp);
  rnic.schedule_requests(qp);
}

}  // namespace verbena::sim
