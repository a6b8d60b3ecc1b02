// Control path: takes senders in, and checks whether they live.
#include "shuffle/receiver.h"

#include <algorithm>
#include <utility>

namespace verbena {
namespace shuffle_app {
namespace {

constexpr uint32_t kMostExecutors = 4096;
constexpr uint64_t kBytesPerEntry = 16;
constexpr int64_t kLookEveryNs = 100'000'000;

Status check(const ShuffleReceiverOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_range("receivers", options.receivers, 1, kMostExecutors));
  VERBENA_RETURN_IF_ERROR(check_range("receiver", options.receiver, 0, options.receivers - 1));
  VERBENA_RETURN_IF_ERROR(check_range("senders", options.senders, 1, kMostExecutors));
  VERBENA_RETURN_IF_ERROR(check_range("record_bytes", options.record_bytes, 0, kMostRecordBytes));
  VERBENA_RETURN_IF_ERROR(
      check_range("buffer_bytes", options.buffer_bytes, kLeastBufferBytes, kMostBufferBytes));
  VERBENA_RETURN_IF_ERROR(
      check_range("max_record_bytes", options.max_record_bytes, 0, kMostLongBytes));
  if (options.max_records != 0) {
    VERBENA_RETURN_IF_ERROR(
        check_range("max_records", options.max_records, kLeastEntries, kMostEntries));
  }
  if (options.record_bytes != 0 && (options.max_record_bytes != 0 || options.max_records != 0)) {
    return Status(StatusCode::kInvalidArgument,
                  "max_record_bytes and max_records are for records of any size; leave them 0 with "
                  "record_bytes, or set record_bytes to 0");
  }
  return Status::ok_status();
}

LaneShape shape_of(const ShuffleReceiverOptions& options) {
  LaneShape shape = {.record_bytes = options.record_bytes,
                     .buffer_bytes = options.buffer_bytes,
                     .checksum = options.checksum ? 1u : 0u};
  if (options.record_bytes != 0) {
    const uint64_t records =
        std::max(options.buffer_bytes / options.record_bytes, kLeastRecordsOfBuffer);
    shape.buffer_bytes = records * options.record_bytes;
    shape.max_entries = static_cast<uint32_t>(records);
    shape.max_record_bytes = options.record_bytes;
    return shape;
  }
  shape.max_entries = options.max_records != 0
                          ? options.max_records
                          : static_cast<uint32_t>(std::max<uint64_t>(
                                options.buffer_bytes / kBytesPerEntry, kLeastEntries));
  shape.max_record_bytes =
      options.max_record_bytes != 0 ? options.max_record_bytes : shape.whole_bytes();
  return shape;
}

std::string numbers(const std::vector<uint32_t>& senders) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(senders.size(), kMost); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(senders[i]);
  }
  return senders.size() > kMost ? text + ", ..." : text;
}

}  // namespace

Result<std::unique_ptr<ShuffleReceiver>> Receiver::expose(const Device& device,
                                                          const ProtectionDomain& domain,
                                                          const ShuffleReceiverOptions& options) {
  VERBENA_RETURN_IF_ERROR(check(options));
  std::unique_ptr<Receiver> receiver(new Receiver(options));
  VERBENA_RETURN_IF_ERROR(receiver->prepare(device, domain));
  return std::unique_ptr<ShuffleReceiver>(std::move(receiver));
}

