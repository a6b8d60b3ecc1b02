// The receiving side: what arrives is checked, put into order and placed into memory.
#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/device/sim/node.h"
#include "src/device/sim/opcode.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

constexpr uint64_t kReceiveEntryBytes = 16;
constexpr uint64_t kReceiveRecordBytes = 8;
constexpr uint32_t kAtomicBytes = 8;

bool is_ack(PacketKind kind) { return kind == PacketKind::kAck || kind == PacketKind::kNak; }

// The packet with which a receive begins or ends.
bool takes_receive(const Packet& packet) {
  if (packet.kind != PacketKind::kRequest) return false;
  return is_send(packet.opcode) ? packet.index == 0
                                : packet.last && packet.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

}  // namespace

void Rnic::packet_arrived(Packet* packet) {
  const Profile& profile = node_.profile;
  QueuePair* const qp = packet->target;
  if (qp == nullptr || qp->life != packet->target_life) {
    simulation_.fabric().handled(*packet);
    simulation_.fabric().free(packet);
    return;
  }
  Time delay = 0;
  const Time cost = context_cost(*qp, &delay) +
                    (takes_receive(*packet) ? receive_cost(*qp, &delay) : 0) +
                    (is_ack(packet->kind)
                         ? profile.rx_ack
                         : profile.rx_packet + (packet->payload_bytes + 63) / 64 * profile.rx_64);
  const Time done = receiving_.serve(simulation_.now(), cost);
  qp->receive_at = std::max(qp->receive_at, done + delay);
  if (Recorder* const recorder = simulation_.recorder()) {
    const StepOf of = Recorder::of(*packet);
    recorder->step(StepKind::kReceiveWait, node_.number, of, simulation_.now(), done - cost);
    recorder->handled(StepKind::kReceive, StepKind::kReceiveMiss, node_.number, of, done - cost,
                      done);
    recorder->step(StepKind::kReceiveMiss, node_.number, of, done, done + delay);
    recorder->step(StepKind::kReceiveOrder, node_.number, of, done + delay, qp->receive_at);
  }
  simulation_.at(qp->receive_at, received, packet);
}

void Rnic::received(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  QueuePair& qp = *packet->target;
  Rnic& rnic = qp.node->rnic;
  rnic.simulation_.fabric().handled(*packet);
  const bool ready =
      qp.state == IBV_QPS_RTS || (qp.state == IBV_QPS_RTR && packet->kind == PacketKind::kRequest);
  const bool from_peer = packet->from == qp.peer_node && packet->source != nullptr &&
                         packet->source->verbs.qp_num == qp.attributes.dest_qp_num;
  if (qp.life != packet->target_life || !ready || !from_peer || qp.node->crashed) {
    rnic.simulation_.fabric().free(packet);
    return;
  }
  switch (packet->kind) {
    case PacketKind::kRequest:
      return rnic.request_received(packet);
    case PacketKind::kReadResponse:
    case PacketKind::kAtomicResponse:
      return rnic.response_received(packet);
    case PacketKind::kAck:
    case PacketKind::kNak:
      rnic.ack_received(*packet);
      rnic.simulation_.fabric().free(packet);
      return;
  }
}

// ---- the responder ----

void Rnic::request_received(Packet* packet) {
  QueuePair& qp = *packet->target;
  if (qp.starved) {
    qp.receive_queue().starving.push_back(packet);
    return;
  }
  if (!take_request(packet)) simulation_.fabric().free(packet);
}

bool Rnic::take_request(Packet* packet) {
  QueuePair& qp = *packet->target;
  if (packet->message < qp.expected_message) {
    repeat(qp, *packet);
    return false;
  }
  const bool asks = asks_for_data(packet->opcode);
  if (packet->message > qp.expected_message || (!asks && packet->index != qp.expected_packet)) {
    const bool gap = packet->message > qp.expected_message || packet->index > qp.expected_packet;
    if (gap && !qp.nak_sent) {
      refuse(qp, NakCode::kSequence, qp.expected_message);
    }
    return false;
  }
  qp.nak_sent = false;
  if (packet->opcode == IBV_WR_RDMA_READ) {
    take_read(qp, *packet);
    return false;
  }
  if (is_atomic(packet->opcode)) return take_atomic(qp, packet);
  return is_send(packet->opcode) ? take_send(qp, packet) : take_write(qp, packet);
}

