// The receiving side: what arrives is checked, put into order and placed into memory.
#include <algorithm>
#include <cstring>

#include "src/device/sim/opcode.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

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
  if (qp == nullptr || qp->generation != packet->target_generation) {
    simulation_.fabric().handled(*packet);
    simulation_.fabric().free(packet);
    return;
  }
  if (packet->kind == PacketKind::kRequest) prefetch_region(packet->rkey);
  Time delay = 0;
  read_lost_wqes(*qp, *packet, &delay);
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
      packet->kind == PacketKind::kRequest ? qp.takes_requests() : qp.state() == IBV_QPS_RTS;
  // Anybody may be the peer of a datagram; queue pairs of two types never understand each other.
  const bool from_peer =
      packet->source != nullptr && packet->source->verbs.qp_type == qp.verbs.qp_type &&
      (qp.sends_datagrams() || (packet->from == qp.own.chosen.peer_node &&
                                packet->source->verbs.qp_num == qp.own.chosen.dest_qp_num));
  if (qp.generation != packet->target_generation || !ready || !from_peer || qp.node->crashed) {
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
  const bool taken = qp.is_reliable()       ? take_request(packet)
                     : qp.sends_datagrams() ? take_datagram(packet)
                                            : take_unreliable(packet);
  if (!taken) simulation_.fabric().free(packet);
}

// Puts the payload on its way into this node's memory.
void Rnic::land(QueuePair& qp, Packet* packet, Region* region) {
  Translations missing;
  bool far = region != nullptr && region->socket != qp.own.chosen.socket;
  if (packet->payload_bytes > 0 && region != nullptr) {
    translate(*region, packet->address + packet->offset, packet->payload_bytes, &missing);
  } else if (packet->payload_bytes > 0) {
    ReceiveQueue& queue = qp.receive_queue();
    const uint64_t slot = packet->entry.message;
    const ibv_sge* const sges = queue.sges_of(slot);
    translate(sges, queue.receives[slot].sges, packet->offset, packet->payload_bytes, &missing);
    far = is_far(qp, sges, queue.receives[slot].sges);
  }
  const Time delay = translated(qp, missing);
  if (delay > 0) qp.receive_at = std::max(qp.receive_at, simulation_.now() + delay);
  const Time free = bus_up_free_at();
  Time there =
      packet->payload_bytes > 0 ? bus_write(packet->payload_bytes, far) : simulation_.now();
  const Time payload_there = there;
  if (packet->cq != nullptr) there = std::max(there, bus_write(node_.profile.completion_bytes));
  there += node_.profile.post_visible;
  if (packet->cq != nullptr) there += node_.profile.post_visible_send;
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
        (qp.own.chosen.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) == 0) {
      refuse(qp, NakCode::kAccess, qp.expected_message);
      return false;
    }
    __builtin_prefetch(region->at(packet->address + packet->offset), 1);
  }
  if (packet->last && packet->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    const Receive receive = take_receive(qp, packet);
    if (receive != Receive::kReady) return receive == Receive::kFetching;
    qp.filling = false;
    packet->entry.completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    packet->entry.message = qp.current_receive;
    packet->cq = qp.recv_cq();
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
  if (!may_fill_receive(qp, *packet)) {
    qp.filling = false;
    complete_receive(qp, qp.current_receive, IBV_WC_LOC_PROT_ERR);
    refuse(qp, NakCode::kOperation, qp.expected_message);
    return false;
  }
  if (packet->last) {
    qp.filling = false;
    packet->entry.completion.wr_id = receive.wr_id;
    packet->entry.completion.opcode = IBV_WC_RECV;
    packet->cq = qp.recv_cq();
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

// ---- memory ----

void Rnic::place(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  QueuePair& qp = *packet->target;
  Rnic& rnic = qp.node->rnic;
  Simulation& simulation = rnic.simulation_;
  if (packet->kind != PacketKind::kRequest) --qp.requester.placing;
  if (qp.generation == packet->target_generation && !qp.node->crashed) {
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
      if (owner != nullptr) {
        owner->written_memory = packet->region->socket;
        owner->written_by = qp.own.chosen.socket;
      }
      if (owner != nullptr && packet->last && packet->cq == nullptr) ++owner->unseen;
    }
    if (owner != nullptr) simulation.wake(*owner, simulation.now());
    if (packet->cq != nullptr) {
      packet->entry.sender = nullptr;
      push_completion(*packet->cq, packet->entry);
      qp.receive_queue().release(packet->entry.message);
    }
  } else if (packet->cq != nullptr && qp.srq() != nullptr) {
    qp.srq()->queue.release(packet->entry.message);
  }
  if (packet->kind != PacketKind::kRequest) qp.release_wqes();
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
    std::memcpy(bytes, qp.wqes.inline_bytes(message) + offset, length);
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

bool Rnic::may_scatter(const ibv_pd* domain, const ibv_sge* sge, uint32_t count, uint64_t offset,
                       uint64_t length) {
  for (uint32_t i = 0; i < count && length > 0; ++i, ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(length, sge->length - offset);
    const Region* const region = find_region(sge->lkey);
    if (region == nullptr || region->verbs.pd != domain ||
        !region->covers(sge->addr + offset, part) ||
        (region->access & IBV_ACCESS_LOCAL_WRITE) == 0) {
      return false;
    }
    length -= part;
    offset = 0;
  }
  return length == 0;
}

bool Rnic::may_fill_receive(QueuePair& qp, const Packet& packet) {
  ReceiveQueue& queue = qp.receive_queue();
  const ibv_pd* const domain = qp.srq() != nullptr ? qp.srq()->verbs.pd : qp.verbs.pd;
  return may_scatter(domain, queue.sges_of(qp.current_receive),
                     queue.receives[qp.current_receive].sges, packet.offset, packet.payload_bytes);
}

// What may be written when a packet arrives may be deregistered until it is.
void Rnic::scatter(const ibv_sge* sge, uint32_t count, uint64_t offset, const std::byte* bytes,
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
      return;
    }
    std::memcpy(region->at(sge->addr + offset), bytes, part);
    *owner = region->owner;
    bytes += part;
    length -= part;
    offset = 0;
  }
}

}  // namespace verbena::sim
