// One-sided operations where they are posted: requests in the order of all messages to the peer,
// and their answers.
#include <algorithm>

#include "src/message/atomic_operations.h"
#include "src/message/messenger_state.h"
#include "src/message/pieces.h"

namespace verbena::message {
namespace {

// What the flags of an operation keep.
constexpr uint32_t kOneSidedFlags = kMessageSilent | kMessageData | kMessageMarked;

// Whether the ranges have so many bytes together.
bool have_bytes(std::span<const RemoteRange> ranges, uint64_t bytes) {
  uint64_t left = bytes;
  for (const RemoteRange& range : ranges) {
    if (range.bytes > left) return false;
    left -= range.bytes;
  }
  return left == 0;
}

char* gather(char* to, std::span<const iovec> pieces) {
  for (const iovec& piece : pieces) {
    if (piece.iov_len == 0) continue;
    copy_bytes(to, piece.iov_base, piece.iov_len);
    to += piece.iov_len;
  }
  return to;
}

// The next bytes of pieces that have them.
void take_bytes(PieceCursor& from, char* to, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t some = std::min(bytes, from.rest());
    copy_bytes(to, from.data(), some);
    from.advance(some);
    to += some;
    bytes -= some;
  }
}

}  // namespace

bool MessengerState::awaits_peer(PeerNumber peer) const {
  for (uint32_t number = 0; number < operation_numbers_.used_ever(); ++number) {
    const Operation& operation = operations_[number];
    if (operation.peer == peer && (operation.state == Operation::State::kAwaitsFinish ||
                                   operation.state == Operation::State::kSending ||
                                   operation.state == Operation::State::kAwaitsReceive ||
                                   operation.state == Operation::State::kAwaitsAnswer)) {
      return true;
    }
  }
  return false;
}

MessengerState::Peer* MessengerState::prepare_one_sided(PeerNumber number, uint32_t flags,
                                                        size_t most_parts, uint64_t bytes,
                                                        std::span<const RemoteRange> remote,
                                                        PostResult* result) {
  *result = PostResult::kFailed;
  if (number >= peers_.size()) {
    refuse("no peer has this number; add_peer() gives it");
    return nullptr;
  }
  if (std::max(most_parts, remote.size()) > kMaxPieces) {
    refuse("a one-sided operation has more than four pieces on a side");
    return nullptr;
  }
  if (!have_bytes(remote, bytes)) {
    refuse("a one-sided operation has more bytes on one side than on the other");
    return nullptr;
  }
  Peer& peer = *peers_[number];
  if (number != self_ && !peer.status.ok()) return nullptr;
  *result = PostResult::kWouldBlock;
  if (number != self_ && peer.connection == nullptr) {
    if (!peer.requested) {
      peer.requested = true;
      connector_->request(peer.address);
    }
  } else if (!operation_numbers_.empty() && has_completion_room() &&
             ((flags & kMessageFence) == 0 || !awaits_peer(number))) {
    return &peer;
  }
  ++statistics_.would_block;
  return nullptr;
}

uint32_t MessengerState::new_one_sided(PeerNumber peer, MessageEvent event, void* context,
                                       uint32_t flags, std::span<const iovec> pieces,
                                       uint64_t answer_bytes) {
  const uint32_t number = new_operation(context, flags & kOneSidedFlags, peer, pieces);
  Operation& operation = operations_[number];
  operation.state = Operation::State::kAwaitsAnswer;
  operation.event = event;
  operation.tag = 0;
  operation.used_bytes = answer_bytes;
  ++peers_[peer]->one_sided;
  ++one_sided_;
  return number;
}

void MessengerState::end_one_sided(uint32_t number, MessageOutcome outcome) {
  const Operation& operation = operations_[number];
  VERBENA_ASSERT(operation.state == Operation::State::kAwaitsAnswer);
  --peers_[operation.peer]->one_sided;
  --one_sided_;
  MessageCompletion completion = completion_of(operation, operation.event, outcome);
  if (outcome == MessageOutcome::kOk) {
    completion.bytes = total_bytes({operation.pieces, operation.piece_count});
  }
  const bool silent = (operation.flags & kMessageSilent) != 0 && outcome == MessageOutcome::kOk;
  MessageMemory::give_back(&send_memory_[number]);
  free_operation(number);
  if (!silent) complete(completion);
}

