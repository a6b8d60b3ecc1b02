// Control path, and what is told when something goes wrong.
#include "log/writer.h"

#include <algorithm>
#include <string>

namespace verbena {
namespace log_app {
namespace {

constexpr uint32_t kMaxPending = 256;
constexpr uint32_t kMaxBatchBytes = 16u << 20;
constexpr uint32_t kMaxCopiedBytes = 1u << 20;  // of RemoteRegionOptions::value_bytes
// Reserve, two parts of a WRITE, two attempts to commit, and the floor.
constexpr uint32_t kOperationsOfBatch = 6;
constexpr uint32_t kFurtherOperations = 8;
constexpr uint32_t kPostBatch = 16;

Status check_range(const char* option, uint64_t asked, uint64_t least, uint64_t most) {
  if (asked >= least && asked <= most) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument, std::string(option) + " is " + std::to_string(asked) +
                                                  "; choose " + std::to_string(least) + " to " +
                                                  std::to_string(most));
}

uint32_t operations_of(const LogWriterOptions& options) {
  return options.pending * kOperationsOfBatch + kFurtherOperations;
}

Status check_options(const LogWriterOptions& options, const DeviceInfo& device) {
  VERBENA_RETURN_IF_ERROR(check_range("pending", options.pending, 1, kMaxPending));
  VERBENA_RETURN_IF_ERROR(check_range("max_batch", options.max_batch, 1, kMaxRecords));
  VERBENA_RETURN_IF_ERROR(
      check_range("max_batch_bytes", options.max_batch_bytes, 1, kMaxBatchBytes));
  if (options.method == VectorMethod::kSgl && options.max_batch + 1 > device.max_sges) {
    return Status(StatusCode::kLimitExceeded,
                  "batches of " + std::to_string(options.max_batch) + " records take " +
                      std::to_string(options.max_batch + 1) + " gather entries, " + device.name +
                      " has " + std::to_string(device.max_sges) +
                      "; lower max_batch, or take another method");
  }
  // As many for each operation, one that is waited for, and one that asks for a completion.
  const uint64_t requests = uint64_t{operations_of(options) + 1} * (options.max_batch + 1) + 1;
  if (requests > device.max_queue_pair_wrs) {
    return Status(StatusCode::kLimitExceeded,
                  std::to_string(options.pending) + " pending batches of up to " +
                      std::to_string(options.max_batch) + " records need a send queue of " +
                      std::to_string(requests) + " work requests, " + device.name + " has " +
                      std::to_string(device.max_queue_pair_wrs) + "; lower pending or max_batch");
  }
  const uint32_t headers = headers_bytes(options.max_batch);
  if (options.method == VectorMethod::kSp && options.max_batch_bytes > kMaxCopiedBytes - headers) {
    return Status(StatusCode::kLimitExceeded,
                  "max_batch_bytes is " + std::to_string(options.max_batch_bytes) +
                      "; choose at most " + std::to_string(kMaxCopiedBytes - headers) +
                      " with method sp and batches of " + std::to_string(options.max_batch) +
                      " records, or take another method");
  }
  return Status::ok_status();
}

}  // namespace

Result<std::unique_ptr<LogWriter>> Writer::open(const Device& device,
                                                const ProtectionDomain& domain,
                                                std::span<ControlConnection* const> controls,
                                                const LogWriterOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_options(options, device.info()));
  std::unique_ptr<Writer> writer(new Writer(options));
  VERBENA_RETURN_IF_ERROR(writer->prepare(device, domain, controls));
  return std::unique_ptr<LogWriter>(std::move(writer));
}

