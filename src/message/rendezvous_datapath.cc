// Long messages: the receiver READs them from the sender's memory, and tells it when it has them.
#include <algorithm>

#include "src/message/messenger_state.h"
#include "src/message/pieces.h"

namespace verbena::message {

bool MessengerState::is_valid(const RemoteMemory& remote) {
  if (remote.count > kMaxPieces) return false;
  uint64_t total = 0;
  for (uint64_t i = 0; i < remote.count; ++i) {
    if (remote.pieces[i].bytes > remote.bytes - total) return false;
    total += remote.pieces[i].bytes;
  }
  return total == remote.bytes;
}

// All of them, or says why not.
bool MessengerState::register_pieces(std::span<const iovec> pieces, unsigned access,
                                     PieceMemory* memory) {
  const bool taken = memory_->take(pieces, access, memory);
  if (!taken) [[unlikely]]
    error_ = memory_->error();
  statistics_.registrations = memory_->registrations();
  return taken;
}

void MessengerState::append_transfer(PeerConnection& connection, uint32_t number) {
  transfers_[number].next = 0;
  (connection.last_transfer != 0 ? transfers_[connection.last_transfer - 1].next
                                 : connection.first_transfer) = number + 1;
  connection.last_transfer = number + 1;
  make_busy(connection);
}

void MessengerState::start_finish(PeerConnection& connection, uint64_t sender_operation,
                                  bool failed) {
  // At once, if nothing before it waits.
  if (connection.first_transfer == 0 &&
      post_control(connection, Kind::kFinish, failed ? uint8_t{kFailed} : uint8_t{0},
                   sender_operation)) {
    return;
  }
  const uint32_t number = transfer_numbers_.take();
  VERBENA_ASSERT(number != NumberPool::kNone);
  transfers_[number] = {};
  transfers_[number].failed = failed;
  transfers_[number].sender_operation = sender_operation;
  append_transfer(connection, number);
}

void MessengerState::start_transfer(PeerConnection& connection, uint32_t operation,
                                    const Delivery& delivery, const RemoteMemory& remote,
                                    uint64_t sender_operation) {
  MessageCompletion completion = delivery.completion;
  PieceMemory memory{};
  const bool registered =
      completion.bytes == 0 ||
      register_pieces({delivery.local, delivery.local_count}, kTargetAccess, &memory);
  if (!registered || completion.bytes == 0) {
    if (!registered) {
      completion.outcome = MessageOutcome::kFailed;
      completion.bytes = 0;
    }
    end_delivery(operation, completion);
    start_finish(connection, sender_operation, !registered);
    return;
  }
  const uint32_t number = transfer_numbers_.take();
  VERBENA_ASSERT(number != NumberPool::kNone);
  Transfer& transfer = transfers_[number];
  transfer = {};
  transfer.operation = operation;
  transfer.reading = true;
  transfer.local_count = delivery.local_count;
  for (uint32_t i = 0; i < delivery.local_count; ++i) {
    transfer.local[i] = delivery.local[i];
  }
  transfer.remote = remote;
  transfer.to_move = completion.bytes;
  transfer.sender_operation = sender_operation;
  transfer.completion = completion;
  transfer.memory = memory;
  append_transfer(connection, number);
}

// One READ for each stretch that is in one piece on both sides. True: all are posted.
bool MessengerState::post_reads(PeerConnection& connection, Transfer& transfer) {
  while (transfer.posted < transfer.to_move) {
    if (!connection.sends.has_room()) return false;
    uint32_t near = 0;
    uint64_t near_at = transfer.posted;
    while (near_at >= transfer.local[near].iov_len) near_at -= transfer.local[near++].iov_len;
    uint32_t far = 0;
    uint64_t far_at = transfer.posted;
    while (far_at >= transfer.remote.pieces[far].bytes) {
      far_at -= transfer.remote.pieces[far++].bytes;
    }
    const uint64_t step =
        std::min({transfer.to_move - transfer.posted, transfer.local[near].iov_len - near_at,
                  transfer.remote.pieces[far].bytes - far_at, uint64_t{kTransferReadBytes}});
    channel::SlotRequest read;
    channel::set_read(read, reinterpret_cast<uint64_t>(transfer.local[near].iov_base) + near_at,
                      transfer.memory.lkey(near), transfer.remote.pieces[far].rkey, 0);
    read.payload.length = static_cast<uint32_t>(step);
    read.request.wr.rdma.remote_addr = transfer.remote.pieces[far].address + far_at;
    transfer.posted += step;
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
  if (transfer.reading) {
    if (transfer.end == 0 && !post_reads(connection, transfer)) return false;
    if (connection.sends.retired() < transfer.end) connection.sends.reap();
    if (connection.sends.retired() < transfer.end) return false;
    transfer.reading = false;
    MessageMemory::give_back(&transfer.memory);
    end_delivery(transfer.operation, transfer.completion);
  }
  if (!post_control(connection, Kind::kFinish, transfer.failed ? uint8_t{kFailed} : uint8_t{0},
                    transfer.sender_operation)) {
    return false;
  }
  transfer_numbers_.give_back(number);
  return true;
}

}  // namespace verbena::message
