// Long messages where they are received: READs from the sender's memory, or the answer that says
// where they go, and what comes then.
#include <algorithm>

#include "src/message/messenger_state.h"
#include "src/message/pieces.h"

namespace verbena::message {

void MessengerState::append_transfer(PeerConnection& connection, uint32_t number) {
  transfers_[number].next = 0;
  (connection.last_transfer != 0 ? transfers_[connection.last_transfer - 1].next
                                 : connection.first_transfer) = number + 1;
  connection.last_transfer = number + 1;
  make_busy(connection);
}

uint32_t MessengerState::new_transfer(PeerConnection& connection) {
  const uint32_t number = transfer_numbers_.take(&connection.transfers);
  Transfer& transfer = transfers_[number];
  VERBENA_ASSERT(transfer.stage == Transfer::Stage::kFree);
  const uint32_t generation = transfer.generation + 1;
  transfer = {};
  transfer.generation = generation;
  transfer.connection = connection.number;
  return number;
}

void MessengerState::end_transfer(uint32_t number) {
  MessageMemory::give_back(&transfers_[number].memory);
  transfers_[number].stage = Transfer::Stage::kFree;
  PeerConnection& connection = *connections_[transfers_[number].connection];
  transfer_numbers_.give_back(number, &connection.transfers);
}

void MessengerState::start_finish(PeerConnection& connection, uint64_t sender_operation,
                                  bool failed) {
  // At once, if nothing before it waits.
  if (connection.first_transfer == 0 &&
      post_control(connection, Kind::kFinish, failed ? uint8_t{kFailed} : uint8_t{0},
                   sender_operation)) {
    return;
  }
  const uint32_t number = new_transfer(connection);
  transfers_[number].stage = Transfer::Stage::kFinishing;
  transfers_[number].failed = failed;
  transfers_[number].sender_operation = sender_operation;
  append_transfer(connection, number);
}

// How the message comes, and the memory for it where a device moves it there. False: the memory is
// not there.
bool MessengerState::choose_target(uint32_t operation, const Delivery& delivery,
                                   const RemoteMemory& remote, Method* method,
                                   PieceMemory* memory) {
  *memory = {};
  *method = remote.method;
  if (remote.method == Method::kPipelined) return true;
  const std::span<const iovec> local(delivery.local, delivery.local_count);
  const unsigned access =
      remote.method == Method::kRead ? memory_->read_target_access() : kTargetAccess;
  if (memory_->find(local, access, memory)) return true;
  const uint64_t bytes = delivery.completion.bytes;
  BufferUse use;
  if (options_.long_messages == LongMessages::kAutomatic) {
    const double registered_ns =
        rendezvous_costs_.of(remote.method, bytes) + registration_ns(access, total_bytes(local));
    if (rendezvous_costs_.of(Method::kPipelined, bytes) < registered_ns) {
      *method = Method::kPipelined;
      if (!stays_registered(total_bytes(local))) return true;
      // Of a receive for several messages, its memory is what is used again.
      use = received_buffers_->count(operations_[operation].pieces[0].iov_base,
                                     static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX)));
      if (use.way == BufferUse::Way::kInPlace) received_buffers_->lost(use);
      if (use.way != BufferUse::Way::kRegister) return true;
      *method = remote.method;
    }
  }
  const bool taken = register_pieces(local, access, memory);
  if (use.way == BufferUse::Way::kRegister) {
    taken ? received_buffers_->registered(use) : received_buffers_->refused(use);
  }
  if (taken) return true;
  *method = Method::kPipelined;
  return memory_->error().code() != StatusCode::kInvalidArgument;
}

