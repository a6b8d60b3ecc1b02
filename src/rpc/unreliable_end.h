// One side's end of a connection over queue pairs that lose messages (unreliable.h):
// what ConnectionEnd is to reliable ones.
//
// Its slots lie in one arena: those of the outgoing messages first, then the receive buffers, or
// the slots that the peer writes to. The receives are the connection's own: what is sent again by
// one peer takes nobody else's. A responder's end of datagrams may also be that of all its
// connections (datagram_responder.h), which have a part of the slots each, and share the receives.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <bit>
#include <cstdint>
#include <optional>
#include <span>

#include "src/base/assert.h"
#include "src/channel/channel_error.h"
#include "src/channel/completion_batch.h"
#include "src/channel/receive_pool.h"
#include "src/channel/send_queue.h"
#include "src/channel/slot_array.h"
#include "src/channel/work_request.h"
#include "src/connect/endpoint.h"
#include "src/rpc/connection_end.h"
#include "src/rpc/endpoint_memory.h"
#include "verbena/device.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::rpc {

// What the immediate of a message says: its slot, counted over all slots of the responder's queue
// pair, and which of the slot's messages it is. Slots take as many bits as they need, so a
// generation comes again after 2^16 messages of a slot at the soonest, and after 2^28 with 16
// slots. Without a header, a datagram has its whole MTU for the message.
class SlotGenerations {
 public:
  SlotGenerations() = default;
  // Slots here are those from `first_slot` of the queue pair's `slots`.
  explicit SlotGenerations(uint32_t slots, uint32_t first_slot = 0)
      : slot_bits_(static_cast<uint32_t>(std::bit_width(slots - 1))), first_slot_(first_slot) {
    VERBENA_ASSERT(slots >= 1 && slots <= kMaxQueuePairSlots && first_slot < slots);
  }

  uint32_t immediate(uint32_t slot, uint32_t generation) const {
    VERBENA_DEBUG_ASSERT(first_slot_ + slot <= slot_mask() && generation <= last());
    return generation << slot_bits_ | (first_slot_ + slot);
  }
  // Of any peer's immediate; the slot may be none of those there are.
  uint32_t slot(uint32_t immediate) const { return (immediate & slot_mask()) - first_slot_; }
  uint32_t generation(uint32_t immediate) const { return immediate >> slot_bits_; }
  uint32_t next(uint32_t generation) const { return (generation + 1) & last(); }
  // The generation that any number stands for.
  uint32_t bounded(uint32_t number) const { return number & last(); }

 private:
  uint32_t slot_mask() const { return (1u << slot_bits_) - 1; }
  uint32_t last() const { return ~0u >> slot_bits_; }

  uint32_t slot_bits_ = 0;
  uint32_t first_slot_ = 0;
};

struct UnreliableSizes {
  channel::SendQueueSizes sends;
  channel::ReceivePoolSizes receives;
  uint64_t arena_bytes = 0;
};

// How large everything on a side is; pure. kInvalidArgument for messages that are larger than a
// datagram.
Result<UnreliableSizes> size_unreliable_end(Transport transport, Protocol protocol,
                                            const DeviceInfo& info, const EndOptions& options);

class UnreliableEnd {
 public:
  // What a receive has in front of the message: of datagrams, the global route header.
  static constexpr uint32_t header_bytes(Transport transport) {
    return transport == Transport::kUd ? sizeof(ibv_grh) : 0;
  }

  // Makes everything on this side, up to posted receives.
  Result<EndpointMemory> prepare(Transport transport, Protocol protocol, const Device& device,
                                 const ProtectionDomain& domain, const EndOptions& options);
  // What the peer's end must have for the outgoing messages.
  EndpointNeeds needs() const {
    return {.queue_pair_slots = outgoing_.count,
            .slots_bytes = writes_ ? outgoing_.size_bytes() : 0};
  }
  // The queue pair is connected to the peer's, whose memory this is: messages can be sent.
  void start(const EndpointMemory& peer);
  // An end that connections share: the queue pair goes up, and then messages of a connection's
  // slots can be sent once they are directed to its peer.
  Status start_shared();
  void direct(uint32_t first_slot, uint32_t slots, const DatagramPeer& peer);
  uint32_t slots() const { return outgoing_.count; }

