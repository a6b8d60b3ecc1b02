#include <fmt/format.h>

#include <algorithm>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"
#include "verbena/remote_lock.h"

namespace verbena {
namespace {

uint64_t token_of(uint64_t word) { return LockWord::of(word).token; }
uint64_t free_word(uint64_t token) { return LockWord{token, false}.word(); }
uint64_t held_word(uint64_t token) { return LockWord{token, true}.word(); }
bool is_held_word(uint64_t word) { return LockWord::of(word).held; }

// Between attempts without back-off, for who shares the processor with the holder.
constexpr uint64_t kBreathNs = 100;

void pause_until(uint64_t due_ns) {
  Waiter waiter;
  while (now_ns() < due_ns) waiter.idle(due_ns);
}

}  // namespace

Spinlock::Spinlock(const SpinlockOptions& options)
    : options_(options), backoff_bound_ns_(options.backoff_least_ns) {
  VERBENA_ASSERT(options.lease_ns > 0);
  // Those that wait must not try in step.
  secure_random(&random_, sizeof(random_));
}

Result<bool> Spinlock::try_lock() {
  VERBENA_ASSERT(!held_);
  // The second time where the word was free, only with another token than was seen last.
  for (int attempt = 0; attempt < 2 && (attempt == 0 || !is_held_word(seen_)); ++attempt) {
    VERBENA_ASSIGN_OR_RETURN(const bool locked, try_once());
    if (locked) return true;
  }
  return false;
}

Result<bool> Spinlock::try_once() {
  const uint64_t begun_ns = now_ns();
  const uint64_t patience_ns = end_of_ns(options_.lease_ns, options_.lease_ns / 64);
  const bool expired = is_held_word(seen_) && begun_ns - seen_since_ns_ >= patience_ns;
  // While its holder may live, the word is expected as the holder leaves it behind.
  const uint64_t expected = expired ? seen_ : free_word(token_of(seen_));
  const uint64_t token = token_of(seen_) + 1;
  ++statistics_.attempts;
  VERBENA_ASSIGN_OR_RETURN(const uint64_t before, compare_and_swap(expected, held_word(token)));
  if (before == expected) {
    hold(token, begun_ns);
    backoff_bound_ns_ = options_.backoff_least_ns;
    ++statistics_.acquisitions;
    if (expired) ++statistics_.takeovers;
    return true;
  }
  see(before);
  return false;
}

Status Spinlock::lock(int64_t timeout_ns) {
  const uint64_t start_ns = now_ns();
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(const bool locked, try_lock());
    if (locked) return Status::ok_status();
    const uint64_t at_ns = now_ns();
    if (timeout_ns >= 0 && at_ns - start_ns >= static_cast<uint64_t>(timeout_ns)) {
      return Status(StatusCode::kTimeout,
                    fmt::format("the lock was not free within {} us, token {} has it; wait longer, "
                                "or hold it for shorter",
                                timeout_ns / 1000, token_of(seen_)));
    }
    pause_until(at_ns + next_backoff_ns());
  }
}

Status Spinlock::unlock() {
  VERBENA_ASSERT(held_);
  return swap_own(free_word(token_));
}

Status Spinlock::renew() {
  VERBENA_ASSERT(held_);
  const uint64_t begun_ns = now_ns();
  const uint64_t token = token_ + 1;
  VERBENA_RETURN_IF_ERROR(swap_own(held_word(token)));
  hold(token, begun_ns);
  return Status::ok_status();
}

void Spinlock::hold(uint64_t token, uint64_t begun_ns) {
  held_ = true;
  token_ = token;
  lease_end_ns_ = end_of_ns(begun_ns, options_.lease_ns);
  see(held_word(token));
}

void Spinlock::see(uint64_t word) {
  if (word == seen_) return;
  seen_ = word;
  seen_since_ns_ = now_ns();
}

Status Spinlock::swap_own(uint64_t desired) {
  held_ = false;
  VERBENA_ASSIGN_OR_RETURN(const uint64_t before, compare_and_swap(held_word(token_), desired));
  if (before == held_word(token_)) {
    see(desired);
    return Status::ok_status();
  }
  see(before);
  ++statistics_.lost;
  return Status(
      StatusCode::kTimeout,
      fmt::format("the lease of {} us with token {} ended before the lock was given back, "
                  "and token {} took it over; renew() earlier, or raise lease_ns",
                  options_.lease_ns / 1000, token_, token_of(before)));
}

uint64_t Spinlock::lease_left_ns() const {
  const uint64_t at_ns = now_ns();
  return held_ && at_ns < lease_end_ns_ ? lease_end_ns_ - at_ns : 0;
}

uint64_t Spinlock::next_backoff_ns() {
  if (options_.backoff_most_ns == 0) return kBreathNs;
  const uint64_t bound_ns = std::max<uint64_t>(backoff_bound_ns_, 1);
  backoff_bound_ns_ = std::min(bound_ns * 2, options_.backoff_most_ns);
  Random random(random_);
  random_ = random.next();
  return bound_ns / 2 + random.below(bound_ns / 2 + 1);
}

Result<uint64_t> LocalSpinlock::compare_and_swap(uint64_t expected, uint64_t desired) {
  return compare_and_swap_word(word_, expected, desired);
}

}  // namespace verbena
