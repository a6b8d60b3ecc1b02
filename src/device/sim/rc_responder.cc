// The responder of a reliable connection: requests in their order, acknowledgements, and the
// responses to READs and atomics.
#include <algorithm>
#include <cstring>

#include "src/device/sim/opcode.h"
#include "src/device/sim/packet_payload.h"
#include "src/device/sim/recorder.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

// ---- requests ----

bool Rnic::take_request(Packet* packet) {
  QueuePair& qp = *packet->target;
  if (packet->message < qp.expected_message) {
    repeat(qp, *packet);
    return false;
  }
  const bool asks = asks_for_data(packet->opcode);
  if (packet->message > qp.expected_message || (!asks && packet->index != qp.expected_packet)) {
    const bool gap = packet->message > qp.expected_message || packet->index > qp.expected_packet;
    if (gap && !qp.responder.nak_sent) {
      refuse(qp, NakCode::kSequence, qp.expected_message);
    }
    return false;
  }
  qp.responder.nak_sent = false;
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
    if (qp.responder.rare == nullptr) return;
    for (const RcAnswers::Replay& replay : qp.responder.rare->atomics) {
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
         (qp.own.chosen.qp_access_flags & IBV_ACCESS_REMOTE_READ) != 0;
}

// Responses leave in the order of their requests. Who asks for one again asks for all behind it
// again, too; atomics that are being executed stay.
void Rnic::respond(QueuePair& qp, const PendingResponse& response) {
  std::vector<PendingResponse>& responses = qp.responder.make_rare().responses;
  std::erase_if(responses, [&response](const PendingResponse& other) {
    return other.message >= response.message && (!other.atomic || other.executed);
  });
  const auto behind = std::find_if(
      responses.begin(), responses.end(),
      [&response](const PendingResponse& other) { return other.message > response.message; });
  PendingResponse& added = *responses.insert(behind, response);
  if (!added.atomic) {
    added.packets =
        std::max(1u, (added.length_bytes + qp.own.chosen.mtu_bytes - 1) / qp.own.chosen.mtu_bytes);
    added.fetched = added.length_bytes == 0 ? 1 : added.next_packet;
  }
  fetch_responses(qp);
  schedule_responses(qp);
}

void Rnic::refuse(QueuePair& qp, NakCode code, uint64_t message) {
  if (!qp.is_reliable()) {  // nobody is told
    if (code == NakCode::kInvalid || code == NakCode::kOperation) fail(qp, IBV_WC_WR_FLUSH_ERR);
    return;
  }
  // What comes behind it is dropped without a further word until it comes again.
  qp.responder.nak_sent = true;
  qp.responder.nak = code;
  qp.responder.make_rare().nak_message = message;
  schedule_ack(qp);
  if (code != NakCode::kRnr && code != NakCode::kSequence) fail(qp, IBV_WC_WR_FLUSH_ERR);
}

void Rnic::advance(QueuePair& qp, const Packet& packet) {
  if (packet.last) {
    ++qp.expected_message;
    qp.expected_packet = 0;
    if (qp.is_reliable() && !asks_for_data(packet.opcode)) schedule_ack(qp);
  } else {
    ++qp.expected_packet;
  }
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
      (qp.own.chosen.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) == 0) {
    refuse(qp, NakCode::kAccess, qp.expected_message);
    return false;
  }
  ++qp.expected_message;
  packet->region = region;
  respond(qp, {.message = packet->message, .atomic = true});
  // Behind what was written before. It reads and writes over the bus, and the next one's read does
  // not pass its write.
  const Profile& profile = node_.profile;
  const Time remote = region->socket != qp.own.chosen.socket ? 2 * profile.dma_remote : 0;
  const Time done = atomics_.serve(simulation_.now(), profile.atomic_operation + remote);
  simulation_.at(std::max(done, qp.place_at), atomic_done, packet);
  return true;
}

void Rnic::atomic_done(void* object, uint64_t) {
  auto* const packet = static_cast<Packet*>(object);
  QueuePair& qp = *packet->target;
  Rnic& rnic = qp.node->rnic;
  Region* const region = rnic.find_region(packet->rkey);
  RcAnswers& answers = qp.responder.make_rare();
  const auto response = std::find_if(answers.responses.begin(), answers.responses.end(),
                                     [packet](const PendingResponse& other) {
                                       return other.atomic && other.message == packet->message;
                                     });
  if (qp.generation != packet->target_generation || response == answers.responses.end()) {
    rnic.simulation_.fabric().free(packet);
    return;
  }
  if (region == nullptr || region != packet->region) {
    answers.responses.erase(response, answers.responses.end());
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
    if (answers.atomics.empty()) answers.atomics.resize(qp.own.chosen.max_dest_rd_atomic);
    if (!answers.atomics.empty()) {
      answers.atomics[answers.atomics_done++ % answers.atomics.size()] = {packet->message,
                                                                          original};
    }
    response->original = original;
    response->executed = true;
    rnic.schedule_responses(qp);
  }
  rnic.simulation_.fabric().free(packet);
}

// ---- responses and acknowledgements ----

