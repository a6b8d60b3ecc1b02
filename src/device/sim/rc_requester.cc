// The requester of a reliable connection: responses, acknowledgements, retries, time-outs.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/opcode.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

constexpr uint32_t kRetriesWithoutEnd = 7;

// IBTA volume 1, 9.7.5.2.8, in units of 10 us; 0 is the longest.
constexpr Time kRnrDelays[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                 16,    24,   32,   48,    64,    96,    128,   192,
                                 256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                 4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
constexpr Time kRnrUnit = 10'000 * kPsPerNs;

Time rnr_delay(uint8_t code) { return kRnrDelays[code % 32] * kRnrUnit; }

ibv_wc_status status_of(NakCode nak) {
  switch (nak) {
    case NakCode::kAccess:
      return IBV_WC_REM_ACCESS_ERR;
    case NakCode::kInvalid:
      return IBV_WC_REM_INV_REQ_ERR;
    default:
      return IBV_WC_REM_OP_ERR;
  }
}

}  // namespace

// ---- READs and atomics ----

// Only so many are under way at once, and what has a fence waits for them.
bool Rnic::may_begin(const QueuePair& qp, const Wqe& wqe) {
  const uint32_t outstanding = qp.requester.reads_outstanding;
  if (wqe.fence && outstanding > 0) return false;
  return !asks_for_data(wqe.opcode) || outstanding < qp.own.chosen.max_rd_atomic;
}

void Rnic::ask(QueuePair& qp, Wqe& wqe, Made& made) {
  const Profile& profile = node_.profile;
  // After a loss it asks for what is missing only.
  made.packet->index = wqe.arrived;
  made.packet->last = true;
  CacheStamp& state = qp.requester.read_state;
  if (!read_states_.touch(state, 1, dice_)) made.cost += missed(profile.read_state_miss);
  if (wqe.late) {
    made.delay += profile.pcie_read;
    if (!read_states_.touch(state, 1, dice_)) made.cost += missed(profile.read_state_miss);
  }
  if (!std::exchange(wqe.asked, true)) ++qp.requester.reads_outstanding;
}

void Rnic::response_received(Packet* packet) {
  QueuePair& qp = *packet->target;
  Fabric& fabric = simulation_.fabric();
  if (packet->message < qp.retired || packet->message >= qp.requester.sent_ever) {
    fabric.free(packet);
    return;
  }
  // They come in order; one that does not tells that another one was lost.
  const uint64_t next = next_answer(qp);
  Wqe& wqe = qp.wqe(packet->message);
  if (packet->message != next || packet->index != wqe.arrived) {
    const bool lost =
        packet->message > next || (packet->message == next && packet->index > wqe.arrived);
    fabric.free(packet);
    if (lost && !qp.requester.asked_again) {
      qp.requester.asked_again = true;
      go_back(qp);
    }
    return;
  }
  qp.requester.asked_again = false;
  if (packet->kind == PacketKind::kAtomicResponse) {
    fabric.hold_payload(*packet);
    std::memcpy(packet->bytes, &packet->original, sizeof(packet->original));
    packet->payload_bytes = kAtomicBytes;
    packet->offset = 0;
  }
  const uint64_t message = packet->message;
  const bool last = packet->last;
  const ibv_sge* const sges = qp.sges_of(message);
  if (!may_scatter(qp.verbs.pd, sges, wqe.sges, packet->offset, packet->payload_bytes)) {
    // Deregistered since it was posted. What came before has arrived.
    fabric.free(packet);
    acknowledge(qp, message);
    retire(qp);
    fail(qp, IBV_WC_LOC_PROT_ERR);
    return;
  }
  ++wqe.arrived;
  qp.requester.progress_at = simulation_.now();
  qp.requester.retries = 0;
  Translations missing;
  translate(sges, wqe.sges, packet->offset, packet->payload_bytes, &missing);
  const Time delay = translated(qp, missing);
  const Time free = bus_up_free_at();
  const Time there = bus_write(packet->payload_bytes, is_far(qp, sges, wqe.sges));
  qp.place_at = std::max(qp.place_at, there + delay);
  if (Recorder* const recorder = simulation_.recorder()) {
    const StepOf of = Recorder::of(*packet);
    recorder->served(StepKind::kBusWait, StepKind::kPlacement, node_.number, of, simulation_.now(),
                     free, there);
    recorder->step(StepKind::kTranslationMiss, node_.number, of, there, there + delay);
    recorder->step(StepKind::kPlacementOrder, node_.number, of, there + delay, qp.place_at);
  }
  ++qp.requester.placing;
  simulation_.at(qp.place_at, place, packet);
  if (!last) return;
  wqe.done = true;
  if (std::exchange(wqe.asked, false)) --qp.requester.reads_outstanding;
  // It tells that everything before it has arrived.
  acknowledge(qp, message);
  retire(qp);
  schedule_requests(qp);
}

// ---- acknowledgements ----

