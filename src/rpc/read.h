// READ: the requester fetches the response from the responder's memory itself ("msgproto" 2.3, 3).
//
//   requester                                      responder
//   ReadRequest{offset, bytes}, kept here
//   response slots, R x V  <-----READ-----         readable memory, registered
//     completion (wr_id = slot) -> user
//
// No message reaches the responder and no handler runs: the requester must know where the bytes
// lie, and they must lie there already. Every READ is signaled, since its completion is the
// arrival. The device carries out only so many READs of a queue pair at once
// (DeviceInfo::max_outstanding_reads) and queues the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/channel/channel_error.h"
#include "src/channel/completion_batch.h"
#include "src/channel/message_cost.h"
#include "src/channel/post_list.h"
#include "src/channel/slot_array.h"
#include "src/channel/work_request.h"
#include "src/connect/endpoint.h"
#include "src/memory/arena.h"
#include "src/rpc/design_cost.h"
#include "src/rpc/endpoint_memory.h"
#include "src/rpc/negotiation.h"
#include "src/rpc/requester_base.h"
#include "src/rpc/responder_base.h"
#include "verbena/data_path.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

class ReadRequester final : public RequesterBase {
 public:
  static Result<std::unique_ptr<ReadRequester>> create(const Device& device,
                                                       const ProtectionDomain& domain,
                                                       ControlConnection& control,
                                                       const RequesterOptions& options);
  // The part behind request_design().
  static Result<std::unique_ptr<ReadRequester>> connect(const Device& device,
                                                        const ProtectionDomain& domain,
                                                        ControlConnection& control,
                                                        const RequesterOptions& options,
                                                        const DesignAgreement& agreed);

  char* request_buffer(uint32_t slot) override {
    return reinterpret_cast<char*>(requests_.data()) + uint64_t{slot} * request_stride_bytes_;
  }

  PostResult try_post(uint32_t slot, uint32_t bytes) override {
    if (slot >= slots_.size() || bytes > request_max_bytes_ || bytes < sizeof(ReadRequest))
        [[unlikely]] {
      return misused(slot, bytes);
    }
    if (slots_[slot] != SlotState::kFree) [[unlikely]]
      return not_free(slot);
    ReadRequest read;
    copy_bytes(&read, request_buffer(slot), sizeof(read));
    if (read.bytes > responses_.shape.capacity_bytes || read.bytes > readable_bytes_ ||
        read.offset > readable_bytes_ - read.bytes) [[unlikely]] {
      return misused_read(read);
    }
    channel::SlotRequest& request = work_[slot];
    request.payload.length = read.bytes;
    request.request.num_sge = read.bytes != 0 ? 1 : 0;
    request.request.send_flags = IBV_SEND_SIGNALED;
    request.request.wr.rdma.remote_addr = readable_address_ + read.offset;
    slots_[slot] = SlotState::kWaiting;
    ++statistics_.requests;
    const int error = list_.push(request.request);
    if (error != 0) [[unlikely]]
      return fail(channel::ChannelError::post_failed(error), {});
    return PostResult::kPosted;
  }

  uint32_t poll(std::span<Response> out) override {
    uint32_t count = 0;
    poll_at_most(static_cast<uint32_t>(std::min<size_t>(out.size(), poll_batch_)),
                 [&](uint32_t slot, std::span<const char> bytes) {
                   out[count++] = {slot, bytes};
                 });
    return count;
  }

  template <typename OnResponse,
            typename =
                std::enable_if_t<std::is_invocable_v<OnResponse&, uint32_t, std::span<const char>>>>
  uint32_t poll(OnResponse&& on_response) {
    return poll_at_most(poll_batch_, on_response);
  }

  // Of the responder; ReadRequest::offset counts within.
  uint64_t readable_bytes() const { return readable_bytes_; }

  bool wait(int64_t timeout_ns) override;
  MarkLayout mark_layout() const override { return MarkLayout::kImmediate; }
  uint32_t response_max_bytes() const override { return responses_.shape.capacity_bytes; }

 private:
  static constexpr uint32_t kPollBatch = 16;

  ReadRequester(const Device& device, ControlConnection& control, const RequesterOptions& options,
                const DesignAgreement& agreed);
  QueuePair& queue_pair() override { return endpoint_->queue_pair; }
  Result<EndpointMemory> prepare(const Device& device, const ProtectionDomain& domain,
                                 const RequesterOptions& options);
  void start(const EndpointMemory& peer, const RequesterOptions& options);

