// Which key an operation uses: the distributions of the Yahoo! Cloud Serving Benchmark.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/bench/hashtable/hashtable_settings.h"
#include "src/bench/load/zipf_ranks.h"

namespace verbena::bench {

// Which keys are used most: `count` of them, or a few less where that many were not found in as
// many draws as there are keys.
inline std::vector<bool> most_used_keys(KeyDistribution distribution, uint64_t keys,
                                        uint64_t count) {
  std::vector<bool> used(keys);
  for (uint64_t rank = 0; rank < keys && count > 0; ++rank) {
    const uint64_t key = distribution == KeyDistribution::kZipfian  ? Random(rank).below(keys)
                         : distribution == KeyDistribution::kLatest ? keys - 1 - rank
                                                                    : rank;
    if (used[key]) continue;
    used[key] = true;
    --count;
  }
  return used;
}

// The keys of one front-end of `front_ends`. The popular ones of `zipfian` are spread over all
// (YCSB's scrambled Zipfian). New keys get numbers that no other front-end gives. Those of `latest`
// are the ones that this front-end inserted last, then those with which the table began.
class KeyNumbers {
 public:
  // Insertions of a front-end at once.
  static constexpr uint32_t kMostPending = 256;

  KeyNumbers(KeyDistribution distribution, uint64_t keys, uint32_t front_ends, uint32_t front_end,
             uint64_t seed)
      : distribution_(distribution),
        keys_(keys),
        front_ends_(front_ends),
        front_end_(front_end),
        ranks_(keys),
        random_(seed) {}

  uint64_t next() {
    switch (distribution_) {
      case KeyDistribution::kZipfian:
        return Random(ranks_.draw(random_)).below(keys_);
      case KeyDistribution::kUniform:
        return random_.below(keys_);
      case KeyDistribution::kLatest:
        break;
    }
    const uint64_t rank = ranks_.draw(random_);
    return rank < inserted_ ? new_key(inserted_ - 1 - rank) : keys_ - 1 - (rank - inserted_);
  }

  // The key that is to be inserted next; then it is posted, and later inserted, from when on it and
  // those before it are drawn.
  uint64_t next_new() const { return new_key(posted_); }
  void posted() { ++posted_; }
  uint64_t posted_count() const { return posted_; }
  void inserted(uint64_t number) {
    const uint64_t place = (number - keys_ - front_end_) / front_ends_;
    VERBENA_DEBUG_ASSERT(place >= inserted_ && place < posted_ &&
                         place - inserted_ < answered_.size());
    answered_[place % answered_.size()] = true;
    for (bool* first = &answered_[inserted_ % answered_.size()]; *first;
         first = &answered_[inserted_ % answered_.size()]) {
      *first = false;
      ++inserted_;
      ranks_.grow();
    }
  }

  // New keys that are in the table: the first ones, in their order.
  uint64_t inserted_count() const { return inserted_; }
  uint64_t new_key(uint64_t place) const { return keys_ + place * front_ends_ + front_end_; }

 private:
  const KeyDistribution distribution_;
  const uint64_t keys_;
  const uint32_t front_ends_;
  const uint32_t front_end_;
  ZipfRanks ranks_;
  Random random_;
  uint64_t posted_ = 0;
  uint64_t inserted_ = 0;
  std::array<bool, kMostPending> answered_{};  // a ring
};

}  // namespace verbena::bench