Status Writer::prepare(const Device& device, const ProtectionDomain& domain,
                       std::span<ControlConnection* const> controls) {
  const bool stages =
      options_.method == VectorMethod::kSp || options_.method == VectorMethod::kAutomatic;
  const uint32_t pending = operations_of(options_);
  auto opened =
      open_log(device, domain, controls, Role::kWriter,
               {.pending = pending,
                // Longer batches take another way where kAutomatic chooses.
                .value_bytes = stages ? std::clamp(most_entry_bytes(), kPlaceBytes, kMaxCopiedBytes)
                                      : kPlaceBytes,
                .copy_bytes = sizeof(Control),
                .post_batch = std::min(pending, kPostBatch),
                .max_entries = options_.max_batch + 1,
                .handshake_timeout_ns = options_.handshake_timeout_ns});
  VERBENA_RETURN_IF_ERROR(opened.status());
  replicas_ = std::move(*opened);
  layout_ = replicas_.front().layout();
  VERBENA_RETURN_IF_ERROR(check_range("max_batch_bytes", options_.max_batch_bytes, 1,
                                      layout_.places() * kPlaceBytes / 8));
  staging_stride_bytes_ = uint64_t{places_of(most_entry_bytes())} * kPlaceBytes;
  auto pages = Pages::allocate(staging_stride_bytes_ * options_.pending);
  VERBENA_RETURN_IF_ERROR(pages.status());
  staging_ = std::move(*pages);
  auto memory =
      MemoryRegion::create(domain, staging_.data(), staging_.size_bytes(), IBV_ACCESS_LOCAL_WRITE);
  VERBENA_RETURN_IF_ERROR(memory.status());
  staging_memory_.emplace(std::move(*memory));
  batches_.resize(options_.pending);
  pieces_.resize(size_t{options_.pending} * (options_.max_batch + 1));
  cut_.resize(options_.max_batch + 1);
  expected_.resize(options_.pending * replicas_.size());
  sequencer_.emplace(*replicas_.front().region, RemotePointer<uint64_t>{kTailAt});
  refresh();
  return status_;
}

void Writer::refuse_batch(uint64_t records, uint64_t bytes) {
  refusal_ =
      Status(StatusCode::kInvalidArgument,
             "a batch of " + std::to_string(records) + " records and " + std::to_string(bytes) +
                 " bytes; give 1 to " + std::to_string(options_.max_batch) +
                 " records of at most " + std::to_string(options_.max_batch_bytes) +
                 " bytes together, or raise max_batch and max_batch_bytes");
}

void Writer::refuse_slice(const LocalSlice& slice) {
  refusal_ = Status(StatusCode::kInvalidArgument,
                    slice.memory == nullptr
                        ? std::string("a record has no registered memory; give its MemoryRegion")
                        : "a record of " + std::to_string(slice.size_bytes) + " bytes at " +
                              std::to_string(slice.offset_bytes) +
                              " is not inside of its registered memory of " +
                              std::to_string(slice.memory->length_bytes()) + " bytes");
}

void Writer::refuse_full(uint32_t places) {
  ++statistics_.full;
  const uint64_t free = limit_ > known_tail_ ? limit_ - known_tail_ : 0;
  refusal_ = Status(StatusCode::kLimitExceeded,
                    "the log is full: the batch takes " + std::to_string(places * kPlaceBytes) +
                        " bytes, " + std::to_string(free * kPlaceBytes) + " of " +
                        std::to_string(layout_.places() * kPlaceBytes) +
                        " are free; trim it, and let its stores call maintain()");
}

Status Writer::no_success(LogOutcome outcome) const {
  if (outcome == LogOutcome::kFull) {
    return Status(StatusCode::kLimitExceeded,
                  "the log is full: other writers took the last space at the same moment; trim it");
  }
  return Status(StatusCode::kTimeout,
                "the batch is not in the log: it was not committed within a reader's "
                "hole_lease_ns after its reservation; append it again, or raise that lease");
}

void Writer::fail_damaged(const char* what, uint64_t place) {
  fail(Status(StatusCode::kProtocolViolation,
              "the log is damaged: its " + std::string(what) + " is at place " +
                  std::to_string(place) + ", this writer's last batch ended at " +
                  std::to_string(own_end_) + "; form it anew from a good replica"));
}

// What is on its way to the other replicas would go on to be read from the records' memory.
void Writer::fail(const Status& status) {
  if (!status_.ok()) return;
  status_ = status;
  for (Replica& replica : replicas_) replica.region->close();
}

}  // namespace log_app

Result<std::unique_ptr<LogWriter>> open_log_writer(const Device& device,
                                                   const ProtectionDomain& domain,
                                                   std::span<ControlConnection* const> replicas,
                                                   const LogWriterOptions& options) {
  auto writer = log_app::Writer::open(device, domain, replicas, options);
  if (!writer.ok()) log_app::hang_up(replicas);
  return writer;
}

}  // namespace verbena
