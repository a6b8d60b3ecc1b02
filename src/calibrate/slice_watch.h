// How long a thread has a CPU that another one wants, too: what lies between the gaps in its time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/bench/result/statistics.h"

namespace verbena::calibrate {

class SliceWatch {
 public:
  explicit SliceWatch(uint64_t now_ns) : begun_ns_(now_ns), last_ns_(now_ns) {}

  // Call it all the time. False: it has seen enough, or more is not to be expected, since other
  // programs want the CPU, too.
  bool look(uint64_t now_ns) {
    if (now_ns - last_ns_ > kGapNs) {
      // The first one is not seen from its begin.
      if (from_ns_ != 0) slices_.push_back(static_cast<double>(last_ns_ - from_ns_));
      from_ns_ = now_ns;
    }
    last_ns_ = now_ns;
    const uint64_t elapsed_ns = now_ns - begun_ns_;
    return elapsed_ns < (slices_.size() < kLeastSlices ? kPatienceNs : kEnoughNs);
  }

  // Nothing if it saw none whole.
  std::optional<double> median_ns() const {
    if (slices_.empty()) return std::nullopt;
    return bench::median(slices_);
  }

 private:
  static constexpr uint64_t kGapNs = 200'000;
  static constexpr uint64_t kEnoughNs = 60'000'000;
  static constexpr uint64_t kPatienceNs = 2'000'000'000;
  static constexpr size_t kLeastSlices = 3;

  uint64_t begun_ns_;
  uint64_t last_ns_;
  uint64_t from_ns_ = 0;
  std::vector<double> slices_;
};

}  // namespace verbena::calibrate
