// One-sided operations of peers: checked and carried out in the order in which they come, and
// answered. The bytes of those that are long are moved by the device, beside messages and others of
// their kind.
#include <algorithm>

#include "src/connect/failure.h"
#include "src/message/atomic_operations.h"
#include "src/message/messenger_state.h"
#include "src/message/pieces.h"

namespace verbena::message {

void MessengerState::count_carried_out(MessageOutcome outcome, bool writes, bool modifies,
                                       std::span<const RemoteRange> ranges) {
  if (outcome != MessageOutcome::kOk) {
    ++statistics_.remote_refused;
    return;
  }
  ++(writes ? statistics_.remote_writes : statistics_.remote_reads);
  if (exposed_->table().counts()) [[unlikely]]
    exposed_->table().note(ranges, modifies);
}

void MessengerState::complete_written(PeerNumber peer, uint64_t data, uint64_t bytes) {
  MessageCompletion completion;
  completion.event = MessageEvent::kWritten;
  completion.flags = kMessageData;
  completion.peer = peer;
  completion.data = data;
  completion.bytes = bytes;
  complete(completion);
}

// Values lie in one piece each.
MessageOutcome MessengerState::resolve_atomic(std::span<const RemoteRange> ranges, AtomicType type,
                                              AtomicOperation operation, bool fetches,
                                              ExposedMemory::Table::Places* places) {
  const uint32_t writes = operation == AtomicOperation::kRead ? 0 : uint32_t{kMemoryWrite};
  const uint32_t reads = fetches ? uint32_t{kMemoryRead} : 0;
  const MessageOutcome outcome = exposed_->table().resolve(ranges, writes | reads, places);
  if (outcome != MessageOutcome::kOk) return outcome;
  const bool whole = std::all_of(
      places->pieces, places->pieces + places->count,
      [size = atomic_bytes(type)](const iovec& piece) { return piece.iov_len % size == 0; });
  return whole ? MessageOutcome::kOk : MessageOutcome::kOutOfRange;
}

bool MessengerState::post_answer(PeerConnection& connection, uint64_t operation,
                                 MessageOutcome outcome) {
  const Room room = room_for_message(connection, 0);
  if (room.to == nullptr) return false;
  if (!room.ring) ++connection.early_by_queue;
  const MessageHeader header = next_header(connection, Kind::kAnswer, 0, operation);
  char* const to = put_header(room.to, header, 0, 0);
  const auto word = static_cast<uint64_t>(outcome);
  copy_bytes(to, &word, sizeof(word));
  post(connection, room, to + sizeof(word), /*in_order=*/room.ring);
  return true;
}

// In the order in which they come among each other. One that cannot be carried out now is parked,
// and what is behind it goes on: it may bring the credit that the answer needs.
MessengerState::Fate MessengerState::handle_one_sided(PeerConnection& connection,
                                                      const ParsedMessage& message,
                                                      Envelope::Place place, uint32_t where) {
  const Fate fate = connection.parked.empty() ? carry_out(connection, message) : Fate::kStalled;
  if (fate != Fate::kStalled) return fate;
  connection.parked.push({message, place == Envelope::Place::kRing, where});
  make_busy(connection);
  return Fate::kHeld;
}

void MessengerState::release_parked(PeerConnection& connection) {
  const ParkedRequest& request = connection.parked.front();
  if (request.by_ring) {
    release_slot(connection, request.where);
  } else {
    receives_.give_back(request.where);
    connection.owed.release();
  }
  connection.parked.pop();
}

void MessengerState::serve_parked(PeerConnection& connection) {
  while (!connection.parked.empty()) {
    const Fate fate = carry_out(connection, connection.parked.front().message);
    if (fate == Fate::kStalled) return;
    if (fate == Fate::kWrong) {
      // It was right when it came.
      return lose(connection, connect::explain_failure(channel::ChannelError::peer_violated(
                                                           "its message changed after it had come"),
                                                       connection.name));
    }
    release_parked(connection);
  }
}

MessengerState::Fate MessengerState::carry_out(PeerConnection& connection,
                                               const ParsedMessage& message) {
  OneSidedMessage request;
  if (!parse_one_sided(message, room_bytes_, &request)) return Fate::kWrong;
  const OneSidedAction action = request.header.action;
  const bool has_data = (message.header.flags & kHasData) != 0;
  const bool puts = action == OneSidedAction::kPut || action == OneSidedAction::kFetch;
  if ((message.header.flags & ~kHasData) != 0 || (has_data && !puts)) return Fate::kWrong;
  // What is long is not overtaken by what needs to see it, or would change it. READs of one queue
  // pair fill memory in their order, and WRITEs only read here.
  const bool reads = action == OneSidedAction::kGet || action == OneSidedAction::kStore;
  if ((connection.fetching > 0 && action != OneSidedAction::kFetch) ||
      (connection.storing > 0 && !reads)) {
    return Fate::kStalled;
  }
  if (has_data && !has_completion_room()) return Fate::kStalled;
  if (action == OneSidedAction::kFetch || action == OneSidedAction::kStore) {
    return start_move(connection, message, request);
  }
  // Behind a WRITE there is no room for what a ring may need before a message.
  const Room room = room_for_message(connection, 0, /*by_ring=*/!reused_sources_.is_open());
  if (room.to == nullptr) {
    if (connection.sends.error()) make_busy(connection);
    return Fate::kStalled;
  }
  const bool fetches = action == OneSidedAction::kFetchingAtomic;
  ExposedMemory::Table::Places places;
  const MessageOutcome outcome =
      request.is_atomic() ? resolve_atomic(request.all_ranges(), request.type(),
                                           request.operation(), fetches, &places)
                          : exposed_->table().resolve(request.all_ranges(),
                                                      puts ? kMemoryWrite : kMemoryRead, &places);
  const bool modifies = request.is_atomic() ? request.operation() != AtomicOperation::kRead : puts;
  count_carried_out(outcome, puts || action == OneSidedAction::kAtomic, modifies,
                    request.all_ranges());
  const bool stored = action == OneSidedAction::kGet && outcome == MessageOutcome::kOk &&
                      store_at_once(connection, message, request, places);
  // An answer would say that its bytes are there.
  if (stored && connection.sends.error()) return Fate::kUsed;
  if (!room.ring) ++connection.early_by_queue;
  const MessageHeader header = next_header(connection, Kind::kAnswer, 0, message.header.tag);
  char* to = put_header(room.to, header, 0, 0);
  const auto word = static_cast<uint64_t>(outcome);
  copy_bytes(to, &word, sizeof(word));
  to += sizeof(word);
  if (outcome == MessageOutcome::kOk) {
    if (puts) {
      PieceCursor into(places.pieces, places.count);
      into.put(request.body, request.body_bytes);
      if (has_data) complete_written(connection.peer, message.data, request.header.bytes);
    } else if (stored) {
      // The queue pair keeps the answer behind the bytes.
    } else if (action == OneSidedAction::kGet) {
      for (uint32_t i = 0; i < places.count; ++i) {
        copy_bytes(to, places.pieces[i].iov_base, places.pieces[i].iov_len);
        to += places.pieces[i].iov_len;
      }
    } else {
      to = carry_out_atomic(request, places, fetches ? to : nullptr, to);
    }
  }
  post(connection, room, to, /*in_order=*/room.ring);
  return Fate::kUsed;
}

// A short get without a copy ("bufreuse" 3.2), where the initiator has said where it may be placed,
// and this side gives the same memory often. There is room for the WRITE and for the answer.
bool MessengerState::store_at_once(PeerConnection& connection, const ParsedMessage& message,
                                   const OneSidedMessage& request,
                                   const ExposedMemory::Table::Places& places) {
  const uint64_t bytes = request.header.bytes;
  if (request.header.pieces != 1 || places.count != 1 || bytes < reused_from_bytes_ ||
      !move_numbers_.grants(connection.moves) || reused_sources_.skips()) {
    return false;
  }
  const Source near =
      source_of(connection, {places.pieces, places.count}, bytes, 0, ReusePath::kOneSided);
  if (near.region == nullptr) return false;
  uint32_t number = 0;
  Move& move = new_move(connection, &number);
  move.to_peer = move.moving = move.answered = true;
  move.near = places;
  move.memory[0] = near.region;
  move.far[0] = request.pieces[0];
  move.far_count = 1;
  move.bytes = bytes;
  move.operation = message.header.tag;
  move.outcome = MessageOutcome::kOk;
  ++connection.storing;
  for (const RemoteRange& range : request.all_ranges()) {
    exposed_->table().use(range.key);
    move.ranges[move.range_count++] = range;
  }
  append_move(connection, number);
  static_cast<void>(post_moves(connection, move));
  return true;
}

void MessengerState::append_move(PeerConnection& connection, uint32_t number) {
  (connection.last_move != 0 ? moves_[connection.last_move - 1].next : connection.first_move) =
      number + 1;
  connection.last_move = number + 1;
  make_busy(connection);
}

// Where what it fetched ends.
char* MessengerState::carry_out_atomic(const OneSidedMessage& request,
                                       const ExposedMemory::Table::Places& places, char* before,
                                       char* end) {
  const bool has_operands = request.body_bytes > 0;
  const bool has_compared = compares(request.operation());
  uint64_t at = 0;
  for (uint32_t i = 0; i < places.count; ++i) {
    const uint64_t bytes = places.pieces[i].iov_len;
    const char* const operands = has_operands ? request.body + at : nullptr;
    const char* const compared = has_compared ? request.body + request.header.bytes + at : nullptr;
    apply_atomic(request.type(), request.operation(), static_cast<char*>(places.pieces[i].iov_base),
                 operands, compared, before == nullptr ? nullptr : before + at,
                 bytes / atomic_bytes(request.type()));
    at += bytes;
  }
  return before == nullptr ? end : end + at;
}

// ---- what the device moves ----

MessengerState::Move& MessengerState::new_move(PeerConnection& connection, uint32_t* number) {
  *number = move_numbers_.take(&connection.moves);
  moves_[*number] = {};
  return moves_[*number];
}

MessengerState::Fate MessengerState::start_move(PeerConnection& connection,
                                                const ParsedMessage& message,
                                                const OneSidedMessage& request) {
  if (!move_numbers_.grants(connection.moves)) return Fate::kStalled;
  uint32_t number = 0;
  Move& move = new_move(connection, &number);
  move.to_peer = request.header.action == OneSidedAction::kStore;
  move.bytes = request.header.bytes;
  move.operation = message.header.tag;
  move.outcome = exposed_->table().resolve(request.all_ranges(),
                                           move.to_peer ? kMemoryRead : kMemoryWrite, &move.near);
  if (move.outcome == MessageOutcome::kOk && !register_places(move)) {
    move.outcome = MessageOutcome::kFailed;
  }
  if (move.outcome != MessageOutcome::kOk) {
    count_carried_out(move.outcome, !move.to_peer, !move.to_peer, {});
  } else {
    move.moving = true;
    ++(move.to_peer ? connection.storing : connection.fetching);
    for (const RemoteRange& range : request.all_ranges()) {
      exposed_->table().use(range.key);
      move.ranges[move.range_count++] = range;
    }
    move.far_count = request.header.pieces;
    for (uint32_t i = 0; i < move.far_count; ++i) move.far[i] = request.pieces[i];
    move.has_data = (message.header.flags & kHasData) != 0;
    move.data = message.data;
    if (move.has_data) ++reserved_completions_;
  }
  append_move(connection, number);
  return Fate::kUsed;
}

bool MessengerState::register_places(Move& move) {
  for (uint32_t i = 0; i < move.near.count; ++i) {
    const iovec& piece = move.near.pieces[i];
    move.memory[i] = memory_->take(piece.iov_base, piece.iov_len,
                                   move.to_peer ? kSourceAccess : memory_->read_target_access());
    if (move.memory[i] != nullptr) continue;
    error_ = memory_->error();
    forget_places(move);
    return false;
  }
  count_registrations();
  return true;
}

void MessengerState::forget_places(Move& move) {
  for (internal::CachedRegion*& region : move.memory) MessageMemory::give_back(&region);
}

// One work request for each stretch that is in one piece on both sides. True: all are posted.
bool MessengerState::post_moves(PeerConnection& connection, Move& move) {
  while (move.posted < move.bytes) {
    if (!connection.sends.has_room()) return false;
    const Stretch stretch = stretch_at(move.near.pieces, move.far, move.posted, move.bytes);
    const RemotePiece& far = move.far[stretch.far];
    channel::SlotRequest slot;
    channel::set_write(
        slot, reinterpret_cast<uint64_t>(move.near.pieces[stretch.near].iov_base) + stretch.near_at,
        move.memory[stretch.near]->lkey, far.address + stretch.far_at, far.rkey);
    if (!move.to_peer) slot.request.opcode = IBV_WR_RDMA_READ;
    slot.payload.length = static_cast<uint32_t>(stretch.bytes);
    move.posted += stretch.bytes;
    const bool last = move.posted == move.bytes;
    if (last ? !connection.sends.push_signaled(slot.request)
             : !connection.sends.push(slot.request)) {
      return false;  // the connection is broken, which its owner finds
    }
  }
  move.end = connection.sends.posted();
  return true;
}

// It is over for the memory.
void MessengerState::end_move(PeerConnection& connection, uint32_t number) {
  Move& move = moves_[number];
  if (!move.moving) return;
  move.moving = false;
  --(move.to_peer ? connection.storing : connection.fetching);
  forget_places(move);
  for (uint32_t i = 0; i < move.range_count; ++i) exposed_->table().release(move.ranges[i].key);
  if (move.has_data) --reserved_completions_;
}

bool MessengerState::serve_move(PeerConnection& connection, uint32_t number) {
  Move& move = moves_[number];
  if (move.moving) {
    if (move.end == 0 && !post_moves(connection, move)) return false;
    if (connection.sends.retired() < move.end) connection.sends.reap();
    if (connection.sends.retired() < move.end) return false;
    end_move(connection, number);
    if (move.answered) {
      move_numbers_.give_back(number, &connection.moves);
      return true;
    }
    count_carried_out(move.outcome, !move.to_peer, !move.to_peer, {move.ranges, move.range_count});
    if (move.has_data) complete_written(connection.peer, move.data, move.bytes);
  }
  if (!post_answer(connection, move.operation, move.outcome)) return false;
  move_numbers_.give_back(number, &connection.moves);
  return true;
}

bool MessengerState::serve_moves(PeerConnection& connection) {
  uint32_t previous = 0;
  for (uint32_t at = connection.first_move; at != 0;) {
    const uint32_t next = moves_[at - 1].next;
    if (serve_move(connection, at - 1)) {
      (previous != 0 ? moves_[previous - 1].next : connection.first_move) = next;
      if (next == 0) connection.last_move = previous;
    } else {
      previous = at;
    }
    at = next;
  }
  return connection.first_move != 0;
}

void MessengerState::end_moves(PeerConnection& connection) {
  for (uint32_t at = connection.first_move; at != 0;) {
    const uint32_t number = at - 1;
    at = moves_[number].next;
    if (moves_[number].moving) {
      for (internal::CachedRegion*& region : moves_[number].memory) memory_->withdraw(&region);
    }
    end_move(connection, number);
    move_numbers_.give_back(number, &connection.moves);
  }
  connection.first_move = connection.last_move = 0;
}

}  // namespace verbena::message