Status Receiver::prepare(const Device& device, const ProtectionDomain& domain) {
  shape_ = shape_of(options_);
  if (!device.info().atomics) {
    return Status(StatusCode::kUnsupported,
                  "the device " + device.info().name +
                      " has no atomics, by which senders tell the end; use another device");
  }
  const uint64_t region_bytes = LaneLayout::region_bytes(shape_, options_.senders);
  auto region = expose_region(device, domain,
                              {.size_bytes = region_bytes,
                               .max_connections = options_.senders,
                               .huge_pages = options_.huge_pages,
                               .socket = options_.socket,
                               .handshake_timeout_ns = options_.handshake_timeout_ns});
  if (!region.ok()) {
    if (region.status().code() != StatusCode::kLimitExceeded) return region.status();
    return Status(StatusCode::kLimitExceeded,
                  "buffers of " + std::to_string(shape_.buffer_bytes) + " bytes for each of " +
                      std::to_string(options_.senders) +
                      " senders cannot be had; lower buffer_bytes: " + region.status().message());
  }
  region_ = std::move(*region);
  char* const data = region_->data();
  sums_ = reinterpret_cast<const Sums*>(data);
  lanes_.resize(options_.senders);
  for (uint32_t i = 0; i < options_.senders; ++i) {
    const LaneLayout layout(shape_, i);
    Lane& lane = lanes_[i];
    lane.name = "sender " + std::to_string(i);
    lane.announced = reinterpret_cast<const uint64_t*>(data + layout.announced_at());
    lane.released = reinterpret_cast<Released*>(data + layout.released_at());
    lane.ring_of_lengths = data + layout.lengths_at();
    lane.ring_of_records = data + layout.records_at();
    if (shape_.has_lengths()) lane.lengths.resize(shape_.max_entries);
  }
  return Status::ok_status();
}

Receiver::~Receiver() {
  Goodbye goodbye{.finished = finished_ ? 1u : 0u};
  if (!finished_) goodbye.reason = Reason("it was closed before the end of the shuffle");
  if (status_.ok()) end_connections(goodbye);
}

void Receiver::end_connections(const Goodbye& goodbye) {
  for (Lane& lane : lanes_) {
    if (lane.control != nullptr) say_goodbye(*lane.control, goodbye);
  }
}

// --- senders come ---

Status Receiver::admit(const Hello& hello, const std::string& peer) {
  if (hello.magic != kMagic) {
    return Status(StatusCode::kProtocolViolation, peer + " does not send to a shuffle");
  }
  VERBENA_RETURN_IF_ERROR(check_version(peer, hello.version));
  if (hello.receiver != options_.receiver || hello.receivers != options_.receivers) {
    return Status(StatusCode::kInvalidArgument,
                  peer + " looks for receiver " + std::to_string(hello.receiver) + " of " +
                      std::to_string(hello.receivers) + ", this is receiver " +
                      std::to_string(options_.receiver) + " of " +
                      std::to_string(options_.receivers) +
                      "; give senders the connections of all receivers, in their order");
  }
  if (hello.sender >= options_.senders) {
    return Status(StatusCode::kInvalidArgument,
                  peer + " is sender " + std::to_string(hello.sender) + ", receiver " +
                      std::to_string(options_.receiver) + " has " +
                      std::to_string(options_.senders) + " senders, from 0 on; raise senders");
  }
  if (lanes_[hello.sender].control != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  peer + " is sender " + std::to_string(hello.sender) + ", which " +
                      lanes_[hello.sender].control->peer_name() +
                      " is already; give each sender a number of its own");
  }
  return Status::ok_status();
}

Status Receiver::accept(ControlConnection control) {
  if (!status_.ok() || !check_senders()) return status_;
  auto owned = std::make_unique<ControlConnection>(std::move(control));
  const std::string peer = "the peer " + owned->peer_name();
  VERBENA_ASSIGN_OR_RETURN(const Hello hello,
                           owned->receive_value<Hello>(kHelloTag, options_.handshake_timeout_ns));
  const Status admitted = admit(hello, peer);
  const Welcome welcome = {
      .code = admitted.code(), .shape = shape_, .reason = Reason(admitted.message())};
  const Status sent = owned->send_value(kWelcomeTag, welcome);
  VERBENA_RETURN_IF_ERROR(admitted);
  VERBENA_RETURN_IF_ERROR(sent);
  VERBENA_RETURN_IF_ERROR(region_->accept(*owned));
  Lane& lane = lanes_[hello.sender];
  lane.name += " (" + owned->peer_name() + ")";
  lane.control = std::move(owned);
  ++accepted_;
  return Status::ok_status();
}

