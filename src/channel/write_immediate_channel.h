// Messages by WRITE_WITH_IMM into slots: for devices that do not place a WRITE's bytes in order.
//
// The message lands in its slot as with WriteChannel, but it has no mark: it consumes a receive
// without a buffer, and that receive's completion tells that all of it is there, with its size. So
// it costs the receiver what a SEND costs, and is right on every device.
#pragma once

#include <cstdint>

#include "src/channel/completion_receiver.h"
#include "src/channel/unmarked_sender.h"

namespace verbena::channel {

struct WriteImmediateChannel {
  static constexpr bool kWritesSlots = true;
  static constexpr bool kConsumesReceives = true;
  static constexpr bool kNotifies = false;
  static constexpr uint32_t kRequestsPerMessage = 1;

  static SlotShape shape(uint32_t capacity_bytes) { return unmarked_shape(capacity_bytes); }

  static MessageCost cost(uint32_t bytes, const CostInputs& inputs) {
    MessageCost cost = sending_cost(bytes, inputs);
    cost.receiver = receive_cost();
    return cost;
  }

  class Sender : public UnmarkedSender {
   public:
    Sender() = default;
    explicit Sender(const SenderSetup& setup)
        : UnmarkedSender(setup, [&](SlotRequest& request, char* payload, uint32_t slot) {
            const auto offset = static_cast<uint64_t>(payload - setup.slots.base);
            set_write_with_immediate(request, reinterpret_cast<uint64_t>(payload), setup.lkey,
                                     setup.remote.address + offset, setup.remote.rkey,
                                     MessageImmediate{setup.connection, slot}.immediate());
          }) {}
  };

  using Receiver = CompletionReceiver</*kPayloadInSlots=*/true>;
};
static_assert(MessageChannel<WriteImmediateChannel>);

}  // namespace verbena::channel
