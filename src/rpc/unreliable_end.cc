#include "src/rpc/unreliable_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "src/channel/unmarked_sender.h"
#include "src/connect/sizing.h"
#include "verbena/rpc.h"

namespace verbena::rpc {
namespace {

// Receives beyond those of the pending messages, for what comes twice. What finds none is lost, and
// sent again.
constexpr uint32_t kMostDuplicates = 8;

// In front of the first receive buffer: so that messages begin with a cache line.
uint64_t shift_bytes(Transport transport) {
  const uint32_t header_bytes = UnreliableEnd::header_bytes(transport);
  return round_up<uint64_t>(header_bytes, kCacheLineBytes) - header_bytes;
}

bool writes(Protocol protocol) { return protocol == Protocol::kWriteWrite; }

// Of a receive: those of WRITEs take the immediate alone.
uint32_t buffer_bytes(Transport transport, Protocol protocol, const EndOptions& options) {
  if (writes(protocol)) return 0;
  return options.incoming_max_bytes + UnreliableEnd::header_bytes(transport);
}

// Of the longest datagram that there is, what is beyond a receive's buffer.
uint32_t excess_bytes(const EndOptions& options) {
  constexpr uint32_t kMostDatagramBytes = 4096;  // the largest MTU of verbs
  if (!options.receives_any_length || options.incoming_max_bytes >= kMostDatagramBytes) return 0;
  return kMostDatagramBytes - options.incoming_max_bytes;
}

// The slots of an end that connections share: a connection's begin at a power of two times its
// number, so that their numbers are bits of a message's immediate.
uint32_t slots_of(const EndOptions& options) {
  return options.sharers == 1 ? options.pending : options.sharers * std::bit_ceil(options.pending);
}

// Sends of a shared end that may be under way: others wait in the receive queue meanwhile.
constexpr uint32_t kMostSharedSends = 1024;

Status check_datagrams(const DeviceInfo& info, const EndOptions& options) {
  const uint32_t larger = std::max(options.outgoing_max_bytes, options.incoming_max_bytes);
  if (larger <= info.active_mtu_bytes) return Status::ok_status();
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("messages of {} bytes are asked for, a datagram carries at most {} (the "
                  "MTU of the port of {}); lower the size of requests or responses, or "
                  "use the transport uc or rc",
                  larger, info.active_mtu_bytes, info.name));
}

}  // namespace

Result<UnreliableSizes> size_unreliable_end(Transport transport, Protocol protocol,
                                            const DeviceInfo& info, const EndOptions& options) {
  if (transport == Transport::kUd) VERBENA_RETURN_IF_ERROR(check_datagrams(info, options));
  const bool shared = options.sharers > 1;
  VERBENA_ASSERT(!shared || (transport == Transport::kUd && options.receive_slack));
  const uint64_t messages = uint64_t{options.sharers} * options.pending;
  if (uint64_t{options.sharers} * std::bit_ceil(options.pending) > kMaxQueuePairSlots) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("{} connections with {} pending requests each are more than the {} "
                              "slots of a queue pair that they share; lower max_connections or "
                              "pending, or use ReceiveQueues::kPerConnection",
                              options.sharers, options.pending, kMaxQueuePairSlots));
  }
  UnreliableSizes sizes;
  const auto sends = static_cast<uint32_t>(
      shared ? std::min<uint64_t>({messages, kMostSharedSends,
                                   std::max(info.max_queue_pair_wrs / 2, options.pending)})
             : messages);
  VERBENA_ASSIGN_OR_RETURN(
      sizes.sends,
      connect::size_send_queue(info, sends, options.signal_interval, options.post_batch));
  const auto arrivals =
      static_cast<uint32_t>(messages + std::min<uint64_t>(messages, kMostDuplicates));
  uint32_t depth = options.receive_slack ? options.receive_depth : options.pending;
  // Where they run out, a message is lost, and sent again.
  if (shared && depth == 0 && arrivals > info.max_queue_pair_wrs / 2) {
    depth = info.max_queue_pair_wrs;
  }
  VERBENA_ASSIGN_OR_RETURN(sizes.receives, connect::size_receive_queue(
                                               info.max_queue_pair_wrs, "receive queue", arrivals,
                                               depth, buffer_bytes(transport, protocol, options)));
  sizes.arena_bytes = channel::SlotArray::size_bytes(
                          channel::unmarked_shape(options.outgoing_max_bytes), slots_of(options)) +
                      round_up<uint64_t>(shift_bytes(transport), kCacheLineBytes) +
                      channel::ReceiveBuffers::size_bytes(
                          buffer_bytes(transport, protocol, options), sizes.receives.receives) +
                      round_up<uint64_t>(excess_bytes(options), kCacheLineBytes);
  if (writes(protocol)) {
    sizes.arena_bytes += channel::SlotArray::size_bytes(
        channel::unmarked_shape(options.incoming_max_bytes), options.pending);
  }
  return sizes;
}

