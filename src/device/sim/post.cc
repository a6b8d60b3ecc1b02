// The processor's side of posting: WQEs, doorbells, and what they cost the calling thread.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/device/sim/datagrams.h"
#include "src/device/sim/objects.h"
#include "src/device/sim/opcode.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

constexpr uint64_t kBurstBytes = 64;
constexpr uint64_t kShortLines = 2;  // a message of one line, and its mark

// 0, or an errno value.
int make_wqe(QueuePair& qp, const ibv_send_wr& request) {
  if (!qp.is_reliable() && !is_unreliable_request(qp, request)) return EINVAL;
  // It would wait for its turn for ever.
  if (qp.state() == IBV_QPS_RTS && asks_for_data(request.opcode) &&
      qp.own.chosen.max_rd_atomic == 0) {
    return EINVAL;
  }
  if (request.num_sge < 0 || static_cast<uint32_t>(request.num_sge) > qp.own.chosen.max_sges)
    return EINVAL;
  if (qp.posted - qp.reclaimed == qp.own.chosen.depth) return ENOMEM;
  const uint64_t number = qp.posted;
  uint64_t length = 0;
  for (int i = 0; i < request.num_sge; ++i) length += request.sg_list[i].length;
  if (length > (uint64_t{1} << 31)) return EINVAL;
  Wqe wqe;
  wqe.wr_id = request.wr_id;
  wqe.opcode = request.opcode;
  wqe.length_bytes = static_cast<uint32_t>(length);
  wqe.imm_data = request.imm_data;
  wqe.sges = static_cast<uint8_t>(request.num_sge);
  wqe.signaled = qp.own.chosen.signals_all || (request.send_flags & IBV_SEND_SIGNALED) != 0;
  wqe.fence = (request.send_flags & IBV_SEND_FENCE) != 0;
  switch (request.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      break;
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
      wqe.remote_address = request.wr.rdma.remote_addr;
      wqe.rkey = request.wr.rdma.rkey;
      break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      if (length != sizeof(uint64_t)) return EINVAL;
      wqe.remote_address = request.wr.atomic.remote_addr;
      wqe.rkey = request.wr.atomic.rkey;
      wqe.compare = request.wr.atomic.compare_add;
      wqe.swap = request.wr.atomic.swap;
      break;
    default:
      return EOPNOTSUPP;
  }
  wqe.packets = std::max(1u, (wqe.length_bytes + qp.own.chosen.mtu_bytes - 1) /
                                 std::max<uint32_t>(qp.own.chosen.mtu_bytes, 1));
  if (qp.sends_datagrams() && wqe.packets > 1) wqe.bad = true;
  wqe.inlined = (request.send_flags & IBV_SEND_INLINE) != 0 && request.opcode != IBV_WR_RDMA_READ &&
                !is_atomic(request.opcode);
  if (wqe.inlined && length > qp.own.chosen.max_inline_bytes) return ENOMEM;
  qp.wqes.add(wqe);
  std::copy_n(request.sg_list, request.num_sge, qp.sges_of(number));
  if (qp.sends_datagrams()) set_datagram_address(qp, number, request);
  if (wqe.inlined) {
    std::byte* to = qp.wqes.inline_bytes(number);
    for (int i = 0; i < request.num_sge; ++i) {
      const ibv_sge& sge = request.sg_list[i];
      if (sge.length == 0) continue;
      std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
      to += sge.length;
    }
  }
  ++qp.posted;
  return 0;
}

// A thread that posts: it reads its WQEs after it has let others run, one of which may have rung
// for them.
class Posting {
 public:
  explicit Posting(QueuePair& qp) : qp_(qp) { ++qp_.posting; }
  ~Posting() {
    --qp_.posting;
    qp_.release_wqes();
  }
  Posting(const Posting&) = delete;
  Posting& operator=(const Posting&) = delete;

 private:
  QueuePair& qp_;
};

// Where the gather list is memory that the queue pair may not use. `thread` copies where it lies.
bool local_memory_fails(QueuePair& qp, uint64_t number, Fiber* thread) {
  const Wqe& wqe = qp.wqe(number);
  if (wqe.inlined) return false;
  const bool written = asks_for_data(wqe.opcode);
  for (uint32_t i = 0; i < wqe.sges; ++i) {
    const ibv_sge& sge = qp.sges_of(number)[i];
    if (sge.length == 0) continue;
    const Region* const region = qp.node->rnic.find_region(sge.lkey);
    if (region == nullptr || region->verbs.pd != qp.verbs.pd ||
        !region->covers(sge.addr, sge.length) ||
        (written && (region->access & IBV_ACCESS_LOCAL_WRITE) == 0)) {
      return true;
    }
    if (thread != nullptr) thread->buffers = region->socket;
  }
  return false;
}