  // --- sending ---

  char* payload(uint32_t slot) const { return outgoing_.slot(slot); }

  // Sends the first bytes of a slot as the message of a generation. Needs queue().has_room(); what
  // was sent of the slot before must have been flushed. False: see queue().error().
  bool post(uint32_t slot, uint32_t generation, uint32_t bytes) {
    VERBENA_DEBUG_ASSERT(slot < outgoing_.count && bytes <= outgoing_.shape.capacity_bytes);
    channel::SlotRequest& request = requests_[slot];
    channel::set_size_or_empty(request, bytes, inline_limit_bytes_);
    request.request.imm_data = htonl(generations_.immediate(slot, generation));
    return queue_.push(request.request);
  }

  channel::SendQueue& queue() { return queue_; }
  const SlotGenerations& generations() const { return generations_; }

  // --- receiving ---

  channel::CompletionBatch& arrivals() { return arrivals_; }
  // The message of a slot that has come with a receive; valid until the slot's next one, and until
  // the receive is given back.
  const char* message(uint64_t receive, uint32_t slot) const {
    return writes_ ? incoming_.slot(slot) : receives_.buffer(receive) + header_bytes_;
  }
  // The bytes of an arrival without a violation().
  std::span<const char> message(const ibv_wc& arrival, uint32_t slot) const {
    return {message(arrival.wr_id, slot), arrival.byte_len - header_bytes_};
  }
  void give_back(uint64_t receive) { receives_.give_back(receive); }
  // More than one poll needs to look at.
  uint32_t receives() const { return receives_.size(); }

  // Whether a completion without an error is of the peer. Who knows its number and its key can
  // send to a datagram queue pair.
  template <Transport kTransport>
  bool is_of_peer(const ibv_wc& completion) const {
    return kTransport != Transport::kUd || completion.src_qp == peer_number_;
  }
  // What the peer did wrong in a message of its own; null if nothing.
  template <Transport kTransport>
  const char* violation(const ibv_wc& completion) const {
    if (completion.opcode != (writes_ ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) ||
        (completion.wc_flags & IBV_WC_WITH_IMM) == 0)
      return "it sent with another verb than agreed";
    if (completion.byte_len < header_bytes(kTransport) ||
        completion.byte_len - header_bytes(kTransport) > incoming_max_bytes_)
      return "its message is larger than agreed";
    if (generations_.slot(ntohl(completion.imm_data)) >= outgoing_.count)
      return "its message names a slot that it does not have";
    return nullptr;
  }

  channel::ChannelError receive_error() const {
    return arrivals_.failed() ? channel::ChannelError::poll_failed() : receives_.error();
  }

  connect::Endpoint* endpoint() { return endpoint_ ? &*endpoint_ : nullptr; }
  QueuePair& queue_pair() { return endpoint_->queue_pair; }

 private:
  void make_requests(const EndpointMemory& peer);

  bool writes_ = false;  // messages travel by WRITE
  channel::SlotArray outgoing_;
  channel::SlotArray incoming_;  // with writes_
  channel::SlotRequests requests_;
  channel::SendQueue queue_;
  SlotGenerations generations_;
  uint32_t inline_limit_bytes_ = 0;
  uint32_t incoming_max_bytes_ = 0;
  uint32_t header_bytes_ = 0;
  uint32_t peer_number_ = 0;
  channel::CompletionBatch arrivals_;
  channel::ReceivePool<channel::OwnReceiveQueue> receives_;
  channel::SendQueueSizes send_sizes_;
  std::optional<connect::Endpoint> endpoint_;
};

}  // namespace verbena::rpc