void MessengerState::start_transfer(PeerConnection& connection, uint32_t operation,
                                    const Delivery& delivery, const RemoteMemory& remote,
                                    uint64_t sender_operation) {
  MessageCompletion completion = delivery.completion;
  PieceMemory memory{};
  Method method = remote.method;
  const bool can_move =
      completion.bytes == 0 || choose_target(operation, delivery, remote, &method, &memory);
  if (!can_move || completion.bytes == 0) {
    if (!can_move) {
      completion.outcome = MessageOutcome::kFailed;
      completion.bytes = 0;
    }
    end_delivery(operation, completion);
    start_finish(connection, sender_operation, !can_move);
    return;
  }
  const uint32_t number = new_transfer(connection);
  Transfer& transfer = transfers_[number];
  transfer.operation = operation;
  transfer.method = method;
  transfer.local_count = delivery.local_count;
  for (uint32_t i = 0; i < delivery.local_count; ++i) transfer.local[i] = delivery.local[i];
  transfer.memory = memory;
  transfer.remote = remote;
  transfer.to_move = completion.bytes;
  transfer.sender_operation = sender_operation;
  transfer.completion = completion;
  if (method == Method::kRead) {
    transfer.stage = Transfer::Stage::kReading;
  } else {
    transfer.stage = Transfer::Stage::kAnswering;
    // At once, if nothing before it waits.
    if (connection.first_transfer == 0 && post_target(connection, number)) return;
  }
  append_transfer(connection, number);
}

// Says where the message goes. False: there is no room for that now.
bool MessengerState::post_target(PeerConnection& connection, uint32_t number) {
  Transfer& transfer = transfers_[number];
  const Room room = room_for_message(connection, 0);
  if (room.to == nullptr) return false;
  Target target;
  target.transfer = uint64_t{transfer.generation} << 32 | number;
  target.memory.bytes = transfer.to_move;
  target.memory.method = transfer.method;
  if (transfer.method == Method::kWrite) {
    uint64_t left_bytes = transfer.to_move;
    iovec pieces[kMaxPieces];
    for (uint32_t i = 0; i < transfer.local_count; ++i) {
      pieces[i] = {transfer.local[i].iov_base,
                   std::min<uint64_t>(transfer.local[i].iov_len, left_bytes)};
      left_bytes -= pieces[i].iov_len;
    }
    describe({pieces, transfer.local_count}, transfer.memory, &target.memory);
  }
  const MessageHeader header = next_header(connection, Kind::kTarget, 0, transfer.sender_operation);
  char* const to = put_header(room.to, header, 0, 0);
  copy_bytes(to, &target, sizeof(target));
  if (!room.ring) ++connection.early_by_queue;
  post(connection, room, to + sizeof(target), /*in_order=*/room.ring);
  transfer.stage = Transfer::Stage::kAwaiting;
  return true;
}

// The transfer that a peer names, if it waits for that peer's bytes; else null.
MessengerState::Transfer* MessengerState::awaited(const PeerConnection& connection, uint64_t named,
                                                  Method method) {
  const auto number = static_cast<uint32_t>(named);
  if (number >= transfer_numbers_.used_ever()) return nullptr;
  Transfer& transfer = transfers_[number];
  if (transfer.stage != Transfer::Stage::kAwaiting || transfer.method != method ||
      transfer.generation != static_cast<uint32_t>(named >> 32) ||
      transfer.connection != connection.number) {
    return nullptr;
  }
  return &transfer;
}

// False: nobody waits for these bytes.
bool MessengerState::take_chunk(PeerConnection& connection, const ParsedMessage& message) {
  Transfer* const transfer = awaited(connection, message.header.tag, Method::kPipelined);
  if (transfer == nullptr || message.bytes == 0 ||
      message.bytes > transfer->to_move - transfer->posted) {
    return false;
  }
  cursor_at(transfer->local, transfer->local_count, transfer->posted)
      .put(message.payload, message.bytes);
  transfer->posted += message.bytes;
  if (transfer->posted < transfer->to_move) return true;
  end_delivery(transfer->operation, transfer->completion);
  transfer->stage = Transfer::Stage::kFinishing;
  append_transfer(connection, static_cast<uint32_t>(message.header.tag));
  return true;
}