// A request that was carried out before: its answer was lost.
void Rnic::repeat(QueuePair& qp, const Packet& packet) {
  if (packet.opcode == IBV_WR_RDMA_READ) {
    if (!may_read(qp, packet.rkey, packet.address, packet.length_bytes)) {
      refuse(qp, NakCode::kAccess, packet.message);
      return;
    }
    respond(qp, {.message = packet.message,
                 .address = packet.address,
                 .rkey = packet.rkey,
                 .length_bytes = packet.length_bytes,
                 .next_packet = packet.index});
  } else if (is_atomic(packet.opcode)) {
    for (const QueuePair::Replay& replay : qp.atomics) {
      if (replay.message != packet.message) continue;
      respond(qp, {.message = packet.message,
                   .original = replay.original,
                   .atomic = true,
                   .executed = true});
    }
  } else {
    schedule_ack(qp);
  }
}

bool Rnic::may_read(QueuePair& qp, uint32_t rkey, uint64_t address, uint64_t bytes) {
  if (bytes == 0) return true;
  const Region* const region = find_region(rkey);
  return region != nullptr && region->covers(address, bytes) &&
         (region->access & IBV_ACCESS_REMOTE_READ) != 0 && region->verbs.pd == qp.verbs.pd &&
         (qp.attributes.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0;
}

// Responses leave in the order of their requests. Who asks for one again asks for all behind it
// again, too; atomics that are being executed stay.
void Rnic::respond(QueuePair& qp, const PendingResponse& response) {
  std::erase_if(qp.responses, [&response](const PendingResponse& other) {
    return other.message >= response.message && (!other.atomic || other.executed);
  });
  const auto behind = std::find_if(
      qp.responses.begin(), qp.responses.end(),
      [&response](const PendingResponse& other) { return other.message > response.message; });
  PendingResponse& added = *qp.responses.insert(behind, response);
  if (!added.atomic) {
    added.packets = std::max(1u, (added.length_bytes + qp.mtu_bytes - 1) / qp.mtu_bytes);
    added.fetched = added.length_bytes == 0 ? 1 : added.next_packet;
  }
  fetch_responses(qp);
  schedule_responses(qp);
}

void Rnic::refuse(QueuePair& qp, NakCode code, uint64_t message) {
  // What comes behind it is dropped without a further word until it comes again.
  qp.nak_sent = true;
  qp.nak = code;
  qp.nak_message = message;
  schedule_ack(qp);
  if (code != NakCode::kRnr && code != NakCode::kSequence) fail(qp, IBV_WC_WR_FLUSH_ERR);
}

void Rnic::advance(QueuePair& qp, const Packet& packet) {
  if (packet.last) {
    ++qp.expected_message;
    qp.expected_packet = 0;
    if (packet.opcode != IBV_WR_RDMA_READ && !is_atomic(packet.opcode)) schedule_ack(qp);
  } else {
    ++qp.expected_packet;
  }
}

// Puts the payload on its way into this node's memory.
void Rnic::land(QueuePair& qp, Packet* packet, Region* region) {
  Time delay = 0;
  if (packet->payload_bytes > 0 && region != nullptr) {
    delay = translation_delay(*region, packet->address + packet->offset, packet->payload_bytes);
  }
  // What comes behind it waits for its translations, too.
  if (delay > 0) qp.receive_at = std::max(qp.receive_at, simulation_.now()) + delay;
  const Time free = bus_up_free_at();
  Time there = packet->payload_bytes > 0 ? bus_write(packet->payload_bytes) : simulation_.now();
  const Time payload_there = there;
  if (packet->cq != nullptr) there = bus_write(node_.profile.completion_bytes);
  packet->region = region;
  advance(qp, *packet);
  if (packet->payload_bytes == 0 && packet->cq == nullptr) {
    simulation_.fabric().free(packet);
    return;
  }
  qp.place_at = std::max(qp.place_at, there + delay);
  if (Recorder* const recorder = simulation_.recorder()) {
    const StepOf of = Recorder::of(*packet);
    recorder->served(StepKind::kBusWait, StepKind::kPlacement, node_.number, of, simulation_.now(),
                     free, payload_there);
    recorder->step(StepKind::kCompletionEntry, node_.number, of, payload_there, there);
    recorder->step(StepKind::kTranslationMiss, node_.number, of, there, there + delay);
    recorder->step(StepKind::kPlacementOrder, node_.number, of, there + delay, qp.place_at);
  }
  simulation_.at(qp.place_at, place, packet);
}

bool Rnic::take_write(QueuePair& qp, Packet* packet) {
  Region* region = nullptr;
  if (packet->length_bytes > 0) {
    region = find_region(packet->rkey);
    if (region == nullptr || !region->covers(packet->address, packet->length_bytes) ||
        (region->access & IBV_ACCESS_REMOTE_WRITE) == 0 || region->verbs.pd != qp.verbs.pd ||
        (qp.attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
      refuse(qp, NakCode::kAccess, qp.expected_message);
      return false;
    }
  }
  if (packet->last && packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    const Receive receive = take_receive(qp, packet);
    if (receive != Receive::kReady) return receive == Receive::kFetching;
    packet->entry.completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    packet->entry.message = qp.current_receive;
    packet->cq = qp.recv_cq;
  }
  land(qp, packet, region);
  return true;
}

bool Rnic::take_send(QueuePair& qp, Packet* packet) {
  if (packet->index == 0) {
    const Receive receive = take_receive(qp, packet);
    if (receive != Receive::kReady) return receive == Receive::kFetching;
    qp.filling = true;
  }
  const PostedReceive& receive = qp.receive_queue().receives[qp.current_receive];
  packet->entry.message = qp.current_receive;
  if (packet->length_bytes > receive.length_bytes) {
    qp.filling = false;
    complete_receive(qp, qp.current_receive, IBV_WC_LOC_LEN_ERR);
    refuse(qp, NakCode::kInvalid, qp.expected_message);
    return false;
  }
  if (packet->last) {
    qp.filling = false;
    packet->entry.completion.wr_id = receive.wr_id;
    packet->entry.completion.opcode = IBV_WC_RECV;
    packet->cq = qp.recv_cq;
    ibv_wc& completion = packet->entry.completion;
    completion.status = IBV_WC_SUCCESS;
    completion.byte_len = packet->length_bytes;
    completion.qp_num = qp.verbs.qp_num;
    completion.src_qp = packet->source->verbs.qp_num;
    if (packet->opcode == IBV_WR_SEND_WITH_IMM) {
      completion.imm_data = packet->imm_data;
      completion.wc_flags = IBV_WC_WITH_IMM;
    }
  }
  land(qp, packet, nullptr);
  return true;
}

void Rnic::take_read(QueuePair& qp, const Packet& packet) {
  if (!may_read(qp, packet.rkey, packet.address, packet.length_bytes)) {
    refuse(qp, NakCode::kAccess, qp.expected_message);
    return;
  }
  ++qp.expected_message;
  respond(qp, {.message = packet.message,
               .address = packet.address,
               .rkey = packet.rkey,
               .length_bytes = packet.length_bytes,
               .next_packet = packet.index});
}

bool Rnic::take_atomic(QueuePair& qp, Packet* packet) {
  Region* const region = find_region(packet->rkey);
  if (packet->address % kAtomicBytes != 0) {
    refuse(qp, NakCode::kInvalid, qp.expected_message);
    return false;
  }
  if (region == nullptr || !region->covers(packet->address, kAtomicBytes) ||
      (region->access & IBV_ACCESS_REMOTE_ATOMIC) == 0 || region->verbs.pd != qp.verbs.pd ||
      (qp.attributes.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) == 0) {
    refuse(qp, NakCode::kAccess, qp.expected_message);
    return false;
  }
  ++qp.expected_message;
  packet->region = region;
  respond(qp, {.message = packet->message, .atomic = true});
  // Behind what was written before.
  const Time done = atomics_.serve(simulation_.now(), node_.profile.atomic_operation);
  simulation_.at(std::max(done, qp.place_at), atomic_done, packet);
  return true;
}

void Rnic::atomic_done(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  QueuePair& qp = *packet->target;
  Rnic& rnic = qp.node->rnic;
  Region* const region = rnic.find_region(packet->rkey);
  const auto response = std::find_if(qp.responses.begin(), qp.responses.end(),
                                     [packet](const PendingResponse& other) {
                                       return other.atomic && other.message == packet->message;
                                     });
  if (qp.life != packet->target_life || response == qp.responses.end()) {
    rnic.simulation_.fabric().free(packet);
    return;
  }
  if (region == nullptr || region != packet->region) {
    qp.responses.erase(response, qp.responses.end());
    rnic.refuse(qp, NakCode::kAccess, packet->message);
  } else {
    std::byte* const word = region->at(packet->address);
    uint64_t value;
    std::memcpy(&value, word, sizeof(value));
    const uint64_t original = value;
    if (packet->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      value += packet->compare;
    } else if (value == packet->compare) {
      value = packet->swap;
    }
    std::memcpy(word, &value, sizeof(value));
    if (region->owner != nullptr) rnic.simulation_.wake(*region->owner, rnic.simulation_.now());
    if (qp.atomics.empty()) qp.atomics.resize(qp.attributes.max_dest_rd_atomic);
    if (!qp.atomics.empty()) {
      qp.atomics[qp.atomics_done++ % qp.atomics.size()] = {packet->message, original};
    }
    response->original = original;
    response->executed = true;
    rnic.schedule_responses(qp);
  }
  rnic.simulation_.fabric().free(packet);
}

// ---- receives ----

Rnic::Receive Rnic::next_receive(QueuePair& qp) {
  ReceiveQueue& queue = qp.receive_queue();
  if (queue.consumed < queue.fetched) return Receive::kReady;
  if (queue.found_none && !queue.fetching) return Receive::kNone;
  fetch_receives(queue);
  return Receive::kFetching;
}

// Gives the packet a receive, keeps it until one has been fetched, or refuses it.
Rnic::Receive Rnic::take_receive(QueuePair& qp, Packet* packet) {
  const Receive receive = next_receive(qp);
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
  VERBENA_DEBUG_ASSERT(queue.consumed < queue.fetched && queue.consumed < queue.posted);
  qp.current_receive = queue.slot_of(queue.consumed++);
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
  packet->target_life = qp.life;
  packet->opcode = IBV_WR_SEND;
  packet->cq = qp.recv_cq;
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
// then the entries. While it knows of enough, both happen ahead of the messages.
void Rnic::fetch_receives(ReceiveQueue& queue) {
  if (queue.fetching) return;
  queue.fetching = true;
  if (queue.known > queue.fetched) {
    const uint64_t count = std::min(node_.profile.wqe_prefetch, queue.known - queue.fetched);
    simulation_.at(bus_read(count * kReceiveEntryBytes), receives_fetched, &queue,
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
    const bool ready = qp.state == IBV_QPS_RTS || qp.state == IBV_QPS_RTR;
    if (qp.life != packet->target_life || !ready) {
      rnic.simulation_.fabric().free(packet);
    } else {
      rnic.request_received(packet);
    }
  }
}

// ---- the requester ----

void Rnic::response_received(Packet* packet) {
  QueuePair& qp = *packet->target;
  Fabric& fabric = simulation_.fabric();
  if (packet->message < qp.retired || packet->message >= qp.sent_ever) {
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
    if (lost && !std::exchange(qp.asked_again, true)) go_back(qp);
    return;
  }
  qp.asked_again = false;
  if (packet->kind == PacketKind::kAtomicResponse) {
    fabric.hold_payload(*packet);
    std::memcpy(packet->bytes, &packet->original, sizeof(packet->original));
    packet->payload_bytes = kAtomicBytes;
    packet->offset = 0;
  }
  ++wqe.arrived;
  qp.progress_at = simulation_.now();
  qp.retries = 0;
  const uint64_t message = packet->message;
  const bool last = packet->last;
  const Time free = bus_up_free_at();
  const Time there = bus_write(packet->payload_bytes);
  qp.place_at = std::max(qp.place_at, there);
  if (Recorder* const recorder = simulation_.recorder()) {
    const StepOf of = Recorder::of(*packet);
    recorder->served(StepKind::kBusWait, StepKind::kPlacement, node_.number, of, simulation_.now(),
                     free, there);
    recorder->step(StepKind::kPlacementOrder, node_.number, of, there, qp.place_at);
  }
  ++qp.placing;
  simulation_.at(qp.place_at, place, packet);
  if (!last) return;
  wqe.done = true;
  if (std::exchange(wqe.asked, false)) --qp.reads_outstanding;
  // It tells that everything before it has arrived.
  acknowledge(qp, message);
  retire(qp);
  schedule_requests(qp);
}

// ---- memory ----

void Rnic::place(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  QueuePair& qp = *packet->target;
  Rnic& rnic = qp.node->rnic;
  Simulation& simulation = rnic.simulation_;
  if (packet->kind != PacketKind::kRequest) --qp.placing;
  if (qp.life == packet->target_life && !qp.node->crashed) {
    Fiber* owner = nullptr;
    if (Recorder* const recorder = simulation.recorder()) rnic.record_placed(*recorder, *packet);
    if (packet->bytes == nullptr) {
      // Nothing moves: there is no payload, or nobody looks at this part of it.
    } else if (packet->kind != PacketKind::kRequest) {
      const Wqe& wqe = qp.wqe(packet->message);
      rnic.scatter(qp.sges_of(packet->message), wqe.sges, packet->offset, packet->bytes,
                   packet->payload_bytes, &owner);
    } else if (is_send(packet->opcode)) {
      ReceiveQueue& queue = qp.receive_queue();
      rnic.scatter(queue.sges_of(packet->entry.message), queue.receives[packet->entry.message].sges,
                   packet->offset, packet->bytes, packet->payload_bytes, &owner);
    } else if (rnic.find_region(packet->rkey) == packet->region) {
      std::memcpy(packet->region->at(packet->address + packet->offset), packet->bytes,
                  packet->payload_bytes);
      owner = packet->region->owner;
      if (owner != nullptr && packet->last && packet->cq == nullptr) ++owner->unseen;
    }
    if (owner != nullptr) simulation.wake(*owner, simulation.now());
    if (packet->cq != nullptr) {
      packet->entry.sender = nullptr;
      push_completion(*packet->cq, packet->entry);
      qp.receive_queue().release(packet->entry.message);
    }
  } else if (packet->cq != nullptr && qp.srq != nullptr) {
    qp.srq->queue.release(packet->entry.message);
  }
  simulation.fabric().free(packet);
}

void Rnic::record_placed(Recorder& recorder, const Packet& packet) {
  if (packet.payload_bytes == 0) return;
  QueuePair& qp = *packet.target;
  uint64_t address = packet.address;
  if (packet.kind != PacketKind::kRequest) {
    address = qp.sges_of(packet.message)[0].addr;
  } else if (is_send(packet.opcode)) {
    address = qp.receive_queue().sges_of(packet.entry.message)[0].addr;
  }
  recorder.packet_placed(packet, address + packet.offset, simulation_.now());
}

bool Rnic::gather(QueuePair& qp, uint64_t message, uint64_t offset, std::byte* bytes,
                  uint64_t length) {
  const Wqe& wqe = qp.wqe(message);
  if (wqe.inlined) {
    std::memcpy(bytes, qp.entries.inline_bytes(message).bytes.get() + offset, length);
    return true;
  }
  const ibv_sge* sge = qp.sges_of(message);
  for (uint32_t i = 0; i < wqe.sges && length > 0; ++i, ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(length, sge->length - offset);
    const Region* const region = find_region(sge->lkey);
    if (region == nullptr || !region->covers(sge->addr + offset, part)) return false;
    std::memcpy(bytes, region->at(sge->addr + offset), part);
    bytes += part;
    length -= part;
    offset = 0;
  }
  return length == 0;
}

bool Rnic::scatter(const ibv_sge* sge, uint32_t count, uint64_t offset, const std::byte* bytes,
                   uint64_t length, Fiber** owner) {
  for (uint32_t i = 0; i < count && length > 0; ++i, ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(length, sge->length - offset);
    const Region* const region = find_region(sge->lkey);
    if (region == nullptr || !region->covers(sge->addr + offset, part) ||
        (region->access & IBV_ACCESS_LOCAL_WRITE) == 0) {
      return false;
    }
    std::memcpy(region->at(sge->addr + offset), bytes, part);
    *owner = region->owner;
    bytes += part;
    length -= part;
    offset = 0;
  }
  return length == 0;
}

}  // namespace verbena::sim