// The processor's time for the doorbell of `entries` new ones, of which the last is `wqe`.
bool charge_doorbell(QueuePair& qp, uint64_t entries, const Wqe& wqe) {
  Simulation& simulation = qp.node->simulation;
  const Profile& profile = qp.node->profile;
  const uint64_t bytes = wqe_bytes(wqe, datagram_address_bytes(qp));
  const bool lone = entries == 1 && (profile.blueflame_single_only == 0 || wqe.inlined ||
                                     wqe.opcode == IBV_WR_RDMA_READ);
  const bool with_wqe = entries == 1 && lone && bytes <= profile.blueflame_max_bytes;
  Time cost = with_wqe ? (bytes + kBurstBytes - 1) / kBurstBytes * profile.post_blueflame_64
                       : profile.post_doorbell;
  const Fiber* const thread = simulation.running();
  if (thread == nullptr) return with_wqe;
  if (thread->socket != qp.own.chosen.socket) cost += profile.cpu_remote_mmio;
  Recorder* const recorder = simulation.recorder();
  DoorbellRegister& place = *qp.own.chosen.doorbell_register;
  const bool locks = profile.blueflame_lock_alone != 0 && !place.dedicated &&
                     (with_wqe || profile.doorbell_lock != 0);
  if (!locks) {
    if (recorder != nullptr) {
      recorder->next_charge(with_wqe ? StepKind::kBlueFlame : StepKind::kRing, qp,
                            qp.posted - entries);
    }
    simulation.charge(cost);
    return with_wqe;
  }
  // In the order in which the threads come to the lock. Its line is in the core of who held it
  // last; to who waits it comes as soon as it is free. All who spin take the line then, and again
  // to look who got the lock, so each of the others makes that take longer (pthread_spin_lock).
  simulation.catch_up();
  const bool waits = place.free_at > simulation.now();
  const bool elsewhere = std::exchange(place.holder, thread) != thread;
  const Time begun = waits       ? place.free_at
                     : elsewhere ? simulation.now() + profile.cpu_line_transfer
                                 : simulation.now();
  while (!place.turns.empty() && place.turns.front() <= simulation.now()) place.turns.pop_front();
  const Time hold = cost +
                    (elsewhere ? profile.blueflame_lock_contended : profile.blueflame_lock_alone) +
                    place.turns.size() * profile.blueflame_lock_waiter;
  if (waits) place.turns.push_back(begun);
  place.free_at = begun + hold;
  if (recorder != nullptr) {
    const MessageId posted = Recorder::of(qp, qp.posted - entries).message;
    recorder->thread_step(*thread, StepKind::kLockWait, simulation.now(), begun, &posted);
    recorder->thread_step(*thread, with_wqe ? StepKind::kBlueFlame : StepKind::kRing, begun,
                          begun + hold, &posted);
  }
  simulation.advance_to(place.free_at);
  return with_wqe;
}

}  // namespace

namespace {

// What the thread that posts does itself of a message on a software RNIC.
Time software_time(const Profile& profile, const Wqe& wqe) {
  const uint64_t lines = (wqe.length_bytes + kBurstBytes - 1) / kBurstBytes;
  const Time moved = lines * profile.post_64 + (lines > kShortLines ? profile.post_lines : 0);
  switch (wqe.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return moved + profile.post_send;
    case IBV_WR_RDMA_READ:
      return lines * profile.post_read_64 + profile.post_read;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return profile.post_atomic;
    default:
      return moved;
  }
}

}  // namespace