std::vector<uint32_t> Receiver::missing() const {
  std::vector<uint32_t> senders;
  for (uint32_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].control == nullptr) senders.push_back(i);
  }
  return senders;
}

Status Receiver::accept_all(ControlListener& listener, int64_t timeout_ns) {
  const uint64_t begun_ns = now_ns();
  while (accepted_ < options_.senders) {
    const auto passed_ns = static_cast<int64_t>(now_ns() - begun_ns);
    if (timeout_ns >= 0 && passed_ns > timeout_ns) {
      return Status(StatusCode::kTimeout,
                    std::to_string(accepted_) + " of " + std::to_string(options_.senders) +
                        " senders have come within " + std::to_string(timeout_ns / 1'000'000) +
                        " ms; missing: " + numbers(missing()) +
                        "; start them, or raise the time-out");
    }
    auto control = listener.accept(kLookEveryNs);
    if (control.ok()) {
      VERBENA_RETURN_IF_ERROR(accept(std::move(*control)));
    } else if (control.status().code() != StatusCode::kTimeout) {
      return control.status();
    } else if (!check_senders()) {
      return status_;
    }
  }
  return Status::ok_status();
}

// --- senders end ---

bool Receiver::check_senders() {
  for (Lane& lane : lanes_) {
    if (lane.control == nullptr || lane.left) continue;
    const PeerState state = check_peer(*lane.control);
    switch (state.end) {
      case PeerEnd::kNone:
        break;
      case PeerEnd::kFinished:
        lane.left = true;
        break;
      case PeerEnd::kGaveUp:
        fail(Status(StatusCode::kUnavailable, lane.name + " gave up: " + state.reason),
             state.reason);
        return false;
      case PeerEnd::kDied: {
        const std::string text = lane.name + " is gone: it has died before the end of the shuffle";
        fail(Status(StatusCode::kUnavailable, text), text);
        return false;
      }
    }
  }
  return true;
}

void Receiver::refuse_lane(const Lane& lane, const std::string& what) {
  const std::string text = lane.name + " broke the protocol: " + what +
                           "; run the same release everywhere, and report it if that is so";
  fail(Status(StatusCode::kProtocolViolation, text), text);
}

bool Receiver::check_sums() {
  const ShuffleCount came = received();
  const ShuffleCount sent = {.records = poll_word(&sums_->records),
                             .bytes = poll_word(&sums_->bytes),
                             .checksum = poll_word(&sums_->checksum)};
  if (came == sent) return true;
  const std::string text =
      "the senders sent " + std::to_string(sent.records) + " records of " +
      std::to_string(sent.bytes) + " bytes to receiver " + std::to_string(options_.receiver) +
      ", and " + std::to_string(came.records) + " of " + std::to_string(came.bytes) +
      " bytes came" +
      (sent.records == came.records && sent.bytes == came.bytes ? ", with other contents" : "") +
      "; do the shuffle again, and report it";
  fail(Status(StatusCode::kProtocolViolation, text), text);
  return false;
}

void Receiver::refuse_sums() {
  const std::string text = "receiver " + std::to_string(options_.receiver) + " has " +
                           std::to_string(options_.senders) + " senders, and " +
                           std::to_string(ended_) +
                           " have ended: something else writes to its buffers";
  fail(Status(StatusCode::kProtocolViolation, text), text);
}

void Receiver::fail(const Status& status, const std::string& root) {
  if (!status_.ok()) return;
  status_ = status;
  end_connections({.reason = Reason(root)});
}

// --- what was received ---

ShuffleCount Receiver::received() const {
  ShuffleCount sum;
  for (const Lane& lane : lanes_) sum += lane.received;
  return sum;
}

uint64_t Receiver::held_bytes(uint32_t sender) const {
  return lanes_[sender].handed_out.position - lanes_[sender].released_position;
}

}  // namespace shuffle_app

Result<std::unique_ptr<ShuffleReceiver>> ShuffleReceiver::expose(
    const Device& device, const ProtectionDomain& domain, const ShuffleReceiverOptions& options) {
  return shuffle_app::Receiver::expose(device, domain, options);
}

}  // namespace verbena
