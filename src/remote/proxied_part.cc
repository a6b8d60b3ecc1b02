// Control path.
#include "src/remote/proxied_part.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/runtime.h"
#include "src/remote/operation_queue.h"

namespace verbena::remote {

ProxiedPart::ProxiedPart(std::shared_ptr<SocketProxy> proxy, RegisteredArena arena,
                         const RemoteRegionOptions& options)
    : proxy_(std::move(proxy)),
      options_(options),
      arena_(std::move(arena)),
      value_stride_bytes_(round_up<uint64_t>(options.value_bytes, kCacheLineBytes)),
      // Beside the posted ones: one that is waited for, and kLeave.
      lane_(std::make_shared<SocketLane>(options.pending + 2)),
      operations_(OperationQueue::ring_size(options.pending)),
      pieces_((operations_.size() + 1) * options.max_entries) {
  proxy_->add(lane_);
}

Result<std::unique_ptr<ProxiedPart>> ProxiedPart::open(std::shared_ptr<SocketProxy> proxy,
                                                       const RemoteRegionOptions& options) {
  const uint64_t values_bytes = uint64_t{OperationQueue::ring_size(options.pending)} *
                                round_up<uint64_t>(options.value_bytes, kCacheLineBytes);
  VERBENA_ASSIGN_OR_RETURN(
      RegisteredArena arena,
      RegisteredArena::create(proxy->domain(), values_bytes + options.copy_bytes,
                              IBV_ACCESS_LOCAL_WRITE));
  return std::unique_ptr<ProxiedPart>(new ProxiedPart(std::move(proxy), std::move(arena), options));
}

ProxiedPart::~ProxiedPart() { leave(); }

void ProxiedPart::leave() {
  if (std::exchange(left_, true)) return;
  lane_->push({.kind = RequestKind::kLeave});
  Waiter waiter;
  while (lane_->without_result() > 0) {
    if (lane_->pull().outcome == Outcome::kNone) waiter.idle();
  }
}

std::vector<VectorEstimate> ProxiedPart::vector_estimates(bool reads, uint32_t entries,
                                                          uint32_t entry_bytes) const {
  return proxy_->region().vector_estimates(reads, entries, entry_bytes);
}

void ProxiedPart::refuse_copy(uint64_t bytes, uint32_t staging_bytes) {
  refusal_ =
      Status(StatusCode::kInvalidArgument,
             fmt::format(
                 "{} bytes for another socket do not fit the buffer of {} bytes that they are "
                 "copied through; raise value_bytes (copy_bytes for synchronous calls), or use one "
                 "LocalSlice that is registered with the protection domain of that socket",
                 bytes, staging_bytes));
}

void ProxiedPart::refuse_entries(size_t entries) {
  refusal_ =
      Status(StatusCode::kInvalidArgument,
             fmt::format("a vector has {} pieces, max_entries is {}; raise it, or use fewer pieces",
                         entries, options_.max_entries));
}

}  // namespace verbena::remote