int post_send(ibv_qp* verbs, ibv_send_wr* request, ibv_send_wr** bad) {
  QueuePair& qp = as_qp(verbs);
  prefetch(qp);
  const Posting posting(qp);
  Simulation& simulation = qp.node->simulation;
  const Profile& profile = qp.node->profile;
  const SharedQueueGuard guard(qp.send_lock, simulation, profile);
  const uint64_t before = qp.posted;
  int error = 0;
  for (; request != nullptr; request = request->next) {
    if (qp.state() != IBV_QPS_RTS && qp.state() != IBV_QPS_SQE && qp.state() != IBV_QPS_ERR) {
      error = EINVAL;
    }
    if (error == 0) error = make_wqe(qp, *request);
    if (error != 0) {
      *bad = request;
      break;
    }
  }
  const uint64_t entries = qp.posted - before;
  if (entries == 0) return error;
  uint64_t copied = 0;
  uint64_t listed = 0;  // entries of gather lists behind the first of each, and as much as these
  if (qp.sends_datagrams()) {
    listed = entries * (profile.datagram_address_bytes / kWqeSegmentBytes);
  }
  const bool software =
      profile.posts_move_payload != 0;  // which copies once, wherever it comes from
  Time software_work = 0;
  for (uint64_t number = before; number < qp.posted; ++number) {
    const Wqe& wqe = qp.wqe(number);
    software_work += software_time(profile, wqe);
    if (wqe.inlined && !software) {
      copied += wqe.length_bytes;
    } else if (wqe.sges > 1) {
      listed += wqe.sges - 1;
    }
  }
  Recorder* const recorder = simulation.recorder();
  if (recorder != nullptr) recorder->next_charge(StepKind::kBuild, qp, before);
  simulation.charge(entries * profile.post_wqe + listed * profile.post_sge +
                    copied * profile.cpu_copy_kib / 1024 + software_work);
  simulation.keep_up();
  if (qp.state() == IBV_QPS_SQE || qp.state() == IBV_QPS_ERR) {
    qp.node->rnic.flush_sends(qp);
    return error;
  }
  for (uint64_t number = before; number < qp.posted; ++number) {
    if (local_memory_fails(qp, number, simulation.running())) qp.wqe(number).bad = true;
  }
  const uint64_t count = qp.posted;
  const bool with_wqe = charge_doorbell(qp, entries, qp.wqe(count - 1));
  if (with_wqe) qp.node->rnic.await_wqe_room();
  if (recorder != nullptr) {
    recorder->doorbell(simulation.running(), qp, before, count, simulation.local(),
                       simulation.local() + profile.pcie_one_way);
  }
  qp.node->rnic.ring(qp, with_wqe);
  return error;
}

namespace {

int post_receives(ReceiveQueue& queue, ibv_recv_wr* request, ibv_recv_wr** bad, Time each) {
  Simulation& simulation = queue.node->simulation;
  int error = 0;
  uint64_t count = 0;
  for (; request != nullptr; request = request->next, ++count) {
    const bool fits =
        request->num_sge >= 0 && static_cast<uint32_t>(request->num_sge) <= queue.max_sges;
    if (!fits) error = EINVAL;
    if (queue.free_slots.empty()) error = ENOMEM;
    if (error != 0) {
      *bad = request;
      break;
    }
    const uint32_t slot = queue.free_slots.back();
    queue.free_slots.pop_back();
    queue.slot_of(queue.posted) = slot;
    PostedReceive& receive = queue.receives[slot];
    receive = {.wr_id = request->wr_id, .sges = static_cast<uint32_t>(request->num_sge)};
    for (int i = 0; i < request->num_sge; ++i) {
      queue.sges_of(slot)[i] = request->sg_list[i];
      receive.length_bytes += request->sg_list[i].length;
    }
    ++queue.posted;
  }
  if (simulation.recorder() != nullptr) simulation.recorder()->next_charge(StepKind::kPostReceive);
  simulation.charge(count * each);
  simulation.keep_up();
  queue.node->rnic.receives_posted(queue, queue.posted);
  return error;
}

}  // namespace

int post_recv(ibv_qp* verbs, ibv_recv_wr* request, ibv_recv_wr** bad) {
  QueuePair& qp = as_qp(verbs);
  if (qp.state() == IBV_QPS_RESET || qp.srq() != nullptr) {
    *bad = request;
    return EINVAL;
  }
  const int error =
      post_receives(qp.make_own_receives(), request, bad, qp.node->profile.post_receive);
  if (qp.state() == IBV_QPS_ERR) qp.node->rnic.flush_receives(qp);
  return error;
}

int post_srq_recv(ibv_srq* verbs, ibv_recv_wr* request, ibv_recv_wr** bad) {
  Srq& srq = as_srq(verbs);
  return post_receives(srq.queue, request, bad, srq.queue.node->profile.post_shared_receive);
}

}  // namespace verbena::sim
