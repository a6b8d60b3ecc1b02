// The ring in which datagrams arrive at a queue pair, as its owner reads it.
//
// Any number of senders, of any processes, write to it. A sender takes the next position by a
// compare-and-swap of its claim, fills the datagram and publishes its mark. So a sender that is
// between the two, or ended there, is known by its queue pair number, and holds up nobody: up to
// kLookAhead later datagrams are taken before its own, and the position of a sender that ended is
// given up.
//
// Stale senders may write into the ring after its queue pair was destroyed. Its memory is therefore
// used for other rings of the same size only (DatagramRings), and each datagram says which
// generation of the queue pair it is for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/assert.h"
#include "src/device/soft/layout.h"
#include "src/device/soft/peer_queue_pair.h"
#include "verbena/status.h"

namespace verbena::soft {

class DatagramRing {
 public:
  // So many datagrams are taken before one whose sender has not finished.
  static constexpr uint32_t kLookAhead = 63;

  // `memory`: bytes_for() zeroed bytes, of which the first are a QpShared. `receives`: of the queue
  // pair itself, of stride_bytes each.
  DatagramRing(void* memory, uint32_t slots, uint32_t receives, size_t stride_bytes);
  static size_t bytes_for(uint32_t slots, uint32_t receives, size_t stride_bytes);

  QpShared* shared() const { return shared_; }
  uint32_t slots() const { return mask_ + 1; }
  std::byte* receives() const { return receives_; }
  std::atomic<uint64_t>* claims() const { return claims_; }
  Datagram* datagrams() const { return datagrams_; }
  std::byte* payloads() const { return payloads_; }

  // The following hold the lock of the receive completion queue.

  // Whether the next datagram is there.
  bool arrived() const { return published(next_); }
  // Finds the position of a datagram to take; false if there is none. Passes positions that were
  // given up.
  bool find(uint32_t* position);
  // As find(), where the next datagram is not there: those behind it, and given up positions.
  bool find_behind(uint32_t* position);
  const Datagram& at(uint32_t position) const { return datagrams_[position & mask_]; }
  const std::byte* payload_at(uint32_t position) const {
    return payloads_ + (position & mask_) * kDatagramPayloadBytes;
  }
  // The datagram at `position`, which find() gave, is done with; `voided`: it met no receive.
  void retire(uint32_t position, bool voided) {
    VERBENA_DEBUG_ASSERT(position - next_ <= kLookAhead && (done_ >> (position - next_) & 1) == 0);
    if (voided) void_one();
    if (position != next_) [[unlikely]] {
      done_ |= 1ull << (position - next_);
      return;
    }
    advance();
  }
  // No receive is posted any more.
  void forbid();
  // Whether the next position is taken and unfinished, while others behind it were finished.
  bool held_up() const { return done_ != 0; }

  // From any thread: gives up the position that holds others up if `ended` says that its taker,
  // a queue pair number, has. False if nothing is held up.
  template <typename Ended>
  bool give_up(Ended&& ended) {
    const uint32_t next = shown_next_.load(std::memory_order_acquire);
    std::atomic<uint64_t>& word = claims_[next & mask_];
    uint64_t claim = word.load(std::memory_order_acquire);
    if (claimed_position(claim) != next || (claim & kClaimVoid) != 0 || published(next))
      return false;
    // Read again: what the taker published before it ended is there.
    if (ended(claim_taker(claim)) && !published(next))
      word.compare_exchange_strong(claim, claim | kClaimVoid);
    return true;
  }

