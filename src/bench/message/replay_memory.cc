#include "src/bench/message/replay_memory.h"

#include <algorithm>

#include "src/base/assert.h"
#include "src/bench/message/replay_schedule.h"

namespace verbena::bench {

namespace {

bool has_buffer(const trace::Event& event) {
  return event.operation == trace::Operation::kSend ||
         event.operation == trace::Operation::kReceive ||
         event.operation == trace::Operation::kStartSend ||
         event.operation == trace::Operation::kStartReceive;
}

uint64_t to_page(uint64_t bytes) {
  return (bytes + kBufferPageBytes - 1) / kBufferPageBytes * kBufferPageBytes;
}

}  // namespace

ReplayMemory::ReplayMemory(const trace::RecordedJob& job, uint32_t rank) {
  const trace::RankRecording& recording = job.ranks[rank];
  uint64_t scratch_bytes = 1;
  for (const trace::Event& event : recording.events) {
    if (has_buffer(event)) {
      // An address that a message cannot lie at is of a damaged recording, and as good as another.
      const uint64_t first = std::min(event.address, UINT64_MAX - trace::kMostMessageBytes - 1);
      regions_.push_back({.first = first, .end = first + event.bytes + 1});
    } else if (trace::is_collective(event.operation)) {
      scratch_bytes = std::max(
          scratch_bytes, collective_scratch_bytes(event, recording.list(event),
                                                  job.communicators[event.communicator].size()));
    }
  }
  std::sort(regions_.begin(), regions_.end(),
            [](const Region& a, const Region& b) { return a.first < b.first; });
  std::vector<Region> merged;
  for (const Region& region : regions_) {
    if (!merged.empty() && region.first <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, region.end);
    } else {
      merged.push_back(region);
    }
  }
  regions_ = std::move(merged);
  size_bytes_ = to_page(scratch_bytes);
  for (Region& region : regions_) {
    // Sums of sizes of a damaged recording could be beyond 64 bits.
    if (size_bytes_ > kMostReplayBytes || region.end - region.first > kMostReplayBytes) break;
    // At the same place within a page.
    region.offset = size_bytes_ + region.first % kBufferPageBytes;
    size_bytes_ = to_page(region.offset + region.end - region.first);
  }
  const bool is_too_long = !regions_.empty() && regions_.back().offset == 0;
  if (is_too_long || size_bytes_ > kMostReplayBytes) size_bytes_ = kMostReplayBytes + 1;
}

bool ReplayMemory::allocate() {
  if (size_bytes_ > kMostReplayBytes) return false;
  memory_ = MessageBuffers(1, size_bytes_, BufferPlacement::kPages);
  return memory_.is_there();
}

char* ReplayMemory::at(const trace::Event& event) const {
  const uint64_t first = std::min(event.address, UINT64_MAX - trace::kMostMessageBytes - 1);
  const auto behind =
      std::upper_bound(regions_.begin(), regions_.end(), first,
                       [](uint64_t address, const Region& one) { return address < one.first; });
  VERBENA_DEBUG_ASSERT(behind != regions_.begin());
  const Region& region = *std::prev(behind);
  return memory_.at(0) + region.offset + (first - region.first);
}

}  // namespace verbena::bench
