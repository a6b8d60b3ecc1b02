#include "src/trace/rank_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "src/trace/rank_encoder.h"

namespace verbena::trace {

namespace {

constexpr uint64_t kMostNameBytes = 64;
constexpr uint64_t kMostCalls = 1024;

class RankReader {
 public:
  RankReader(std::span<const std::byte> bytes, const std::string& name,
             const RecordedBefore& before)
      : name_(name), before_(before), bytes_(bytes) {}

  Result<RankRecording> read() {
    VERBENA_RETURN_IF_ERROR(header());
    // All records before the first damaged one could be right, and their sum is not.
    const size_t end = bytes_.size() - kChecksumBytes;
    uint64_t sum = 0;
    for (size_t i = 0; i < kChecksumBytes; ++i) {
      sum |= std::to_integer<uint64_t>(bytes_[end + i]) << (8 * i);
    }
    if (checksum(bytes_.first(end)) != sum) {
      return damaged(
          "its checksum is wrong: it was changed, or the rank ended before MPI_Finalize");
    }
    bytes_ = bytes_.first(end);
    while (!ended_) VERBENA_RETURN_IF_ERROR(record());
    if (at_ != bytes_.size()) return damaged("something follows its end");
    give_up_open_receives();
    return std::move(recording_);
  }

 private:
  Status damaged(std::string_view what) const {
    return {StatusCode::kProtocolViolation,
            fmt::format("{} is no whole recording: {} (byte {} of {}); record the program again",
                        name_, what, at_, bytes_.size())};
  }
  Status beyond(std::string_view what, uint64_t asked, uint64_t most) const {
    return {StatusCode::kLimitExceeded, fmt::format("{} has {} {} and at most {} are read; record "
                                                    "a shorter run of the program",
                                                    name_, asked, what, most)};
  }

  Status header() {
    if (bytes_.size() < kRecordingMagic.size() ||
        std::memcmp(bytes_.data(), kRecordingMagic.data(), kRecordingMagic.size()) != 0) {
      return {StatusCode::kProtocolViolation,
              fmt::format("{} is no recording of `verbena trace`; name the folder that it wrote",
                          name_)};
    }
    if (bytes_.size() < kRecordingHeaderBytes + 1 + kChecksumBytes) {
      at_ = bytes_.size();
      return damaged("it is cut short; did the rank end before MPI_Finalize?");
    }
    at_ = kRecordingMagic.size();
    const uint32_t version = word();
    if (version != kRecordingVersion) {
      return {StatusCode::kProtocolViolation,
              fmt::format("{} has version {} of recordings, and this release reads {}; record the "
                          "program again with this one",
                          name_, version, kRecordingVersion)};
    }
    recording_.rank = word();
    recording_.size = word();
    if (recording_.size > kMostRecordedRanks) {
      return beyond("ranks,", recording_.size, kMostRecordedRanks);
    }
    if (recording_.rank >= recording_.size) return damaged("its rank is none of the job");
    return Status::ok_status();
  }

