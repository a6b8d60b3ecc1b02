// One side's end of a connection: an outgoing channel's sender and an incoming channel's receiver
// on one queue pair. A requester sends requests and receives responses; a responder the other way
// round. Its slots lie in one arena: those of the outgoing messages first, then those (or the
// receive buffers) of the incoming ones ("msgproto" 4: R times L, then R times V).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "src/channel/channel.h"
#include "src/channel/completion_receiver.h"
#include "src/channel/dense_channel.h"
#include "src/connect/endpoint.h"
#include "src/connect/sizing.h"
#include "src/rpc/endpoint_memory.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::rpc {

struct EndOptions {
  uint32_t outgoing_max_bytes = 0;
  uint32_t incoming_max_bytes = 0;
  uint32_t pending = 0;
  uint32_t inline_bytes = 0;
  uint32_t signal_interval = 0;
  uint32_t post_batch = 1;
  uint32_t connection = 0;  // number of the connection on this side
  // kUd: how many share the end and its queue pair, each with its own slots; and how many receives
  // these have (0: enough, or as many as the device has).
  uint32_t sharers = 1;
  uint32_t receive_depth = 0;
  // kUd: what is longer than agreed is received, too, and then refused. Without it, it fails the
  // queue pair.
  bool receives_any_length = false;
  // Where incoming messages consume receives that connections share.
  const SharedReceiveQueue* shared_receives = nullptr;
  const CompletionQueue* shared_completions = nullptr;
  // Where incoming messages set a byte in an array that connections share: this connection's part.
  char* shared_notifications = nullptr;
  uint32_t shared_notifications_rkey = 0;
  const CompletionChannel* events = nullptr;
  bool huge_pages = false;
  bool receive_slack = true;  // of its own
};

struct EndSizes {
  channel::SendQueueSizes sends;
  channel::ReceivePoolSizes receives;  // of its own
  uint64_t arena_bytes = 0;
  uint32_t notifications_bytes = 0;  // of the arena
};

// In place of a receiver: where the messages land, if they are written.
struct NoReceiver {
  channel::SlotArray slots;
};
template <typename Channel, bool kHasReceiver>
struct ReceiverOf {
  using Type = typename Channel::Receiver;
};
template <typename Channel>
struct ReceiverOf<Channel, false> {
  using Type = NoReceiver;
};

Status receives_refused(int error);

// kSharedReceives: messages that consume receives take them from a queue that connections share.
// Its owner receives them; there is no receiver here.
template <channel::MessageChannel Outgoing, channel::MessageChannel Incoming, bool kSharedReceives>
class ConnectionEnd {
 public:
  static constexpr bool kHasReceiver = !(kSharedReceives && Incoming::kConsumesReceives);
  static constexpr bool kOwnReceives = kHasReceiver && Incoming::kConsumesReceives;
  static constexpr bool kOwnBuffers = kOwnReceives && !Incoming::kWritesSlots;
  using Sender = typename Outgoing::Sender;
  using Receiver = typename ReceiverOf<Incoming, kHasReceiver>::Type;

  // How large everything on this side is; pure.
  static Result<EndSizes> size(const DeviceInfo& info, const EndOptions& options) {
    EndSizes sizes;
    VERBENA_ASSIGN_OR_RETURN(
        sizes.sends, connect::size_send_queue(info, options.pending, options.signal_interval,
                                              options.post_batch, Outgoing::kRequestsPerMessage));
    if (kOwnReceives) {
      VERBENA_ASSIGN_OR_RETURN(
          sizes.receives,
          connect::size_receive_queue(info.max_queue_pair_wrs, "receive queue", options.pending,
                                      options.receive_slack ? 0 : options.pending,
                                      options.incoming_max_bytes));
    }
    sizes.arena_bytes = channel::SlotArray::size_bytes(Outgoing::shape(options.outgoing_max_bytes),
                                                       options.pending);
    if (Incoming::kWritesSlots) {
      sizes.arena_bytes += channel::SlotArray::size_bytes(
          Incoming::shape(options.incoming_max_bytes), options.pending);
    }
    if (kOwnBuffers) {
      sizes.arena_bytes +=
          channel::ReceiveBuffers::size_bytes(options.incoming_max_bytes, sizes.receives.receives);
    }
    if (Incoming::kNotifies) {
      sizes.notifications_bytes = channel::NotificationArray::stride_bytes(options.pending);
      sizes.arena_bytes += round_up<uint64_t>(sizes.notifications_bytes, kCacheLineBytes);
    }
    return sizes;
  }