// False: it is none that waits, or not what answers it.
bool MessengerState::take_answer(PeerConnection& connection, const ParsedMessage& message) {
  const auto number = static_cast<uint32_t>(message.header.tag);
  const auto generation = static_cast<uint32_t>(message.header.tag >> 32);
  if (number >= operation_numbers_.used_ever() || message.bytes < kAnswerHeaderBytes) return false;
  const Operation& operation = operations_[number];
  if (operation.state != Operation::State::kAwaitsAnswer || operation.generation != generation ||
      operation.peer != connection.peer) {
    return false;
  }
  uint64_t word = 0;
  copy_bytes(&word, message.payload, sizeof(word));
  const auto outcome = static_cast<MessageOutcome>(word);
  const bool known = word == static_cast<uint64_t>(MessageOutcome::kOk) ||
                     (word >= static_cast<uint64_t>(MessageOutcome::kFailed) &&
                      word <= static_cast<uint64_t>(MessageOutcome::kNotPermitted));
  const uint64_t bytes = message.bytes - kAnswerHeaderBytes;
  // Of a get whose memory the peer was told of, its device may have placed them there.
  const bool stored = outcome == MessageOutcome::kOk && bytes == 0 && operation.used_bytes > 0 &&
                      operation.event == MessageEvent::kGot && send_memory_[number].any();
  if (!known || (bytes != (outcome == MessageOutcome::kOk ? operation.used_bytes : 0) && !stored)) {
    return false;
  }
  if (stored) ++statistics_.stored;
  PieceCursor to(operation.pieces, operation.piece_count);
  to.put(message.payload + kAnswerHeaderBytes, bytes);
  hold_gathered(connection, number);
  end_one_sided(number, outcome);
  return true;
}

PostResult MessengerState::flush(PeerNumber peer) {
  if (peer != kAnyPeer && peer >= peers_.size()) {
    return refuse("no peer has this number; add_peer() gives it");
  }
  const uint32_t left = peer == kAnyPeer ? one_sided_ : peers_[peer]->one_sided;
  return left == 0 ? PostResult::kPosted : PostResult::kWouldBlock;
}

// Where the body of a request is written; null: there is no room now.
MessengerState::Room MessengerState::room_for_one_sided(PeerConnection& connection) {
  const Room room = room_for_message(connection, kReservedCredits);
  if (room.to == nullptr) {
    if (connection.sends.error()) make_busy(connection);
    ++statistics_.would_block;
  }
  return room;
}

char* MessengerState::begin_one_sided(PeerConnection& connection, const Room& room, uint32_t number,
                                      uint64_t data, const OneSidedHeader& header,
                                      std::span<const RemoteRange> remote,
                                      std::span<const RemotePiece> pieces) {
  const Operation& operation = operations_[number];
  const uint8_t flags = (operation.flags & kMessageData) != 0 ? uint8_t{kHasData} : uint8_t{0};
  const MessageHeader first = next_header(connection, Kind::kOneSided, flags,
                                          uint64_t{operation.generation} << 32 | number);
  return put_one_sided(put_header(room.to, first, data, 0), header, remote, pieces);
}

PostResult MessengerState::put(const OneSidedRequest& request) {
  const uint64_t bytes = total_bytes(request.pieces);
  PostResult result = PostResult::kFailed;
  Peer* const peer = prepare_one_sided(request.peer, request.flags, request.pieces.size(), bytes,
                                       request.remote, &result);
  if (peer == nullptr) return result;
  if (request.peer == self_) return copy_to_self(request, MessageEvent::kPut, bytes);
  if (bytes > one_sided_limit_bytes()) {
    return post_move(*peer, request, OneSidedAction::kFetch, bytes);
  }
  PeerConnection& connection = *peer->connection;
  const Room room = room_for_one_sided(connection);
  if (room.to == nullptr) return PostResult::kWouldBlock;
  Source source;
  if (bytes >= reused_from_bytes_ && !reused_sources_.skips()) {
    source = source_of(connection, request.pieces, bytes, request.flags, ReusePath::kOneSided);
  }
  const uint32_t number =
      new_one_sided(request.peer, MessageEvent::kPut, request.context, request.flags, {}, 0);
  char* const body = begin_one_sided(connection, room, number, request.data,
                                     {.action = OneSidedAction::kPut,
                                      .ranges = static_cast<uint8_t>(request.remote.size()),
                                      .bytes = bytes},
                                     request.remote, {});
  if (source.region == nullptr) {
    post(connection, room, gather(body, request.pieces));
  } else {
    // The answer comes once it has been read.
    send_memory_[number] = {};
    send_memory_[number].regions[0] = source.region;
    post_gathered(connection, room, body, source.bytes);
    outgoing_[number].end = connection.sends.posted();
  }
  return PostResult::kPosted;
}

