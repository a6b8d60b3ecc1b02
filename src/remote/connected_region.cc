// Control path, and what is told when something goes wrong.
#include "src/remote/connected_region.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/connect/exchange.h"
#include "src/connect/failure.h"
#include "src/connect/sizing.h"
#include "src/memory/arena.h"
#include "src/remote/layer.h"

namespace verbena::remote {
namespace {

constexpr uint32_t kMaxPostBatch = 256;
constexpr uint32_t kMaxValueBytes = 1u << 20;
constexpr uint32_t kMaxEntries = 1024;
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxCopyBytes = 16u << 20;

Status check_range(const char* option, uint64_t asked, uint64_t least, uint64_t most) {
  if (asked >= least && asked <= most) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} is {}; choose {} to {}", option, asked, least, most));
}

}  // namespace

Status check(const RemoteRegionOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_range("pending", options.pending, 1, kMaxPending));
  VERBENA_RETURN_IF_ERROR(
      check_range("value_bytes", options.value_bytes, sizeof(uint64_t), kMaxValueBytes));
  VERBENA_RETURN_IF_ERROR(
      check_range("copy_bytes", options.copy_bytes, sizeof(uint64_t), kMaxCopyBytes));
  VERBENA_RETURN_IF_ERROR(
      check_range("signal_interval", options.signal_interval, 1, options.pending));
  VERBENA_RETURN_IF_ERROR(check_range("max_entries", options.max_entries, 1, kMaxEntries));
  VERBENA_RETURN_IF_ERROR(check_range("threads", options.threads, 1, kMaxThreads));
  return check_range("post_batch", options.post_batch, 1, std::min(options.pending, kMaxPostBatch));
}

ConnectedRegion::ConnectedRegion(const Device& device, ControlConnection& control,
                                 const RemoteRegionOptions& options)
    : options_(options),
      control_(&control),
      peer_("the back-end " + control.peer_name()),
      device_(device.info()),
      value_stride_bytes_(round_up<uint64_t>(options.value_bytes, kCacheLineBytes)) {}

ConnectedRegion::~ConnectedRegion() {
  // The back-end has nothing on its way to this side: only the control connection tells it.
  if (endpoint_) control_->hang_up();
}

OperationQueueSizes ConnectedRegion::queue_sizes() const {
  return {.pending = options_.pending,
          .signal_interval = options_.signal_interval,
          .post_batch = options_.post_batch,
          .max_entries = options_.max_entries};
}

Status ConnectedRegion::prepare(const Device& device, const ProtectionDomain& domain) {
  const DeviceInfo& info = device.info();
  const uint64_t values_bytes = OperationQueue::ring_size(options_.pending) * value_stride_bytes_;
  connect::EndpointPlan plan;
  plan.arena_bytes = values_bytes + round_up<uint64_t>(options_.copy_bytes, kCacheLineBytes);
  plan.send_depth_wrs = OperationQueue::depth_wrs(queue_sizes());
  plan.max_send_sges = std::min(options_.max_entries, info.max_sges);
  plan.inline_bytes = connect::inline_limit_bytes(info, options_.inline_bytes);
  plan.max_outstanding_reads = connect::outstanding_reads(info);
  plan.huge_pages = options_.huge_pages;
  if (plan.send_depth_wrs > info.max_queue_pair_wrs) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format("{} pending operations need a send queue of {} work requests, {} has "
                    "{}; lower pending",
                    options_.pending, plan.send_depth_wrs, info.name, info.max_queue_pair_wrs));
  }
  VERBENA_ASSIGN_OR_RETURN(endpoint_, connect::make_endpoint(device, domain, plan));
  values_ = endpoint_->arena.carve(values_bytes);
  copy_buffer_ = endpoint_->arena.carve(options_.copy_bytes);
  inline_limit_bytes_ = std::min(options_.inline_bytes, endpoint_->queue_pair.max_inline_bytes());
  queue_ =
      OperationQueue(endpoint_->queue_pair.get(), endpoint_->send_completions.get(), queue_sizes());
  pieces_.resize((OperationQueue::ring_size(options_.pending) + 1) * options_.max_entries);
  if (options_.max_entries > 1) {
    vector_choice_ = VectorChoice(info, vector_workload());
  }
  return Status::ok_status();
}

Result<std::unique_ptr<ConnectedRegion>> ConnectedRegion::open(const Device& device,
                                                               const ProtectionDomain& domain,
                                                               ControlConnection& control,
                                                               const RemoteRegionOptions& options) {
  VERBENA_RETURN_IF_ERROR(check(options));
  std::unique_ptr<ConnectedRegion> region(new ConnectedRegion(device, control, options));
  const Status prepared = region->prepare(device, domain);
  Result<std::vector<std::byte>> mine = encode({.role = Role::kFrontEnd});
  if (!prepared.ok()) mine = prepared;
  VERBENA_RETURN_IF_ERROR(connect::join(
      control, kLayer, region->endpoint_ ? &*region->endpoint_ : nullptr, mine,
      [&](WireReader& theirs) { return decode(theirs, Role::kFrontEnd, &region->region_); },
      options.handshake_timeout_ns));
  region->atomics_ = region->device_.atomics && region->region_.atomics;
  return region;
}

