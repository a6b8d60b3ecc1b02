// The receiving side: what arrives is checked, put into order and placed into memory.
#include <algorithm>
#include <cstring>

#include "src/base/assert.h"
#include "src/device/sim/node.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

constexpr uint64_t kReceiveEntryBytes = 16;
constexpr uint32_t kAtomicBytes = 8;

bool is_ack(PacketKind kind) { return kind == PacketKind::kAck || kind == PacketKind::kNak; }

bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

bool is_send(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM;
}

}  // namespace

void Rnic::packet_arrived(Packet* packet) {
  const Profile& profile = node_.profile;
  QueuePair* const qp = packet->target;
  if (qp == nullptr || qp->life != packet->target_life) {
    simulation_.fabric().free(packet);
    return;
  }
  Time delay = 0;
  const Time cost = context_cost(*qp, &delay) +
                    (is_ack(packet->kind)
                         ? profile.rx_ack
                         : profile.rx_packet + (packet->payload_bytes + 63) / 64 * profile.rx_64);
  const Time done = receiving_.serve(simulation_.now(), cost);
  qp->receive_at = std::max(qp->receive_at, done + delay);
  simulation_.at(qp->receive_at, received, packet);
}

void Rnic::received(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  QueuePair& qp = *packet->target;
  Rnic& rnic = qp.node->rnic;
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

bool Rnic::copied(const Packet& packet) const {
  if (packet.payload_bytes == 0) return false;
  return packet.index == 0 || packet.last || simulation_.options().copy_all;
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
  const bool asks = packet->opcode == IBV_WR_RDMA_READ || is_atomic(packet->opcode);
  if (packet->message > qp.expected_message || (!asks && packet->index != qp.expected_packet)) {
    const bool gap = packet->message > qp.expected_message || packet->index > qp.expected_packet;
    if (gap && !qp.nak_sent) {
      qp.nak_sent = true;
      qp.nak = NakCode::kSequence;
      schedule_ack(qp);
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
    const Region* const region = find_region(packet.rkey);
    if (region == nullptr || !region->covers(packet.address, packet.length_bytes)) return;
    for (const PendingResponse& response : qp.responses) {
      if (response.message == packet.message) return;
    }
    PendingResponse response{
        .message = packet.message,
        .address = packet.address,
        .rkey = packet.rkey,
        .length_bytes = packet.length_bytes,
        .packets = std::max(1u, (packet.length_bytes + qp.mtu_bytes - 1) / qp.mtu_bytes),
        .next_packet = packet.index,
        .fetched = packet.index};
    qp.responses.push_back(response);
    fetch_responses(qp);
    schedule_responses(qp);
  } else if (is_atomic(packet.opcode)) {
    for (const QueuePair::Replay& replay : qp.atomics) {
      if (replay.message != packet.message) continue;
      qp.responses.push_back(
          {.message = packet.message, .original = replay.original, .atomic = true});
      schedule_responses(qp);
    }
  } else {
    schedule_ack(qp);
  }
}

void Rnic::refuse(QueuePair& qp, NakCode code) {
  qp.nak = code;
  schedule_ack(qp);
  if (code != NakCode::kRnr) fail(qp, IBV_WC_WR_FLUSH_ERR);
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

// Fetches the payload out of the sender's memory and puts it on its way into this node's.
void Rnic::land(QueuePair& qp, Packet* packet, Region* region) {
  Time delay = 0;
  if (packet->payload_bytes > 0) {
    const bool moves = copied(*packet);
    if (moves) simulation_.fabric().hold_payload(*packet);
    if (moves &&
        !packet->source->node->rnic.gather(*packet->source, packet->message, packet->offset,
                                           packet->bytes, packet->payload_bytes)) {
      // The sender's memory is no longer registered; its own side reports that.
      std::memset(packet->bytes, 0, packet->payload_bytes);
    }
    if (region != nullptr) {
      delay = translation_delay(*region, packet->address + packet->offset, packet->payload_bytes);
    }
  }
  Time there = packet->payload_bytes > 0 ? bus_write(packet->payload_bytes) : simulation_.now();
  if (packet->cq != nullptr) there = bus_write(node_.profile.completion_bytes);
  packet->region = region;
  advance(qp, *packet);
  if (packet->payload_bytes == 0 && packet->cq == nullptr) {
    simulation_.fabric().free(packet);
    return;
  }
  qp.place_at = std::max(qp.place_at, there + delay);
  simulation_.at(qp.place_at, place, packet);
}

bool Rnic::take_write(QueuePair& qp, Packet* packet) {
  Region* region = nullptr;
  if (packet->length_bytes > 0) {
    region = find_region(packet->rkey);
    if (region == nullptr || !region->covers(packet->address, packet->length_bytes) ||
        (region->access & IBV_ACCESS_REMOTE_WRITE) == 0 || region->verbs.pd != qp.verbs.pd ||
        (qp.attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
      refuse(qp, NakCode::kAccess);
      return false;
    }
  }
  if (packet->last && packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    switch (next_receive(qp)) {
      case Receive::kNone:
        refuse(qp, NakCode::kRnr);
        return false;
      case Receive::kFetching:
        qp.starved = true;
        qp.receive_queue().starving.push_back(packet);
        return true;
      case Receive::kReady:
        consume_receive(qp, *packet);
        packet->entry.completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        packet->cq = qp.recv_cq;
    }
  }
  land(qp, packet, region);
  return true;
}

bool Rnic::take_send(QueuePair& qp, Packet* packet) {
  if (packet->index == 0) {
    switch (next_receive(qp)) {
      case Receive::kNone:
        refuse(qp, NakCode::kRnr);
        return false;
      case Receive::kFetching:
        qp.starved = true;
        qp.receive_queue().starving.push_back(packet);
        return true;
      case Receive::kReady:
        consume_receive(qp, *packet);
    }
  }
  ReceiveQueue& queue = qp.receive_queue();
  const PostedReceive& receive = queue.receive(qp.current_receive);
  packet->entry.message = qp.current_receive;
  if (packet->length_bytes > receive.length_bytes) {
    packet->entry.completion =
        make_completion(receive.wr_id, IBV_WC_LOC_LEN_ERR, IBV_WC_RECV, qp.verbs.qp_num, 0);
    push_completion(*qp.recv_cq, packet->entry);
    refuse(qp, NakCode::kInvalid);
    return false;
  }
  if (packet->last) {
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
  const Region* const region = find_region(packet.rkey);
  const bool allowed =
      packet.length_bytes == 0 ||
      (region != nullptr && region->covers(packet.address, packet.length_bytes) &&
       (region->access & IBV_ACCESS_REMOTE_READ) != 0 && region->verbs.pd == qp.verbs.pd &&
       (qp.attributes.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0);
  if (!allowed) {
    refuse(qp, NakCode::kAccess);
    return;
  }
  ++qp.expected_message;
  qp.responses.push_back(
      {.message = packet.message,
       .address = packet.address,
       .rkey = packet.rkey,
       .length_bytes = packet.length_bytes,
       .packets = std::max(1u, (packet.length_bytes + qp.mtu_bytes - 1) / qp.mtu_bytes),
       .next_packet = packet.index,
       .fetched = packet.length_bytes == 0 ? 1 : packet.index});
  fetch_responses(qp);
  schedule_responses(qp);
}

bool Rnic::take_atomic(QueuePair& qp, Packet* packet) {
  Region* const region = find_region(packet->rkey);
  if (packet->address % kAtomicBytes != 0) {
    refuse(qp, NakCode::kInvalid);
    return false;
  }
  if (region == nullptr || !region->covers(packet->address, kAtomicBytes) ||
      (region->access & IBV_ACCESS_REMOTE_ATOMIC) == 0 || region->verbs.pd != qp.verbs.pd ||
      (qp.attributes.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) == 0) {
    refuse(qp, NakCode::kAccess);
    return false;
  }
  ++qp.expected_message;
  packet->region = region;
  simulation_.at(atomics_.serve(simulation_.now(), node_.profile.atomic_operation), atomic_done,
                 packet);
  return true;
}

void Rnic::atomic_done(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  QueuePair& qp = *packet->target;
  Rnic& rnic = qp.node->rnic;
  Region* const region = rnic.find_region(packet->rkey);
  if (qp.life == packet->target_life && region != nullptr && region == packet->region) {
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
    if (!qp.atomics.empty()) {
      qp.atomics[packet->message % qp.atomics.size()] = {packet->message, original};
    }
    qp.responses.push_back({.message = packet->message, .original = original, .atomic = true});
    rnic.schedule_responses(qp);
  }
  rnic.simulation_.fabric().free(packet);
}

// ---- receives ----

Rnic::Receive Rnic::next_receive(QueuePair& qp) {
  ReceiveQueue& queue = qp.receive_queue();
  qp.receives = true;
  if (queue.consumed < queue.fetched) return Receive::kReady;
  if (queue.visible == queue.fetched && !queue.fetching) return Receive::kNone;
  fetch_receives(queue);
  return Receive::kFetching;
}

void Rnic::consume_receive(QueuePair& qp, Packet& packet) {
  ReceiveQueue& queue = qp.receive_queue();
  VERBENA_DEBUG_ASSERT(queue.consumed < queue.fetched && queue.consumed < queue.posted);
  qp.current_receive = queue.consumed++;
  ibv_wc& completion = packet.entry.completion;
  completion.wr_id = queue.receive(qp.current_receive).wr_id;
  completion.status = IBV_WC_SUCCESS;
  completion.byte_len = packet.length_bytes;
  completion.qp_num = qp.verbs.qp_num;
  completion.src_qp = packet.source->verbs.qp_num;
  completion.imm_data = packet.imm_data;
  completion.wc_flags = IBV_WC_WITH_IMM;
  // The next ones are fetched before the last one is needed.
  if (queue.fetched - queue.consumed <= node_.profile.wqe_prefetch / 2) fetch_receives(queue);
}

void Rnic::receives_posted(ReceiveQueue& queue, uint64_t count) {
  queue.visible = std::max(queue.visible, count);
}

void Rnic::fetch_receives(ReceiveQueue& queue) {
  if (queue.fetching || queue.visible == queue.fetched) return;
  queue.fetching = true;
  const uint64_t count = std::min(node_.profile.wqe_prefetch, queue.visible - queue.fetched);
  simulation_.at(bus_read(count * kReceiveEntryBytes), receives_fetched, &queue, count);
}

void Rnic::receives_fetched(void* object, uint64_t count) {
  auto& queue = *static_cast<ReceiveQueue*>(object);
  if (!queue.fetching || queue.fetched + count > queue.visible) return;  // it was reset since
  queue.fetching = false;
  queue.fetched += count;
  // In their order; those that starve again wait again.
  std::deque<Packet*> waiting;
  waiting.swap(queue.starving);
  for (Packet* packet : waiting) packet->target->starved = false;
  for (Packet* packet : waiting) {
    QueuePair& qp = *packet->target;
    Rnic& rnic = qp.node->rnic;
    if (qp.life != packet->target_life) {
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
  Wqe& wqe = qp.wqe(packet->message);
  if (wqe.done || packet->index != wqe.arrived) {
    const bool lost = !wqe.done && packet->index > wqe.arrived;
    fabric.free(packet);
    if (lost) go_back(qp);
    return;
  }
  if (packet->kind == PacketKind::kAtomicResponse) {
    fabric.hold_payload(*packet);
    std::memcpy(packet->bytes, &packet->original, sizeof(packet->original));
    packet->payload_bytes = kAtomicBytes;
    packet->offset = 0;
  } else if (copied(*packet)) {
    fabric.hold_payload(*packet);
    Rnic& responder = packet->from->rnic;
    const Region* const region = responder.find_region(packet->rkey);
    if (region != nullptr && region->covers(packet->address, packet->payload_bytes)) {
      std::memcpy(packet->bytes, region->at(packet->address), packet->payload_bytes);
    } else {
      std::memset(packet->bytes, 0, packet->payload_bytes);
    }
  }
  ++wqe.arrived;
  qp.progress_at = simulation_.now();
  qp.retries = 0;
  const uint64_t message = packet->message;
  const bool last = packet->last;
  qp.place_at = std::max(qp.place_at, bus_write(packet->payload_bytes));
  simulation_.at(qp.place_at, place, packet);
  if (!last) return;
  wqe.done = true;
  if (qp.reads_outstanding > 0) --qp.reads_outstanding;
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
  if (qp.life == packet->target_life && !qp.node->crashed) {
    Fiber* owner = nullptr;
    if (packet->bytes == nullptr) {
      // Nothing moves: there is no payload, or nobody looks at this part of it.
    } else if (packet->kind != PacketKind::kRequest) {
      const Wqe& wqe = qp.wqe(packet->message);
      rnic.scatter(qp.sges_of(packet->message), wqe.sges, packet->offset, packet->bytes,
                   packet->payload_bytes, &owner);
    } else if (is_send(packet->opcode)) {
      ReceiveQueue& queue = qp.receive_queue();
      rnic.scatter(queue.sges_of(packet->entry.message), queue.receive(packet->entry.message).sges,
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
    }
  }
  simulation.fabric().free(packet);
}

bool Rnic::gather(QueuePair& qp, uint64_t message, uint64_t offset, std::byte* bytes,
                  uint64_t length) {
  const Wqe& wqe = qp.wqe(message);
  if (wqe.inlined) {
    std::memcpy(bytes, qp.inline_of(message) + offset, length);
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
