// Which bytes of a block were modified: a bit each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "src/base/assert.h"

namespace verbena::remote {

// On words that somebody else owns. Runs are [begin, end).
class DirtyBits {
 public:
  struct Run {
    uint32_t begin = 0;
    uint32_t end = 0;
    bool empty() const { return begin == end; }
  };

  explicit DirtyBits(std::span<uint64_t> words) : words_(words) {}
  static uint32_t words_for(uint32_t bits) { return (bits + 63) / 64; }

  void set(uint32_t begin, uint32_t end) {
    VERBENA_DEBUG_ASSERT(begin <= end && end <= size());
    while (begin < end) {
      const uint32_t in_word = begin % 64;
      const uint32_t count = std::min(64 - in_word, end - begin);
      words_[begin / 64] |= (count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << in_word;
      begin += count;
    }
  }
  void clear() {
    for (uint64_t& word : words_) word = 0;
  }

  // The first run of bits that are set, from `from` on; empty if there is none.
  Run next(uint32_t from) const {
    const uint32_t begin = find(from, /*set=*/true);
    return {begin, begin == size() ? begin : find(begin, /*set=*/false)};
  }
  // From the first to the last bit that is set.
  Run hull() const {
    Run hull;
    for (Run run = next(0); !run.empty(); run = next(run.end)) {
      if (hull.empty()) hull.begin = run.begin;
      hull.end = run.end;
    }
    return hull;
  }
  bool all(uint32_t begin, uint32_t end) const { return find(begin, /*set=*/false) >= end; }

 private:
  uint32_t size() const { return static_cast<uint32_t>(words_.size() * 64); }
  // The first bit from `from` on that is, or is not, set.
  uint32_t find(uint32_t from, bool set) const {
    for (uint32_t at = from; at < size(); at = (at / 64 + 1) * 64) {
      const uint64_t word = (set ? words_[at / 64] : ~words_[at / 64]) >> (at % 64);
      if (word != 0) return at + static_cast<uint32_t>(std::countr_zero(word));
    }
    return size();
  }

  std::span<uint64_t> words_;
};

}  // namespace verbena::remote
