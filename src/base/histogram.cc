#include "src/base/histogram.h"

#include <algorithm>
#include <cmath>

namespace verbena {

void Histogram::merge(const Histogram& other) {
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) buckets_[bucket] += other.buckets_[bucket];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

uint64_t Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  if (!(q > 0)) return min_;
  if (q >= 1) return max_;
  // The nearest rank: the smallest value with at least q * count values up to it. The product of a
  // decimal fraction and a count can end up a hair above a whole number.
  const double exact_rank = q * static_cast<double>(count_);
  const double slack = exact_rank * 1e-12;
  const uint64_t rank =
      std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(exact_rank - slack)), 1, count_);
  uint64_t below = 0;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    below += buckets_[bucket];
    if (below < rank) continue;
    const uint64_t first = std::max(first_of(bucket), min_);
    const uint64_t last = std::min(last_of(bucket), max_);
    return first + (last - first) / 2;
  }
  return max_;
}

}  // namespace verbena
