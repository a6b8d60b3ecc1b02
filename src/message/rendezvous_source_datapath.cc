// Long messages where they are sent: how they are offered, and what goes out once the receiver has
// said where to.
#include <algorithm>

#include "src/base/log.h"
#include "src/message/messenger_state.h"
#include "src/message/pieces.h"

namespace verbena::message {
namespace {

constexpr unsigned source_access(Method method) {
  return method == Method::kRead ? kReadableAccess : kSourceAccess;
}

}  // namespace

bool MessengerState::is_valid(const RemoteMemory& remote, Method with_pieces) {
  if (static_cast<uint32_t>(remote.method) >= kMethods) return false;
  if (remote.method != with_pieces) return remote.count == 0;
  if (remote.count > kMaxPieces) return false;
  uint64_t total = 0;
  for (uint32_t i = 0; i < remote.count; ++i) {
    if (remote.pieces[i].bytes > remote.bytes - total) return false;
    total += remote.pieces[i].bytes;
  }
  return total == remote.bytes;
}

void MessengerState::describe(std::span<const iovec> pieces, const PieceMemory& memory,
                              RemoteMemory* description) {
  description->count = static_cast<uint32_t>(pieces.size());
  for (uint32_t i = 0; i < pieces.size(); ++i) {
    description->pieces[i] = {.address = reinterpret_cast<uint64_t>(pieces[i].iov_base),
                              .bytes = pieces[i].iov_len,
                              .rkey = memory.has(i) ? memory.rkey(i) : 0};
  }
}

// What is in one piece on both sides, from the byte `at` of the message on.
MessengerState::Stretch MessengerState::stretch_at(const iovec* near, const RemotePiece* far,
                                                   uint64_t at, uint64_t end) {
  Stretch stretch{.near = 0, .far = 0, .near_at = at, .far_at = at, .bytes = 0};
  while (stretch.near_at >= near[stretch.near].iov_len) {
    stretch.near_at -= near[stretch.near++].iov_len;
  }
  while (stretch.far_at >= far[stretch.far].bytes) stretch.far_at -= far[stretch.far++].bytes;
  stretch.bytes = std::min({end - at, near[stretch.near].iov_len - stretch.near_at,
                            far[stretch.far].bytes - stretch.far_at, kMostOfOneRequest});
  return stretch;
}

double MessengerState::registration_ns(unsigned access, uint64_t bytes) const {
  // Of memory that only this side reads, a software RNIC keeps no more than the place.
  constexpr double kPlaceNs = 2000;
  if (steps_.moves_payload && access == kSourceAccess) return kPlaceNs;
  if (leaves_in_place()) {
    if (access == kReadableAccess) return in_place_ns(steps_, bytes);
    if (access == memory_->read_target_access()) return steps_.in_place_registration_ns;
  }
  return message::registration_ns(steps_, bytes);
}

MessageState MessengerState::state_of_source(std::span<const iovec> pieces, uint64_t bytes,
                                             PieceMemory* found) {
  *found = {};
  MessageState state;
  state.readable_ns = registration_ns(kReadableAccess, bytes);
  state.source_ns = registration_ns(kSourceAccess, bytes);
  state.target_ns = registration_ns(kTargetAccess, bytes);
  state.read_target_ns = registration_ns(memory_->read_target_access(), bytes);
  const LongMessages asked = options_.long_messages;
  // The one that takes longer is not looked for where the other one is there.
  const bool write_first =
      rendezvous_costs_.of(Method::kWrite, bytes) < rendezvous_costs_.of(Method::kRead, bytes);
  for (const bool write : {write_first, !write_first}) {
    if (asked != LongMessages::kAutomatic &&
        asked != (write ? LongMessages::kWrite : LongMessages::kRead)) {
      continue;
    }
    if (!memory_->find(pieces, write ? kSourceAccess : kReadableAccess, found)) continue;
    count_registrations();
    (write ? state.source : state.readable) = true;
    break;
  }
  return state;
}

bool MessengerState::choose_source(PeerConnection& connection, std::span<const iovec> pieces,
                                   uint64_t bytes, Method* method, PieceMemory* source) {
  const LongMessages asked = options_.long_messages;
  MessageState state = state_of_source(pieces, bytes, source);
  MethodChoice choice = choose_method(rendezvous_costs_, asked, bytes, state);
  const bool found = state.readable || state.source;
  BufferUse use;
  if (choice.method == Method::kPipelined && asked == LongMessages::kAutomatic && !found &&
      stays_registered(bytes)) {
    use = sent_buffers_->count(pieces[0].iov_base,
                               static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX)));
    if (use.way == BufferUse::Way::kInPlace) sent_buffers_->lost(use);
    state.often_used = use.way == BufferUse::Way::kRegister;
    if (state.often_used) choice = choose_method(rendezvous_costs_, asked, bytes, state);
  }
  if (found && (choice.method == Method::kPipelined ||
                choice.method != (state.readable ? Method::kRead : Method::kWrite))) {
    MessageMemory::give_back(source);
  }
  *method = choice.method;
  if (choice.method != Method::kPipelined && !source->any()) {
    const bool taken = register_pieces(pieces, source_access(choice.method), source);
    if (state.often_used) taken ? sent_buffers_->registered(use) : sent_buffers_->refused(use);
    if (!taken && memory_->error().code() == StatusCode::kInvalidArgument) return false;
    if (!taken) *method = Method::kPipelined;
  }
  if ((connection.told_methods & 1u << static_cast<uint32_t>(*method)) == 0) [[unlikely]] {
    tell_method(connection, *method,
                explain_choice(choice, asked, state) + explain_in_place(*method, bytes));
  }
  return true;
}