void Rnic::fetch_responses(QueuePair& qp) {
  if (!qp.responder.answers()) return;
  const uint64_t ahead = std::max<uint64_t>(
      kFetchAheadLeast, node_.profile.response_prefetch_bytes / qp.own.chosen.mtu_bytes);
  for (PendingResponse& response : qp.responder.rare->responses) {
    if (response.atomic) continue;
    while (response.fetched + response.fetching < response.packets && response.fetching < ahead) {
      const uint32_t index = response.fetched + response.fetching;
      const uint32_t bytes = payload_of(response.length_bytes, qp.own.chosen.mtu_bytes, index);
      const Time free = bus_down_.free_at();
      Region* const region = find_region(response.rkey);
      const Time read =
          bus_read(bytes, region != nullptr && region->socket != qp.own.chosen.socket);
      // Behind what was written before: reads do not pass writes on the bus.
      Time there = std::max(read, qp.place_at);
      const Time ordered = there;
      const uint64_t address = response.address + uint64_t{index} * qp.own.chosen.mtu_bytes;
      if (region != nullptr && region->covers(address, bytes)) {
        Translations missing;
        translate(*region, address, bytes, &missing);
        there += translated(qp, missing);
      }
      if (Recorder* const recorder = simulation_.recorder()) {
        const StepOf of{.message = {.node = qp.own.chosen.peer_node->number,
                                    .queue_pair = qp.own.chosen.dest_qp_num,
                                    .number = response.message},
                        .packet = PacketKind::kReadResponse,
                        .index = index};
        recorder->served(StepKind::kBusWait, StepKind::kPayloadFetch, node_.number, of,
                         simulation_.now(), free, read);
        recorder->step(StepKind::kPlacementOrder, node_.number, of, read, ordered);
        recorder->step(StepKind::kTranslationMiss, node_.number, of, ordered, there);
      }
      ++response.fetching;
      simulation_.at(there, response_fetched, &qp,
                     fetch_stamp(qp.generation, static_cast<uint32_t>(response.message)));
    }
    if (response.fetched + response.fetching < response.packets) return;
  }
}

void Rnic::response_fetched(void* object, uint64_t argument) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.generation != argument >> 32) return;
  for (PendingResponse& response : qp.responder.make_rare().responses) {
    if (static_cast<uint32_t>(response.message) != static_cast<uint32_t>(argument)) continue;
    if (response.fetching == 0) continue;
    --response.fetching;
    ++response.fetched;
    break;
  }
  Rnic& rnic = qp.node->rnic;
  rnic.fetch_responses(qp);
  rnic.schedule_responses(qp);
}

bool Rnic::may_respond(const QueuePair& qp) {
  if (!qp.responder.answers()) return false;
  const PendingResponse& response = qp.responder.rare->responses.front();
  return response.atomic ? response.executed : response.next_packet < response.fetched;
}

void Rnic::schedule_responses(QueuePair& qp) {
  if (qp.responder.rare == nullptr) return;
  RcAnswers& answers = *qp.responder.rare;
  if (answers.queued) return;
  if (!may_respond(qp)) {
    answers.turn_sent = 0;
    return;
  }
  answers.queued = true;
  enqueue_job(responses_, {Job::Kind::kResponse, &qp, qp.generation}, &answers.turn_sent);
  start_next();
}

void Rnic::schedule_ack(QueuePair& qp) {
  if (qp.responder.ack_queued) return;
  qp.responder.ack_queued = true;
  responses_.push_back({Job::Kind::kAck, &qp, qp.generation});
  start_next();
}

Rnic::Made Rnic::make_response(QueuePair& qp) {
  const Profile& profile = node_.profile;
  std::vector<PendingResponse>& responses = qp.responder.rare->responses;
  PendingResponse& response = responses.front();
  Made made;
  made.cost = profile.tx_message + context_cost(qp, &made.delay);
  const PacketKind kind = response.atomic ? PacketKind::kAtomicResponse : PacketKind::kReadResponse;
  Packet* const packet = made.packet = make_packet(qp, kind);
  packet->message = response.message;
  packet->index = response.next_packet;
  packet->original = response.original;
  if (!response.atomic) {
    packet->rkey = response.rkey;
    packet->offset = uint64_t{response.next_packet} * qp.own.chosen.mtu_bytes;
    packet->address = response.address + packet->offset;
    packet->payload_bytes =
        payload_of(response.length_bytes, qp.own.chosen.mtu_bytes, response.next_packet);
    made.cost += payload_cost(profile, packet->payload_bytes);
    if (packet->payload_bytes > 0) {
      if (!may_read(qp, packet->rkey, packet->address, packet->payload_bytes)) {
        const uint64_t message = response.message;
        simulation_.fabric().free(packet);
        responses.clear();
        refuse(qp, NakCode::kAccess, message);
        return {};
      }
      packet->last = response.next_packet + 1 >= response.packets;
      if (moves(*packet)) {
        simulation_.fabric().hold_payload(*packet);
        std::memcpy(packet->bytes, find_region(packet->rkey)->at(packet->address),
                    packet->payload_bytes);
      }
    }
  }
  packet->last = ++response.next_packet >= response.packets;
  if (packet->last) {
    responses.erase(responses.begin());
    if (responses.empty() && qp.responder.nak != NakCode::kNone) schedule_ack(qp);
  }
  fetch_responses(qp);
  return made;
}

Rnic::Made Rnic::make_ack(QueuePair& qp) {
  Made made;
  const Profile& profile = node_.profile;
  made.cost = profile.tx_ack + context_cost(qp, &made.delay);
  const NakCode nak = qp.responder.nak;
  qp.responder.nak = NakCode::kNone;
  Packet* const packet = made.packet =
      make_packet(qp, nak == NakCode::kNone ? PacketKind::kAck : PacketKind::kNak);
  packet->nak = nak;
  packet->message = nak == NakCode::kNone ? qp.expected_message : qp.responder.rare->nak_message;
  return made;
}

}  // namespace verbena::sim