  uint32_t word() {
    uint32_t value = 0;
    for (uint32_t i = 0; i < 4; ++i) value |= std::to_integer<uint32_t>(bytes_[at_++]) << (8 * i);
    return value;
  }
  // 0 behind the end, and where it is too long; broken_ says so.
  uint64_t number() {
    uint64_t value = 0;
    for (uint32_t shift = 0; at_ < bytes_.size() && shift < 64; shift += 7) {
      const auto byte = std::to_integer<uint64_t>(bytes_[at_++]);
      value |= (byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    broken_ = true;
    return 0;
  }
  uint64_t difference(uint64_t before) {
    const uint64_t folded = number();
    return before + (folded >> 1 ^ (~(folded & 1) + 1));
  }
  uint64_t bounded(uint64_t most) {
    const uint64_t value = number();
    if (value > most) broken_ = true;
    return broken_ ? 0 : value;
  }
  // So many further entries, each of which takes a byte at least.
  uint64_t entries() {
    const uint64_t value = number();
    if (value > bytes_.size() - at_) broken_ = true;
    return broken_ ? 0 : value;
  }

  Status record() {
    if (at_ == bytes_.size()) return damaged("it has no end");
    const auto head = std::to_integer<uint8_t>(bytes_[at_++]);
    const uint8_t operation = head & 0x1f;
    const auto flags = static_cast<uint8_t>(head >> 5);
    if (operation >= kOperations) return damaged("it has an unknown record");
    const uint64_t events = before_.events + recording_.events.size();
    if (events >= kMostEvents) {
      return beyond("calls and more, with those of the ranks before it,", events, kMostEvents);
    }
    switch (static_cast<Operation>(operation)) {
      case Operation::kEnd:
        end();
        break;
      case Operation::kCommunicator:
        VERBENA_RETURN_IF_ERROR(communicator());
        break;
      case Operation::kWait:
        wait();
        break;
      default:
        call(static_cast<Operation>(operation), flags);
        break;
    }
    if (broken_) return damaged("a number in it cannot be");
    const uint64_t numbers = before_.numbers + recording_.numbers.size();
    return numbers > kMostNumbers ? beyond("numbers in lists, with those of the ranks before it,",
                                           numbers, kMostNumbers)
                                  : Status::ok_status();
  }

  void end() {
    ended_ = true;
    recording_.last_compute_ns = bounded(kMostComputeNs);
    recording_.elapsed_ns = number();
    recording_.threads = static_cast<uint32_t>(bounded(UINT32_MAX));
    const uint64_t calls = bounded(kMostCalls);
    for (uint64_t i = 0; i < calls && !broken_; ++i) {
      CallCount call;
      const uint64_t length = bounded(kMostNameBytes);
      if (length > bytes_.size() - at_) {
        broken_ = true;
        return;
      }
      for (uint64_t c = 0; c < length; ++c) {
        const auto character = std::to_integer<unsigned char>(bytes_[at_++]);
        // It is printed.
        if (character <= 0x20 || character >= 0x7f) broken_ = true;
        call.name += static_cast<char>(character);
      }
      call.calls = number();
      call.duration_ns = number();
      call.replayed = bounded(1) == 1;
      recording_.calls.push_back(std::move(call));
    }
  }

  Status communicator() {
    if (recording_.communicators.size() >= kMostCommunicators) {
      return beyond("communicators,", kMostCommunicators + 1, kMostCommunicators);
    }
    const uint64_t size = entries();
    std::vector<uint32_t> members;
    uint64_t member = 0;
    for (uint64_t i = 0; i < size && !broken_; ++i) {
      member = difference(member);
      if (member >= recording_.size) broken_ = true;
      members.push_back(static_cast<uint32_t>(member));
    }
    std::vector<uint32_t> sorted = members;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() ||
        !std::binary_search(sorted.begin(), sorted.end(), recording_.rank)) {
      broken_ = true;
    }
    recording_.communicators.push_back(std::move(members));
    return Status::ok_status();
  }

  void call(Operation operation, uint8_t flags) {
    Event event{.operation = operation, .flags = flags};
    event.compute_ns = bounded(kMostComputeNs);
    event.communicator = static_cast<uint32_t>(number());
    event.bytes = bounded(kMostMessageBytes);
    event.address = address_ = difference(address_);
    if (event.communicator >= recording_.communicators.size()) broken_ = true;
    if (broken_) return;
    const uint64_t members = recording_.communicators[event.communicator].size();
    bool has_request = false;
    if (!is_collective(operation)) {
      const uint64_t peer = bounded(recording_.size);
      event.peer = peer == 0 ? RankEncoder::kAnySource : static_cast<uint32_t>(peer - 1);
      const auto tag = static_cast<int64_t>(difference(0));
      event.tag = static_cast<int32_t>(tag);
      has_request = operation == Operation::kStartSend || operation == Operation::kStartReceive;
      if (tag != event.tag || (flags & ~kSynchronous) != 0) broken_ = true;
      if (operation != Operation::kStartReceive &&
          (peer == 0 || event.tag == RankEncoder::kAnyTag)) {
        broken_ = true;
      }
    } else {
      if (has_root(operation)) {
        event.peer = static_cast<uint32_t>(bounded(members - 1));
      }
      has_request = (flags & kNonblocking) != 0;
      if ((flags & ~(kNonblocking | kVaries)) != 0) broken_ = true;
      if ((flags & kVaries) != 0) list(event, members);
    }
    if (broken_) return;
    if (has_request) {
      event.request = ++requests_;
      starts_.push_back(recording_.events.size());
      done_.push_back(false);
    }
    recording_.events.push_back(event);
  }

  // Of the members; of an all-to-all, two such lists.
  void list(Event& event, uint64_t members) {
    event.first = static_cast<uint32_t>(recording_.numbers.size());
    event.count = static_cast<uint32_t>(entries());
    const uint64_t expected = event.operation == Operation::kAlltoall ? 2 * members : members;
    if (event.count != expected) broken_ = true;
    for (uint64_t i = 0; i < event.count && !broken_; ++i) {
      recording_.numbers.push_back(bounded(kMostMessageBytes));
    }
  }

  void wait() {
    Event event{.operation = Operation::kWait};
    event.compute_ns = bounded(kMostComputeNs);
    event.first = static_cast<uint32_t>(recording_.numbers.size());
    const uint64_t count = entries();
    for (uint64_t i = 0; i < count && !broken_; ++i) {
      const uint64_t back = bounded(requests_);
      const auto flags = static_cast<uint8_t>(bounded(7));
      const uint64_t request = requests_ - back;
      if (broken_ || request == 0 || done_[request - 1]) {
        broken_ = true;
        return;
      }
      done_[request - 1] = true;
      Event& started = recording_.events[starts_[request - 1]];
      const bool receives = started.operation == Operation::kStartReceive;
      if (receives != ((flags & kCompletedReceive) != 0)) broken_ = true;
      if (receives && (flags & kCompletedCancelled) != 0) {
        started.flags |= kUnmatched;
        continue;
      }
      if (receives && (flags & kCompletedAsPosted) == 0) {
        started.peer = static_cast<uint32_t>(bounded(recording_.size - 1));
        const auto tag = static_cast<int64_t>(difference(0));
        started.tag = static_cast<int32_t>(tag);
        started.bytes = bounded(kMostMessageBytes);
        if (tag != started.tag) broken_ = true;
      }
      if (receives &&
          (started.peer == RankEncoder::kAnySource || started.tag == RankEncoder::kAnyTag)) {
        broken_ = true;
      }
      recording_.numbers.push_back(request);
    }
    event.count = static_cast<uint32_t>(recording_.numbers.size() - event.first);
    if (!broken_) recording_.events.push_back(event);
  }

  // Nobody knows what came for them.
  void give_up_open_receives() {
    for (size_t i = 0; i < starts_.size(); ++i) {
      Event& started = recording_.events[starts_[i]];
      if (!done_[i] && started.operation == Operation::kStartReceive) started.flags |= kUnmatched;
    }
  }

  const std::string& name_;
  const RecordedBefore before_;
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool broken_ = false;
  bool ended_ = false;
  uint64_t address_ = 0;
  uint32_t requests_ = 0;
  std::vector<size_t> starts_;  // by request: its event
  std::vector<bool> done_;
  RankRecording recording_;
};

Result<std::vector<std::byte>> read_file(const std::string& path, uint64_t most_bytes) {
  std::error_code error;
  const uint64_t size_bytes = std::filesystem::file_size(path, error);
  if (error) {
    return Status(StatusCode::kNotFound, fmt::format("cannot read {}: {}; name the folder that "
                                                     "`verbena trace` wrote, with all its files",
                                                     path, error.message()));
  }
  if (size_bytes > most_bytes) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("{} has {} bytes, and all files of a recording at most {}; record a "
                              "shorter run of the program",
                              path, size_bytes, kMostRecordingBytes));
  }
  std::vector<std::byte> bytes(size_bytes);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()))) {
    return Status(StatusCode::kNotFound,
                  fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  return bytes;
}

}  // namespace

