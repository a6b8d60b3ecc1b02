// Messages by RDMA WRITE into slots that the receiver polls ("patterns" 4.1, mailboxes).
//
// No receive is posted and no completion appears at the receiver; its CPU finds the message by the
// completion mark. One unsignaled WRITE per message, inline where it fits.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/member_if.h"
#include "src/channel/channel.h"
#include "src/channel/completion_mark.h"

namespace verbena::channel {

template <CompletionMark Mark>
struct WriteChannel {
  static constexpr bool kWritesSlots = true;
  static constexpr bool kConsumesReceives = false;
  static constexpr bool kNotifies = false;
  static constexpr uint32_t kRequestsPerMessage = 1;

  static SlotShape shape(uint32_t capacity_bytes) { return Mark::shape(capacity_bytes); }

  static MessageCost cost(uint32_t bytes, const CostInputs& inputs) {
    MessageCost cost = sending_cost(Mark::sealed_bytes(bytes), inputs);
    cost.receiver.polled_lines = 1;  // of the slot where the next message is expected
    cost.receiver.cleared_bytes = Mark::cleared_bytes(bytes);
    return cost;
  }

  class Sender {
   public:
    Sender() = default;
    explicit Sender(const SenderSetup& setup)
        : slots_(setup.slots),
          remote_address_(setup.remote.address),
          inline_limit_bytes_(setup.inline_limit_bytes),
          requests_(setup.slots.count),
          queue_(setup.queue_pair, setup.send_completions, setup.sizes) {
      for (uint32_t slot = 0; slot < slots_.count; ++slot) {
        set_write(requests_[slot], 0, setup.lkey, 0, setup.remote.rkey);
      }
    }

    char* payload(uint32_t slot) const { return slots_.slot(slot) + Mark::kPayloadOffset; }

    bool post(uint32_t slot, uint32_t bytes) {
      char* local = slots_.slot(slot);
      const Sealed sealed = Mark::seal(local, slots_.shape, bytes);
      SlotRequest& request = requests_[slot];
      request.payload.addr = reinterpret_cast<uint64_t>(local) + sealed.local_offset;
      request.request.wr.rdma.remote_addr =
          remote_address_ + static_cast<uint64_t>(local - slots_.base) + sealed.remote_offset;
      set_size(request, sealed.bytes, inline_limit_bytes_);
      return queue_.push(request.request);
    }

    SendQueue& queue() { return queue_; }

   private:
    SlotArray slots_;
    uint64_t remote_address_ = 0;
    uint32_t inline_limit_bytes_ = 0;
    SlotRequests requests_;
    SendQueue queue_;
  };

  class Receiver {
   public:
    Receiver() = default;
    explicit Receiver(const ReceiverSetup& setup) : Receiver(setup.slots) {}
    explicit Receiver(const SlotArray& slots) : slots_(slots) {
      if constexpr (!Mark::kClearKeepsPayload) used_bytes_.assign(slots.count, kUnused);
    }

    int post_receives() { return 0; }

    // Delivers at most `limit` messages. The next one is expected in the slot behind the last: a
    // sender that uses its slots in turn is found with one poll of a slot. For those that do not,
    // one more slot is polled where there was nothing.
    template <EligibleFunction Eligible, DeliverFunction Deliver>
    uint32_t poll(uint32_t limit, Eligible&& eligible, Deliver&& deliver) {
      uint32_t found = 0;
      while (found < limit && eligible(expected_) && take(expected_, deliver)) ++found;
      if (found == 0 && limit > 0 && slots_.count > 1) found = wander(eligible, deliver);
      return found;
    }

    // The message in `slot` was used; its bytes may vanish now. Before the sender may write there.
    void release(uint32_t slot) {
      if constexpr (!Mark::kClearKeepsPayload) {
        if (used_bytes_[slot] == kUnused) return;
        Mark::clear(slots_.slot(slot), slots_.shape, used_bytes_[slot]);
        used_bytes_[slot] = kUnused;
      }
    }
    // Nothing left to do once the next message was invited.
    void after_post(uint32_t /*slot*/) {}

    const ChannelError& error() const { return error_; }

   private:
    static constexpr uint32_t kUnused = ~0u;

    // On its way while the message before it is delivered: a line that another core wrote takes
    // longer to come than a small message to handle. It is polled next in any case.
    void fetch(const char* slot) const {
      __builtin_prefetch(slot);
      __builtin_prefetch(slot + slots_.shape.slot_bytes - 1);
    }

    uint32_t next(uint32_t slot) const { return slot + 1 == slots_.count ? 0 : slot + 1; }

    // Never inlined, and take() always: one copy of it, in poll()'s loop, costs a message the
    // fewest instructions, and no counter decides what compilers do (scripts/hook-cost).
    template <typename Eligible, typename Deliver>
    __attribute__((noinline)) uint32_t wander(Eligible& eligible, Deliver& deliver) {
      wandering_ = next(wandering_);
      return eligible(wandering_) && take(wandering_, deliver) ? 1 : 0;
    }

    template <DeliverFunction Deliver>
    __attribute__((always_inline)) bool take(uint32_t slot, Deliver& deliver) {
      char* bytes = slots_.slot(slot);
      const Probe probe = Mark::probe(bytes, slots_.shape);
      if (probe.arrival != Arrival::kMessage) {
        if (probe.arrival == Arrival::kViolation) [[unlikely]] {
          error_ =
              ChannelError::peer_violated("its completion mark is not one that a sender makes");
        }
        return false;
      }
      if constexpr (Mark::kClearKeepsPayload) {
        Mark::clear(bytes, slots_.shape, probe.bytes);
      } else {
        used_bytes_[slot] = probe.bytes;
      }
      expected_ = next(slot);
      fetch(slots_.slot(expected_));
      deliver(slot, probe.payload, probe.bytes);
      return true;
    }

    SlotArray slots_;
    uint32_t expected_ = 0;
    uint32_t wandering_ = 0;
    // Of messages that were delivered but not released.
    [[no_unique_address]] MemberIf<!Mark::kClearKeepsPayload, std::vector<uint32_t>> used_bytes_;
    ChannelError error_;
  };
};

}  // namespace verbena::channel