PostResult MessengerState::get(const OneSidedRequest& request) {
  const uint64_t bytes = total_bytes(request.pieces);
  PostResult result = PostResult::kFailed;
  if ((request.flags & kMessageData) != 0) return refuse("a get carries no data");
  Peer* const peer = prepare_one_sided(request.peer, request.flags, request.pieces.size(), bytes,
                                       request.remote, &result);
  if (peer == nullptr) return result;
  if (request.peer == self_) return copy_to_self(request, MessageEvent::kGot, bytes);
  if (bytes > one_sided_limit_bytes()) {
    return post_move(*peer, request, OneSidedAction::kStore, bytes);
  }
  PeerConnection& connection = *peer->connection;
  const Room room = room_for_one_sided(connection);
  if (room.to == nullptr) return PostResult::kWouldBlock;
  // Where it may be placed without a copy; whether it is, the peer decides.
  RemotePiece into;
  internal::CachedRegion* const region = target_of(request.pieces, bytes, &into);
  const auto pieces = static_cast<uint8_t>(region != nullptr ? 1 : 0);
  const uint32_t number = new_one_sided(request.peer, MessageEvent::kGot, request.context,
                                        request.flags, request.pieces, bytes);
  send_memory_[number] = {};
  send_memory_[number].regions[0] = region;
  outgoing_[number].end = 0;
  const char* const end = begin_one_sided(connection, room, number, 0,
                                          {.action = OneSidedAction::kGet,
                                           .ranges = static_cast<uint8_t>(request.remote.size()),
                                           .pieces = pieces,
                                           .bytes = bytes},
                                          request.remote, {&into, pieces});
  post(connection, room, end);
  return PostResult::kPosted;
}

// A long one: the peer's device reads or writes the memory here.
PostResult MessengerState::post_move(Peer& peer, const OneSidedRequest& request,
                                     OneSidedAction action, uint64_t bytes) {
  PeerConnection& connection = *peer.connection;
  const Room room = room_for_one_sided(connection);
  if (room.to == nullptr) return PostResult::kWouldBlock;
  const bool fetch = action == OneSidedAction::kFetch;
  PieceMemory memory;
  if (!register_pieces(request.pieces, fetch ? kReadableAccess : kTargetAccess, &memory)) {
    return PostResult::kFailed;
  }
  const auto count = static_cast<uint32_t>(request.pieces.size());
  RemotePiece pieces[kMaxPieces];
  for (uint32_t i = 0; i < count; ++i) {
    pieces[i] = {.address = reinterpret_cast<uint64_t>(request.pieces[i].iov_base),
                 .bytes = request.pieces[i].iov_len,
                 .rkey = memory.has(i) ? memory.rkey(i) : 0};
  }
  const uint32_t number =
      new_one_sided(request.peer, fetch ? MessageEvent::kPut : MessageEvent::kGot, request.context,
                    request.flags, request.pieces, 0);
  send_memory_[number] = memory;
  outgoing_[number].end = 0;
  const char* const end = begin_one_sided(connection, room, number, request.data,
                                          {.action = action,
                                           .ranges = static_cast<uint8_t>(request.remote.size()),
                                           .pieces = static_cast<uint8_t>(count),
                                           .bytes = bytes},
                                          request.remote, {pieces, count});
  post(connection, room, end);
  return PostResult::kPosted;
}

PostResult MessengerState::atomic(const AtomicRequest& request) {
  if (!has_atomic(request.type, request.operation)) {
    return refuse("there is no such atomic operation of this type");
  }
  const bool reads = request.operation == AtomicOperation::kRead;
  const bool fetches = !request.results.empty();
  const uint64_t bytes = total_bytes(reads ? request.results : request.operands);
  if (bytes > atomic_limit_bytes() || bytes % atomic_bytes(request.type) != 0) {
    return refuse("an atomic has more bytes than atomic_limit_bytes(), or parts of values");
  }
  if ((!request.operands.empty() && reads) || (reads && !fetches) ||
      (fetches && total_bytes(request.results) != bytes) ||
      total_bytes(request.compared) != (compares(request.operation) ? bytes : 0)) {
    return refuse("an atomic has other operands, compared values or results than its operation");
  }
  PostResult result = PostResult::kFailed;
  Peer* const peer = prepare_one_sided(
      request.peer, request.flags,
      std::max({request.operands.size(), request.compared.size(), request.results.size()}), bytes,
      request.remote, &result);
  if (peer == nullptr) return result;
  if (request.peer == self_) return atomic_to_self(request, bytes);
  PeerConnection& connection = *peer->connection;
  const Room room = room_for_one_sided(connection);
  if (room.to == nullptr) return PostResult::kWouldBlock;
  const uint32_t number = new_one_sided(
      request.peer, fetches ? MessageEvent::kFetched : MessageEvent::kAtomic, request.context,
      request.flags & ~uint32_t{kMessageData}, request.results, fetches ? bytes : 0);
  char* const body = begin_one_sided(
      connection, room, number, 0,
      {.action = fetches ? OneSidedAction::kFetchingAtomic : OneSidedAction::kAtomic,
       .type = static_cast<uint8_t>(request.type),
       .operation = static_cast<uint8_t>(request.operation),
       .ranges = static_cast<uint8_t>(request.remote.size()),
       .bytes = bytes},
      request.remote, {});
  post(connection, room, gather(gather(body, request.operands), request.compared));
  return PostResult::kPosted;
}

