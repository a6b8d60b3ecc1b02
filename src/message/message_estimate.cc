// What messages of a size would cost on a device, before there is any messenger.
#include <fmt/format.h>

#include <algorithm>

#include "src/message/messenger_state.h"
#include "src/message/rendezvous_choice.h"

namespace verbena {
namespace {

using message::Method;

}  // namespace

Result<std::vector<MessageEstimate>> estimate_message(const DeviceInfo& device,
                                                      const MessengerOptions& options,
                                                      uint64_t bytes) {
  VERBENA_RETURN_IF_ERROR(message::check(options));
  const StepCosts steps = step_costs(device);
  const uint32_t room_bytes = options.slot_bytes - 2 * channel::kWordBytes;
  const uint64_t limit_bytes = room_bytes - message::kMaxHeaderBytes;
  const message::RendezvousCosts costs = message::RendezvousCosts::from_steps(
      steps, room_bytes - static_cast<uint32_t>(sizeof(message::MessageHeader)),
      options.queue_credits);
  std::vector<MessageEstimate> estimates;
  for (const bool by_ring : {true, false}) {
    MessageEstimate eager;
    eager.protocol = MessageProtocol::kEager;
    eager.by_ring = by_ring;
    eager.first_ns = eager.again_ns = message::eager_ns(steps, bytes, by_ring);
    if (bytes > limit_bytes) {
      eager.why = fmt::format("a slot has room for {} bytes", limit_bytes);
    } else if (by_ring && !device.writes_in_order) {
      eager.why = "the device does not place the bytes of a WRITE in order";
    } else if (by_ring && options.polling_set == 0) {
      eager.why = "the polling set has no place";
    } else {
      eager.usable = true;
      eager.why = by_ring ? "to a peer that polls a ring of the sender" : "to any peer";
    }
    estimates.push_back(std::move(eager));
  }
  for (const Method method : {Method::kRead, Method::kWrite, Method::kPipelined}) {
    MessageEstimate one;
    one.protocol = message::protocol_of(method);
    one.again_ns = one.first_ns = costs.of(method, bytes);
    const bool in_place = method == Method::kRead && steps.in_place_registration_ns > 0;
    if (in_place) {
      one.first_ns += message::in_place_ns(steps, bytes) + steps.in_place_registration_ns;
    } else if (method != Method::kPipelined) {
      one.first_ns += 2 * message::registration_ns(steps, bytes);
    }
    one.usable = bytes > limit_bytes;
    one.why = !one.usable                    ? "it fits a slot"
              : method == Method::kPipelined ? "registers nothing"
              : in_place                     ? fmt::format(
                                                   "of one buffer, some {:.0f} are READ where it lies, through the "
                                                                       "kernel; then its pages are shared",
                                                   message::messages_in_place(steps, bytes))
                         : "the memory of both sides is registered first";
    estimates.push_back(std::move(one));
  }
  for (MessageEstimate& one : estimates) one.of_this_device = steps.of_this_device;
  std::stable_sort(estimates.begin(), estimates.end(),
                   [](const MessageEstimate& a, const MessageEstimate& b) {
                     return a.usable != b.usable ? a.usable : a.again_ns < b.again_ns;
                   });
  return estimates;
}

}  // namespace verbena