  // Makes everything on this side, up to posted receives.
  Result<EndpointMemory> prepare(const Device& device, const ProtectionDomain& domain,
                                 const EndOptions& options) {
    const DeviceInfo& info = device.info();
    const channel::SlotShape outgoing_shape = Outgoing::shape(options.outgoing_max_bytes);
    const channel::SlotShape incoming_shape = Incoming::shape(options.incoming_max_bytes);
    VERBENA_ASSIGN_OR_RETURN(const EndSizes sizes, size(info, options));

    connect::EndpointPlan plan;
    plan.arena_bytes = sizes.arena_bytes;
    plan.arena_access = Incoming::kWritesSlots ? IBV_ACCESS_REMOTE_WRITE : 0;
    plan.send_depth_wrs = sizes.sends.depth_wrs;
    plan.inline_bytes = connect::inline_limit_bytes(info, options.inline_bytes);
    plan.own_receives = sizes.receives.receives;
    plan.shared_receives = options.shared_receives;
    plan.shared_completions = options.shared_completions;
    plan.events = options.events;
    plan.huge_pages = options.huge_pages;
    VERBENA_ASSIGN_OR_RETURN(endpoint_, connect::make_endpoint(device, domain, plan));

    RegisteredArena& arena = endpoint_->arena;
    sending_ = std::make_unique<channel::SenderSetup>();
    sending_->slots = channel::SlotArray::carve(arena, outgoing_shape, options.pending);
    sending_->lkey = arena.lkey();
    sending_->inline_limit_bytes = plan.inline_bytes;
    sending_->queue_pair = endpoint_->queue_pair.get();
    sending_->send_completions = endpoint_->send_completions.get();
    sending_->sizes = sizes.sends;
    channel::SlotArray incoming{nullptr, incoming_shape, options.pending};
    EndpointMemory mine;
    mine.connection = options.connection;
    if (Incoming::kWritesSlots) {
      incoming = channel::SlotArray::carve(arena, incoming_shape, options.pending);
      mine.slots_address = reinterpret_cast<uint64_t>(incoming.base);
      mine.slots_bytes = incoming.size_bytes();
      mine.slots_rkey = arena.rkey();
    }
    char* notifications = options.shared_notifications;
    if constexpr (Incoming::kNotifies) {
      mine.notifications_rkey = options.shared_notifications_rkey;
      if (notifications == nullptr) {
        notifications = arena.carve(sizes.notifications_bytes);
        mine.notifications_rkey = arena.rkey();
      }
      mine.notifications_address = reinterpret_cast<uint64_t>(notifications);
      mine.notifications_bytes = options.pending;
    }
    if constexpr (kHasReceiver) {
      channel::ReceiverSetup setup;
      setup.slots = incoming;
      setup.notifications = notifications;
      setup.queue_pair = endpoint_->queue_pair.get();
      setup.receives = sizes.receives;
      if (kOwnReceives) setup.receive_completions = endpoint_->receive_completions.get();
      if (kOwnBuffers) {
        setup.buffers.buffer_bytes = options.incoming_max_bytes;
        setup.buffers.lkey = arena.lkey();
        setup.buffers.base = arena.carve(channel::ReceiveBuffers::size_bytes(
            options.incoming_max_bytes, sizes.receives.receives));
      }
      receiver_ = Receiver(setup);
      const int error = receiver_.post_receives();
      if (error != 0) return receives_refused(error);
    } else {
      receiver_.slots = incoming;
    }
    return mine;
  }

  // What the peer's endpoint must have for the outgoing messages; until start(). Of an end that
  // could not be prepared, nothing.
  EndpointNeeds needs() const {
    EndpointNeeds needs;
    if (sending_ == nullptr) return needs;
    if (Outgoing::kWritesSlots) needs.slots_bytes = sending_->slots.size_bytes();
    if (Outgoing::kNotifies) needs.notifications_bytes = sending_->slots.count;
    return needs;
  }

  // The peer's side is known: messages can be sent.
  void start(const EndpointMemory& peer) {
    sending_->remote = {peer.slots_address, peer.slots_rkey};
    sending_->remote_notifications = {peer.notifications_address, peer.notifications_rkey};
    sending_->connection = peer.connection;
    sender_ = Sender(*sending_);
    sending_.reset();
  }

  Sender& sender() { return sender_; }
  Receiver& receiver() { return receiver_; }
  // Where incoming messages land that somebody else receives.
  const channel::SlotArray& incoming() const { return receiver_.slots; }
  connect::Endpoint* endpoint() { return endpoint_ ? &*endpoint_ : nullptr; }
  QueuePair& queue_pair() { return endpoint_->queue_pair; }

 private:
  Sender sender_;
  Receiver receiver_;
  std::unique_ptr<channel::SenderSetup> sending_;  // from prepare() to start()
  std::optional<connect::Endpoint> endpoint_;
};

}  // namespace verbena::rpc