// ---- to itself ----

void MessengerState::complete_at_once(MessageEvent event, MessageOutcome outcome, void* context,
                                      uint32_t flags, uint64_t bytes) {
  if ((flags & kMessageSilent) != 0 && outcome == MessageOutcome::kOk) return;
  MessageCompletion completion;
  completion.context = context;
  completion.event = event;
  completion.outcome = outcome;
  completion.flags = flags & kMessageMarked;
  completion.peer = self_;
  completion.bytes = outcome == MessageOutcome::kOk ? bytes : 0;
  complete(completion);
}

PostResult MessengerState::copy_to_self(const OneSidedRequest& request, MessageEvent event,
                                        uint64_t bytes) {
  const bool has_data = (request.flags & kMessageData) != 0;
  if (has_data) {
    ++reserved_completions_;
    const bool room = has_completion_room();
    --reserved_completions_;
    if (!room) return would_block();
  }
  const bool puts = event == MessageEvent::kPut;
  ExposedMemory::Table::Places places;
  const MessageOutcome outcome =
      exposed_->table().resolve(request.remote, puts ? kMemoryWrite : kMemoryRead, &places);
  count_carried_out(outcome, puts, puts, request.remote);
  if (outcome == MessageOutcome::kOk) {
    const std::span<const iovec> there(places.pieces, places.count);
    const std::span<const iovec> from = puts ? request.pieces : there;
    const std::span<const iovec> into = puts ? there : request.pieces;
    PieceCursor to(into.data(), static_cast<uint32_t>(into.size()));
    for (const iovec& piece : from) to.put(static_cast<const char*>(piece.iov_base), piece.iov_len);
    if (has_data) complete_written(self_, request.data, bytes);
  }
  complete_at_once(event, outcome, request.context, request.flags, bytes);
  return PostResult::kPosted;
}

PostResult MessengerState::atomic_to_self(const AtomicRequest& request, uint64_t bytes) {
  const bool fetches = !request.results.empty();
  ExposedMemory::Table::Places places;
  const MessageOutcome outcome =
      resolve_atomic(request.remote, request.type, request.operation, fetches, &places);
  count_carried_out(outcome, !fetches, request.operation != AtomicOperation::kRead, request.remote);
  if (outcome == MessageOutcome::kOk) {
    const uint32_t size = atomic_bytes(request.type);
    PieceCursor operands(request.operands.data(), static_cast<uint32_t>(request.operands.size()));
    PieceCursor compared(request.compared.data(), static_cast<uint32_t>(request.compared.size()));
    PieceCursor results(request.results.data(), static_cast<uint32_t>(request.results.size()));
    constexpr uint32_t kLongest = 32;
    VERBENA_ASSERT(size <= kLongest);
    for (uint32_t i = 0; i < places.count; ++i) {
      auto* const first = static_cast<char*>(places.pieces[i].iov_base);
      for (uint64_t at = 0; at < places.pieces[i].iov_len; at += size) {
        char operand[kLongest];
        char other[kLongest];
        char before[kLongest];
        if (!operands.at_end()) take_bytes(operands, operand, size);
        if (!compared.at_end()) take_bytes(compared, other, size);
        apply_atomic(request.type, request.operation, first + at, operand, other, before, 1);
        if (fetches) results.put(before, size);
      }
    }
  }
  complete_at_once(fetches ? MessageEvent::kFetched : MessageEvent::kAtomic, outcome,
                   request.context, request.flags, bytes);
  return PostResult::kPosted;
}

}  // namespace verbena::message
