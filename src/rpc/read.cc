#include "src/rpc/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/channel/unmarked_sender.h"
#include "src/rpc/failure.h"
#include "src/rpc/requester_control.h"
#include "src/rpc/responder_control.h"
#include "src/rpc/sizing.h"

namespace verbena::rpc {
namespace {

constexpr uint32_t kMaxOutstandingReads = 16;

uint8_t outstanding_reads(const DeviceInfo& device) {
  return static_cast<uint8_t>(std::clamp(device.max_outstanding_reads, 1u, kMaxOutstandingReads));
}

}  // namespace

// --- requester ---

ReadRequester::ReadRequester(ControlConnection& control, const RequesterOptions& options)
    : request_max_bytes_(
          std::max(options.request_max_bytes, static_cast<uint32_t>(sizeof(ReadRequest)))),
      poll_batch_(options.poll_batch == 0 ? kPollBatch : options.poll_batch),
      states_(options.pending, SlotState::kFree),
      work_(options.pending),
      control_(&control),
      peer_("the responder " + control.peer_name()) {
  request_stride_bytes_ = round_up<uint64_t>(request_max_bytes_, kCacheLineBytes);
  requests_.resize(options.pending * request_stride_bytes_ / kCacheLineBytes);
}

Result<std::unique_ptr<ReadRequester>> ReadRequester::create(const Device& device,
                                                             const ProtectionDomain& domain,
                                                             ControlConnection& control,
                                                             const RequesterOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(
      const Terms agreed,
      propose_design(Protocol::kRead, MarkLayout::kImmediate, device, control, options));
  return connect(device, domain, control, options, agreed);
}

Result<std::unique_ptr<ReadRequester>> ReadRequester::connect(const Device& device,
                                                              const ProtectionDomain& domain,
                                                              ControlConnection& control,
                                                              const RequesterOptions& options,
                                                              const Terms& /*agreed*/) {
  std::unique_ptr<ReadRequester> requester(new ReadRequester(control, options));
  Result<EndpointTerms> mine = requester->prepare(device, domain, options);
  Endpoint* endpoint = requester->endpoint_ ? &*requester->endpoint_ : nullptr;
  VERBENA_ASSIGN_OR_RETURN(
      const EndpointTerms theirs,
      join(control, endpoint, std::move(mine), {.readable = true}, options.handshake_timeout_ns));
  requester->start(theirs, options);
  return requester;
}

Result<EndpointTerms> ReadRequester::prepare(const Device& device, const ProtectionDomain& domain,
                                             const RequesterOptions& options) {
  const channel::SlotShape shape = channel::unmarked_shape(options.response_max_bytes);
  EndpointPlan plan;
  plan.huge_pages = options.huge_pages;
  if (options.blocking) {
    VERBENA_RETURN_IF_ERROR(events_.enable(device));
    plan.send_events = events_.channel();
  }
  plan.arena_bytes = channel::SlotArray::size_bytes(shape, options.pending);
  VERBENA_ASSIGN_OR_RETURN(plan.send, size_send_queue(device.info(), options.pending,
                                                      /*signal_interval=*/1, options.post_batch));
  VERBENA_ASSIGN_OR_RETURN(endpoint_, make_endpoint(device, domain, plan));
  slots_ = channel::SlotArray::carve(endpoint_->arena, shape, options.pending);
  EndpointTerms mine;
  mine.max_outstanding_reads = outstanding_reads(device.info());
  return mine;
}

void ReadRequester::start(const EndpointTerms& peer, const RequesterOptions& options) {
  readable_address_ = peer.readable_address;
  readable_bytes_ = peer.readable_bytes;
  completions_ = channel::CompletionBatch(endpoint_->send_completions->get());
  list_ = channel::PostList(endpoint_->queue_pair.get(), options.post_batch);
  for (uint32_t slot = 0; slot < work_.size(); ++slot) {
    channel::set_read(work_[slot], reinterpret_cast<uint64_t>(slots_.slot(slot)),
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

PostResult ReadRequester::fail(const channel::ChannelError& error) {
  return fail(diagnose(error, {}, *control_, peer_));
}

// The first failure is the one to tell.
PostResult ReadRequester::fail(Status status) {
  if (status_.ok()) {
    status_ = std::move(status);
    states_.assign(states_.size(), SlotState::kFailed);
    static_cast<void>(endpoint_->queue_pair.to_error());
    control_->hang_up();
  }
  return PostResult::kFailed;
}

bool ReadRequester::wait(int64_t timeout_ns) {
  if (events_.channel() == nullptr || list_.flush() != 0 || !EventWait::arm(completions_.queue())) {
    return false;
  }
  if (completions_.next() == nullptr) events_.sleep_for(timeout_ns);
  watch_.hurry();
  return true;
}

void ReadRequester::close() { fail(connection_closed(peer_)); }

void ReadRequester::look_after_peer() {
  if (!status_.ok()) return;
  if (silence_.gone(statistics_.responses, [this] { return control_->peer_closed(); })) {
    fail(peer_is_gone(peer_));
  }
}

// --- responder ---

Result<std::unique_ptr<ReadResponder>> ReadResponder::create(const Device& device,
                                                             const ProtectionDomain& domain,
                                                             const ResponderOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_responder_options(options));
  std::unique_ptr<ReadResponder> responder(new ReadResponder(device, domain, options));
  EndpointTerms& terms = responder->terms_;
  if (options.readable.empty()) {
    const uint64_t size_bytes = std::max(options.response_max_bytes, 1u);
    VERBENA_ASSIGN_OR_RETURN(
        responder->own_memory_,
        RegisteredArena::create(domain, size_bytes,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    terms.readable_address = reinterpret_cast<uint64_t>(responder->own_memory_->data());
    terms.readable_bytes = size_bytes;
    terms.readable_rkey = responder->own_memory_->rkey();
  } else {
    VERBENA_ASSIGN_OR_RETURN(responder->readable_,
                             MemoryRegion::create(domain, options.readable.data(),
                                                  options.readable.size(), IBV_ACCESS_REMOTE_READ));
    terms.readable_address = reinterpret_cast<uint64_t>(options.readable.data());
    terms.readable_bytes = options.readable.size();
    terms.readable_rkey = responder->readable_->rkey();
  }
  terms.max_outstanding_reads = outstanding_reads(device.info());
  return responder;
}

Status ReadResponder::connect(ControlConnection& control) {
  VERBENA_ASSIGN_OR_RETURN(
      [[maybe_unused]] const Terms agreed,
      consider(control, offered_terms(Protocol::kRead, MarkLayout::kImmediate, *device_, options_),
               options_.handshake_timeout_ns));
  auto connection = std::make_unique<Connection>();
  connection->control = &control;
  connection->peer = "the requester " + control.peer_name();
  const Result<uint32_t> number = free_number(connections_, options_);
  Result<EndpointTerms> mine =
      number.ok() ? prepare(*connection, *number) : Result<EndpointTerms>(number.status());
  Endpoint* endpoint = connection->endpoint ? &*connection->endpoint : nullptr;
  VERBENA_ASSIGN_OR_RETURN(
      [[maybe_unused]] const EndpointTerms theirs,
      join(control, endpoint, std::move(mine), {}, options_.handshake_timeout_ns));
  if (*number == connections_.size()) connections_.emplace_back();
  connections_[*number] = std::move(connection);
  latest_ = *number;
  status_ = Status::ok_status();
  return Status::ok_status();
}

Result<EndpointTerms> ReadResponder::prepare(Connection& connection, uint32_t number) {
  EndpointPlan plan;
  plan.arena_bytes = kCacheLineBytes;  // nothing is sent from here
  plan.peer_reads = true;
  plan.send = {.depth_wrs = 1};
  VERBENA_ASSIGN_OR_RETURN(connection.endpoint, make_endpoint(*device_, *domain_, plan));
  EndpointTerms mine = terms_;
  mine.connection = number;
  return mine;
}

uint32_t ReadResponder::connections() const {
  return static_cast<uint32_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& connection) { return connection->status.ok(); }));
}

const Status& ReadResponder::status(uint32_t connection) const {
  VERBENA_ASSERT(connection < connections_.size());
  return connections_[connection]->status;
}

const ConnectionStatistics& ReadResponder::statistics(uint32_t connection) const {
  VERBENA_ASSERT(connection < connections_.size());
  return connections_[connection]->statistics;
}

void ReadResponder::look_after_peers() {
  for (const auto& connection : connections_) {
    if (!connection->status.ok()) continue;
    // READs leave no trace here: the control connection alone tells.
    if (!connection->silence.gone(0, [&] { return connection->control->peer_closed(); })) continue;
    connection->status = peer_is_gone(connection->peer);
    static_cast<void>(connection->endpoint->queue_pair.to_error());
    if (connections() == 0) status_ = connection->status;
  }
}

}  // namespace verbena::rpc