void Rnic::ack_received(const Packet& packet) {
  QueuePair& qp = *packet.target;
  if (packet.message > qp.requester.sent_ever) return;
  acknowledge(qp, packet.message);
  retire(qp);
  if (packet.kind == PacketKind::kNak) {
    // Responses come before what is refused behind them: where one is missing, it was lost.
    const bool too_early = next_answer(qp) < packet.message;
    switch (too_early ? NakCode::kSequence : packet.nak) {
      case NakCode::kSequence:
        go_back(qp);
        break;
      case NakCode::kRnr:
        if (qp.requester.paused) break;
        if (qp.own.chosen.rnr_retry != kRetriesWithoutEnd &&
            qp.requester.rnr_retries++ >= qp.own.chosen.rnr_retry) {
          fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
          return;
        }
        qp.requester.paused = true;
        go_back(qp);
        simulation_.at(simulation_.now() + rnr_delay(packet.source->own.chosen.min_rnr_timer),
                       rnr_over, &qp, qp.generation);
        break;
      default:
        fail(qp, status_of(packet.nak));
        return;
    }
  }
  schedule_requests(qp);
}

void Rnic::rnr_over(void* object, uint64_t generation) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.generation != generation || !qp.requester.paused) return;
  qp.requester.paused = false;
  qp.requester.progress_at = qp.node->simulation.now();
  qp.node->rnic.schedule_requests(qp);
}

// Everything below `messages` has arrived.
void Rnic::acknowledge(QueuePair& qp, uint64_t messages) {
  if (messages <= qp.requester.acked) return;
  qp.requester.acked = messages;
  qp.requester.progress_at = simulation_.now();
  qp.requester.retries = 0;
  qp.requester.rnr_retries = 0;
}

// Completes, in order, what is done.
void Rnic::retire(QueuePair& qp) {
  while (qp.retired < qp.requester.sent_ever) {
    const Wqe& wqe = qp.wqe(qp.retired);
    const bool done = asks_for_data(wqe.opcode) ? wqe.done : qp.retired < qp.requester.acked;
    if (!done) break;
    const uint64_t message = qp.retired++;
    VERBENA_DEBUG_ASSERT(kept_wqes_ > 0);
    --kept_wqes_;
    if (wqe.signaled) complete(qp, message, IBV_WC_SUCCESS);
  }
  // An acknowledgement came late: what it tells of need not go again.
  if (qp.send_message < qp.retired) begin_at(qp, qp.retired);
  qp.release_wqes();
}

// The next message to send, and the first whose payload is fetched.
void Rnic::begin_at(QueuePair& qp, uint64_t message) {
  qp.send_message = message;
  qp.send_packet = 0;
  ++qp.fetch_epoch;
  qp.payload_message = message;
  qp.payload_packet = qp.payload_outstanding = qp.payload_ready = 0;
  fetch_payloads(qp);
}

uint64_t Rnic::next_answer(QueuePair& qp) {
  qp.requester.answered = std::max(qp.requester.answered, qp.retired);
  while (qp.requester.answered < qp.requester.sent_ever) {
    const Wqe& wqe = qp.wqe(qp.requester.answered);
    if (asks_for_data(wqe.opcode) && !wqe.done) break;
    ++qp.requester.answered;
  }
  return qp.requester.answered;
}

// Sends everything again that is not known to have arrived.
void Rnic::go_back(QueuePair& qp) {
  retire(qp);
  // What has arrived behind a READ that has not been answered goes again, too; the responder knows.
  qp.requester.reads_outstanding = 0;
  for (uint64_t message = qp.retired; message < qp.requester.sent_ever; ++message) {
    qp.wqe(message).asked = false;
  }
  begin_at(qp, qp.retired);
  schedule_requests(qp);
}

// ---- time-outs ----

void Rnic::start_timer(QueuePair& qp) {
  if (!qp.is_reliable() || qp.requester.timer_running || qp.own.chosen.timeout == 0) return;
  qp.requester.timer_running = true;
  constexpr Time kTimeoutUnit = 4096 * kPsPerNs;
  simulation_.at(simulation_.now() + (kTimeoutUnit << qp.own.chosen.timeout), timer, &qp,
                 qp.generation);
}

void Rnic::timer(void* object, uint64_t generation) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.generation != generation || qp.state() != IBV_QPS_RTS) return;
  Rnic& rnic = qp.node->rnic;
  const Time now = rnic.simulation_.now();
  constexpr Time kTimeoutUnit = 4096 * kPsPerNs;
  const Time timeout = kTimeoutUnit << qp.own.chosen.timeout;
  qp.requester.timer_running = false;
  if (qp.retired == qp.requester.sent_ever || qp.node->crashed)
    return;  // the next send starts it again
  if (qp.requester.paused) {
    qp.requester.progress_at = now;  // it waits for a receiver that answers
  } else if (now - qp.requester.progress_at >= timeout) {
    if (qp.requester.retries++ >= qp.own.chosen.retry_cnt) {
      rnic.fail(qp, IBV_WC_RETRY_EXC_ERR);
      return;
    }
    qp.requester.progress_at = now;
    qp.requester.asked_again = false;
    rnic.go_back(qp);
  }
  qp.requester.timer_running = true;
  rnic.simulation_.at(qp.requester.progress_at + timeout, timer, &qp, generation);
}

}  // namespace verbena::sim