// Once for each peer and method.
void MessengerState::tell_method(PeerConnection& connection, Method method,
                                 const std::string& why) {
  connection.told_methods |= 1u << static_cast<uint32_t>(method);
  log_info("{}: a long message goes as {}: {}", connection.name, method_name(method), why);
}

void MessengerState::count_registrations() {
  const RegistrationCacheStatistics& counted = memory_->counted();
  statistics_.registrations = counted.registrations;
  statistics_.registered_in_place = counted.in_place;
  statistics_.shared_later = counted.shared_later;
}

// All of them, or says why not.
bool MessengerState::register_pieces(std::span<const iovec> pieces, unsigned access,
                                     PieceMemory* memory) {
  const bool taken = memory_->take(pieces, access, memory);
  if (!taken) [[unlikely]]
    error_ = memory_->error();
  count_registrations();
  return taken;
}

// The send that a peer names, if it waits for that peer; else kNone.
uint32_t MessengerState::awaiting_operation(const PeerConnection& connection,
                                            uint64_t named) const {
  const auto number = static_cast<uint32_t>(named);
  if (number >= operation_numbers_.used_ever()) return kNone;
  const Operation& operation = operations_[number];
  if (operation.state != Operation::State::kAwaitsFinish ||
      operation.generation != static_cast<uint32_t>(named >> 32) ||
      operation.peer != connection.peer) {
    return kNone;
  }
  return number;
}

// False: it is no answer that a receiver gives.
bool MessengerState::take_target(PeerConnection& connection, const ParsedMessage& message) {
  const uint32_t number = awaiting_operation(connection, message.header.tag);
  if (number == kNone || message.bytes != sizeof(Target)) return false;
  Operation& operation = operations_[number];
  Outgoing& outgoing = outgoing_[number];
  if (!outgoing.offered) return false;
  copy_bytes(&outgoing.target, message.payload, sizeof(Target));
  const RemoteMemory& memory = outgoing.target.memory;
  const bool writes = memory.method == Method::kWrite;
  if ((!writes && memory.method != Method::kPipelined) ||
      (writes && outgoing.method != Method::kWrite) || memory.bytes == 0 ||
      memory.bytes > total_bytes({operation.pieces, operation.piece_count}) ||
      !is_valid(memory, Method::kWrite)) {
    return false;
  }
  outgoing.offered = false;
  outgoing.method = memory.method;
  outgoing.posted = outgoing.end = 0;
  outgoing.told = false;
  if (!writes) MessageMemory::give_back(&send_memory_[number]);
  ++(writes ? connection.counts.written : connection.counts.pipelined);
  operation.state = Operation::State::kSending;
  append_outgoing(connection, number);
  return true;
}