void ConnectedRegion::close() { fail(connect::connection_closed(peer_)); }

void ConnectedRegion::fail(Status status) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  // Nothing can be done about a queue pair that cannot even fail.
  static_cast<void>(endpoint_->queue_pair.to_error());
  control_->hang_up();
}

void ConnectedRegion::fail(const channel::ChannelError& error) {
  fail(connect::diagnose(error, {}, *control_, peer_));
}

void ConnectedRegion::check_peer() {
  if (!status_.ok()) return;
  if (silence_.gone(answered_, [this] { return control_->peer_closed(); })) {
    fail(connect::peer_is_gone(peer_));
  }
}

Status ConnectedRegion::refusal(Access access, uint64_t offset_bytes, uint64_t bytes) const {
  if (bytes > region_.size_bytes || offset_bytes > region_.size_bytes - bytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} bytes at offset {} are not all inside of the region of {} "
                              "bytes; choose a smaller offset or size",
                              bytes, offset_bytes, region_.size_bytes));
  }
  if (!region_.writable) {
    return Status(StatusCode::kPermissionDenied, fmt::format("{} lets its region be read only; set "
                                                             "ExposedRegionOptions::writable there",
                                                             peer_));
  }
  if (!atomics_) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} has no atomics; use READ and WRITE, or another device",
                              device_.atomics ? "the device of " + peer_ : device_.name));
  }
  VERBENA_ASSERT(access == Access::kAtomic);
  const uint64_t first_aligned = (0 - region_.address) % sizeof(uint64_t);
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("an atomic at offset {} is not aligned: choose {}a multiple of 8", offset_bytes,
                  first_aligned == 0 ? "" : fmt::format("{} more than ", first_aligned)));
}

Status ConnectedRegion::refusal(const LocalSlice& slice) {
  if (slice.memory == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "a LocalSlice names no memory; set LocalSlice::memory to a MemoryRegion");
  }
  if (slice.size_bytes > kMaxTransferBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a LocalSlice of {} bytes is longer than a transfer, {} bytes; "
                              "transfer it in parts",
                              slice.size_bytes, kMaxTransferBytes));
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("a LocalSlice of {} bytes at offset {} is not all inside of its "
                            "registered memory of {} bytes",
                            slice.size_bytes, slice.offset_bytes, slice.memory->length_bytes()));
}

void ConnectedRegion::refuse_value(uint64_t bytes) {
  refusal_ = Status(StatusCode::kInvalidArgument,
                    fmt::format("a value of {} bytes was posted, value_bytes is {}; raise it, or "
                                "register the memory and use a LocalSlice",
                                bytes, options_.value_bytes));
}

void ConnectedRegion::refuse_vector(const Vector& vector, uint64_t entries,
                                    uint32_t staging_bytes) {
  if (entries > options_.max_entries) {
    refusal_ = Status(StatusCode::kInvalidArgument,
                      fmt::format("a vector has {} pieces, max_entries is {}; raise it, or use "
                                  "fewer pieces",
                                  entries, options_.max_entries));
  } else if (vector.total_bytes > kMaxTransferBytes) {
    refusal_ = Status(StatusCode::kInvalidArgument,
                      fmt::format("a vector of {} bytes is longer than a transfer, {} bytes; "
                                  "transfer it in parts",
                                  vector.total_bytes, kMaxTransferBytes));
  } else if (vector.method == VectorMethod::kSp) {
    refusal_ = Status(StatusCode::kInvalidArgument,
                      fmt::format("a vector of {} bytes does not fit the buffer of {} bytes that "
                                  "sp copies through; raise value_bytes (copy_bytes for readv() "
                                  "and writev()), or take sgl or doorbell",
                                  vector.total_bytes, staging_bytes));
  } else {
    refusal_ = Status(StatusCode::kInvalidArgument,
                      fmt::format("{} pieces are more than the {} entries that {} takes in a "
                                  "gather list; take sp or doorbell, or fewer pieces",
                                  vector.pieces.size(), device_.max_sges, device_.name));
  }
}

VectorWorkload ConnectedRegion::vector_workload() const {
  return {.pending = options_.pending,
          .threads = options_.threads,
          .staging_bytes = options_.value_bytes,
          .inline_bytes = options_.inline_bytes,
          .signal_interval = options_.signal_interval};
}

std::vector<VectorEstimate> ConnectedRegion::vector_estimates(bool reads, uint32_t entries,
                                                              uint32_t entry_bytes) const {
  VectorWorkload workload = vector_workload();
  workload.reads = reads;
  workload.entries = entries;
  workload.entry_bytes = entry_bytes;
  return estimate_vector_methods(device_, workload, VectorChoice::rounded(workload));
}

}  // namespace verbena::remote

namespace verbena {

Result<std::unique_ptr<RemoteRegion>> open_region(const Device& device,
                                                  const ProtectionDomain& domain,
                                                  ControlConnection& control,
                                                  const RemoteRegionOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(std::unique_ptr<RemoteRegion> region,
                           remote::ConnectedRegion::open(device, domain, control, options));
  return region;
}

}  // namespace verbena
