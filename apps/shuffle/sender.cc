// Control path, and what is told when something goes wrong.
#include "shuffle/sender.h"

#include <algorithm>
#include <utility>

#include "verbena/data_path.h"

namespace verbena {
namespace shuffle_app {
namespace {

constexpr uint32_t kMostReceivers = 4096;
constexpr uint32_t kMostBatch = 256;
constexpr uint32_t kLeastBatchBytes = 64;
constexpr uint32_t kMostBatchBytes = 16u << 20;
constexpr uint32_t kMostPending = 256;
constexpr uint32_t kMostTypicalRecordBytes = 1u << 30;
constexpr uint64_t kPageBytes = 4096;
// In a region's queue: a batch is records, lengths and counter; further ones for credits and sums.
constexpr uint32_t kOperationsOfBatch = 4;
constexpr uint32_t kFurtherOperations = 8;
constexpr uint32_t kPostedAtOnce = 8;

Status check_options(const ShuffleSenderOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_range("batch", options.batch, 1, kMostBatch));
  VERBENA_RETURN_IF_ERROR(
      check_range("batch_bytes", options.batch_bytes, kLeastBatchBytes, kMostBatchBytes));
  VERBENA_RETURN_IF_ERROR(check_range("pending", options.pending, 1, kMostPending));
  VERBENA_RETURN_IF_ERROR(check_range("typical_record_bytes", options.typical_record_bytes, 1,
                                      kMostTypicalRecordBytes));
  return check_range("threads", options.threads, 1, kMostReceivers);
}

std::string text_of(uint64_t number) { return std::to_string(number); }

}  // namespace

Result<OwnPages> OwnPages::allocate(uint64_t size_bytes) {
  OwnPages pages;
  pages.size_bytes_ = (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  pages.data_.reset(static_cast<char*>(std::aligned_alloc(kPageBytes, pages.size_bytes_)));
  if (pages.data_ == nullptr) {
    return Status(StatusCode::kLimitExceeded,
                  "the system has no " + text_of(pages.size_bytes_) +
                      " bytes of memory for records to a receiver; lower its buffer_bytes");
  }
  return pages;
}

// --- connect ---

Result<std::unique_ptr<ShuffleSender>> Sender::open(const Device& device,
                                                    const ProtectionDomain& domain,
                                                    std::vector<ControlConnection> receivers,
                                                    const ShuffleSenderOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_options(options));
  VERBENA_RETURN_IF_ERROR(
      check_range("the number of receivers", receivers.size(), 1, kMostReceivers));
  std::unique_ptr<Sender> sender(new Sender(options));
  const Status prepared = sender->prepare(device, domain, std::move(receivers));
  if (!prepared.ok()) {
    sender->fail(prepared, prepared.message());
    return prepared;
  }
  return std::unique_ptr<ShuffleSender>(std::move(sender));
}

Status Sender::prepare(const Device& device, const ProtectionDomain& domain,
                       std::vector<ControlConnection> receivers) {
  lanes_.resize(receivers.size());
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].name = "receiver " + text_of(i) + " (" + receivers[i].peer_name() + ")";
    lanes_[i].control = std::make_unique<ControlConnection>(std::move(receivers[i]));
  }
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    VERBENA_RETURN_IF_ERROR(open_lane(device, domain, i));
  }
  open_lanes_ = partitions();
  return Status::ok_status();
}

Status Sender::open_lane(const Device& device, const ProtectionDomain& domain, uint32_t number) {
  Lane& lane = lanes_[number];
  ControlConnection& control = *lane.control;
  VERBENA_RETURN_IF_ERROR(
      control.send_value(kHelloTag, Hello{.sender = options_.sender,
                                          .receiver = number,
                                          .receivers = static_cast<uint32_t>(lanes_.size())}));
  VERBENA_ASSIGN_OR_RETURN(const Welcome welcome, control.receive_value<Welcome>(
                                                      kWelcomeTag, options_.handshake_timeout_ns));
  VERBENA_RETURN_IF_ERROR(check_welcome(lane.name, welcome));
  lane.shape = welcome.shape;
  lane.layout = LaneLayout(lane.shape, options_.sender);
  if (number == 0) VERBENA_RETURN_IF_ERROR(choose_method(device.info(), lane.shape.record_bytes));
  VERBENA_RETURN_IF_ERROR(make_memory(domain, lane));

  const uint32_t pending = options_.pending * kOperationsOfBatch + kFurtherOperations;
  auto region = open_region(device, domain, control,
                            {.pending = pending,
                             .signal_interval = std::min(options_.pending, kSignalInterval),
                             .post_batch = kPostedAtOnce,
                             .max_entries = method_ == ShuffleMethod::kSgl ? batch_records_ : 1,
                             .threads = options_.threads,
                             .handshake_timeout_ns = options_.handshake_timeout_ns});
  if (!region.ok()) {
    return Status(region.status().code(), lane.name + ": " + region.status().message());
  }
  lane.region = std::move(*region);
  const uint64_t lane_end = lane.layout.records_at() + lane.shape.buffer_bytes;
  if (lane_end > lane.region->size_bytes()) {
    return Status(StatusCode::kProtocolViolation,
                  lane.name + " has a region of " + text_of(lane.region->size_bytes()) +
                      " bytes, sender " + text_of(options_.sender) + " needs " + text_of(lane_end) +
                      "; run the same release everywhere");
  }
  return Status::ok_status();
}

