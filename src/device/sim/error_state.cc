// Completions of sends, and the error state: what is pending completes as flushed.
#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/opcode.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

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

// Nothing is sent any more, nor fetched for it.
void end_sends(QueuePair& qp) {
  qp.send_message = qp.payload_message = qp.posted;
  qp.payload_packet = 0;
  qp.release_wqes();
}

}  // namespace

void Rnic::complete(QueuePair& qp, uint64_t message, ibv_wc_status status) {
  const Wqe& wqe = qp.wqe(message);
  Packet* const packet = simulation_.fabric().allocate();
  packet->target = &qp;
  packet->target_generation = qp.generation;
  packet->cq = qp.send_cq();
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
  if (packet->target->generation == packet->target_generation)
    push_completion(*packet->cq, packet->entry);
  simulation.fabric().free(packet);
}

void Rnic::fail(QueuePair& qp, ibv_wc_status first) {
  if (qp.state() == IBV_QPS_ERR || qp.state() == IBV_QPS_RESET) return;
  qp.verbs.state = IBV_QPS_ERR;
  kept_wqes_ -= qp.kept_wqes();
  ibv_wc_status status = first;
  while (qp.retired < qp.posted) {
    complete(qp, qp.retired++, status);
    status = IBV_WC_WR_FLUSH_ERR;
  }
  end_sends(qp);
  if (std::exchange(qp.filling, false)) {
    complete_receive(qp, qp.current_receive, IBV_WC_WR_FLUSH_ERR);
  }
  flush_receives(qp);
}

void Rnic::fail_sends(QueuePair& qp, ibv_wc_status first) {
  VERBENA_ASSERT(!qp.is_reliable() && (qp.state() == IBV_QPS_RTS || qp.state() == IBV_QPS_SQE));
  qp.verbs.state = IBV_QPS_SQE;
  kept_wqes_ -= qp.kept_wqes();
  ibv_wc_status status = first;
  while (qp.retired < qp.posted) {
    complete(qp, qp.retired++, status);
    status = IBV_WC_WR_FLUSH_ERR;
  }
  // What is posted once the queue pair is set right goes on from here.
  qp.announced = qp.handled = qp.fetched = qp.posted;
  qp.requester.sent_ever = qp.requester.acked = qp.posted;
  qp.send_packet = 0;
  qp.waiting = 0;
  ++qp.fetch_epoch;
  qp.payload_outstanding = qp.payload_ready = 0;
  end_sends(qp);
}

void Rnic::flush_sends(QueuePair& qp) {
  if (qp.state() == IBV_QPS_SQE) return fail_sends(qp, IBV_WC_WR_FLUSH_ERR);
  while (qp.retired < qp.posted) complete(qp, qp.retired++, IBV_WC_WR_FLUSH_ERR);
  end_sends(qp);
}

void Rnic::flush_receives(QueuePair& qp) {
  if (qp.srq() != nullptr || qp.recv_cq() == nullptr) return;
  if (qp.own_receives == nullptr) return;
  ReceiveQueue& queue = *qp.own_receives;
  while (queue.consumed < queue.posted) {
    complete_receive(qp, queue.slot_of(queue.consumed++), IBV_WC_WR_FLUSH_ERR);
  }
  queue.fetched = std::max(queue.fetched, queue.consumed);
  queue.recorded = std::max(queue.recorded, queue.consumed);
  queue.known = std::max(queue.known, queue.consumed);
}

}  // namespace verbena::sim
