// The data path of a messenger's receives: what comes by the two channels, in order, and where it
// goes.
#include <algorithm>

#include "src/base/runtime.h"
#include "src/connect/failure.h"
#include "src/message/messenger_state.h"
#include "src/message/pieces.h"

namespace verbena::message {

uint32_t MessengerState::progress() {
  uint32_t found = 0;
  if (connector_->has_news()) [[unlikely]]
    found += adopt();
  if (half_posted_ != kNone) [[unlikely]]
    go_on_receiving(half_posted_, next_for(operations_[half_posted_]));
  if (!discarded_.empty()) [[unlikely]]
    go_on_discarding();
  found += poll_rings();
  // Who polls rings polls the completion queue, which costs more, not each time.
  if (++rounds_without_queue_ >= kRoundsOfRings || polling_.size() == 0) {
    rounds_without_queue_ = 0;
    found += poll_queue();
  }
  if (reconsider_polling_ || polling_.due()) [[unlikely]]
    manage_polling_set();
  if (!busy_.empty()) serve_busy();
  watch(found);
  return found;
}

uint32_t MessengerState::poll(std::span<MessageCompletion> completions) {
  progress();
  uint32_t taken = 0;
  while (taken < completions.size() && completion_count_ > 0) {
    completions[taken++] = completions_[first_completion_];
    drop_completions(1);
  }
  return taken;
}

std::span<const MessageCompletion> MessengerState::poll_in_place() {
  // Completions that come without progress, of operations to oneself, do not keep peers waiting.
  if (completion_count_ == 0 || ++polls_without_progress_ >= kPollsWithoutProgress) {
    polls_without_progress_ = 0;
    progress();
  }
  const uint64_t in_a_row =
      std::min<uint64_t>(completion_count_, completions_.size() - first_completion_);
  return {&completions_[first_completion_], in_a_row};
}

void MessengerState::drop_completions(uint32_t count) {
  VERBENA_ASSERT(count <= completion_count_ && count <= completions_.size() - first_completion_);
  completion_count_ -= count;
  first_completion_ += count;
  // An empty queue begins anew, where its memory is in the cache.
  if (completion_count_ == 0 || first_completion_ == completions_.size()) first_completion_ = 0;
}

bool MessengerState::rings_have_messages(uint32_t polls) const {
  // What ends other operations than receives comes by the completion queue, unless all peers have
  // rings that are polled, and nothing of a device's is awaited.
  const uint32_t size = polling_.size();
  const bool waits_for_queue =
      operation_numbers_.in_use() > tagged_.receives() + untagged_.receives() &&
      (size < connections_end_ || !busy_.empty());
  if (size == 0 || waits_for_queue) return false;
  for (; polls > 0; --polls) {
    for (uint32_t i = 0; i < size; ++i) {
      if (!connections_[polling_.at(i)]->ring_in->is_empty()) return true;
    }
    cpu_relax();
  }
  return false;
}

uint32_t MessengerState::poll_rings() {
  uint32_t found = 0;
  uint32_t last = 0;
  const uint32_t size = polling_.size();
  for (uint32_t i = 0; i < size && found < kMostOfOnePoll; ++i) {
    last = i;
    PeerConnection& connection = *connections_[polling_.at(i)];
    // SENDs that wait are tried again by serve_busy().
    if (connection.ring_in->is_empty()) continue;
    found += take_from(connection);
    // Messages may have changed who is in.
    if (polling_.size() != size) break;
  }
  if (found > 0) polling_.end_round(last);
  return found;
}

uint32_t MessengerState::poll_queue() {
  uint32_t found = 0;
  while (found < kMostOfOnePoll) {
    const SharedReceives::Arrival arrival = receives_.take();
    if (arrival.payload == nullptr) break;
    ++found;
    arrived(arrival);
  }
  // The last look found nothing, or there may be more.
  if (found < kMostOfOnePoll) ++queue_was_empty_;
  if (found == 0) receives_.flush();
  return found;
}

void MessengerState::arrived(const SharedReceives::Arrival& arrival) {
  PeerConnection* const connection =
      arrival.connection < connections_.size() ? connections_[arrival.connection].get() : nullptr;
  if (connection == nullptr ||
      arrival.queue_pair_number != connection->joined.endpoint->queue_pair.number()) [[unlikely]] {
    arrived_astray(arrival);
    return;
  }
  if (connection->broken) {
    receives_.give_back(arrival.receive);
    return;
  }
  ++connection->arrivals;
  ParsedMessage message;
  const char* wrong = nullptr;
  if (!parse(arrival.payload, arrival.bytes, &message)) {
    wrong = "its message has no valid header";
  } else if (message.header.kind == Kind::kCredits) {
    if (!take_credits(*connection, message.header)) wrong = "it returned more credits than it had";
    receives_.give_back(arrival.receive);
  } else if (!connection->owed.take()) {
    wrong = "it sent a message without a credit";
  } else if (is_out_of_order(message.header.kind)) {
    if (!take_out_of_order(*connection, message))
      wrong = "it goes on with an operation that is none";
    receives_.give_back(arrival.receive);
    connection->owed.release_at_once();
    if (!take_credits(*connection, message.header)) wrong = "it returned more credits than it had";
    if (owes_credits(*connection) || owes_urgent(*connection)) make_busy(*connection);
  } else if (!connection->waiting.push(arrival)) {
    wrong = "it sent a message without a credit";
  } else {
    take_from(*connection);
    return;
  }
  if (wrong != nullptr) {
    lose(*connection,
         connect::explain_failure(channel::ChannelError::peer_violated(wrong), connection->name));
  }
}

// By none of the connections that the message names: its receive serves all peers.
void MessengerState::arrived_astray(const SharedReceives::Arrival& arrival) {
  // Of a peer that was quicker than the thread that hands its connection over.
  const auto is_of_its = [&arrival](const SharedReceives::Arrival& other) {
    return other.queue_pair_number == arrival.queue_pair_number;
  };
  if (connector_->is_joining(arrival.queue_pair_number) && early_.size() < early_.capacity() &&
      std::count_if(early_.begin(), early_.end(), is_of_its) < receives_per_connection()) {
    early_.push_back(arrival);
    return;
  }
  receives_.give_back(arrival.receive);
  for (uint32_t number = 0; number < connections_end_; ++number) {
    PeerConnection* const connection = connections_[number].get();
    if (connection != nullptr && !connection->broken &&
        connection->joined.endpoint->queue_pair.number() == arrival.queue_pair_number) {
      lose(*connection,
           connect::explain_failure(channel::ChannelError::peer_violated(
                                        "its message is for a connection that is not its own"),
                                    connection->name));
      return;
    }
  }
}

// Takes messages of both channels, in order, as far as there are any.
uint32_t MessengerState::take_from(PeerConnection& connection) {
  uint32_t found = 0;
  while (!connection.broken && found < kMostOfOnePoll) {
    Fate fate = connection.waiting.empty() ? Fate::kStalled : take_queued(connection);
    if (fate == Fate::kStalled && connection.ring_in != nullptr) {
      fate = take_from_ring(connection);
    }
    if (fate == Fate::kWrong) {
      const channel::ChannelError ring_error =
          connection.ring_in != nullptr ? connection.ring_in->error() : channel::ChannelError{};
      lose(connection,
           connect::explain_failure(
               ring_error ? ring_error
                          : channel::ChannelError::peer_violated(
                                "its message is not one that follows the one before it"),
               connection.name));
      break;
    }
    if (fate == Fate::kStalled) break;
    ++found;
    // Mostly it was the only one.
    if (connection.waiting.empty() &&
        (connection.ring_in == nullptr || connection.ring_in->is_empty())) {
      break;
    }
  }
  // Those that wait are tried again when something else was done.
  if (!connection.waiting.empty() || (found > 0 && owes_credits(connection))) {
    make_busy(connection);
  }
  return found;
}

MessengerState::Fate MessengerState::take_queued(PeerConnection& connection) {
  const SharedReceives::Arrival arrival = connection.waiting.front();
  ParsedMessage message;
  if (!parse(arrival.payload, arrival.bytes, &message)) return Fate::kWrong;
  const Sequence::Place place = connection.arriving.place(message.header.sequence);
  if (place == Sequence::Place::kAhead) return Fate::kStalled;
  if (place == Sequence::Place::kBroken) return Fate::kWrong;
  restore_tag(connection, message);
  const Fate fate = handle(connection, message, Envelope::Place::kReceive, arrival.receive);
  if (fate == Fate::kStalled || fate == Fate::kWrong) return fate;
  connection.waiting.pop();
  if (fate == Fate::kUsed) {
    receives_.give_back(arrival.receive);
    connection.owed.release();
  }
  return fate;
}

[[gnu::flatten]] MessengerState::Fate MessengerState::take_from_ring(PeerConnection& connection) {
  RingReceiver& ring = *connection.ring_in;
  const RingReceiver::Arrival arrival = ring.next();
  if (arrival.payload == nullptr) return ring.error() ? Fate::kWrong : Fate::kStalled;
  ParsedMessage message;
  if (!parse(arrival.payload, arrival.bytes, &message)) return Fate::kWrong;
  const Sequence::Place place = connection.arriving.place(message.header.sequence);
  if (place == Sequence::Place::kNext) [[likely]]
    restore_tag(connection, message);
  if (place == Sequence::Place::kNext && message.header.kind == Kind::kEager &&
      (message.header.flags & kWantsFinish) == 0) [[likely]] {
    const Fate fate = take_usual(connection, ring, arrival, message);
    if (fate != Fate::kStalled) return fate;
  }
  if (place == Sequence::Place::kAhead) return look_ahead(connection, ring);
  if (place == Sequence::Place::kBroken || message.header.kind == Kind::kRingLeft ||
      ring.in_use() == options_.ring_slots) {
    return Fate::kWrong;
  }
  Fate fate = Fate::kUsed;
  if (ring.was_used_early(arrival.slot)) [[unlikely]] {
    connection.arriving.advance();
  } else {
    fate = handle(connection, message, Envelope::Place::kRing, arrival.slot);
  }
  if (fate == Fate::kStalled) return look_ahead(connection, ring);
  if (fate == Fate::kWrong) return fate;
  ++connection.arrivals;
  if (!ring.take()) return Fate::kWrong;
  if (fate == Fate::kUsed) ring.release(arrival.slot);
  return fate;
}

// Uses what is used when it comes, where the message before it has to wait: maybe until one of
// these has ended.
MessengerState::Fate MessengerState::look_ahead(PeerConnection& connection, RingReceiver& ring) {
  for (;;) {
    const RingReceiver::Arrival arrival = ring.look_ahead();
    if (arrival.payload == nullptr) return ring.error() ? Fate::kWrong : Fate::kStalled;
    ParsedMessage message;
    if (!parse(arrival.payload, arrival.bytes, &message)) return Fate::kWrong;
    if (!is_early_of_ring(message.header.kind)) continue;
    if (!take_out_of_order(connection, message) || !take_credits(connection, message.header)) {
      return Fate::kWrong;
    }
    ring.use_early(arrival.slot);
  }
}

// The next message, if it is one of those that most are: copied by its sender, and awaited by a
// receive for one message. kStalled: it is not, and nothing was done.
inline MessengerState::Fate MessengerState::take_usual(PeerConnection& connection,
                                                       RingReceiver& ring,
                                                       const RingReceiver::Arrival& arrival,
                                                       const ParsedMessage& message) {
  Matching& posted = matching((message.header.flags & kUntagged) != 0);
  const uint32_t met = posted.find_receive(connection.peer, message.header.tag);
  if (met == Matching::kNone || (operations_[met].flags & kMessageMulti) != 0 ||
      ring.in_use() == options_.ring_slots) {
    return Fate::kStalled;
  }
  receive_whole(posted, met, connection.peer, message);
  connection.arriving.advance();
  ++connection.arrivals;
  count_arrival(connection);
  if (!take_credits(connection, message.header) || !ring.take()) return Fate::kWrong;
  ring.release(arrival.slot);
  return Fate::kUsed;
}

bool MessengerState::take_credits(PeerConnection& connection, const MessageHeader& header) {
  if (header.queue_credits > 0) {
    if (!connection.queue.add_credits(header.queue_credits)) return false;
    connection.credits_of_chunks -=
        std::min<uint32_t>(connection.credits_of_chunks, header.queue_credits);
  }
  // Those of a ring that was left mean nothing any more.
  if (header.ring_credits == 0 || !connection.ring_out_usable) return true;
  connection.ring_full_since_ns = 0;
  return connection.ring_out->add_credits(header.ring_credits);
}

MessengerState::Fate MessengerState::handle(PeerConnection& connection,
                                            const ParsedMessage& message, Envelope::Place place,
                                            uint32_t where) {
  // Before the message is kept: what breaks the protocol must not lie in two places.
  if (!connection.queue.may_return(message.header.queue_credits) ||
      (message.header.ring_credits > 0 && connection.ring_out_usable &&
       !connection.ring_out->may_return(message.header.ring_credits))) {
    return Fate::kWrong;
  }
  Fate fate = Fate::kUsed;
  switch (message.header.kind) {
    case Kind::kEager:
    case Kind::kRendezvous:
      fate = handle_message(connection, message, place, where);
      break;
    case Kind::kRingOffer:
      fate = handle_ring_offer(connection, message);
      break;
    case Kind::kRingLeave:
      // One that was declined, or given up, has been left already.
      if (connection.ring_out_usable) {
        connection.ring_out_usable = false;
        connection.due_left = true;
        make_busy(connection);
      } else if (connection.awaits_ring_out) {
        connection.awaits_ring_out = false;
        connection.due_left = true;
        make_busy(connection);
      }
      break;
    case Kind::kRingLeft:
      fate = handle_ring_left(connection);
      break;
    case Kind::kOneSided:
      fate = handle_one_sided(connection, message, place, where);
      break;
    case Kind::kFinish:
    case Kind::kAnswer:
    case Kind::kTarget:
    case Kind::kWritten:
    case Kind::kCredits:
      if (place != Envelope::Place::kRing || !take_out_of_order(connection, message)) {
        return Fate::kWrong;
      }
      break;
    case Kind::kChunk:
      return Fate::kWrong;  // comes by SEND only
  }
  if (fate == Fate::kStalled || fate == Fate::kWrong) return fate;
  connection.stalled_at = ~uint64_t{0};
  connection.arriving.advance();
  if (!take_credits(connection, message.header)) return Fate::kWrong;
  return fate;
}

void MessengerState::count_arrival(PeerConnection& connection) {
  polling_.count(connection.number);
  if (polling_.is_in(connection.number)) return;
  if (polling_.has_declined(connection.number)) {
    if (connection.arrivals < connection.offer_again_at) return;
    polling_.invite(connection.number);
  }
  if (polling_.has_place()) reconsider_polling_ = true;
}

// Of a message for which its receiver has to make room: see is_still_received().
MessengerState::Fate MessengerState::wait_for_room(PeerConnection& connection) {
  if (connection.stalled_at != connection.arrivals) connection.stalled_end_ns = 0;
  connection.stalled_at = connection.arrivals;
  return Fate::kStalled;
}

MessengerState::Fate MessengerState::handle_message(PeerConnection& connection,
                                                    const ParsedMessage& message,
                                                    Envelope::Place place, uint32_t where) {
  const MessageHeader& header = message.header;
  const bool is_remote = header.kind == Kind::kRendezvous;
  const bool wants_finish = (header.flags & kWantsFinish) != 0;
  RemoteMemory remote;
  if (is_remote) {
    if (message.bytes != sizeof(remote) || !wants_finish) return Fate::kWrong;
    copy_bytes(&remote, message.payload, sizeof(remote));
    if (!is_valid(remote, Method::kRead)) return Fate::kWrong;
  }
  const uint64_t bytes = is_remote ? remote.bytes : message.bytes;
  Matching& posted = matching((header.flags & kUntagged) != 0);
  const uint32_t met = posted.find_receive(connection.peer, header.tag);
  if (met != Matching::kNone) {
    const bool multi = (operations_[met].flags & kMessageMulti) != 0;
    if (!is_remote && !wants_finish && !multi) [[likely]] {
      receive_whole(posted, met, connection.peer, message);
      count_arrival(connection);
      return Fate::kUsed;
    }
    if (multi && !has_completion_room()) return wait_for_room(connection);
    if (wants_finish && !may_transfer(connection)) return Fate::kStalled;
    Delivery delivery =
        begin_delivery(met, connection.peer, header.tag, message.data, header.flags, bytes);
    if (is_remote) {
      start_transfer(connection, met, delivery, remote, message.operation);
    } else {
      PieceCursor to(delivery.local, delivery.local_count);
      to.put(message.payload, message.bytes);
      end_delivery(met, delivery.completion);
      if (wants_finish) start_finish(connection, message.operation, false);
    }
    count_arrival(connection);
    return Fate::kUsed;
  }

  if (envelope_numbers_.empty()) return wait_for_room(connection);
  Envelope envelope{};
  envelope.flags = header.flags;
  envelope.peer = connection.peer;
  envelope.connection = connection.number;
  envelope.tag = header.tag;
  envelope.data = message.data;
  envelope.bytes = bytes;
  envelope.operation = message.operation;
  Fate fate = Fate::kUsed;
  if (is_remote) {
    envelope.place = Envelope::Place::kRemote;
    envelope.remote = remote;
  } else if (store_.has_room(bytes)) {
    envelope.place = Envelope::Place::kStore;
    const iovec payload{const_cast<char*>(message.payload), bytes};
    envelope.where = store_.put({&payload, 1});
  } else {
    envelope.place = place;
    envelope.where = where;
    envelope.payload = message.payload;
    fate = Fate::kHeld;
    ++statistics_.held;
  }
  add_unexpected(envelope);
  count_arrival(connection);
  return fate;
}

void MessengerState::add_unexpected(const Envelope& envelope) {
  const uint32_t number = envelope_numbers_.take();
  VERBENA_ASSERT(number != NumberPool::kNone);
  VERBENA_ASSERT(envelopes_[number].place == Envelope::Place::kFree);
  envelopes_[number] = envelope;
  matching((envelope.flags & kUntagged) != 0).add_message(number, envelope.peer, envelope.tag);
  if (envelope.connection != kNone) {
    ++connections_[envelope.connection]->counts.unexpected;
    ++connections_[envelope.connection]->envelopes;
  }
  ++statistics_.unexpected;
}

// False: there is no such operation.
bool MessengerState::finish_operation(PeerConnection& connection, const ParsedMessage& message) {
  const uint32_t number = awaiting_operation(connection, message.header.tag);
  if (number == kNone) return false;
  if (outgoing_[number].offered && outgoing_[number].method == Method::kRead) {
    ++connection.counts.read;
  }
  const bool failed = (message.header.flags & kFailed) != 0;
  hold_gathered(connection, number);
  complete_operation(number, MessageEvent::kSent,
                     failed ? MessageOutcome::kFailed : MessageOutcome::kOk);
  return true;
}

MessengerState::Fate MessengerState::handle_ring_offer(PeerConnection& connection,
                                                       const ParsedMessage& message) {
  if (connection.ring_out_usable || connection.awaits_ring_out || connection.due_left ||
      (message.header.flags & kHasData) == 0) {
    return Fate::kWrong;
  }
  connection.offered_address = message.header.tag;
  connection.offered_key = static_cast<uint32_t>(message.data);
  // One that was left belongs to who awaits it.
  const bool has_own = connection.ring_out != nullptr;
  if (has_own ? !is_ring_out_awaited() : !free_rings_out_.empty()) {
    take_ring_out(connection);
  } else if (!has_own && options_.policy == PollingSetPolicy::kDynamic &&
             ring_out_will_be_free_for(connection)) {
    connection.awaits_ring_out = true;
  } else {
    connection.due_left = true;  // declined
    make_busy(connection);
  }
  return Fate::kUsed;
}

void MessengerState::take_ring_out(PeerConnection& connection) {
  if (connection.ring_out == nullptr) {
    connection.ring_out = free_rings_out_.back();
    free_rings_out_.pop_back();
  }
  connection.ring_out_end = 0;  // of the same ring, bound anew
  connection.ring_out->bind(
      {connection.offered_address, connection.offered_key},
      std::min(inline_limit_bytes_, connection.joined.endpoint->queue_pair.max_inline_bytes()));
  connection.awaits_ring_out = false;
  connection.ring_out_usable = true;
  connection.ring_full_since_ns = 0;
}

bool MessengerState::is_ring_out_awaited() const {
  for (uint32_t number = 0; number < connections_end_; ++number) {
    const PeerConnection* const connection = connections_[number].get();
    if (connection != nullptr && !connection->broken && connection->awaits_ring_out) return true;
  }
  return false;
}

// Nothing reads from it any more. Who awaits one has it at once.
void MessengerState::free_ring_out(PeerConnection& connection) {
  free_rings_out_.push_back(connection.ring_out);
  connection.ring_out = nullptr;
  connection.ring_out_end = 0;
  connection.ring_out_usable = false;
  for (uint32_t number = 0; number < connections_end_; ++number) {
    PeerConnection* const other = connections_[number].get();
    if (other != nullptr && !other->broken && other->awaits_ring_out) {
      take_ring_out(*other);
      return;
    }
  }
}

MessengerState::Fate MessengerState::handle_ring_left(PeerConnection& connection) {
  // A ring that the peer was not told of yet is not its own to leave.
  if (connection.ring_in == nullptr || connection.ring_in_left || connection.due_offer) {
    return Fate::kWrong;
  }
  connection.ring_in_left = true;
  connection.due_leave = false;
  if (connection.ring_in->was_used()) connection.declines = 0;
  if (polling_.is_staying(connection.number)) {
    // The peer has no ring to send from; it may have one later, but is asked ever more rarely.
    polling_.decline(connection.number);
    connection.offer_again_at = connection.arrivals + (kOfferAgainMessages << connection.declines);
    if (connection.declines < kMostDeclines) ++connection.declines;
  }
  return_ring_in(connection);
  return Fate::kUsed;
}

// Whether the offered ring, for which there is none to send from, has one soon: another one has
// been left and nobody awaits it, or is left now, since by it much less was sent than to this peer.
bool MessengerState::ring_out_will_be_free_for(const PeerConnection& wanting) {
  const auto sent = [](const PeerConnection& connection) {
    return connection.next_sequence + connection.early_by_queue - connection.sent_considered;
  };
  PeerConnection* least = nullptr;
  uint64_t all_sent = 0;
  uint32_t leaving = 0;
  uint32_t awaiting = 0;
  for (uint32_t number = 0; number < connections_end_; ++number) {
    PeerConnection* const connection = connections_[number].get();
    if (connection == nullptr || connection->broken) continue;
    all_sent += sent(*connection);
    if (connection->awaits_ring_out) ++awaiting;
    if (connection->ring_out == nullptr) continue;
    if (!connection->ring_out_usable) {
      ++leaving;
    } else if (least == nullptr || sent(*connection) < sent(*least)) {
      least = connection;
    }
  }
  if (leaving > awaiting) return true;
  const bool gives_way = least != nullptr && sent(wanting) >= kOfferAgainMessages &&
                         kRingHysteresis * sent(*least) < sent(wanting);
  if (gives_way) {
    least->ring_out_usable = false;
    least->due_left = true;
    make_busy(*least);
  }
  if (all_sent < kConsideredMessages) return gives_way;
  for (uint32_t number = 0; number < connections_end_; ++number) {
    PeerConnection* const connection = connections_[number].get();
    if (connection != nullptr) {
      connection->sent_considered = connection->next_sequence + connection->early_by_queue;
    }
  }
  return gives_way;
}

void MessengerState::return_ring_in(PeerConnection& connection) {
  if (!connection.ring_in_left || connection.ring_in->in_use() > 0) return;
  free_rings_in_.push_back(connection.ring_in);
  connection.ring_in = nullptr;
  connection.ring_in_left = false;
  ++statistics_.rings_taken;
  if (!connection.broken) polling_.left(connection.number);
  reconsider_polling_ = true;
}

void MessengerState::manage_polling_set() {
  reconsider_polling_ = false;
  uint32_t leaving = PollingSet::kNone;
  do {
    leaving = polling_.next_to_leave();
    if (leaving == PollingSet::kNone) break;
    connections_[leaving]->due_leave = true;
    make_busy(*connections_[leaving]);
  } while (polling_.is_resting());
  while (!free_rings_in_.empty()) {
    const uint32_t joining = polling_.next_to_join();
    if (joining == PollingSet::kNone) break;
    PeerConnection& connection = *connections_[joining];
    VERBENA_ASSERT(connection.ring_in == nullptr);
    connection.ring_in = free_rings_in_.back();
    free_rings_in_.pop_back();
    connection.ring_in->begin();
    ++statistics_.rings_given;
    connection.due_offer = true;
    make_busy(connection);
  }
  if (!polling_.due()) return;
  const bool rested = polling_.is_resting();
  polling_.end_period();
  if (rested) reconsider_polling_ = true;
}

// ---- receives ----

bool MessengerState::check(const ReceiveRequest& request) {
  if (request.source != kAnyPeer && request.source >= peers_.size()) {
    refuse("no peer has this number; add_peer() gives it");
    return false;
  }
  if (request.pieces.size() > kMaxPieces ||
      ((request.flags & kMessageMulti) != 0 && request.pieces.size() != 1)) {
    refuse("a receive has at most four pieces, and one for several messages has one");
    return false;
  }
  return true;
}

PostResult MessengerState::receive(const ReceiveRequest& request) {
  const bool is_plain = request.pieces.size() <= kMaxPieces &&
                        (request.flags & kMessageMulti) == 0 &&
                        (request.source == kAnyPeer || request.source < peers_.size());
  if (!is_plain && !check(request)) return PostResult::kFailed;
  if (operation_numbers_.empty() || !has_completion_room()) return would_block();
  if (half_posted_ != kNone) return would_block();
  const MatchPattern pattern = pattern_of(request);
  Matching& waiting = matching((request.flags & kMessageUntagged) != 0);
  const uint32_t found = waiting.find_message(pattern);
  const bool lost = request.source != kAnyPeer && !peers_[request.source]->status.ok();
  if (found == Matching::kNone && lost) return PostResult::kFailed;
  if (found != Matching::kNone && !may_deliver(envelopes_[found])) return would_block();

  const uint32_t number =
      new_operation(request.context, request.flags, request.source, request.pieces);
  Operation& operation = operations_[number];
  operation.tag = request.tag;
  operation.ignore = pattern.ignore;
  operation.least_bytes = std::max<uint64_t>(request.least_bytes, 1);
  if (found == Matching::kNone) [[likely]] {
    operation.state = Operation::State::kPosted;
    waiting.post(number, pattern);
  } else {
    operation.state = Operation::State::kReceiving;
    go_on_receiving(number, found);
  }
  return PostResult::kPosted;
}

// Gives a receive that is not posted the messages that wait for it, from `found` on, and posts it
// if there is room for more. If something is used up, that is done later, before anything else.
void MessengerState::go_on_receiving(uint32_t number, uint32_t found) {
  Operation& operation = operations_[number];
  const bool untagged = (operation.flags & kMessageUntagged) != 0;
  const MatchPattern pattern{operation.peer, operation.tag, operation.ignore};
  half_posted_ = kNone;
  for (; found != Matching::kNone; found = matching(untagged).find_message(pattern)) {
    if (deliver_unexpected(found, number) != PostResult::kPosted) {
      half_posted_ = number;
      return;
    }
    if (operation.state == Operation::State::kFree || is_used_up(operation)) return;
  }
  if (operation.peer != kAnyPeer && !peers_[operation.peer]->status.ok()) {
    if (operation.transfers == 0) {
      complete_operation(number, MessageEvent::kReceived, MessageOutcome::kPeerLost);
    }
    return;
  }
  operation.state = Operation::State::kPosted;
  matching(untagged).post(number, pattern);
}

// A message whose payload is here, and a posted receive that is for one message.
void MessengerState::receive_whole(Matching& posted, uint32_t number, PeerNumber peer,
                                   const ParsedMessage& message) {
  const Operation& receive = operations_[number];
  VERBENA_DEBUG_ASSERT(receive.state == Operation::State::kPosted && receive.transfers == 0);
  posted.remove_receive(number);
  uint64_t received = message.bytes;
  if (receive.piece_count == 1 && message.bytes <= receive.pieces[0].iov_len) [[likely]] {
    copy_payload(static_cast<char*>(receive.pieces[0].iov_base), message.payload, message.bytes);
  } else {
    PieceCursor to(receive.pieces, receive.piece_count);
    received = to.put(message.payload, message.bytes);
  }
  const uint64_t lost = message.bytes - received;
  if ((receive.flags & kMessageSilent) == 0 || lost > 0) {
    const uint8_t flags = message.header.flags;
    MessageCompletion& completion = new_completion();
    completion.context = receive.context;
    completion.event = MessageEvent::kReceived;
    completion.outcome = lost > 0 ? MessageOutcome::kTruncated : MessageOutcome::kOk;
    completion.flags = (receive.flags & kMessageMarked) |
                       ((flags & kHasData) != 0 ? unsigned{kMessageData} : 0u) |
                       ((flags & kUntagged) != 0 ? unsigned{kMessageUntagged} : 0u);
    completion.peer = peer;
    completion.tag = message.header.tag;
    completion.data = message.data;
    completion.bytes = received;
    completion.lost_bytes = lost;
    completion.buffer = nullptr;
  }
  free_operation(number);
}

MessengerState::Delivery MessengerState::begin_delivery(uint32_t operation, PeerNumber peer,
                                                        uint64_t tag, uint64_t data,
                                                        uint8_t header_flags, uint64_t bytes) {
  Operation& receive = operations_[operation];
  Delivery delivery;
  uint64_t room = 0;
  if ((receive.flags & kMessageMulti) != 0) {
    room = receive.pieces[0].iov_len - receive.used_bytes;
    delivery.completion.buffer =
        static_cast<char*>(receive.pieces[0].iov_base) + receive.used_bytes;
    delivery.local[0] = {delivery.completion.buffer, room};
    delivery.local_count = 1;
    receive.used_bytes += std::min(room, bytes);
    ++reserved_completions_;
  } else {
    for (uint32_t i = 0; i < receive.piece_count; ++i) delivery.local[i] = receive.pieces[i];
    delivery.local_count = receive.piece_count;
    room = total_bytes({receive.pieces, receive.piece_count});
  }
  ++receive.transfers;
  if (is_used_up(receive) && receive.state == Operation::State::kPosted) {
    matching((receive.flags & kMessageUntagged) != 0).remove_receive(operation);
    receive.state = Operation::State::kReceiving;
  }
  MessageCompletion& completion = delivery.completion;
  completion.context = receive.context;
  completion.event = MessageEvent::kReceived;
  completion.peer = peer;
  completion.tag = tag;
  completion.data = data;
  completion.bytes = std::min(room, bytes);
  completion.lost_bytes = bytes - completion.bytes;
  if (completion.lost_bytes > 0) completion.outcome = MessageOutcome::kTruncated;
  completion.flags = receive.flags & kMessageMarked;
  if ((header_flags & kHasData) != 0) completion.flags |= kMessageData;
  if ((header_flags & kUntagged) != 0) completion.flags |= kMessageUntagged;
  return delivery;
}

void MessengerState::end_delivery(uint32_t operation, const MessageCompletion& completion) {
  Operation& receive = operations_[operation];
  VERBENA_ASSERT(receive.transfers > 0);
  --receive.transfers;
  const bool multi = (receive.flags & kMessageMulti) != 0;
  if (multi) --reserved_completions_;
  const bool over = receive.state == Operation::State::kReceiving && is_used_up(receive) &&
                    receive.transfers == 0;
  const bool cancelled = receive.state == Operation::State::kCancelled && receive.transfers == 0;
  MessageCompletion last = completion;
  if (over && multi) last.flags |= kMessageMulti;
  const bool silent =
      !multi && (receive.flags & kMessageSilent) != 0 && completion.outcome == MessageOutcome::kOk;
  if (over) free_operation(operation);
  if (!silent) complete(last);
  if (cancelled) {
    complete_operation(operation, MessageEvent::kReceived, MessageOutcome::kCancelled);
  }
}

// ---- unexpected messages ----

uint32_t MessengerState::find_unexpected(const ReceiveRequest& request, MessageInfo* info) {
  if (!check(request)) return kNone;
  progress();
  const uint32_t found =
      matching((request.flags & kMessageUntagged) != 0).find_message(pattern_of(request));
  if (found == Matching::kNone) return kNone;
  const Envelope& envelope = envelopes_[found];
  *info = {.peer = envelope.peer,
           .tag = envelope.tag,
           .data = envelope.data,
           .bytes = envelope.bytes,
           .flags = (envelope.flags & kHasData) != 0 ? unsigned{kMessageData} : 0u,
           .claim = found};
  return found;
}

bool MessengerState::peek(const ReceiveRequest& request, MessageInfo* info) {
  return find_unexpected(request, info) != kNone;
}

bool MessengerState::claim(const ReceiveRequest& request, MessageInfo* info) {
  const uint32_t found = find_unexpected(request, info);
  if (found == kNone) return false;
  Envelope& envelope = envelopes_[found];
  matching((envelope.flags & kUntagged) != 0).remove_message(found);
  envelope.claimed = true;
  return true;
}

// Who has a claim keeps its number: where a program cannot spoil it, or maybe not.
bool MessengerState::check_claim(uint32_t claim) {
  if (claim < envelope_numbers_.used_ever() && envelopes_[claim].claimed &&
      !envelopes_[claim].discarded) [[likely]]
    return true;
  refuse("no message is claimed by this number; take the one that claim() gave, and only once");
  return false;
}

PostResult MessengerState::receive_claimed(uint32_t claim, const ReceiveRequest& request) {
  if (!check_claim(claim) || !check(request)) return PostResult::kFailed;
  if (operation_numbers_.empty() || !has_completion_room() || !may_deliver(envelopes_[claim])) {
    return would_block();
  }
  const uint32_t number = new_operation(request.context, request.flags & ~unsigned{kMessageMulti},
                                        envelopes_[claim].peer, request.pieces);
  operations_[number].state = Operation::State::kReceiving;
  return deliver_unexpected(claim, number);
}

PostResult MessengerState::discard_claimed(uint32_t claim) {
  if (!check_claim(claim)) return PostResult::kFailed;
  discard(claim);
  return PostResult::kPosted;
}

void MessengerState::discard(uint32_t claim) {
  Envelope& envelope = envelopes_[claim];
  if (envelope.confirms_self) {
    complete_operation(static_cast<uint32_t>(envelope.operation), MessageEvent::kSent,
                       MessageOutcome::kOk);
  } else if ((envelope.flags & kWantsFinish) != 0 && !connections_[envelope.connection]->broken) {
    if (!may_deliver(envelope)) {
      // Its sender is told once a transfer has ended.
      VERBENA_ASSERT(discarded_.size() < discarded_.capacity());
      discarded_.push_back(claim);
      envelope.discarded = true;
      return;
    }
    start_finish(*connections_[envelope.connection], envelope.operation, false);
  }
  drop_envelope(claim);
}

void MessengerState::go_on_discarding() {
  for (size_t looks = std::min<size_t>(discarded_.size(), kMostOfOnePoll); looks > 0; --looks) {
    if (next_discarded_ >= discarded_.size()) next_discarded_ = 0;
    const uint32_t claim = discarded_[next_discarded_];
    if (!may_deliver(envelopes_[claim])) {
      ++next_discarded_;
      continue;
    }
    discarded_[next_discarded_] = discarded_.back();
    discarded_.pop_back();
    discard(claim);
  }
}

// A message that waits and a receive that is not posted. kWouldBlock: nothing happened.
PostResult MessengerState::deliver_unexpected(uint32_t number, uint32_t operation) {
  const Envelope envelope = envelopes_[number];
  const bool wants_finish = (envelope.flags & kWantsFinish) != 0;
  if (!may_deliver(envelope) ||
      ((operations_[operation].flags & kMessageMulti) != 0 && !has_completion_room())) {
    return PostResult::kWouldBlock;
  }
  PeerConnection* const connection =
      envelope.connection == kNone ? nullptr : connections_[envelope.connection].get();
  Delivery delivery = begin_delivery(operation, envelope.peer, envelope.tag, envelope.data,
                                     envelope.flags, envelope.bytes);
  PieceCursor to(delivery.local, delivery.local_count);
  switch (envelope.place) {
    case Envelope::Place::kStore:
      store_.get(envelope.where, envelope.bytes, to);
      break;
    case Envelope::Place::kRing:
    case Envelope::Place::kReceive:
      to.put(envelope.payload, envelope.bytes);
      break;
    case Envelope::Place::kSelf: {
      const Operation& send = operations_[envelope.operation];
      for (uint32_t i = 0; i < send.piece_count; ++i) {
        to.put(static_cast<const char*>(send.pieces[i].iov_base), send.pieces[i].iov_len);
      }
      break;
    }
    case Envelope::Place::kRemote:
    case Envelope::Place::kFree:
      break;
  }
  if (envelope.confirms_self) {
    complete_operation(static_cast<uint32_t>(envelope.operation), MessageEvent::kSent,
                       MessageOutcome::kOk);
  }
  if (!envelope.claimed) matching((envelope.flags & kUntagged) != 0).remove_message(number);
  drop_envelope(number);
  if (envelope.place != Envelope::Place::kRemote) {
    end_delivery(operation, delivery.completion);
    if (wants_finish && !connection->broken) start_finish(*connection, envelope.operation, false);
  } else if (connection->broken) {
    delivery.completion.outcome = MessageOutcome::kPeerLost;
    delivery.completion.bytes = 0;
    end_delivery(operation, delivery.completion);
  } else {
    start_transfer(*connection, operation, delivery, envelope.remote, envelope.operation);
  }
  return PostResult::kPosted;
}

void MessengerState::drop_envelope(uint32_t number) {
  Envelope& envelope = envelopes_[number];
  PeerConnection* const connection =
      envelope.connection == kNone ? nullptr : connections_[envelope.connection].get();
  if (connection != nullptr) --connection->envelopes;
  if (envelope.place == Envelope::Place::kStore) {
    store_.free(envelope.where);
  } else if (envelope.place == Envelope::Place::kRing) {
    release_slot(*connection, envelope.where);
  } else if (envelope.place == Envelope::Place::kReceive) {
    receives_.give_back(envelope.where);
    connection->owed.release();
    if (!connection->broken) make_busy(*connection);
  }
  envelope.place = Envelope::Place::kFree;
  envelope.claimed = envelope.discarded = false;
  envelope_numbers_.give_back(number);
}

void MessengerState::release_slot(PeerConnection& connection, uint32_t slot) {
  connection.ring_in->release(slot);
  return_ring_in(connection);
  if (!connection.broken) make_busy(connection);
}

bool MessengerState::cancel(const void* context) {
  for (uint32_t number = 0; number < operation_numbers_.used_ever(); ++number) {
    Operation& operation = operations_[number];
    const bool posted = operation.state == Operation::State::kPosted;
    if ((!posted && number != half_posted_) || operation.context != context) continue;
    if (posted) {
      matching((operation.flags & kMessageUntagged) != 0).remove_receive(number);
    } else {
      half_posted_ = kNone;
    }
    // What it has been given so far it keeps, and is over behind that.
    operation.state = Operation::State::kCancelled;
    if (operation.transfers == 0) {
      complete_operation(number, MessageEvent::kReceived, MessageOutcome::kCancelled);
    }
    return true;
  }
  return false;
}

}  // namespace verbena::message