  // From any thread: gives up all positions of takers that have ended, and returns how many. Asks
  // `ended` at most kMostAsked times, once for positions of one taker that follow each other: the
  // others' turn comes when the poll has passed these.
  static constexpr uint32_t kMostAsked = 64;
  template <typename Ended>
  uint32_t give_up_all(Ended&& ended) {
    uint32_t count = 0;
    uint32_t asked = 0;
    uint64_t known_taker = ~uint64_t{0};  // none
    bool known_ended = false;
    const uint32_t next = shown_next_.load(std::memory_order_acquire);
    for (uint32_t position = next; position - next <= mask_; ++position) {
      std::atomic<uint64_t>& word = claims_[position & mask_];
      uint64_t claim = word.load(std::memory_order_acquire);
      if (claimed_position(claim) != position) break;
      if ((claim & kClaimVoid) != 0 || published(position)) continue;
      const uint32_t taker = claim_taker(claim);
      if (taker != known_taker) {
        if (asked++ == kMostAsked) break;
        known_taker = taker;
        known_ended = ended(taker);
      }
      // Read again: what the taker published before it ended is there.
      if (known_ended && !published(position) &&
          word.compare_exchange_strong(claim, claim | kClaimVoid))
        ++count;
    }
    return count;
  }

  // For a new queue pair in this memory.
  void renew();

 private:
  bool published(uint32_t position) const {
    return datagrams_[position & mask_].mark.load(std::memory_order_acquire) == position + 1;
  }
  bool claimed(uint32_t position) const {
    return claimed_position(claims_[position & mask_].load(std::memory_order_acquire)) == position;
  }
  bool pass_given_up();
  void advance() {
    do {
      ++next_;
      done_ >>= 1;
    } while ((done_ & 1) != 0);
    shown_next_.store(next_, std::memory_order_release);
    // Release: senders of the next lap find the datagrams before it done with.
    shared_->datagram.retired.store(next_, std::memory_order_release);
  }
  void void_one();
  void show_progress();

  QpShared* shared_;
  std::byte* receives_;
  std::atomic<uint64_t>* claims_;
  Datagram* datagrams_;
  std::byte* payloads_;
  uint32_t mask_;
  uint32_t next_ = 0;
  uint32_t voided_ = 0;
  uint64_t done_ = 0;  // bit i: position next_ + i was taken
  std::atomic<uint32_t> shown_next_{0};
};

// The rings of a process, which are kept until it ends. Thread-safe; takes no other lock but that
// of `allocate`.
class DatagramRings {
 public:
  // A queue pair of this process, as its own senders see it.
  struct Own {
    const DatagramRing* ring = nullptr;
    PeerCq cq;
    const SrqShared* srq = nullptr;
    const FlowShared* flows = nullptr;  // of raw packets
    bool operator==(const Own&) const = default;
  };
  void publish(uint32_t index, const Own& own) {
    const std::lock_guard guard(mutex_);
    own_[index] = own;
  }
  void withdraw(uint32_t index) {
    const std::lock_guard guard(mutex_);
    own_.erase(index);
  }
  bool find(uint32_t index, Own* own) {
    const std::lock_guard guard(mutex_);
    const auto found = own_.find(index);
    if (found == own_.end()) return false;
    *own = found->second;
    return true;
  }

  // Of a destroyed queue pair, or else made in memory from `allocate(size_bytes)`.
  template <typename Allocate>
  Result<std::unique_ptr<DatagramRing>> take(uint32_t slots, uint32_t receives, size_t stride_bytes,
                                             Allocate&& allocate) {
    const std::lock_guard guard(mutex_);
    auto& kept = kept_[{slots, receives, stride_bytes}];
    if (!kept.empty()) {
      std::unique_ptr<DatagramRing> ring = std::move(kept.back());
      kept.pop_back();
      ring->renew();
      return ring;
    }
    Result<void*> memory = allocate(DatagramRing::bytes_for(slots, receives, stride_bytes));
    if (!memory.ok()) return memory.status();
    return std::make_unique<DatagramRing>(*memory, slots, receives, stride_bytes);
  }
  void put(std::unique_ptr<DatagramRing> ring, uint32_t receives, size_t stride_bytes) {
    const std::lock_guard guard(mutex_);
    const uint32_t slots = ring->slots();
    kept_[{slots, receives, stride_bytes}].push_back(std::move(ring));
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<uint32_t, uint32_t, size_t>, std::vector<std::unique_ptr<DatagramRing>>>
      kept_;
  std::unordered_map<uint32_t, Own> own_;
};

}  // namespace verbena::soft
