// The data path of a messenger's sends, and of what it tells its peers.
#include <algorithm>

#include "src/connect/failure.h"
#include "src/message/messenger_state.h"
#include "src/message/pieces.h"

namespace verbena::message {
namespace {

constexpr uint32_t kMostCredits = 255;  // of one header
// Sends that are not over with their copy.
constexpr uint32_t kEndLater = kMessageDelivered | kMessageAcknowledged;

}  // namespace

MessageCompletion MessengerState::completion_of(const Operation& operation, MessageEvent event,
                                                MessageOutcome outcome) {
  MessageCompletion completion;
  completion.context = operation.context;
  completion.event = event;
  completion.outcome = outcome;
  completion.flags = operation.flags & (kMessageUntagged | kMessageMulti | kMessageMarked);
  completion.peer = operation.peer;
  completion.tag = operation.tag;
  return completion;
}

void MessengerState::complete_operation(uint32_t number, MessageEvent event,
                                        MessageOutcome outcome) {
  const Operation& operation = operations_[number];
  const MessageCompletion completion = completion_of(operation, event, outcome);
  const bool silent = (operation.flags & kMessageSilent) != 0 && outcome == MessageOutcome::kOk;
  if (event == MessageEvent::kSent) MessageMemory::give_back(&send_memory_[number]);
  free_operation(number);
  if (!silent) complete(completion);
}

// Credits of a ring come back within a round trip, and what goes by SEND meanwhile holds up what is
// behind it for longer, unless the peer takes no messages now. Not on software RNICs, where a SEND
// takes as long as a WRITE, and the peer may need this side's CPU.
bool MessengerState::awaits_ring_credits(PeerConnection& connection) {
  const uint64_t now = now_ns();
  if (connection.ring_full_since_ns == 0) connection.ring_full_since_ns = now;
  const uint64_t end_ns = connection.ring_full_since_ns + kRingPatienceNs;
  if (now >= end_ns) return false;
  ring_patience_end_ns_ = end_ns;
  return true;
}

MessengerState::Room MessengerState::room_for_message(PeerConnection& connection, uint32_t reserved,
                                                      bool by_ring) {
  if (!connection.sends.has_room()) return {};
  if (by_ring && connection.ring_out_usable) {
    RingSender& ring = *connection.ring_out;
    if (ring.credits() > 0) [[likely]]
      return {ring.payload(), true};
    if (reserved > 0 && !steps_.moves_payload && awaits_ring_credits(connection)) return {};
  }
  if (connection.queue.credits() > reserved) return {connection.queue.payload(), false};
  return {};
}

MessageHeader MessengerState::next_header(PeerConnection& connection, Kind kind, uint8_t flags,
                                          uint64_t tag) {
  MessageHeader header;
  header.sequence = connection.next_sequence;
  header.kind = kind;
  header.flags = flags;
  header.tag = tag;
  header.queue_credits =
      static_cast<uint8_t>(is_out_of_order(kind) ? connection.owed.take_all_credits(kMostCredits)
                                                 : connection.owed.take_credits(kMostCredits));
  if (connection.ring_in != nullptr && !connection.ring_in_left) {
    header.ring_credits = static_cast<uint8_t>(connection.ring_in->take_credits(kMostCredits));
  }
  return header;
}

void MessengerState::post(PeerConnection& connection, const Room& room, const char* end,
                          bool in_order, bool signaled) {
  const auto bytes = static_cast<uint32_t>(end - room.to);
  VERBENA_DEBUG_ASSERT(bytes <= room_bytes_);
  if (room.ring && connection.ring_out->has_unknown()) [[unlikely]]
    clear_tail(connection, *connection.ring_out, bytes);
  if (in_order) ++connection.next_sequence;
  ibv_send_wr* request = nullptr;
  if (room.ring) {
    ++statistics_.ring_messages;
    RingSender& ring = *connection.ring_out;
    const RingSender::Sealed sealed = ring.seal(bytes);
    if (connection.write_now != nullptr && !signaled &&
        ring.write_now(connection.write_now, connection.queue_pair, sealed)) [[likely]]
      return;
    request = &ring.request(sealed);
  } else {
    ++statistics_.queue_messages;
    request = &connection.queue.seal(bytes);
  }
  const bool posted =
      signaled ? connection.sends.push_signaled(*request) : connection.sends.push(*request);
  if (!posted) [[unlikely]]
    make_busy(connection);  // where the error is found
}

bool MessengerState::post_control(PeerConnection& connection, Kind kind, uint8_t flags,
                                  uint64_t tag, uint64_t data) {
  // That a ring has been left is behind all of its messages, and an offer is behind all SENDs whose
  // credits are those of an earlier ring.
  const bool in_order = !is_out_of_order(kind);
  const bool by_ring =
      in_order ? kind != Kind::kRingLeft && kind != Kind::kRingOffer : is_early_of_ring(kind);
  const Room room = room_for_message(connection, in_order ? kReservedCredits : 0, by_ring);
  if (room.to == nullptr) return false;
  if (is_early_of_ring(kind) && !room.ring) ++connection.early_by_queue;
  const MessageHeader header = next_header(connection, kind, flags, tag);
  post(connection, room, put_header(room.to, header, data, 0), in_order || room.ring,
       /*signaled=*/kind == Kind::kRingLeft);
  return true;
}

void MessengerState::post_credits(PeerConnection& connection) {
  // By the ring, where its receiver finds it sooner; but of two slots each would be owed again.
  if (options_.ring_slots > 2 && connection.ring_out_usable && connection.ring_out->credits() > 0) {
    if (!connection.sends.has_room()) return;
    const Room room{connection.ring_out->payload(), true};
    const MessageHeader header = next_header(connection, Kind::kCredits, 0, 0);
    ++statistics_.credit_messages;
    post(connection, room, put_header(room.to, header, 0, 0));
    return;
  }
  if (connection.credit_messages.credits() == 0) {
    if (connection.sends.retired() < connection.credit_message_end) connection.sends.reap();
    if (connection.sends.retired() < connection.credit_message_end) return;
    connection.credit_messages.add_credits(1);
  }
  if (!connection.sends.has_room()) return;
  char* const to = connection.credit_messages.payload();
  const MessageHeader header = next_header(connection, Kind::kCredits, 0, 0);
  const char* const end = put_header(to, header, 0, 0);
  ++statistics_.credit_messages;
  connection.sends.push_signaled(connection.credit_messages.seal(static_cast<uint32_t>(end - to)));
  connection.credit_message_end = connection.sends.posted();
}

// Of the SEND/RECV channel, which has some to return.
bool MessengerState::owes_queue_credits(const PeerConnection& connection) const {
  const uint32_t queued = connection.owed.credits();
  if (2 * queued >= options_.queue_credits) return true;
  // All others are in use: what is left to the peer may be less than it needs to go on.
  if (options_.queue_credits - connection.owed.in_use() - queued <= kReservedCredits) return true;
  // Nothing else took them along since this was last asked.
  return owes_urgent(connection) && connection.arrivals == connection.arrivals_served;
}

PostResult MessengerState::send(const SendRequest& request) {
  if (request.peer >= peers_.size()) return refuse("no peer has this number; add_peer() gives it");
  if (request.pieces.size() > kMaxPieces) return refuse("a message has more than four pieces");
  const uint64_t bytes = total_bytes(request.pieces);
  Peer& peer = *peers_[request.peer];
  if (request.peer == self_) return send_to_self(request, bytes);
  if (!peer.status.ok()) return PostResult::kFailed;
  if (peer.connection == nullptr) {
    if (!peer.requested) {
      peer.requested = true;
      connector_->request(peer.address);
    }
    return would_block();
  }
  if (bytes < reused_from_bytes_) [[likely]]
    return send_eager(*peer.connection, request, bytes);
  if (bytes > eager_limit_bytes()) return send_rendezvous(*peer.connection, request, bytes);
  return reused_sources_.skips() ? send_eager(*peer.connection, request, bytes)
                                 : send_reused(*peer.connection, request, bytes);
}

[[gnu::flatten]] PostResult MessengerState::send_eager(PeerConnection& connection,
                                                       const SendRequest& request, uint64_t bytes) {
  const bool ends_later = (request.flags & kEndLater) != 0;
  if (!has_completion_room() || (ends_later && operation_numbers_.empty())) return would_block();
  const Room room = room_for_message(connection, kReservedCredits);
  if (room.to == nullptr) {
    // What is on its way back may be waiting for completions here.
    if (connection.sends.error()) make_busy(connection);
    ++connection.counts.credit_waits;
    return would_block();
  }
  uint8_t flags = header_flags_of(request.flags);
  uint64_t operation_on_wire = 0;
  uint32_t number = kNone;
  bool acknowledged = false;
  if (ends_later) {
    const bool confirmed = (request.flags & kMessageDelivered) != 0;
    acknowledged = !confirmed;
    number = new_operation(request.context, request.flags, request.peer, {});
    Operation& operation = operations_[number];
    operation.state = confirmed ? Operation::State::kAwaitsFinish : Operation::State::kGathered;
    outgoing_[number].offered = false;
    operation.tag = request.tag;
    if (confirmed) {
      operation_on_wire = uint64_t{operation.generation} << 32 | number;
      flags |= kWantsFinish;
    }
  }
  flags |= remember_tag(connection, request.tag);
  const MessageHeader header = next_header(connection, Kind::kEager, flags, request.tag);
  char* const to =
      copy_pieces(put_header(room.to, header, request.data, operation_on_wire), request.pieces);
  VERBENA_DEBUG_ASSERT(to - room.to <= static_cast<int64_t>(kMaxHeaderBytes + bytes));
  ++(room.ring ? connection.counts.eager_by_ring : connection.counts.eager_by_queue);
  connection.counts.sent_bytes += bytes;
  post(connection, room, to, /*in_order=*/true, /*signaled=*/acknowledged);
  if (acknowledged) append_acknowledged(connection, number);
  if (!ends_later && (request.flags & kMessageSilent) == 0) {
    MessageCompletion& completion = new_completion();
    completion = {};
    completion.context = request.context;
    completion.flags = request.flags & (kMessageUntagged | kMessageMarked);
    completion.peer = request.peer;
    completion.tag = request.tag;
  }
  return PostResult::kPosted;
}

PostResult MessengerState::send_rendezvous(PeerConnection& connection, const SendRequest& request,
                                           uint64_t bytes) {
  if (operation_numbers_.empty() || !has_completion_room()) return would_block();
  const Room room = room_for_message(connection, kReservedCredits);
  if (room.to == nullptr) {
    ++connection.counts.credit_waits;
    return would_block();
  }

  PieceMemory source;
  RemoteMemory memory;
  memory.bytes = bytes;
  if (!choose_source(connection, request.pieces, bytes, &memory.method, &source)) {
    return PostResult::kFailed;
  }
  if (memory.method == Method::kRead) describe(request.pieces, source, &memory);
  const uint32_t number =
      new_operation(request.context, request.flags, request.peer, request.pieces);
  Operation& operation = operations_[number];
  operation.state = Operation::State::kAwaitsFinish;
  operation.tag = request.tag;
  send_memory_[number] = source;
  outgoing_[number].offered = true;
  outgoing_[number].end = 0;
  outgoing_[number].method = memory.method;

  const auto flags = static_cast<uint8_t>(header_flags_of(request.flags) | kWantsFinish);
  const MessageHeader header = next_header(connection, Kind::kRendezvous, flags, request.tag);
  char* const to =
      put_header(room.to, header, request.data, uint64_t{operation.generation} << 32 | number);
  copy_bytes(to, &memory, sizeof(memory));
  post(connection, room, to + sizeof(memory));
  connection.counts.sent_bytes += bytes;
  ++statistics_.rendezvous;
  return PostResult::kPosted;
}

// No channel: the message meets a receive, or its bytes wait in the store or where they are.
PostResult MessengerState::send_to_self(const SendRequest& request, uint64_t bytes) {
  if (operation_numbers_.empty() || !has_completion_room()) return would_block();
  const bool untagged = (request.flags & kMessageUntagged) != 0;
  const uint8_t flags = header_flags_of(request.flags);
  const uint32_t met = matching(untagged).find_receive(self_, request.tag);
  if (met != Matching::kNone) {
    // One for the send, one for a message of a receive for several.
    ++reserved_completions_;
    const bool room = has_completion_room();
    --reserved_completions_;
    if (!room) return would_block();
    Delivery delivery = begin_delivery(met, self_, request.tag, request.data, flags, bytes);
    PieceCursor to(delivery.local, delivery.local_count);
    for (const iovec& piece : request.pieces) {
      to.put(static_cast<const char*>(piece.iov_base), piece.iov_len);
    }
    end_delivery(met, delivery.completion);
  } else {
    if (envelope_numbers_.empty()) return would_block();
    const bool confirmed = (request.flags & kMessageDelivered) != 0;
    const bool stays =
        bytes > eager_limit_bytes() || (confirmed && (request.flags & kMessageCopied) == 0);
    if (!stays && !store_.has_room(bytes)) return would_block();
    Envelope envelope{};
    envelope.flags = flags;
    envelope.peer = self_;
    envelope.connection = kNone;
    envelope.tag = request.tag;
    envelope.data = request.data;
    envelope.bytes = bytes;
    if (stays || confirmed) {
      const uint32_t number = new_operation(request.context, request.flags, request.peer,
                                            stays ? request.pieces : std::span<const iovec>{});
      operations_[number].state = Operation::State::kAwaitsReceive;
      operations_[number].tag = request.tag;
      envelope.operation = number;
    }
    envelope.place = stays ? Envelope::Place::kSelf : Envelope::Place::kStore;
    envelope.confirms_self = stays || confirmed;
    if (!stays) envelope.where = store_.put(request.pieces);
    add_unexpected(envelope);
    if (envelope.confirms_self) return PostResult::kPosted;
  }
  if ((request.flags & kMessageSilent) == 0) {
    MessageCompletion completion;
    completion.context = request.context;
    completion.flags = request.flags & (kMessageUntagged | kMessageMarked);
    completion.peer = self_;
    completion.tag = request.tag;
    complete(completion);
  }
  return PostResult::kPosted;
}

void MessengerState::serve_busy() {
  for (size_t i = 0; i < busy_.size();) {
    PeerConnection& connection = *busy_[i];
    if (serve(connection)) {
      ++i;
      continue;
    }
    connection.busy = false;
    busy_[i] = busy_.back();
    busy_.pop_back();
  }
}

// True: something is left to do.
bool MessengerState::serve(PeerConnection& connection) {
  if (!connection.waiting.empty()) take_from(connection);
  if (connection.broken) return false;
  if (connection.first_transfer != 0 || connection.first_outgoing != 0 ||
      connection.first_move != 0 || connection.ring_out_end != 0 ||
      connection.first_gathered != 0 || !connection.held.empty()) {
    connection.sends.reap();
  }
  if (!connection.held.empty()) release_held(connection, connection.sends.retired());
  // Before an error: what was sent before it has been sent.
  if (connection.first_gathered != 0) serve_gathered(connection);
  if (connection.sends.error()) {
    if (is_still_received(connection)) return true;
    lose(connection, connect::diagnose(connection.sends.error(), {}, *connection.joined.control,
                                       connection.name));
    return false;
  }
  if (connection.due_offer) {
    const RingReceiver& ring = *connection.ring_in;
    connection.due_offer =
        !post_control(connection, Kind::kRingOffer, kHasData,
                      reinterpret_cast<uint64_t>(ring.slots().base), ring_in_memory_->rkey());
  }
  if (connection.due_leave && !connection.due_offer) {
    connection.due_leave = !post_control(connection, Kind::kRingLeave, 0, 0);
  }
  if (connection.due_left && post_control(connection, Kind::kRingLeft, 0, 0)) {
    connection.due_left = false;
    if (connection.ring_out != nullptr) {
      connection.ring_out_end = connection.sends.posted();
    }
  }
  if (connection.ring_out_end != 0 && connection.sends.retired() >= connection.ring_out_end) {
    free_ring_out(connection);
  }
  uint32_t previous = 0;
  for (uint32_t at = connection.first_transfer; at != 0;) {
    const uint32_t next = transfers_[at - 1].next;
    if (serve_transfer(connection, at - 1)) {
      (previous != 0 ? transfers_[previous - 1].next : connection.first_transfer) = next;
      if (next == 0) connection.last_transfer = previous;
    } else {
      previous = at;
    }
    at = next;
  }
  bool moving = connection.first_move != 0 && serve_moves(connection);
  if (!connection.parked.empty()) {
    serve_parked(connection);
    if (connection.broken) return false;
    moving |= connection.first_move != 0 || !connection.parked.empty();
  }
  // Behind answers, which would find no credit.
  if (connection.first_outgoing != 0) serve_all_outgoing(connection);
  if (owes_credits(connection)) post_credits(connection);
  connection.arrivals_served = connection.arrivals;
  return moving || owes_urgent(connection) || connection.due_offer || connection.due_leave ||
         connection.due_left || connection.ring_out_end != 0 || connection.first_transfer != 0 ||
         connection.first_outgoing != 0 || connection.first_gathered != 0 ||
         !connection.held.empty() || !connection.waiting.empty() || owes_credits(connection);
}

}  // namespace verbena::message
