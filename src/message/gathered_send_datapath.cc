// Short messages from the user's memory ("bufreuse" 3.1): the header lies in the slot or buffer of
// the message as always, and the device gathers it and the payload into one WRITE or SEND. To the
// receiver it is a message as any other.
//
// The memory stays the user's business to keep until the device has read it: so each asks for a
// completion, and its operation ends with that. One that has to be confirmed ends with the
// confirmation, and a put with its answer; should that come before the completion, because an
// acknowledgement was lost, then the registration outlives the operation until the completion.
#include <algorithm>

#include "src/base/log.h"
#include "src/message/messenger_state.h"

namespace verbena::message {
namespace {

// Whoever asks for no completion never learns when the memory may change.
constexpr uint32_t kHasToBeCopied = kMessageSilent | kMessageCopied;

// The one that has all bytes; null: there are several.
const iovec* only_piece(std::span<const iovec> pieces, uint64_t bytes) {
  for (const iovec& piece : pieces) {
    if (piece.iov_len != 0) return piece.iov_len == bytes ? &piece : nullptr;
  }
  return nullptr;
}

}  // namespace

MessengerState::Source MessengerState::source_of(PeerConnection& connection,
                                                 std::span<const iovec> pieces, uint64_t bytes,
                                                 uint32_t flags, ReusePath path) {
  Source source;
  if ((flags & kHasToBeCopied) != 0) return source;
  const iovec* const piece = only_piece(pieces, bytes);
  if (piece == nullptr) return source;
  const auto size = static_cast<uint32_t>(bytes);
  source.region = reused_sources_.take(*memory_, piece->iov_base, size, path);
  if (source.region == nullptr) return source;
  source.bytes = {static_cast<const char*>(piece->iov_base), size, source.region->lkey};
  count_registrations();
  if (!connection.told_gathered) [[unlikely]] {
    connection.told_gathered = true;
    bool in_place = false;
    log_info("{}: short messages from buffers that are used often go without a copy: {}",
             connection.name, reused_sources_.explain(piece->iov_base, bytes, path, &in_place));
  }
  return source;
}

internal::CachedRegion* MessengerState::target_of(std::span<const iovec> pieces, uint64_t bytes,
                                                  RemotePiece* target) {
  if (bytes < reused_targets_.least_bytes() || reused_targets_.skips()) return nullptr;
  const iovec* const piece = only_piece(pieces, bytes);
  if (piece == nullptr) return nullptr;
  internal::CachedRegion* const region = reused_targets_.take(
      *memory_, piece->iov_base, static_cast<uint32_t>(bytes), ReusePath::kOneSided);
  if (region == nullptr) return nullptr;
  count_registrations();
  *target = {
      .address = reinterpret_cast<uint64_t>(piece->iov_base), .bytes = bytes, .rkey = region->rkey};
  return region;
}

// Of a size that may be gathered. What is copied in the end goes the way of all others.
PostResult MessengerState::send_reused(PeerConnection& connection, const SendRequest& request,
                                       uint64_t bytes) {
  // Counted once, when it is certain to be sent.
  if (operation_numbers_.empty() || !has_completion_room()) {
    return send_eager(connection, request, bytes);
  }
  const Room room = room_for_message(connection, kReservedCredits);
  if (room.to == nullptr) return send_eager(connection, request, bytes);
  Source source = source_of(connection, request.pieces, bytes, request.flags,
                            room.ring ? ReusePath::kEagerWrite : ReusePath::kEagerSend);
  if (source.region == nullptr) return send_eager(connection, request, bytes);

  const bool confirmed = (request.flags & kMessageDelivered) != 0;
  const uint32_t number = new_operation(request.context, request.flags, request.peer, {});
  Operation& operation = operations_[number];
  operation.tag = request.tag;
  operation.state = confirmed ? Operation::State::kAwaitsFinish : Operation::State::kGathered;
  send_memory_[number] = {};
  send_memory_[number].regions[0] = source.region;
  outgoing_[number].offered = false;
  const auto flags = static_cast<uint8_t>(header_flags_of(request.flags) |
                                          (confirmed ? unsigned{kWantsFinish} : 0u) |
                                          remember_tag(connection, request.tag));
  const MessageHeader header = next_header(connection, Kind::kEager, flags, request.tag);
  const char* const end =
      put_header(room.to, header, request.data, uint64_t{operation.generation} << 32 | number);
  ++(room.ring ? connection.counts.eager_by_ring : connection.counts.eager_by_queue);
  connection.counts.sent_bytes += bytes;
  post_gathered(connection, room, end, source.bytes);
  outgoing_[number].end = connection.sends.posted();
  if (!confirmed) append_acknowledged(connection, number);
  return PostResult::kPosted;
}

// Of the request that was posted last.
void MessengerState::append_acknowledged(PeerConnection& connection, uint32_t number) {
  outgoing_[number].end = connection.sends.posted();
  outgoing_[number].next = 0;
  (connection.last_gathered != 0 ? outgoing_[connection.last_gathered - 1].next
                                 : connection.first_gathered) = number + 1;
  connection.last_gathered = number + 1;
  make_busy(connection);
}

// As post(), where the message goes on with `rest` behind `end`.
void MessengerState::post_gathered(PeerConnection& connection, const Room& room, const char* end,
                                   const GatheredBytes& rest) {
  const auto written = static_cast<uint32_t>(end - room.to);
  VERBENA_DEBUG_ASSERT(written + rest.size_bytes <= room_bytes_);
  GatherRequest request;
  if (room.ring) {
    RingSender& ring = *connection.ring_out;
    if (ring.has_unknown()) clear_tail(connection, ring, written + rest.size_bytes);
    ring.seal_gathered(written, rest, &request);
  } else {
    connection.queue.seal_gathered(written, rest, &request);
  }
  ++(room.ring ? statistics_.ring_messages : statistics_.queue_messages);
  ++statistics_.gathered;
  ++connection.counts.gathered;
  ++connection.next_sequence;
  if (!connection.sends.push_signaled(request.request)) [[unlikely]]
    make_busy(connection);  // where the error is found
}

// There is room for two requests: see SendQueueSizes::requests_per_message.
void MessengerState::clear_tail(PeerConnection& connection, RingSender& ring, uint32_t bytes) {
  channel::SlotRequest clear;
  if (!ring.clear_tail(bytes, &clear)) return;
  ++statistics_.tails_cleared;
  if (!connection.sends.push(clear.request)) [[unlikely]]
    make_busy(connection);
}

// Ends those that the device has read, which are the oldest.
void MessengerState::serve_gathered(PeerConnection& connection) {
  while (connection.first_gathered != 0) {
    const uint32_t number = connection.first_gathered - 1;
    if (connection.sends.retired() < outgoing_[number].end) return;
    connection.first_gathered = outgoing_[number].next;
    if (connection.first_gathered == 0) connection.last_gathered = 0;
    complete_operation(number, MessageEvent::kSent, MessageOutcome::kOk);
  }
}

void MessengerState::hold_gathered(PeerConnection& connection, uint32_t number) {
  internal::CachedRegion*& region = send_memory_[number].regions[0];
  if (region == nullptr) return;
  const uint64_t end = outgoing_[number].end;
  if (end <= connection.sends.retired()) return;
  connection.sends.reap();  // the acknowledgement usually is there first
  if (end <= connection.sends.retired()) return;
  release_held(connection, connection.sends.retired());
  connection.held.add(end, region);
  region = nullptr;
  make_busy(connection);
}

}  // namespace verbena::message
