// Messages by SEND into posted receives ("patterns" 4.1, "msgproto" 2.1).
//
// The receiver decides where a message lands: in the buffer of the receive that it consumes. The
// immediate carries the slot, so slots and receives need not match in number or order, and the
// payload needs no header and no mark.
#pragma once

#include <cstdint>

#include "src/channel/completion_receiver.h"
#include "src/channel/unmarked_sender.h"

namespace verbena::channel {

struct SendChannel {
  static constexpr bool kWritesSlots = false;
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
            set_send(request, reinterpret_cast<uint64_t>(payload), setup.lkey,
                     MessageImmediate{setup.connection, slot}.immediate());
          }) {}
  };

  using Receiver = CompletionReceiver</*kPayloadInSlots=*/false>;
};
static_assert(MessageChannel<SendChannel>);

}  // namespace verbena::channel
