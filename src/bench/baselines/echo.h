// Request/response echoes, the same for every contender: side 1 sends each request back, side 0
// keeps a number of them on their way and measures.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/histogram.h"
#include "src/base/tsc.h"
#include "src/bench/baselines/process_pair.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

struct EchoPlan {
  uint32_t bytes = 64;  // of request and response
  uint32_t pending = 1;
  uint64_t requests = 100'000;

  uint64_t warm_up() const { return requests / 10 + pending; }
  uint64_t all() const { return warm_up() + requests; }
};

inline Status echo_failed() {
  return Status(StatusCode::kUnavailable,
                "the echo ended early: a request or the other process failed");
}

// The side that measures. `post()` sends one request, `take()` returns how many responses came
// since the last call, or a negative number if none ever will. The result is in requests per
// second: one at a time, of the median round trip; else of all that were measured.
template <typename Post, typename Take>
Status request_echoes(Side& side, const EchoPlan& plan, Post&& post, Take&& take) {
  const uint64_t all = plan.all();
  uint64_t posted = 0;
  uint64_t taken = 0;
  const auto advance = [&] {
    while (posted < all && posted - taken < plan.pending) {
      if (!post()) return false;
      ++posted;
    }
    const int64_t found = take();
    taken += found > 0 ? static_cast<uint64_t>(found) : 0;
    return found >= 0;
  };
  if (plan.pending == 1) {
    // One store per round trip; the arithmetic comes afterwards.
    std::vector<uint64_t> stamps(all + 1);
    uint64_t stamped = 0;
    stamps[0] = read_tsc();
    while (taken < all) {
      if (!advance()) return echo_failed();
      if (taken > stamped) stamps[++stamped] = read_tsc();
    }
    const auto round_trip = std::make_unique<Histogram>();
    for (uint64_t i = plan.warm_up(); i < all; ++i) round_trip->record(stamps[i + 1] - stamps[i]);
    side.set_result(1e9 / tsc_to_ns(round_trip->quantile(0.5)));
    return Status::ok_status();
  }
  while (taken < plan.warm_up()) {
    if (!advance()) return echo_failed();
  }
  const uint64_t before = taken;
  const uint64_t start = read_tsc();
  while (taken < all) {
    if (!advance()) return echo_failed();
  }
  const uint64_t elapsed = read_tsc() - start;
  side.set_result(static_cast<double>(all - before) / tsc_to_ns(elapsed) * 1e9);
  return Status::ok_status();
}

}  // namespace verbena::bench::baselines