  template <typename OnResponse>
  uint32_t poll_at_most(uint32_t limit, OnResponse&& on_response) {
    const int error = list_.flush();
    if (error != 0) [[unlikely]]
      fail(channel::ChannelError::post_failed(error), {});
    uint32_t found = 0;
    while (found < limit) {
      const ibv_wc* next = completions_.next();
      if (next == nullptr) break;
      const ibv_wc completion = *next;
      completions_.take();
      if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
        fail(channel::ChannelError::completed_with(completion.status), {});
        break;
      }
      const auto slot = static_cast<uint32_t>(completion.wr_id);
      if (slots_[slot] != SlotState::kWaiting) [[unlikely]]
        continue;  // failed meanwhile
      slots_[slot] = SlotState::kFree;
      ++found;
      statistics_.response_bytes += work_[slot].payload.length;
      on_response(slot, std::span<const char>(responses_.slot(slot), work_[slot].payload.length));
    }
    if (completions_.failed()) [[unlikely]]
      fail(channel::ChannelError::poll_failed(), {});
    statistics_.responses += found;
    if (watch_.due(found)) [[unlikely]]
      check_peer();
    return found;
  }

  PostResult misused(uint32_t slot, uint32_t bytes);
  PostResult misused_read(const ReadRequest& read);
  void check_peer() {
    if (status_.ok()) fail_if_peer_is_gone();
  }

  struct alignas(kCacheLineBytes) RequestLine {
    char bytes[kCacheLineBytes];
  };
  std::vector<RequestLine> requests_;
  uint64_t request_stride_bytes_;
  channel::SlotRequests work_;
  channel::PostList list_;
  channel::CompletionBatch completions_;
  channel::SlotArray responses_;
  uint64_t readable_address_ = 0;
  uint64_t readable_bytes_ = 0;
  std::optional<connect::Endpoint> endpoint_;
};

struct ReadConnection : ResponderConnection {
  using ResponderConnection::ResponderConnection;
  // Nothing can be done about a queue pair that cannot even fail.
  void stop() { static_cast<void>(endpoint->queue_pair.to_error()); }

  std::optional<connect::Endpoint> endpoint;
};

class ReadResponder final : public ResponderBase<ReadConnection> {
 public:
  static Result<std::unique_ptr<ReadResponder>> create(const Device& device,
                                                       const ProtectionDomain& domain,
                                                       const ResponderOptions& options);

  Status connect(ControlConnection& control) override;
  // Nothing to answer; checks that the requesters still live.
  bool wait(int64_t /*timeout_ns*/) override { return false; }
  uint32_t poll_with(RequestHandler /*handler*/) override {
    if (watch_.due(0)) [[unlikely]]
      check_peers();
    return 0;
  }

 private:
  ReadResponder(const Device& device, const ProtectionDomain& domain,
                const ResponderOptions& options)
      : ResponderBase(Protocol::kRead, MarkLayout::kImmediate, device, domain, options) {}
  Result<EndpointMemory> prepare(ReadConnection& connection);
  void check_peers();

  std::optional<RegisteredArena> own_memory_;
  std::optional<MemoryRegion> readable_;
  EndpointMemory memory_;  // what requesters learn of the readable memory
};

struct Read {
  static constexpr Protocol kProtocol = Protocol::kRead;
  static constexpr MarkLayout kLayout = MarkLayout::kImmediate;  // no WRITE, no mark
  using Requester = ReadRequester;
  using Responder = ReadResponder;

  // The request is the READ, the response what the responder's RNIC reads.
  static DesignCost cost(uint32_t /*request_bytes*/, uint32_t response_bytes,
                         const channel::CostInputs& requester,
                         const channel::CostInputs& /*responder*/) {
    DesignCost cost;
    cost.request.sender.work_requests = 1;
    cost.request.sender.doorbells = 1.0 / requester.post_batch;
    cost.response.sender.device_reads = 1;
    cost.response.receiver.completions = 1;
    cost.response.receiver.polled_lines = 1;
    cost.response.wire_bytes = response_bytes;
    return cost;
  }
};

}  // namespace verbena::rpc
