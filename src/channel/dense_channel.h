// Messages by two RDMA WRITEs: the payload into a slot, then one byte into a dense array
// ("patterns" 8: the layout of L5, which the paper describes but did not build).
//
//   the receiver's
//   slots          | length (4 bytes) | 3 unused | 1 | payload | ...    never polled
//   notifications  | n0 | n1 | n2 | ...                                 polled, a byte per slot
//
// A responder polls one cache line for 64 requesters with one slot each, so that slots in which
// nothing arrives cost it almost nothing; the price is a second work request per message. Both go
// out as one list, so there is still one doorbell. Work requests of one queue pair are carried out
// in order, so the layout does not rest on the order of bytes within a WRITE.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "src/channel/channel.h"
#include "src/channel/completion_mark.h"
#include "verbena/data_path.h"

namespace verbena::channel {

// The notifications of one connection, or of many side by side.
struct NotificationArray {
  // A power of two below 8, or a multiple of 8: so a connection's bytes are one aligned load, or
  // several whole ones.
  static constexpr uint32_t stride_bytes(uint32_t slots) {
    return slots <= kWordBytes ? std::bit_ceil(slots) : round_up(slots, kWordBytes);
  }

  // Polls the notifications from `first`, a multiple of 8: they are the bytes of one number.
  static uint64_t poll(const char* notifications, uint32_t stride_bytes, uint32_t first) {
    switch (stride_bytes) {
      case 1:
        return poll_word(reinterpret_cast<const uint8_t*>(notifications));
      case 2:
        return poll_word(reinterpret_cast<const uint16_t*>(notifications));
      case 4:
        return poll_word(reinterpret_cast<const uint32_t*>(notifications));
      default:
        return poll_word(reinterpret_cast<const uint64_t*>(notifications + first));
    }
  }

  // Calls visit(number) for each of the first `connections` with a notification byte that is set.
  // `notifications` is aligned to 8 bytes and as long as whole words.
  template <typename Visit>
  static void for_each_notified(const char* notifications, uint32_t stride_bytes,
                                uint32_t connections, Visit&& visit) {
    const uint64_t end = uint64_t{connections} * stride_bytes;
    for (uint64_t first = 0; first < end; first += kWordBytes) {
      uint64_t set = poll_word(reinterpret_cast<const uint64_t*>(notifications + first));
      while (set != 0) [[unlikely]] {
          const uint64_t byte = first + static_cast<uint64_t>(std::countr_zero(set)) / 8;
          const uint64_t number = byte / stride_bytes;
          if (number >= connections) return;
          visit(static_cast<uint32_t>(number));
          const uint64_t next = (number + 1) * stride_bytes;
          if (next >= first + kWordBytes) {
            first = next - kWordBytes;
            break;
          }
          set &= ~uint64_t{0} << (next - first) * 8;
        }
    }
  }
};

struct DenseChannel {
  static constexpr bool kWritesSlots = true;
  static constexpr bool kConsumesReceives = false;
  static constexpr bool kNotifies = true;
  static constexpr uint32_t kRequestsPerMessage = 2;

  static SlotShape shape(uint32_t capacity_bytes) {
    return {capacity_bytes, round_up<uint32_t>(kPayloadOffset + capacity_bytes, kCacheLineBytes)};
  }

  static MessageCost cost(uint32_t bytes, const CostInputs& inputs) {
    MessageCost cost = sending_cost(kPayloadOffset + bytes, inputs);
    cost.sender.work_requests = kRequestsPerMessage;
    cost.sender.completions *= kRequestsPerMessage;
    cost.receiver.polled_lines = 1;  // of notifications: for 64 slots, of however many connections
    cost.receiver.cleared_bytes = 1;
    cost.wire_bytes += 1;
    cost.wire_messages = kRequestsPerMessage;
    return cost;
  }

