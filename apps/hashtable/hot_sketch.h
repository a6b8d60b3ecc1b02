// Which keys are updated often: a count-min sketch with conservative increments that halves all its
// counts now and then. It never counts too little since the last halving, and too much only for
// keys that share both counters with others. Data path; two cache lines for each count.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::hashtable {

class HotSketch {
 public:
  static constexpr uint32_t kMost = 255;

  // For a hot area of so many entries.
  explicit HotSketch(uint64_t entries)
      : width_(std::bit_ceil(std::max<uint64_t>(4 * entries, 1024))),
        window_(kCountsPerEntry * std::max<uint64_t>(entries, 64)),
        counters_(2 * width_) {}

  // Counts once more. What the count is now.
  uint32_t count(uint64_t hash) {
    uint8_t& first = counters_[first_of(hash)];
    uint8_t& second = counters_[second_of(hash)];
    const uint32_t count = std::min<uint32_t>(std::min(first, second) + 1u, kMost);
    first = std::max(first, static_cast<uint8_t>(count));
    second = std::max(second, static_cast<uint8_t>(count));
    if (++counted_ >= window_) halve();
    return count;
  }
  void raise(uint64_t hash, uint32_t to) {
    const auto count = static_cast<uint8_t>(std::min(to, kMost));
    for (const size_t i : {first_of(hash), second_of(hash)}) {
      counters_[i] = std::max(counters_[i], count);
    }
  }

 private:
  static constexpr uint64_t kCountsPerEntry = 16;

  size_t first_of(uint64_t hash) const { return hash & (width_ - 1); }
  size_t second_of(uint64_t hash) const {
    return width_ + (std::rotl(hash, 32) * 0x9e3779b97f4a7c15 >> 32 & (width_ - 1));
  }
  void halve() {
    counted_ = 0;
    for (uint8_t& counter : counters_) counter /= 2;
  }

  const uint64_t width_;  // of each of two rows
  const uint64_t window_;
  uint64_t counted_ = 0;
  std::vector<uint8_t> counters_;
};

}  // namespace verbena::hashtable