void MessengerState::append_outgoing(PeerConnection& connection, uint32_t number) {
  outgoing_[number].next = 0;
  (connection.last_outgoing != 0 ? outgoing_[connection.last_outgoing - 1].next
                                 : connection.first_outgoing) = number + 1;
  connection.last_outgoing = number + 1;
  make_busy(connection);
}

// One WRITE for each stretch. True: all are posted, and the receiver has been told, which the queue
// pair keeps behind them.
bool MessengerState::post_writes(PeerConnection& connection, uint32_t number) {
  const Operation& operation = operations_[number];
  Outgoing& outgoing = outgoing_[number];
  const RemoteMemory& far = outgoing.target.memory;
  while (outgoing.posted < far.bytes) {
    if (!connection.sends.has_room()) return false;
    const Stretch stretch = stretch_at(operation.pieces, far.pieces, outgoing.posted, far.bytes);
    channel::SlotRequest write;
    channel::set_write(
        write,
        reinterpret_cast<uint64_t>(operation.pieces[stretch.near].iov_base) + stretch.near_at,
        send_memory_[number].lkey(stretch.near), far.pieces[stretch.far].address + stretch.far_at,
        far.pieces[stretch.far].rkey);
    write.payload.length = static_cast<uint32_t>(stretch.bytes);
    outgoing.posted += stretch.bytes;
    const bool last = outgoing.posted == far.bytes;
    if (last ? !connection.sends.push_signaled(write.request)
             : !connection.sends.push(write.request)) {
      return false;  // the connection is broken, which its owner finds
    }
    if (last) outgoing.end = connection.sends.posted();
  }
  if (!outgoing.told)
    outgoing.told = post_control(connection, Kind::kWritten, 0, outgoing.target.transfer);
  return outgoing.told;
}

// The next bytes, as long as there are credits. True: all are posted.
bool MessengerState::post_chunks(PeerConnection& connection, uint32_t number) {
  const Operation& operation = operations_[number];
  Outgoing& outgoing = outgoing_[number];
  const uint64_t most_bytes = room_bytes_ - sizeof(MessageHeader);
  while (outgoing.posted < outgoing.target.memory.bytes) {
    // Other messages find a credit beside them. Where those keep all but a few, some chunks go by
    // the last ones, which come back, as chunks are freed when they come.
    const uint32_t left =
        connection.credits_of_chunks < kReservedCredits ? 0 : kReservedCredits + 1;
    const Room room = room_for_message(connection, left, /*by_ring=*/false);
    if (room.to == nullptr) return false;
    ++connection.credits_of_chunks;
    const MessageHeader header = next_header(connection, Kind::kChunk, 0, outgoing.target.transfer);
    char* const to = put_header(room.to, header, 0, 0);
    const uint64_t bytes = std::min(most_bytes, outgoing.target.memory.bytes - outgoing.posted);
    cursor_at(operation.pieces, operation.piece_count, outgoing.posted).get(to, bytes);
    outgoing.posted += bytes;
    post(connection, room, to + bytes, /*in_order=*/false);
  }
  return true;
}

bool MessengerState::serve_outgoing(PeerConnection& connection, uint32_t number) {
  if (outgoing_[number].method == Method::kPipelined) {
    if (!post_chunks(connection, number)) return false;
    // Whether they have come, the receiver says.
    operations_[number].state = Operation::State::kAwaitsFinish;
    return true;
  }
  if (!post_writes(connection, number)) return false;
  const uint64_t end = outgoing_[number].end;
  if (connection.sends.retired() < end) connection.sends.reap();
  if (connection.sends.retired() < end) return false;
  complete_operation(number, MessageEvent::kSent, MessageOutcome::kOk);
  return true;
}

void MessengerState::serve_all_outgoing(PeerConnection& connection) {
  uint32_t previous = 0;
  for (uint32_t at = connection.first_outgoing; at != 0;) {
    const uint32_t next = outgoing_[at - 1].next;
    if (serve_outgoing(connection, at - 1)) {
      (previous != 0 ? outgoing_[previous - 1].next : connection.first_outgoing) = next;
      if (next == 0) connection.last_outgoing = previous;
    } else {
      previous = at;
    }
    at = next;
  }
}

}  // namespace verbena::message