Result<EndpointMemory> UnreliableEnd::prepare(Transport transport, Protocol protocol,
                                              const Device& device, const ProtectionDomain& domain,
                                              const EndOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const UnreliableSizes sizes,
                           size_unreliable_end(transport, protocol, device.info(), options));
  writes_ = writes(protocol);
  connect::EndpointPlan plan;
  plan.transport = transport;
  plan.arena_bytes = sizes.arena_bytes;
  plan.arena_access = writes_ ? IBV_ACCESS_REMOTE_WRITE : 0;
  plan.send_depth_wrs = sizes.sends.depth_wrs;
  plan.inline_bytes = connect::inline_limit_bytes(device.info(), options.inline_bytes);
  plan.own_receives = sizes.receives.receives;
  plan.max_receive_sges = excess_bytes(options) > 0 ? 2 : 1;
  plan.events = options.events;
  plan.huge_pages = options.huge_pages;
  VERBENA_ASSIGN_OR_RETURN(endpoint_, connect::make_endpoint(device, domain, plan));

  RegisteredArena& arena = endpoint_->arena;
  send_sizes_ = sizes.sends;
  generations_ = SlotGenerations(slots_of(options));
  inline_limit_bytes_ = std::min(plan.inline_bytes, endpoint_->queue_pair.max_inline_bytes());
  incoming_max_bytes_ = options.incoming_max_bytes;
  header_bytes_ = header_bytes(transport);
  outgoing_ = channel::SlotArray::carve(arena, channel::unmarked_shape(options.outgoing_max_bytes),
                                        slots_of(options));
  channel::ReceiveBuffers buffers;
  buffers.buffer_bytes = buffer_bytes(transport, protocol, options);
  buffers.lkey = arena.lkey();
  buffers.base = arena.carve(round_up<uint64_t>(shift_bytes(transport), kCacheLineBytes) +
                             channel::ReceiveBuffers::size_bytes(buffers.buffer_bytes,
                                                                 sizes.receives.receives)) +
                 shift_bytes(transport);
  buffers.excess_bytes = excess_bytes(options);
  if (buffers.excess_bytes > 0) {
    buffers.excess = arena.carve(round_up<uint64_t>(buffers.excess_bytes, kCacheLineBytes));
  }
  arrivals_ = channel::CompletionBatch(endpoint_->receive_completions.get());
  receives_ = {{endpoint_->queue_pair.get()}, buffers, sizes.receives};
  const int error = receives_.post_all();
  if (error != 0) return receives_refused(error);
  EndpointMemory mine;
  mine.connection = options.connection;
  mine.queue_pair_slots = outgoing_.count;
  if (writes_) {
    incoming_ = channel::SlotArray::carve(
        arena, channel::unmarked_shape(options.incoming_max_bytes), options.pending);
    mine.slots_address = reinterpret_cast<uint64_t>(incoming_.base);
    mine.slots_bytes = incoming_.size_bytes();
    mine.slots_rkey = arena.rkey();
  }
  return mine;
}

void UnreliableEnd::make_requests(const EndpointMemory& peer) {
  requests_ = channel::SlotRequests(outgoing_.count);
  for (uint32_t slot = 0; slot < outgoing_.count; ++slot) {
    channel::SlotRequest& request = requests_[slot];
    const auto address = reinterpret_cast<uint64_t>(outgoing_.slot(slot));
    const uint32_t lkey = endpoint_->arena.lkey();
    if (writes_) {
      const uint64_t offset_bytes = uint64_t{slot} * outgoing_.shape.slot_bytes;
      channel::set_write_with_immediate(request, address, lkey, peer.slots_address + offset_bytes,
                                        peer.slots_rkey, 0);
    } else {
      channel::set_send(request, address, lkey, 0);
    }
  }
  queue_ = channel::SendQueue(endpoint_->queue_pair.get(), endpoint_->send_completions.get(),
                              send_sizes_);
}

void UnreliableEnd::start(const EndpointMemory& peer) {
  generations_ = SlotGenerations(peer.queue_pair_slots, peer.first_slot);
  make_requests(peer);
  if (header_bytes_ == 0) return;
  for (uint32_t slot = 0; slot < outgoing_.count; ++slot) {
    endpoint_->queue_pair.set_destination(requests_[slot].request);
  }
  peer_number_ = requests_.front().request.wr.ud.remote_qpn;
}

Status UnreliableEnd::start_shared() {
  make_requests({});
  return endpoint_->queue_pair.start_datagrams();
}

void UnreliableEnd::direct(uint32_t first_slot, uint32_t slots, const DatagramPeer& peer) {
  VERBENA_ASSERT(first_slot + slots <= outgoing_.count);
  for (uint32_t slot = first_slot; slot < first_slot + slots; ++slot) {
    peer.set_destination(requests_[slot].request);
  }
}

}  // namespace verbena::rpc