Status Sender::make_memory(const ProtectionDomain& domain, Lane& lane) const {
  lane.lengths_at = LaneShape::round_up(lane.shape.buffer_bytes);
  VERBENA_ASSIGN_OR_RETURN(lane.pages,
                           OwnPages::allocate(lane.lengths_at + lane.shape.lengths_bytes()));
  lane.records = lane.pages.data();
  lane.lengths = reinterpret_cast<uint32_t*>(lane.pages.data() + lane.lengths_at);
  auto memory = MemoryRegion::create(domain, lane.pages.data(), lane.pages.size_bytes(),
                                     IBV_ACCESS_LOCAL_WRITE);
  VERBENA_RETURN_IF_ERROR(memory.status());
  lane.memory.emplace(std::move(*memory));
  lane.pieces.resize(batch_records_);
  lane.most_bytes = std::min<uint64_t>(lane.shape.whole_bytes(), lane.shape.max_record_bytes);
  lane.has_checksum = lane.shape.checksum != 0;
  lane.least_bytes = lane.shape.has_lengths() ? 0 : lane.shape.record_bytes;
  lane.in_flight.resize(options_.pending);
  return Status::ok_status();
}

Status Sender::choose_method(const DeviceInfo& device, uint32_t record_bytes) {
  const uint32_t typical = record_bytes != 0 ? record_bytes : options_.typical_record_bytes;
  for (const ShuffleEstimate& estimate : estimate_shuffle_methods(device, options_, typical)) {
    if (options_.method != ShuffleMethod::kAutomatic && options_.method != estimate.method)
      continue;
    if (!estimate.usable) return Status(StatusCode::kLimitExceeded, estimate.why);
    method_ = estimate.method;
    why_ = estimate.why;
    break;
  }
  // Records may be shorter than those that the method was chosen for, and more of them fit.
  batch_records_ = method_ == ShuffleMethod::kBasic ? 1
                   : method_ == ShuffleMethod::kSgl ? std::min(options_.batch, device.max_sges)
                                                    : options_.batch;
  return Status::ok_status();
}

Sender::~Sender() {
  if (status_.ok() && !finished_) {
    end_connections({.reason = Reason("it was closed before the end of its records")});
  }
}

void Sender::end_connections(const Goodbye& goodbye) {
  for (Lane& lane : lanes_) {
    if (lane.region != nullptr) {
      say_goodbye(*lane.control, goodbye);
    } else if (lane.control != nullptr) {
      lane.control->hang_up();  // amid its handshake
    }
  }
}

ShuffleCount Sender::sent(uint32_t partition) const {
  const Lane& lane = lanes_[partition];
  ShuffleCount sum = lane.sent;
  sum.records += lane.batch.records - lane.batch.parts;
  sum.bytes += lane.batch.bytes;
  return sum;
}
ShuffleCount Sender::sent() const {
  ShuffleCount sum;
  for (uint32_t i = 0; i < partitions(); ++i) sum += sent(i);
  return sum;
}

// --- what is refused ---

Sender::Lane* Sender::refuse_partition(uint32_t partition) {
  refusal_ = Status(StatusCode::kInvalidArgument,
                    finished_ ? std::string("a record after finish(); open another shuffle")
                              : "there is no partition " + text_of(partition) + "; choose 0 to " +
                                    text_of(lanes_.size() - 1));
  return nullptr;
}

Sender::Lane* Sender::refuse_size(uint32_t partition, uint64_t bytes, bool more) {
  const Lane& lane = lanes_[partition];
  const LaneShape& shape = lane.shape;
  if (!shape.has_lengths()) {
    refusal_ = Status(StatusCode::kInvalidArgument,
                      "a record of " + text_of(bytes) + " bytes" + (more ? " in parts" : "") +
                          ", and all records to " + lane.name + " have " +
                          text_of(shape.record_bytes) + "; set its record_bytes to 0");
  } else if (lane.part_bytes + bytes > shape.max_record_bytes) {
    refusal_ = Status(StatusCode::kLimitExceeded,
                      "a record of " + text_of(lane.part_bytes + bytes) + " bytes, and " +
                          lane.name + " takes at most " + text_of(shape.max_record_bytes) +
                          "; raise its max_record_bytes");
  } else if (bytes > shape.whole_bytes()) {
    refusal_ =
        Status(StatusCode::kLimitExceeded,
               "a part of " + text_of(bytes) + " bytes, and " + lane.name + " takes at most " +
                   text_of(shape.whole_bytes()) + " at once; use put(), or raise its buffer_bytes");
  } else {
    refusal_ = Status(StatusCode::kInvalidArgument,
                      "a record in parts, and " + lane.name +
                          " takes whole ones only; set its max_record_bytes above " +
                          text_of(shape.whole_bytes()));
  }
  return nullptr;
}

