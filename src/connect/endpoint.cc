#include "src/connect/endpoint.h"

#include <algorithm>
#include <utility>

namespace verbena::connect {
namespace {

constexpr uint32_t kMaxOutstandingReads = 16;

}  // namespace

bool wants_huge_pages(const Device& device, bool asked) {
  return asked && device.info().kind == DeviceKind::kHardware;
}

uint8_t outstanding_reads(const DeviceInfo& device) {
  return static_cast<uint8_t>(std::clamp(device.max_outstanding_reads, 1u, kMaxOutstandingReads));
}

Result<Endpoint> make_endpoint(const Device& device, const ProtectionDomain& domain,
                               const EndpointPlan& plan) {
  VERBENA_ASSIGN_OR_RETURN(
      RegisteredArena arena,
      RegisteredArena::create(domain, plan.arena_bytes, IBV_ACCESS_LOCAL_WRITE | plan.arena_access,
                              wants_huge_pages(device, plan.huge_pages), plan.arena_socket));

  // An error flushes every work request, signaled or not: there must be room for all of them.
  CompletionQueue own_send_completions;
  if (plan.shared_send_completions == nullptr) {
    VERBENA_ASSIGN_OR_RETURN(own_send_completions,
                             CompletionQueue::create(device, {.depth_cqes = plan.send_depth_wrs,
                                                              .channel = plan.send_events}));
  }
  const CompletionQueue* const send_completions = plan.shared_send_completions != nullptr
                                                      ? plan.shared_send_completions
                                                      : &own_send_completions;
  CompletionQueue receive_completions;
  if (plan.own_receives > 0) {
    VERBENA_ASSIGN_OR_RETURN(
        receive_completions,
        CompletionQueue::create(device, {.depth_cqes = plan.own_receives, .channel = plan.events}));
  }

  QueuePairOptions options;
  options.transport = plan.transport;
  options.send_cq = send_completions;
  options.recv_cq = plan.shared_completions != nullptr ? plan.shared_completions
                    : plan.own_receives > 0            ? &receive_completions
                                                       : send_completions;
  options.shared_receive_queue = plan.shared_receives;
  options.send_depth_wrs = plan.send_depth_wrs;
  options.recv_depth_wrs = plan.own_receives;
  options.max_send_sges = plan.max_send_sges;
  options.max_recv_sges = plan.max_receive_sges;
  options.max_inline_bytes = plan.inline_bytes;
  VERBENA_ASSIGN_OR_RETURN(QueuePair queue_pair, QueuePair::create(domain, options));
  VERBENA_RETURN_IF_ERROR(queue_pair.init(plan.arena_access | plan.other_access));
  Endpoint endpoint(std::move(arena), std::move(own_send_completions),
                    std::move(receive_completions), std::move(queue_pair));
  endpoint.max_outstanding_reads = plan.max_outstanding_reads;
  return endpoint;
}

}  // namespace verbena::connect
