// A lock in a word of memory: of a region, or of this machine ("memsem" III-E). Whoever waits tries
// again and again, with a back-off. A holder has the lock for a lease: one that dies blocks nobody
// for longer. Each acquisition has a token, larger than all before it.
//
//   RemoteSpinlock lock(*region, kLockWord, {.lease_ns = 10'000'000});
//   VERBENA_RETURN_IF_ERROR(lock.lock(/*timeout_ns=*/1'000'000'000));
//   ... work on what it protects, while lock.lease_left_ns() is enough ...
//   VERBENA_RETURN_IF_ERROR(lock.unlock());
//
// The word holds the token and whether the lock is held: 0 is free, as in new memory. To lock, to
// renew and to unlock are compare-and-swaps on it. All who use a word give the same lease.
//
// How a lease ends without a common clock: a holder counts it from before its compare-and-swap, one
// who waits from when it first saw the holder's token. So the one who waits is later, and a 64th
// more makes up for clocks that run differently fast. It then takes the lock over.
//
// What a lease cannot do: a WRITE that its holder posted in time may arrive late, when packets were
// lost. So leave a reserve for the retries of the device; or let the token decide, which whoever
// reads the data can compare: write it with the data, and ignore what has a smaller one than was
// seen before (a fencing token).
//
// One object for each thread that locks; it belongs to that thread. A lock that is answered by a
// server derives from Spinlock as well: verbena/apps/lock_service.h.
#pragma once

#include <cstdint>

#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena {

// What the word of a lock says, for who keeps such words elsewhere than in a region.
struct LockWord {
  uint64_t token = 0;  // below 2^63
  bool held = false;

  static constexpr LockWord of(uint64_t word) { return {word >> 1, (word & 1) != 0}; }
  constexpr uint64_t word() const { return token << 1 | (held ? 1 : 0); }
};

struct SpinlockOptions {
  // Above 0. The longest time for which a dead holder blocks others, and for which a living one may
  // hold the lock without renew().
  uint64_t lease_ns = 10'000'000;
  // Between two attempts passes a random time, up to a bound that begins with the least and doubles
  // with every attempt that fails, to the most. Both 0: no back-off.
  uint64_t backoff_least_ns = 1'000;
  uint64_t backoff_most_ns = 64'000;
};

struct SpinlockStatistics {
  uint64_t attempts = 0;  // compare-and-swaps to lock
  uint64_t acquisitions = 0;
  uint64_t takeovers = 0;  // of these, from holders whose lease had ended
  uint64_t lost = 0;       // leases that another one took over
};

class Spinlock {
 public:
  virtual ~Spinlock() = default;
  Spinlock(const Spinlock&) = delete;
  Spinlock& operator=(const Spinlock&) = delete;

  // One attempt, and a second one where the lock was free. False: somebody else has it. An error is
  // the memory's (RemoteRegion); the lock may be held then, and is free again when the lease ends.
  Result<bool> try_lock();
  // Attempts until it has the lock.
  //   kTimeout  not within `timeout_ns` (negative: no limit)
  Status lock(int64_t timeout_ns);
  // Gives the lock back, which must be held.
  //   kTimeout  its lease had ended, and another one has taken it over
  Status unlock();
  // A new lease from now on, and a larger token; the lock must be held. Failures as of unlock().
  Status renew();

  bool is_held() const { return held_; }
  // Of the acquisition or renewal that was the last: 1 and up.
  uint64_t token() const { return token_; }
  // 0: it has ended, and the lock may be another one's.
  uint64_t lease_left_ns() const;
  const SpinlockStatistics& statistics() const { return statistics_; }

 protected:
  explicit Spinlock(const SpinlockOptions& options);
  // On the word; what it was before.
  virtual Result<uint64_t> compare_and_swap(uint64_t expected, uint64_t desired) = 0;

 private:
  Result<bool> try_once();
  void hold(uint64_t token, uint64_t begun_ns);
  void see(uint64_t word);
  // Swaps the own word for `desired`.
  Status swap_own(uint64_t desired);
  uint64_t next_backoff_ns();

  const SpinlockOptions options_;
  bool held_ = false;
  uint64_t token_ = 0;
  uint64_t lease_end_ns_ = 0;
  // The word as it was last seen, and since when it has been that.
  uint64_t seen_ = 0;
  uint64_t seen_since_ns_ = 0;
  uint64_t backoff_bound_ns_ = 0;
  uint64_t random_ = 0;
  SpinlockStatistics statistics_;
};

// In a region. `region` must outlive it, and be writable. Each attempt is a round trip.
class RemoteSpinlock final : public Spinlock {
 public:
  RemoteSpinlock(RemoteRegion& region, RemotePointer<uint64_t> word,
                 const SpinlockOptions& options = {})
      : Spinlock(options), region_(&region), word_(word) {}

 private:
  Result<uint64_t> compare_and_swap(uint64_t expected, uint64_t desired) override {
    return region_->compare_and_swap(word_, expected, desired);
  }

  RemoteRegion* region_;
  RemotePointer<uint64_t> word_;
};

// In memory of this machine, which processes may share. `word` is aligned to 8 bytes and must
// outlive it.
class LocalSpinlock final : public Spinlock {
 public:
  explicit LocalSpinlock(uint64_t& word, const SpinlockOptions& options = {})
      : Spinlock(options), word_(&word) {}

 private:
  Result<uint64_t> compare_and_swap(uint64_t expected, uint64_t desired) override;

  uint64_t* word_;
};

}  // namespace verbena