bool MessengerState::take_written(PeerConnection& connection, const ParsedMessage& message) {
  Transfer* const transfer = awaited(connection, message.header.tag, Method::kWrite);
  if (transfer == nullptr || message.bytes != 0) return false;
  const uint32_t operation = transfer->operation;
  const MessageCompletion completion = transfer->completion;
  end_transfer(static_cast<uint32_t>(message.header.tag));
  end_delivery(operation, completion);
  return true;
}

// What is used when it comes, whatever waits before it. False: it is about nothing that there is.
bool MessengerState::take_out_of_order(PeerConnection& connection, const ParsedMessage& message) {
  if (message.header.kind == Kind::kCredits) return true;  // which the caller takes
  // By either channel, since it could come by the ring.
  if (is_early_of_ring(message.header.kind) && options_.policy == PollingSetPolicy::kDynamic) {
    count_arrival(connection);
  }
  switch (message.header.kind) {
    case Kind::kFinish:
      return finish_operation(connection, message);
    case Kind::kTarget:
      return take_target(connection, message);
    case Kind::kChunk:
      return take_chunk(connection, message);
    case Kind::kWritten:
      return take_written(connection, message);
    case Kind::kAnswer:
      return take_answer(connection, message);
    default:
      return false;
  }
}

// One READ for each stretch. True: all are posted.
bool MessengerState::post_reads(PeerConnection& connection, Transfer& transfer) {
  while (transfer.posted < transfer.to_move) {
    if (!connection.sends.has_room()) return false;
    const Stretch stretch =
        stretch_at(transfer.local, transfer.remote.pieces, transfer.posted, transfer.to_move);
    const RemotePiece& far = transfer.remote.pieces[stretch.far];
    channel::SlotRequest read;
    channel::set_read(
        read, reinterpret_cast<uint64_t>(transfer.local[stretch.near].iov_base) + stretch.near_at,
        transfer.memory.lkey(stretch.near), far.rkey, 0);
    read.payload.length = static_cast<uint32_t>(stretch.bytes);
    read.request.wr.rdma.remote_addr = far.address + stretch.far_at;
    transfer.posted += stretch.bytes;
    const bool last = transfer.posted == transfer.to_move;
    if (last ? !connection.sends.push_signaled(read.request)
             : !connection.sends.push(read.request)) {
      return false;  // the connection is broken, which its owner finds
    }
  }
  transfer.end = connection.sends.posted();
  return true;
}

bool MessengerState::serve_transfer(PeerConnection& connection, uint32_t number) {
  Transfer& transfer = transfers_[number];
  if (transfer.stage == Transfer::Stage::kAnswering) return post_target(connection, number);
  if (transfer.stage == Transfer::Stage::kReading) {
    if (transfer.end == 0 && !post_reads(connection, transfer)) return false;
    if (connection.sends.retired() < transfer.end) connection.sends.reap();
    if (connection.sends.retired() < transfer.end) return false;
    transfer.stage = Transfer::Stage::kFinishing;
    MessageMemory::give_back(&transfer.memory);
    end_delivery(transfer.operation, transfer.completion);
  }
  if (!post_control(connection, Kind::kFinish, transfer.failed ? uint8_t{kFailed} : uint8_t{0},
                    transfer.sender_operation)) {
    return false;
  }
  end_transfer(number);
  return true;
}

// Of a peer that is lost.
void MessengerState::lose_transfers(PeerConnection& connection) {
  for (uint32_t number = 0; number < transfer_numbers_.used_ever(); ++number) {
    Transfer& transfer = transfers_[number];
    if (transfer.stage == Transfer::Stage::kFree || transfer.connection != connection.number) {
      continue;
    }
    if (transfer.stage != Transfer::Stage::kFinishing) {
      memory_->withdraw(&transfer.memory);
      transfer.completion.outcome = MessageOutcome::kPeerLost;
      transfer.completion.bytes = 0;
      end_delivery(transfer.operation, transfer.completion);
    }
    end_transfer(number);
  }
  connection.first_transfer = connection.last_transfer = 0;
  connection.first_outgoing = connection.last_outgoing = 0;
}

}  // namespace verbena::message
