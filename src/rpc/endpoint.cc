#include "src/rpc/endpoint.h"

#include <algorithm>
#include <utility>

#include "src/base/assert.h"

namespace verbena::rpc {
namespace {

Result<std::unique_ptr<CompletionQueue>> make_completion_queue(const Device& device,
                                                               uint32_t depth_cqes,
                                                               const CompletionChannel* events) {
  VERBENA_ASSIGN_OR_RETURN(
      CompletionQueue queue,
      CompletionQueue::create(device, {.depth_cqes = depth_cqes, .channel = events}));
  return std::make_unique<CompletionQueue>(std::move(queue));
}

}  // namespace

bool wants_huge_pages(const Device& device, bool asked) {
  return asked && device.info().kind == DeviceKind::kHardware;
}

Result<Endpoint> make_endpoint(const Device& device, const ProtectionDomain& domain,
                               const EndpointPlan& plan) {
  unsigned arena_access = IBV_ACCESS_LOCAL_WRITE;
  if (plan.peer_writes) arena_access |= IBV_ACCESS_REMOTE_WRITE;
  VERBENA_ASSIGN_OR_RETURN(RegisteredArena arena,
                           RegisteredArena::create(domain, plan.arena_bytes, arena_access,
                                                   wants_huge_pages(device, plan.huge_pages)));

  // An error flushes every work request, signaled or not: there must be room for all of them.
  VERBENA_ASSIGN_OR_RETURN(auto send_completions,
                           make_completion_queue(device, plan.send.depth_wrs, plan.send_events));
  std::unique_ptr<CompletionQueue> receive_completions;
  if (plan.own_receives > 0) {
    VERBENA_ASSIGN_OR_RETURN(receive_completions,
                             make_completion_queue(device, plan.own_receives, plan.events));
  }

  QueuePairOptions options;
  options.send_cq = send_completions.get();
  options.recv_cq = plan.shared_completions != nullptr ? plan.shared_completions
                    : receive_completions != nullptr   ? receive_completions.get()
                                                       : send_completions.get();
  options.shared_receive_queue = plan.shared_receives;
  options.send_depth_wrs = plan.send.depth_wrs;
  options.recv_depth_wrs = plan.own_receives;
  options.max_inline_bytes = plan.inline_bytes;
  VERBENA_ASSIGN_OR_RETURN(QueuePair queue_pair, QueuePair::create(domain, options));
  unsigned remote_access = 0;
  if (plan.peer_writes) remote_access |= IBV_ACCESS_REMOTE_WRITE;
  if (plan.peer_reads) remote_access |= IBV_ACCESS_REMOTE_READ;
  VERBENA_RETURN_IF_ERROR(queue_pair.init(remote_access));
  return Endpoint{std::move(arena), std::move(send_completions), std::move(receive_completions),
                  std::move(queue_pair)};
}

Result<EndpointTerms> join(ControlConnection& control, Endpoint* endpoint,
                           Result<EndpointTerms> mine, const EndpointNeeds& needs,
                           int64_t timeout_ns) {
  if (mine.ok()) {
    VERBENA_ASSERT(endpoint != nullptr);
    Result<QueuePairAddress> address = endpoint->queue_pair.address();
    if (address.ok()) {
      mine->address = *address;
    } else {
      mine = address.status();
    }
  }
  VERBENA_ASSIGN_OR_RETURN(const EndpointTerms theirs,
                           exchange_endpoints(control, mine, timeout_ns));
  const Status connected = [&] {
    VERBENA_RETURN_IF_ERROR(check_endpoint(theirs, needs));
    ReliabilityOptions reliability;
    reliability.max_outstanding_reads =
        std::min(mine->max_outstanding_reads, theirs.max_outstanding_reads);
    return endpoint->queue_pair.connect(theirs.address, reliability);
  }();
  VERBENA_RETURN_IF_ERROR(confirm(control, connected, timeout_ns));
  return theirs;
}

}  // namespace verbena::rpc
