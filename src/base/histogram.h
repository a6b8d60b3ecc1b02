// A histogram of latencies: fixed memory, nothing allocated when recording, quantiles within 0.4 %
// of the true value.
//
// Values below 256 have a bucket each. Above, every power of two is divided into 128 buckets of
// equal width, so a bucket is at most 1/128 of its values wide, and its middle at most 1/256 away
// from any of them. That goes on to 2^40, for nanoseconds 18 minutes; longer values count in the
// last bucket (max() is exact all the same).
//
//   Histogram latency_ns;                    // 35 KB: not on a small stack
//   latency_ns.record(now_ns() - start_ns);  // one thread
//   latency_ns.quantile(0.99);
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace verbena {

class Histogram {
 public:
  static constexpr unsigned kBucketBits = 7;  // 2^7 buckets per power of two
  static constexpr unsigned kValueBits = 40;  // values from 2^40 on share the last bucket
  static constexpr size_t kBuckets = (size_t{kValueBits - kBucketBits} + 1) << kBucketBits;

  // A few instructions; `count` times the same value.
  void record(uint64_t value, uint64_t count = 1) {
    buckets_[bucket_of(value)] += count;
    count_ += count;
    sum_ += static_cast<double>(value) * static_cast<double>(count);
    if (value < min_) min_ = value;
    if (value > max_) max_ = value;
  }

  // Adds what `other` recorded, as if it had been recorded here.
  void merge(const Histogram& other);
  void clear() { *this = Histogram(); }

  uint64_t count() const { return count_; }
  // These three are exact; all are 0 where nothing was recorded.
  uint64_t min() const { return count_ == 0 ? 0 : min_; }
  uint64_t max() const { return max_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  // The value that at least the share `q` (0 to 1) of the recorded values does not exceed: 0.5 is
  // the median.
  uint64_t quantile(double q) const;

  // Calls visit(first, last, count) for every bucket that has values, from the smallest on: `first`
  // to `last` are the values that fall into it.
  template <typename Visit>
  void for_each_bucket(Visit&& visit) const {
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      if (buckets_[bucket] != 0) visit(first_of(bucket), last_of(bucket), buckets_[bucket]);
    }
  }

  static constexpr size_t bucket_of(uint64_t value) {
    constexpr uint64_t kLast = (uint64_t{1} << kValueBits) - 1;
    if (value > kLast) value = kLast;
    const unsigned bits = static_cast<unsigned>(std::bit_width(value));
    // Each power of two above the exact range drops one more low bit.
    const unsigned dropped = bits > kBucketBits + 1 ? bits - kBucketBits - 1 : 0;
    return (size_t{dropped} << kBucketBits) + static_cast<size_t>(value >> dropped);
  }
  static constexpr uint64_t first_of(size_t bucket) {
    const size_t octave = bucket >> kBucketBits;
    if (octave < 2) return bucket;
    const size_t dropped = octave - 1;
    return static_cast<uint64_t>(bucket - (dropped << kBucketBits)) << dropped;
  }
  static constexpr uint64_t last_of(size_t bucket) {
    return bucket + 1 == kBuckets ? UINT64_MAX : first_of(bucket + 1) - 1;
  }

 private:
  std::array<uint64_t, kBuckets> buckets_{};
  uint64_t count_ = 0;
  double sum_ = 0;
  uint64_t min_ = UINT64_MAX;
  uint64_t max_ = 0;
};

}  // namespace verbena
