#include "src/rpc/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/channel/unmarked_sender.h"
#include "src/connect/sizing.h"
#include "src/rpc/requester_control.h"
#include "src/rpc/responder_control.h"

namespace verbena::rpc {

// --- requester ---

ReadRequester::ReadRequester(const Device& device, ControlConnection& control,
                             const RequesterOptions& options, const DesignAgreement& agreed)
    : RequesterBase(device, control, options, agreed,
                    std::max(options.request_max_bytes, static_cast<uint32_t>(sizeof(ReadRequest))),
                    kPollBatch),
      work_(options.pending) {
  request_stride_bytes_ = round_up<uint64_t>(request_max_bytes_, kCacheLineBytes);
  requests_.resize(options.pending * request_stride_bytes_ / kCacheLineBytes);
}

Result<std::unique_ptr<ReadRequester>> ReadRequester::create(const Device& device,
                                                             const ProtectionDomain& domain,
                                                             ControlConnection& control,
                                                             const RequesterOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(
      const DesignAgreement agreed,
      request_design(Protocol::kRead, MarkLayout::kImmediate, device, control, options));
  return connect(device, domain, control, options, agreed);
}

Result<std::unique_ptr<ReadRequester>> ReadRequester::connect(const Device& device,
                                                              const ProtectionDomain& domain,
                                                              ControlConnection& control,
                                                              const RequesterOptions& options,
                                                              const DesignAgreement& agreed) {
  std::unique_ptr<ReadRequester> requester(new ReadRequester(device, control, options, agreed));
  const Result<EndpointMemory> mine = [&]() -> Result<EndpointMemory> {
    VERBENA_RETURN_IF_ERROR(check_built_for(Transport::kRc, agreed.transport));
    return requester->prepare(device, domain, options);
  }();
  connect::Endpoint* endpoint = requester->endpoint_ ? &*requester->endpoint_ : nullptr;
  VERBENA_ASSIGN_OR_RETURN(
      const EndpointMemory theirs,
      join(control, endpoint, mine, {.readable = true}, options.handshake_timeout_ns));
  requester->start(theirs, options);
  requester->set_connected();
  return requester;
}

Result<EndpointMemory> ReadRequester::prepare(const Device& device, const ProtectionDomain& domain,
                                              const RequesterOptions& options) {
  const channel::SlotShape shape = channel::unmarked_shape(options.response_max_bytes);
  connect::EndpointPlan plan;
  plan.huge_pages = options.huge_pages;
  plan.max_outstanding_reads = connect::outstanding_reads(device.info());
  if (options.blocking) {
    VERBENA_RETURN_IF_ERROR(events_.enable(device));
    plan.send_events = events_.channel();
  }
  plan.arena_bytes = channel::SlotArray::size_bytes(shape, options.pending);
  VERBENA_ASSIGN_OR_RETURN(const channel::SendQueueSizes sizes,
                           connect::size_send_queue(device.info(), options.pending,
                                                    /*signal_interval=*/1, options.post_batch));
  plan.send_depth_wrs = sizes.depth_wrs;
  VERBENA_ASSIGN_OR_RETURN(endpoint_, connect::make_endpoint(device, domain, plan));
  responses_ = channel::SlotArray::carve(endpoint_->arena, shape, options.pending);
  return EndpointMemory{};
}

void ReadRequester::start(const EndpointMemory& peer, const RequesterOptions& options) {
  readable_address_ = peer.readable_address;
  readable_bytes_ = peer.readable_bytes;
  completions_ = channel::CompletionBatch(endpoint_->send_completions.get());
  list_ = channel::PostList(endpoint_->queue_pair.get(), options.post_batch);
  for (uint32_t slot = 0; slot < work_.size(); ++slot) {
    channel::set_read(work_[slot], reinterpret_cast<uint64_t>(responses_.slot(slot)),
                      endpoint_->arena.lkey(), peer.readable_rkey, slot);
  }
}

PostResult ReadRequester::misused(uint32_t slot, uint32_t bytes) {
  if (slot < pending() && bytes < sizeof(ReadRequest)) {
    return fail(Status(StatusCode::kInvalidArgument,
                       fmt::format("a READ request of {} bytes was posted; it is a ReadRequest of "
                                   "{} bytes",
                                   bytes, sizeof(ReadRequest))));
  }
  return fail(misused_post(slot, bytes, pending(), request_max_bytes_));
}

PostResult ReadRequester::misused_read(const ReadRequest& read) {
  return fail(Status(StatusCode::kInvalidArgument,
                     fmt::format("a READ of {} bytes at offset {} was posted; the responder offers "
                                 "{} bytes, a response slot holds {}",
                                 read.bytes, read.offset, readable_bytes_, response_max_bytes())));
}

bool ReadRequester::wait(int64_t timeout_ns) {
  if (events_.channel() == nullptr || list_.flush() != 0 ||
      !connect::EventWait::arm(completions_.queue())) {
    return false;
  }
  if (completions_.next() == nullptr) events_.sleep_for(timeout_ns);
  watch_.hurry();
  return true;
}

// --- responder ---

Result<std::unique_ptr<ReadResponder>> ReadResponder::create(const Device& device,
                                                             const ProtectionDomain& domain,
                                                             const ResponderOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_responder_options(options));
  std::unique_ptr<ReadResponder> responder(new ReadResponder(device, domain, options));
  EndpointMemory& memory = responder->memory_;
  if (options.readable.empty()) {
    const uint64_t size_bytes = std::max(options.response_max_bytes, 1u);
    VERBENA_ASSIGN_OR_RETURN(
        responder->own_memory_,
        RegisteredArena::create(domain, size_bytes,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    memory.readable_address = reinterpret_cast<uint64_t>(responder->own_memory_->data());
    memory.readable_bytes = size_bytes;
    memory.readable_rkey = responder->own_memory_->rkey();
  } else {
    VERBENA_ASSIGN_OR_RETURN(responder->readable_,
                             MemoryRegion::create(domain, options.readable.data(),
                                                  options.readable.size(), IBV_ACCESS_REMOTE_READ));
    memory.readable_address = reinterpret_cast<uint64_t>(options.readable.data());
    memory.readable_bytes = options.readable.size();
    memory.readable_rkey = responder->readable_->rkey();
  }
  return responder;
}

Status ReadResponder::connect(ControlConnection& control) {
  VERBENA_ASSIGN_OR_RETURN(
      [[maybe_unused]] const DesignRequest agreed,
      accept_design(control,
                    offered_design(Protocol::kRead, MarkLayout::kImmediate, *device_, options_),
                    options_.handshake_timeout_ns));
  auto connection = std::make_unique<ReadConnection>(control);
  const Result<EndpointMemory> mine = prepare(*connection);
  connect::Endpoint* endpoint = connection->endpoint ? &*connection->endpoint : nullptr;
  VERBENA_RETURN_IF_ERROR(
      join(control, endpoint, mine, {}, options_.handshake_timeout_ns).status());
  add(std::move(connection));
  return Status::ok_status();
}

Result<EndpointMemory> ReadResponder::prepare(ReadConnection& connection) {
  VERBENA_ASSIGN_OR_RETURN(connection.number, free_number());
  connect::EndpointPlan plan;
  plan.arena_bytes = kCacheLineBytes;  // nothing is sent from here
  plan.other_access = IBV_ACCESS_REMOTE_READ;
  plan.send_depth_wrs = 1;
  plan.max_outstanding_reads = connect::outstanding_reads(device_->info());
  VERBENA_ASSIGN_OR_RETURN(connection.endpoint, connect::make_endpoint(*device_, *domain_, plan));
  EndpointMemory mine = memory_;
  mine.connection = connection.number;
  return mine;
}

// READs leave no trace here: the control connection alone tells.
void ReadResponder::check_peers() {
  // Backwards: ending one takes it out of the list.
  for (size_t i = alive_.size(); i-- > 0;) {
    ReadConnection& connection = *alive_[i];
    if (peer_is_gone(connection)) end(connection, connect::peer_is_gone(connection.peer()));
  }
  ended_.clear();
}

}  // namespace verbena::rpc
