// The sending side: fetches of payloads, and the ring of queue pairs that arbitration serves.
#include <algorithm>
#include <utility>

#include "src/device/sim/opcode.h"
#include "src/device/sim/packet_payload.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

constexpr uint64_t kLineBytes = 64;

bool needs_payload(const Wqe& wqe) {
  return !wqe.inlined && wqe.length_bytes > 0 && !asks_for_data(wqe.opcode);
}

// Packets whose payload a queue pair may have, or wait for, ahead of what it sends.
uint64_t fetch_ahead(const Profile& profile, const QueuePair& qp) {
  return std::clamp<uint64_t>(profile.payload_prefetch_bytes / qp.own.chosen.mtu_bytes,
                              kFetchAheadLeast, UINT16_MAX / 2);
}

}  // namespace

// ---- fetches ----

// Reads a part of a message over the bus, one read per SGE. The result is what missing translations
// cost.
Time Rnic::gather_read(QueuePair& qp, uint64_t message, uint64_t offset, uint64_t bytes,
                       Time* read) {
  Translations missing;
  const ibv_sge* sge = qp.sges_of(message);
  for (uint32_t i = 0; i < qp.wqe(message).sges && bytes > 0; ++i, ++sge) {
    if (offset >= sge->length) {
      offset -= sge->length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(bytes, sge->length - offset);
    Region* const region = find_region(sge->lkey);
    *read = std::max(*read,
                     bus_read(part, region != nullptr && region->socket != qp.own.chosen.socket));
    if (region != nullptr && region->covers(sge->addr + offset, part)) {
      translate(*region, sge->addr + offset, part, &missing);
    }
    bytes -= part;
    offset = 0;
  }
  *read = std::max(*read, missing.there);
  return missing.alone;
}

// A queue pair reads its list entry by entry, each with a packet of its own on the bus: what the
// entries behind the first one add. What an entry has beyond a line follows by itself. A READ
// gathers nothing, but is paced so, too: that stands for placing its pieces one by one, since where
// the response arrives several cost no more than one.
Time Rnic::gather_time(QueuePair& qp, uint64_t message) const {
  const ibv_sge* const sges = qp.sges_of(message);
  Time sum = 0;
  for (uint32_t i = 1; i < qp.wqe(message).sges; ++i) {
    sum += node_.profile.bus_time(std::min<uint64_t>(sges[i].length, kLineBytes),
                                  node_.profile.pcie_down_kib);
  }
  return sum;
}

void Rnic::fetch_payloads(QueuePair& qp) {
  while (qp.payload_message < qp.fetched) {
    const Wqe& wqe = qp.wqe(qp.payload_message);
    if (!needs_payload(wqe)) {
      ++qp.payload_message;
      qp.payload_packet = 0;
      continue;
    }
    if (qp.payload_outstanding + qp.payload_ready >= fetch_ahead(node_.profile, qp)) return;
    const uint32_t bytes = payload_of(wqe.length_bytes, qp.own.chosen.mtu_bytes, qp.payload_packet);
    const Time free = bus_down_.free_at();
    Time read = simulation_.now();
    const Time translated =
        gather_read(qp, qp.payload_message, uint64_t{qp.payload_packet} * qp.own.chosen.mtu_bytes,
                    bytes, &read);
    const Time there = read + translated;
    // The WQEs behind it wait for its translations, too, and for the way to another socket.
    qp.waiting += translated;
    if (is_far(qp, qp.sges_of(qp.payload_message), wqe.sges)) {
      qp.waiting += node_.profile.dma_remote;
    }
    if (Recorder* const recorder = simulation_.recorder()) {
      StepOf of = Recorder::of(qp, qp.payload_message);
      of.index = qp.payload_packet;
      recorder->served(StepKind::kBusWait, StepKind::kPayloadFetch, node_.number, of,
                       simulation_.now(), free, read);
      recorder->step(StepKind::kTranslationMiss, node_.number, of, read, there);
    }
    ++qp.payload_outstanding;
    simulation_.at(there, payload_fetched, &qp, fetch_stamp(qp.generation, qp.fetch_epoch));
    if (++qp.payload_packet == wqe.packets) {
      ++qp.payload_message;
      qp.payload_packet = 0;
    }
  }
}

void Rnic::payload_fetched(void* object, uint64_t argument) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (fetch_stamp(qp.generation, qp.fetch_epoch) != argument) return;
  --qp.payload_outstanding;
  ++qp.payload_ready;
  qp.node->rnic.schedule_requests(qp);
}

