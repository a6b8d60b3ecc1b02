// When the requests of one thread of an open loop are due: they arrive at a rate, whatever the
// system does.
//
// Threads together: independent Poisson processes add up to one of the sum of their rates; even
// ones do where each begins at its own share of the gap.
#pragma once

#include <cmath>

#include "src/base/runtime.h"
#include "src/bench/experiment/point.h"

namespace verbena::bench {

class ArrivalProcess {
 public:
  // Both arguments in whatever unit the caller counts time in. `mean_gap` > 0; `first`: of kEven,
  // the first arrival. Equal seeds give equal arrivals.
  ArrivalProcess(Arrivals arrivals, double mean_gap, double first, uint64_t seed)
      : arrivals_(arrivals), mean_gap_(mean_gap), random_(seed) {
    due_ = arrivals == Arrivals::kEven ? first : gap();
  }

  // The next arrival, counted from the begin of the run. The time of the process alone moves it, so
  // an arrival that cannot be served yet waits without any memory: those after it are not drawn.
  double due() const { return due_; }
  void advance() { due_ += gap(); }
  double mean_gap() const { return mean_gap_; }

 private:
  double gap() {
    if (arrivals_ == Arrivals::kEven) return mean_gap_;
    const double uniform = static_cast<double>(random_.next() >> 11) * 0x1p-53;  // in [0, 1)
    return -std::log1p(-uniform) * mean_gap_;
  }

  Arrivals arrivals_;
  double mean_gap_;
  Random random_;
  double due_;
};

}  // namespace verbena::bench
