#include "src/bench/load/request_loop.h"

#include <fmt/format.h>

#include <algorithm>

namespace verbena::bench {

RequestLoopBase::RequestLoopBase(size_t targets, const LoopOrders& orders,
                                 const std::atomic<bool>& halt)
    : orders_(orders),
      halt_(halt),
      random_(orders.seed),
      started_(targets * orders.pending),
      waiting_(targets),
      silence_(orders.stall_ns, static_cast<uint64_t>(clock_.to_ns(clock_.now()))),
      activity_(orders.activity != nullptr ? *orders.activity : unwatched_) {
  refused_.reserve(started_.size());
  retried_.reserve(started_.size());
}

RequestLoopBase::Times RequestLoopBase::start_times() const {
  const uint64_t now = now_ns();
  Times times{.start = clock_.now(), .begin_ns = orders_.begin_ns == 0 ? now : orders_.begin_ns};
  const uint64_t late_ns = now > times.begin_ns ? now - times.begin_ns : 0;
  const auto from_now = [&](uint64_t ns) {
    return times.start + clock_.from_ns(ns - std::min(late_ns, ns));
  };
  times.settled = from_now(orders_.settle_ns);
  times.deadline = from_now(orders_.length.duration_ns);
  return times;
}

bool RequestLoopBase::can_go_on(uint64_t last, uint64_t unanswered, Status* status) {
  show_activity();
  *status = first_failure();
  if (!status->ok()) return false;
  const uint64_t now = clock_.now();
  // While nothing is pending, nobody is silent.
  const uint64_t progress = unanswered == 0 ? now : last;
  if (!silence_.too_long(static_cast<uint64_t>(clock_.to_ns(now)), progress)) return true;
  *status = Status(
      StatusCode::kTimeout,
      fmt::format("no response for {:.1f} s to {} pending requests, although the responder is "
                  "connected; is its process stopped, or its machine overloaded?",
                  static_cast<double>(silence_.silent_ns()) / 1e9, unanswered));
  return false;
}

}  // namespace verbena::bench
