// The memory that READ requests fetch from: where each slot's bytes lie, and what they are.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

#include "src/bench/experiment/point.h"
#include "src/bench/load/payload_pattern.h"
#include "src/bench/request_response/request_response_settings.h"

namespace verbena::bench {

class ReadableLayout {
 public:
  explicit ReadableLayout(const Point& point)
      : stride_bytes_(
            (uint64_t{request_response_settings(point).response_bytes} + kShiftBytes - 1) /
                kShiftBytes * kShiftBytes +
            kShifts * kShiftBytes),
        size_bytes_(stride_bytes_ * pending_per_queue_pair(point)) {}

  uint64_t size_bytes() const { return size_bytes_; }
  // A multiple of a cache line.
  uint64_t offset(uint32_t slot, uint64_t sequence) const {
    return slot * stride_bytes_ + (sequence % kShifts) * kShiftBytes;
  }

 private:
  static constexpr uint64_t kShifts = 8;
  static constexpr uint64_t kShiftBytes = 64;
  uint64_t stride_bytes_;
  uint64_t size_bytes_;
};

// The bytes of the whole memory are those of one long message.
inline PayloadPattern readable_pattern(uint64_t memory_key) {
  return PayloadPattern(memory_key, Direction::kResponse, 0, 0);
}

// The responder's memory, filled; page-aligned.
class ReadableMemory {
 public:
  ReadableMemory(const Point& point, uint64_t memory_key);
  // Empty if the machine has not that much.
  std::span<char> bytes() const { return {memory_.get(), memory_ == nullptr ? 0 : size_bytes_}; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  uint64_t size_bytes_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace verbena::bench