// ---- the ring ----

bool Rnic::may_send(QueuePair& qp) {
  if (qp.state() != IBV_QPS_RTS || qp.requester.paused) return false;
  // A READ that was answered before the queue pair had to go back.
  while (qp.send_message < qp.fetched && qp.wqe(qp.send_message).done) ++qp.send_message;
  if (qp.send_message >= qp.fetched) return false;
  const Wqe& wqe = qp.wqe(qp.send_message);
  if (wqe.bad) return false;
  if (needs_payload(wqe) && qp.payload_ready == 0) return false;
  if (qp.send_packet > 0) return true;
  if (!may_begin(qp, wqe)) return false;
  if (simulation_.now() < qp.send_after) {
    if (!qp.pacing) {
      qp.pacing = true;
      if (Recorder* const recorder = simulation_.recorder()) {
        recorder->step(StepKind::kPacing, node_.number, Recorder::of(qp, qp.send_message),
                       simulation_.now(), qp.send_after);
      }
      simulation_.at(qp.send_after, paced, &qp, qp.generation);
    }
    return false;
  }
  return true;
}

void Rnic::paced(void* object, uint64_t generation) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.generation != generation) return;
  qp.pacing = false;
  qp.node->rnic.schedule_requests(qp);
}

// A burst that is not over goes on before others begin.
void Rnic::enqueue_job(std::deque<Job>& ring, const Job& job, uint32_t* turn_sent) {
  if (*turn_sent == 0 || *turn_sent >= node_.profile.arbitration_burst) {
    *turn_sent = 0;
    ring.push_back(job);
  } else {
    ring.push_front(job);
  }
}

void Rnic::schedule_requests(QueuePair& qp) {
  if (qp.queued) return;
  if (!may_send(qp)) {
    if (!qp.pacing) qp.turn_sent = 0;
    // A WQE that cannot be carried out fails when those before it are done.
    const bool here = qp.state() == IBV_QPS_RTS && qp.retired == qp.send_message;
    if (here && qp.send_message < qp.fetched && qp.wqe(qp.send_message).bad) {
      fail_locally(qp, qp.wqe(qp.send_message));
    }
    return;
  }
  qp.queued = true;
  enqueue_job(requests_, {Job::Kind::kRequest, &qp, qp.generation}, &qp.turn_sent);
  start_next();
}

void Rnic::start_next() {
  if (sending_ || !simulation_.fabric().ready(node_)) return;
  sending_ = true;  // for what is scheduled from here
  while (!requests_.empty() || !responses_.empty()) {
    responses_turn_ = !responses_turn_;
    std::deque<Job>& ring =
        requests_.empty() || (responses_turn_ && !responses_.empty()) ? responses_ : requests_;
    const Job job = ring.front();
    ring.pop_front();
    QueuePair& qp = *job.qp;
    if (qp.generation != job.generation) continue;
    switch (job.kind) {
      case Job::Kind::kRequest:
        qp.queued = false;
        if (!may_send(qp)) continue;
        made_ = make_request(qp);
        ++qp.turn_sent;
        break;
      case Job::Kind::kResponse:
        qp.responder.make_rare().queued = false;
        if (!may_respond(qp)) continue;
        made_ = make_response(qp);
        ++qp.responder.make_rare().turn_sent;
        break;
      case Job::Kind::kAck:
        qp.responder.ack_queued = false;
        // What is refused comes behind the answers to what was not.
        if (qp.responder.nak != NakCode::kNone && qp.responder.answers()) continue;
        made_ = make_ack(qp);
        break;
    }
    if (made_.packet == nullptr) {
      schedule_requests(qp);
      continue;
    }
    const Time done = units_.serve(simulation_.now(), made_.cost);
    made_.cost += missed(done - simulation_.now() - made_.cost);
    if (Recorder* const recorder = simulation_.recorder()) {
      recorder->handled(StepKind::kSend, StepKind::kSendMiss, node_.number,
                        Recorder::of(*made_.packet), simulation_.now(),
                        simulation_.now() + made_.cost);
    }
    sending_busy_ += made_.cost;
    simulation_.at(simulation_.now() + made_.cost, sent, this);
    return;
  }
  sending_ = false;
}

