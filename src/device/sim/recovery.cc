// Reliability at the requester: acknowledgements, retries, time-outs, errors, completions.
#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/node.h"
#include "src/device/sim/opcode.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
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

ibv_wc_opcode completed_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
      return IBV_WC_SEND;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_RDMA_WRITE;
  }
}

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

void Rnic::ack_received(const Packet& packet) {
  QueuePair& qp = *packet.target;
  if (packet.message > qp.sent_ever) return;
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
        if (qp.paused) break;
        if (qp.attributes.rnr_retry != kRetriesWithoutEnd &&
            qp.rnr_retries++ >= qp.attributes.rnr_retry) {
          fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
          return;
        }
        qp.paused = true;
        go_back(qp);
        simulation_.at(simulation_.now() + rnr_delay(packet.source->attributes.min_rnr_timer),
                       rnr_over, &qp, qp.life);
        break;
      default:
        fail(qp, status_of(packet.nak));
        return;
    }
  }
  schedule_requests(qp);
}

void Rnic::rnr_over(void* object, uint64_t life) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.life != life || !qp.paused) return;
  qp.paused = false;
  qp.progress_at = qp.node->simulation.now();
  qp.node->rnic.schedule_requests(qp);
}

// Everything below `messages` has arrived.
void Rnic::acknowledge(QueuePair& qp, uint64_t messages) {
  if (messages <= qp.acked) return;
  qp.acked = messages;
  qp.progress_at = simulation_.now();
  qp.retries = 0;
  qp.rnr_retries = 0;
}

// Completes, in order, what is done.
void Rnic::retire(QueuePair& qp) {
  while (qp.retired < qp.sent_ever) {
    const Wqe& wqe = qp.wqe(qp.retired);
    const bool done = asks_for_data(wqe.opcode) ? wqe.done : qp.retired < qp.acked;
    if (!done) break;
    const uint64_t message = qp.retired++;
    if (wqe.signaled) complete(qp, message, IBV_WC_SUCCESS);
  }
  // An acknowledgement came late: what it tells of need not go again.
  if (qp.send_message < qp.retired) begin_at(qp, qp.retired);
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
  qp.answered = std::max(qp.answered, qp.retired);
  while (qp.answered < qp.sent_ever) {
    const Wqe& wqe = qp.wqe(qp.answered);
    if (asks_for_data(wqe.opcode) && !wqe.done) break;
    ++qp.answered;
  }
  return qp.answered;
}

void Rnic::complete(QueuePair& qp, uint64_t message, ibv_wc_status status) {
  const Wqe& wqe = qp.wqe(message);
  Packet* const packet = simulation_.fabric().allocate();
  packet->target = &qp;
  packet->target_life = qp.life;
  packet->cq = qp.send_cq;
  packet->entry = {.completion = make_completion(wqe.wr_id, status, completed_opcode(wqe.opcode),
                                                 qp.verbs.qp_num, wqe.length_bytes),
                   .sender = &qp,
                   .message = message + 1};
  // Behind the payload of a READ, which went the same way.
  const Time free = bus_up_free_at();
  const Time written = bus_write(node_.profile.completion_bytes);
  const Time there = std::max(written, qp.place_at);
  if (Recorder* const recorder = simulation_.recorder()) {
    // The end of a READ; of what was only sent, no more than its acknowledgement.
    StepOf of = Recorder::of(qp, message);
    const bool response = asks_for_data(wqe.opcode);
    of.packet = response ? PacketKind::kReadResponse : PacketKind::kAck;
    of.index = response ? wqe.packets - 1 : 0;
    recorder->served(StepKind::kBusWait, StepKind::kCompletionEntry, node_.number, of,
                     simulation_.now(), free, written);
    recorder->step(StepKind::kPlacementOrder, node_.number, of, written, there);
  }
  simulation_.at(there, completion_visible, packet);
}

void Rnic::completion_visible(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  Simulation& simulation = packet->target->node->simulation;
  if (packet->target->life == packet->target_life) push_completion(*packet->cq, packet->entry);
  simulation.fabric().free(packet);
}

// Sends everything again that is not known to have arrived.
void Rnic::go_back(QueuePair& qp) {
  retire(qp);
  // What has arrived behind a READ that has not been answered goes again, too; the responder knows.
  qp.reads_outstanding = 0;
  for (uint64_t message = qp.retired; message < qp.sent_ever; ++message) {
    qp.wqe(message).asked = false;
  }
  begin_at(qp, qp.retired);
  schedule_requests(qp);
}

// ---- time-outs ----

void Rnic::start_timer(QueuePair& qp) {
  if (qp.timer_running || qp.attributes.timeout == 0) return;
  qp.timer_running = true;
  constexpr Time kTimeoutUnit = 4096 * kPsPerNs;
  simulation_.at(simulation_.now() + (kTimeoutUnit << qp.attributes.timeout), timer, &qp, qp.life);
}

void Rnic::timer(void* object, uint64_t life) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.life != life || qp.state != IBV_QPS_RTS) return;
  Rnic& rnic = qp.node->rnic;
  const Time now = rnic.simulation_.now();
  constexpr Time kTimeoutUnit = 4096 * kPsPerNs;
  const Time timeout = kTimeoutUnit << qp.attributes.timeout;
  qp.timer_running = false;
  if (qp.retired == qp.sent_ever || qp.node->crashed) return;  // the next send starts it again
  if (qp.paused) {
    qp.progress_at = now;  // it waits for a receiver that answers
  } else if (now - qp.progress_at >= timeout) {
    if (qp.retries++ >= qp.attributes.retry_cnt) {
      rnic.fail(qp, IBV_WC_RETRY_EXC_ERR);
      return;
    }
    qp.progress_at = now;
    qp.asked_again = false;
    rnic.go_back(qp);
  }
  qp.timer_running = true;
  rnic.simulation_.at(qp.progress_at + timeout, timer, &qp, life);
}

// ---- errors ----

void Rnic::fail(QueuePair& qp, ibv_wc_status first) {
  if (qp.state == IBV_QPS_ERR || qp.state == IBV_QPS_RESET) return;
  qp.state = IBV_QPS_ERR;
  qp.verbs.state = IBV_QPS_ERR;
  ibv_wc_status status = first;
  while (qp.retired < qp.posted) {
    complete(qp, qp.retired++, status);
    status = IBV_WC_WR_FLUSH_ERR;
  }
  qp.send_message = qp.posted;
  if (std::exchange(qp.filling, false)) {
    complete_receive(qp, qp.current_receive, IBV_WC_WR_FLUSH_ERR);
  }
  flush_receives(qp);
}

void Rnic::flush_sends(QueuePair& qp) {
  while (qp.retired < qp.posted) complete(qp, qp.retired++, IBV_WC_WR_FLUSH_ERR);
  qp.send_message = qp.posted;
}

void Rnic::flush_receives(QueuePair& qp) {
  if (qp.srq != nullptr || qp.recv_cq == nullptr) return;
  ReceiveQueue& queue = qp.own_receives;
  while (queue.consumed < queue.posted) {
    complete_receive(qp, queue.slot_of(queue.consumed++), IBV_WC_WR_FLUSH_ERR);
  }
  queue.fetched = std::max(queue.fetched, queue.consumed);
  queue.recorded = std::max(queue.recorded, queue.consumed);
  queue.known = std::max(queue.known, queue.consumed);
}

}  // namespace verbena::sim