Result<RankRecording> decode_rank(std::span<const std::byte> bytes, const std::string& name,
                                  const RecordedBefore& before) {
  return RankReader(bytes, name, before).read();
}

std::string rank_file_name(uint32_t rank) { return fmt::format("rank-{:05}.trace", rank); }

Result<RecordedJob> read_recording(const std::string& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{} is no folder{}; name the one that `verbena trace -o` wrote",
                              folder, error ? ": " + error.message() : ""));
  }
  if (!std::filesystem::exists(std::filesystem::path(folder) / rank_file_name(0), error)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{} has no recording, there is no {}; did the program call MPI_Init? "
                              "calls from Fortran with Open MPI are not recorded, see docs/mpi.md",
                              folder, rank_file_name(0)));
  }
  RecordedJob job;
  job.name = folder;
  uint64_t left_bytes = kMostRecordingBytes;
  RecordedBefore before;
  uint32_t size = 1;
  for (uint32_t rank = 0; rank < size; ++rank) {
    const std::string path = std::filesystem::path(folder) / rank_file_name(rank);
    if (rank > 0 && !std::filesystem::exists(path, error)) {
      return Status(StatusCode::kNotFound,
                    fmt::format("{} has {} of {} ranks: there is no {}; copy the files of all "
                                "hosts into one folder, or record again",
                                folder, rank, size, rank_file_name(rank)));
    }
    VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read_file(path, left_bytes));
    left_bytes -= bytes.size();
    VERBENA_ASSIGN_OR_RETURN(RankRecording recording, decode_rank(bytes, path, before));
    before.events += recording.events.size();
    before.numbers += recording.numbers.size();
    if (rank == 0) size = recording.size;
    if (recording.rank != rank || recording.size != size) {
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("{} is of rank {} of {}, and {} of {} was expected; the folder has "
                                "files of several recordings",
                                path, recording.rank, recording.size, rank, size));
    }
    job.ranks.push_back(std::move(recording));
  }
  VERBENA_RETURN_IF_ERROR(link_job(job));
  return job;
}

}  // namespace verbena::trace
