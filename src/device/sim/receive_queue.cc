// Receives: which ones the RNIC knows of and has fetched, and the packets that take them.
#include <algorithm>

#include "src/base/assert.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

constexpr uint64_t kReceiveWqeBytes = 16;
constexpr uint64_t kReceiveRecordBytes = 8;

}  // namespace

Rnic::Receive Rnic::next_receive(QueuePair& qp) {
  ReceiveQueue& queue = qp.receive_queue();
  if (queue.consumed < queue.fetched) return Receive::kReady;
  if (queue.found_none && !queue.fetching) return Receive::kNone;
  fetch_receives(queue);
  return Receive::kFetching;
}

// Gives the packet a receive, keeps it until one has been fetched, or refuses it.
Rnic::Receive Rnic::take_receive(QueuePair& qp, Packet* packet) {
  // The one of a message of which the rest was lost; only unreliable connections have that.
  const Receive receive = qp.filling ? Receive::kReady : next_receive(qp);
  switch (receive) {
    case Receive::kNone:
      refuse(qp, NakCode::kRnr, qp.expected_message);
      break;
    case Receive::kFetching:
      qp.starved = true;
      qp.receive_queue().starving.push_back(packet);
      break;
    case Receive::kReady:
      consume_receive(qp, *packet);
      break;
  }
  return receive;
}

void Rnic::consume_receive(QueuePair& qp, Packet& packet) {
  ReceiveQueue& queue = qp.receive_queue();
  if (!qp.filling) {
    VERBENA_DEBUG_ASSERT(queue.consumed < queue.fetched && queue.consumed < queue.posted);
    qp.current_receive = queue.slot_of(queue.consumed++);
  }
  ibv_wc& completion = packet.entry.completion;
  completion.wr_id = queue.receives[qp.current_receive].wr_id;
  completion.status = IBV_WC_SUCCESS;
  completion.byte_len = packet.length_bytes;
  completion.qp_num = qp.verbs.qp_num;
  completion.src_qp = packet.source->verbs.qp_num;
  if (packet.opcode == IBV_WR_SEND_WITH_IMM || packet.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    completion.imm_data = packet.imm_data;
    completion.wc_flags = IBV_WC_WITH_IMM;
  }
  // The next ones are fetched before the last one is needed.
  if (queue.fetched - queue.consumed <= node_.profile.wqe_prefetch / 2) fetch_receives(queue);
}

// Ends a receive without a message, behind what was received before.
void Rnic::complete_receive(QueuePair& qp, uint64_t slot, ibv_wc_status status) {
  Packet* const packet = simulation_.fabric().allocate();
  packet->target = &qp;
  packet->target_generation = qp.generation;
  packet->opcode = IBV_WR_SEND;
  packet->cq = qp.recv_cq();
  packet->entry = {.completion = make_completion(qp.receive_queue().receives[slot].wr_id, status,
                                                 IBV_WC_RECV, qp.verbs.qp_num, 0),
                   .sender = nullptr,
                   .message = slot};
  qp.place_at = std::max(qp.place_at, bus_write(node_.profile.completion_bytes));
  simulation_.at(qp.place_at, place, packet);
}

void Rnic::receives_posted(ReceiveQueue& queue, uint64_t count) {
  queue.recorded = std::max(queue.recorded, count);
}

// No doorbell tells the RNIC of receives: it reads how many there are from a record in memory, and
// then the WQEs. While it knows of enough, both happen ahead of the messages.
void Rnic::fetch_receives(ReceiveQueue& queue) {
  if (queue.fetching) return;
  queue.fetching = true;
  if (queue.known > queue.fetched) {
    const uint64_t count = std::min(node_.profile.wqe_prefetch, queue.known - queue.fetched);
    simulation_.at(bus_read(count * kReceiveWqeBytes), receives_fetched, &queue,
                   uint64_t{queue.epoch} << 32 | count);
  } else {
    simulation_.at(bus_read(kReceiveRecordBytes), record_read, &queue, queue.epoch);
  }
}

void Rnic::record_read(void* object, uint64_t epoch) {
  auto& queue = *static_cast<ReceiveQueue*>(object);
  if (epoch != queue.epoch) return;
  queue.fetching = false;
  queue.known = queue.recorded;
  if (queue.known > queue.fetched) return queue.node->rnic.fetch_receives(queue);
  queue.found_none = true;
  take_starving(queue);
  queue.found_none = false;
}

void Rnic::receives_fetched(void* object, uint64_t argument) {
  auto& queue = *static_cast<ReceiveQueue*>(object);
  if (argument >> 32 != queue.epoch) return;  // it was reset since
  queue.fetching = false;
  // They may have been flushed since.
  queue.fetched = std::max(queue.consumed, queue.fetched + static_cast<uint32_t>(argument));
  queue.fetched = std::min(queue.fetched, queue.known);
  VERBENA_DEBUG_ASSERT(queue.consumed <= queue.fetched && queue.known <= queue.recorded &&
                       queue.recorded <= queue.posted);
  take_starving(queue);
}

// What waited for receives, in its order; what starves again waits again.
void Rnic::take_starving(ReceiveQueue& queue) {
  std::vector<Packet*> waiting;
  waiting.swap(queue.starving);
  for (Packet* packet : waiting) packet->target->starved = false;
  for (Packet* packet : waiting) {
    QueuePair& qp = *packet->target;
    Rnic& rnic = qp.node->rnic;
    if (qp.generation != packet->target_generation || !qp.takes_requests()) {
      rnic.simulation_.fabric().free(packet);
    } else {
      rnic.request_received(packet);
    }
  }
}

}  // namespace verbena::sim