  class Sender {
   public:
    Sender() = default;
    explicit Sender(const SenderSetup& setup)
        : slots_(setup.slots),
          inline_limit_bytes_(setup.inline_limit_bytes),
          payloads_(setup.slots.count),
          notifications_(setup.slots.count),
          queue_(setup.queue_pair, setup.send_completions, setup.sizes) {
      for (uint32_t slot = 0; slot < slots_.count; ++slot) {
        char* local = slots_.slot(slot);
        const auto address = reinterpret_cast<uint64_t>(local);
        set_write(payloads_[slot], address, setup.lkey,
                  setup.remote.address + static_cast<uint64_t>(local - slots_.base),
                  setup.remote.rkey);
        local[kNotificationOffset] = kNotification;
        set_write(notifications_[slot], address + kNotificationOffset, setup.lkey,
                  setup.remote_notifications.address + slot, setup.remote_notifications.rkey);
      }
    }

    char* payload(uint32_t slot) const { return slots_.slot(slot) + kPayloadOffset; }

    bool post(uint32_t slot, uint32_t bytes) {
      VERBENA_DEBUG_ASSERT(bytes <= slots_.shape.capacity_bytes);
      store_word(slots_.slot(slot), bytes);
      set_size(payloads_[slot], kPayloadOffset + bytes, inline_limit_bytes_);
      set_size(notifications_[slot], 1, inline_limit_bytes_);
      return queue_.push(payloads_[slot].request, notifications_[slot].request);
    }

    SendQueue& queue() { return queue_; }

   private:
    SlotArray slots_;
    uint32_t inline_limit_bytes_ = 0;
    SlotRequests payloads_;
    SlotRequests notifications_;
    SendQueue queue_;
  };

  class Receiver {
   public:
    Receiver() = default;
    explicit Receiver(const ReceiverSetup& setup)
        : slots_(setup.slots),
          notifications_(setup.notifications),
          stride_bytes_(NotificationArray::stride_bytes(setup.slots.count)) {}

    int post_receives() { return 0; }

    template <EligibleFunction Eligible, DeliverFunction Deliver>
    uint32_t poll(uint32_t limit, Eligible&& eligible, Deliver&& deliver) {
      uint32_t found = 0;
      for (uint32_t first = 0; first < slots_.count; first += kWordBytes) {
        uint64_t set = NotificationArray::poll(notifications_, stride_bytes_, first);
        while (set != 0) {
          const uint32_t byte = static_cast<uint32_t>(std::countr_zero(set)) / 8;
          set &= ~(uint64_t{0xff} << byte * 8);
          if (found == limit || error_) return found;
          const uint32_t slot = first + byte;
          // A notification for a slot that waits for nothing is no message: it is seen when one is
          // due.
          if (slot >= slots_.count || !eligible(slot)) continue;
          if (take(slot, deliver)) ++found;
        }
      }
      return found;
    }

    void release(uint32_t /*slot*/) {}
    void after_post(uint32_t /*slot*/) {}

    const ChannelError& error() const { return error_; }

   private:
    template <DeliverFunction Deliver>
    bool take(uint32_t slot, Deliver& deliver) {
      // The sender's device stored one byte: only a load of that byte is sure to acquire what came
      // before it. The word said no more than which one.
      const uint8_t notification = poll_mark(notifications_ + slot, kNotification);
      const char* message = slots_.slot(slot);
      const uint32_t bytes = read_word(reinterpret_cast<const uint32_t*>(message));
      if (notification != kNotification || bytes > slots_.shape.capacity_bytes) [[unlikely]] {
        // Since the word was polled, who got another slot's message has polled, and taken this one.
        if (notification == 0) return false;
        error_ = ChannelError::peer_violated(
            notification != kNotification ? "its completion mark is not one that a sender makes"
                                          : "its message is larger than agreed");
        return false;
      }
      // Before the answer, which invites the next message into this slot.
      store_word(notifications_ + slot, uint8_t{0});
      deliver(slot, message + kPayloadOffset, bytes);
      return true;
    }

    SlotArray slots_;
    char* notifications_ = nullptr;
    uint32_t stride_bytes_ = 1;
    ChannelError error_;
  };

 private:
  static constexpr uint32_t kPayloadOffset = kWordBytes;
  static constexpr uint32_t kNotificationOffset = kWordBytes - 1;
  static constexpr uint8_t kNotification = 1;
};
static_assert(MessageChannel<DenseChannel>);

}  // namespace verbena::channel