Sender::Lane* Sender::check_whole(uint32_t partition, uint64_t bytes) {
  const bool in_parts = status_.ok() && !finished_ && partition < lanes_.size() &&
                        bytes > lanes_[partition].shape.whole_bytes();
  if (in_parts && bytes > lanes_[partition].shape.max_record_bytes) {
    return refuse_size(partition, bytes, false);
  }
  Lane* const lane = check(partition, in_parts ? 0 : bytes, in_parts);
  if (lane == nullptr || !lane->in_part) return lane;
  refusal_ = Status(StatusCode::kInvalidArgument,
                    "a record in parts to " + lane->name +
                        " is not complete; send its last part by send_part() first");
  return nullptr;
}

void Sender::refuse_slice(uint32_t partition, uint64_t bytes) {
  refusal_ = Status(StatusCode::kInvalidArgument,
                    "a record of " + text_of(bytes) + " bytes to " + lanes_[partition].name +
                        " is not inside of registered memory; give its MemoryRegion, and an offset "
                        "and a size within it");
}

Status Sender::refuse_array(size_t count, uint64_t bytes) {
  refusal_ = Status(StatusCode::kInvalidArgument,
                    text_of(bytes) + " bytes are no array of " + text_of(count) +
                        " records of one size; give a multiple, and one partition for each record");
  return refusal_;
}

Status Sender::refuse_end(uint32_t partition) {
  refusal_ = Status(StatusCode::kInvalidArgument, "finish() while a record in parts to " +
                                                      lanes_[partition].name +
                                                      " is not complete; send its last part first");
  return refusal_;
}

// --- what is lost ---

void Sender::refuse_credit(Lane& lane, const Released& released) {
  const std::string text = lane.name + " broke the protocol: it released " +
                           text_of(released.entries) + " entries, " +
                           text_of(lane.announced_entries) +
                           " were sent; run the same release everywhere, and report it";
  fail(Status(StatusCode::kProtocolViolation, text), text);
}

void Sender::check_receivers() {
  for (Lane& lane : lanes_) {
    if (!status_.ok() || finished_) return;
    const PeerState state = check_peer(*lane.control);
    if (state.end != PeerEnd::kNone) lost(lane, state, "it has died before the end of the shuffle");
  }
}

void Sender::lost(Lane& lane) {
  if (!status_.ok() || lane.has_left) return;
  lost(lane, read_goodbye(*lane.control), lane.region->error().message());
}

void Sender::lost(Lane& lane, const PeerState& state, const std::string& cause) {
  // It had our last record and the others', and did not wait for us to learn it.
  if (state.end == PeerEnd::kFinished && lane.ended) {
    lane.has_left = true;
    return;
  }
  const bool gave_up = state.end == PeerEnd::kGaveUp;
  const std::string root = gave_up ? state.reason : lane.name + " is gone: " + cause;
  fail(Status(StatusCode::kUnavailable, gave_up ? lane.name + " gave up: " + root : root), root);
}

void Sender::fail(const Status& status, const std::string& root) {
  if (!status_.ok()) return;
  status_ = status;
  open_lanes_ = 0;
  end_connections({.reason = Reason(root)});
}

}  // namespace shuffle_app

Result<std::unique_ptr<ShuffleSender>> open_shuffle_sender(const Device& device,
                                                           const ProtectionDomain& domain,
                                                           std::vector<ControlConnection> receivers,
                                                           const ShuffleSenderOptions& options) {
  return shuffle_app::Sender::open(device, domain, std::move(receivers), options);
}

Result<std::unique_ptr<ShuffleSender>> open_shuffle_sender(
    const Device& device, const ProtectionDomain& domain,
    const std::vector<ShuffleAddress>& receivers, const JobSecret& secret,
    const ShuffleSenderOptions& options) {
  std::vector<ControlConnection> controls;
  for (const ShuffleAddress& address : receivers) {
    VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                             ControlConnection::connect(address.host, address.port, secret,
                                                        options.handshake_timeout_ns));
    controls.push_back(std::move(control));
  }
  return open_shuffle_sender(device, domain, std::move(controls), options);
}

}  // namespace verbena