void Rnic::sent(void* object, uint64_t) {
  auto& rnic = *static_cast<Rnic*>(object);
  const Made made = rnic.made_;
  rnic.sending_ = false;
  if (made.packet != nullptr && !rnic.node_.crashed) {
    QueuePair& qp = *made.packet->source;
    const Time now = rnic.simulation_.now();
    const Time when = std::max(now + made.delay, qp.own.emit_at);
    qp.own.emit_at = when;
    if (Recorder* const recorder = rnic.simulation_.recorder()) {
      const StepOf of = Recorder::of(*made.packet);
      recorder->step(StepKind::kSendMiss, rnic.node_.number, of, now, now + made.delay);
      recorder->step(StepKind::kSendOrder, rnic.node_.number, of, now + made.delay, when);
    }
    const bool request = made.packet->kind == PacketKind::kRequest;
    if (!qp.is_reliable()) rnic.note_sent(qp, *made.packet, when);
    if (when == now) {
      rnic.simulation_.fabric().send(made.packet);
    } else {
      rnic.simulation_.at(when, emit, made.packet);
    }
    if (request) {
      rnic.fetch_payloads(qp);
      rnic.schedule_requests(qp);
    } else {
      rnic.schedule_responses(qp);
    }
  }
  rnic.start_next();
}

void Rnic::emit(void* packet, uint64_t) {
  Simulation::current()->fabric().send(static_cast<Packet*>(packet));
}

// ---- packets ----

bool Rnic::moves(const Packet& packet) const {
  if (packet.payload_bytes == 0) return false;
  return packet.index == 0 || packet.last || simulation_.options().copy_all;
}

Packet* Rnic::make_packet(QueuePair& qp, PacketKind kind) {
  Packet* const packet = simulation_.fabric().allocate();
  packet->kind = kind;
  packet->from = &node_;
  packet->to = qp.own.chosen.peer_node;
  packet->source = &qp;
  packet->source_generation = qp.generation;
  if (qp.sends_datagrams()) return packet;
  packet->target = qp.own.chosen.peer_node->rnic.find_queue_pair(qp.own.chosen.dest_qp_num);
  packet->target_generation = packet->target != nullptr ? packet->target->generation : 0;
  return packet;
}

Rnic::Made Rnic::make_request(QueuePair& qp) {
  const Profile& profile = node_.profile;
  Wqe& wqe = qp.wqe(qp.send_message);
  const bool asks = asks_for_data(wqe.opcode);
  Made made;
  if (qp.send_packet == 0)
    qp.requester.sent_ever = std::max(qp.requester.sent_ever, qp.send_message + 1);
  made.cost = profile.tx_message + context_cost(qp, &made.delay);

  Packet* const packet = made.packet = make_packet(qp, PacketKind::kRequest);
  packet->message = qp.send_message;
  packet->opcode = wqe.opcode;
  packet->rkey = wqe.rkey;
  packet->address = wqe.remote_address;
  packet->length_bytes = wqe.length_bytes;
  packet->imm_data = wqe.imm_data;
  packet->compare = wqe.compare;
  packet->swap = wqe.swap;
  if (asks) {
    ask(qp, wqe, made);
  } else {
    packet->index = qp.send_packet;
    packet->offset = uint64_t{qp.send_packet} * qp.own.chosen.mtu_bytes;
    packet->last = qp.send_packet + 1 == wqe.packets;
    packet->payload_bytes = payload_of(wqe.length_bytes, qp.own.chosen.mtu_bytes, qp.send_packet);
    made.cost += payload_cost(profile, packet->payload_bytes);
    if (qp.sends_datagrams()) address_datagram(qp, *packet);
    if (moves(*packet)) {
      if (packet->bytes == nullptr) simulation_.fabric().hold_payload(*packet);
      if (!gather(qp, packet->message, packet->offset, packet->bytes + packet->grh_bytes,
                  packet->payload_bytes)) {
        wqe.bad = true;  // its memory is no longer registered
        simulation_.fabric().free(packet);
        return {};
      }
    }
    if (needs_payload(wqe)) {
      made.cost += profile.tx_gather;
      --qp.payload_ready;
    }
  }
  qp.requester.progress_at = simulation_.now();
  if (asks || ++qp.send_packet == wqe.packets) {
    ++qp.send_message;
    qp.send_packet = 0;
    const Time gap = asks ? profile.queue_pair_read_gap : profile.queue_pair_write_gap;
    const Time gather = wqe.inlined ? 0 : gather_time(qp, qp.send_message - 1);
    const Time pace = gap + gather + std::exchange(qp.waiting, 0);
    qp.send_after = simulation_.now() + pace;
    qp.own.paced += pace;
  }
  start_timer(qp);
  return made;
}

}  // namespace verbena::sim
