// Channels: one direction of a connection, by one verb.
//
// A channel names a Sender and a Receiver, the two ends of one direction between one pair of queue
// pairs. Requests travel over one channel and responses over another, so the verb pairs of
// "patterns" and "msgproto" are compositions of three: SendChannel, WriteChannel<Mark> and
// WriteImmediateChannel. Which one is a template argument: a message passes no branch on it.
//
// Messages carry the number of the slot that they belong to: by place (WRITE) or in the immediate.
#pragma once

#include <infiniband/verbs.h>

#include <concepts>
#include <cstdint>

#include "src/channel/channel_error.h"
#include "src/channel/message_cost.h"
#include "src/channel/receive_pool.h"
#include "src/channel/send_queue.h"
#include "src/channel/slot_array.h"
#include "src/channel/work_request.h"

namespace verbena::channel {

// What the sending end of a connection consists of.
struct SenderSetup {
  SlotArray slots;  // where messages are written, registered
  uint32_t lkey = 0;
  RemoteSlots remote;                // the peer's slots, where the channel writes them
  RemoteSlots remote_notifications;  // and their notifications, where it has some
  uint32_t connection = 0;           // this connection's number at the receiver
  uint32_t inline_limit_bytes = 0;
  ibv_qp* queue_pair = nullptr;
  ibv_cq* send_completions = nullptr;
  SendQueueSizes sizes;
};

// What the receiving end of a connection consists of, if no other connection shares it.
struct ReceiverSetup {
  SlotArray slots;  // where the channel's messages land; for SEND: count and capacity only
  char* notifications = nullptr;  // a byte per slot, where the channel notifications
  ibv_qp* queue_pair = nullptr;
  ibv_cq* receive_completions = nullptr;
  ReceiveBuffers buffers;     // where SENDs land
  ReceivePoolSizes receives;  // where the channel consumes receives
};

// clang-format off
template <typename Channel>
concept MessageChannel = requires(typename Channel::Sender& sender, uint32_t number,
                                  const CostInputs& inputs) {
  // The shape of slots for messages of up to `number` bytes.
  { Channel::shape(number) } -> std::same_as<SlotShape>;
  // The sender writes the receiver's slots: they are registered for remote writes.
  { Channel::kWritesSlots } -> std::convertible_to<bool>;
  // A message consumes a posted receive and yields a completion at the receiver.
  { Channel::kConsumesReceives } -> std::convertible_to<bool>;
  // A message is announced by a byte in an array beside the slots (dense_channel.h).
  { Channel::kNotifies } -> std::convertible_to<bool>;
  // Work requests that a message takes.
  { Channel::kRequestsPerMessage } -> std::convertible_to<uint32_t>;
  // What a message of `number` bytes costs; pure.
  { Channel::cost(number, inputs) } -> std::same_as<MessageCost>;

  // Where the message of slot `number` is written.
  { sender.payload(number) } -> std::same_as<char*>;
  // Sends the first bytes of a slot. Needs queue().has_room(); false: see queue().error().
  { sender.post(number, number) } -> std::same_as<bool>;
  { sender.queue() } -> std::same_as<SendQueue&>;
};
// clang-format on

// What Receiver::poll() calls. Eligible: whether a message may come for the slot. Deliver: takes
// it.
template <typename F>
concept EligibleFunction = std::predicate<F&, uint32_t>;
template <typename F>
concept DeliverFunction = std::invocable<F&, uint32_t, const char*, uint32_t>;

}  // namespace verbena::channel
