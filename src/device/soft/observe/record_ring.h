// Records from one thread to another, through memory that is bounded: what finds no room is
// dropped, and counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "src/base/assert.h"

namespace verbena::soft::observe {

// One thread writes, one reads. No lock, no allocation, no system call.
class RecordRing {
 public:
  // A power of two.
  explicit RecordRing(size_t capacity_bytes)
      : bytes_(new std::byte[capacity_bytes]), mask_(capacity_bytes - 1) {
    VERBENA_ASSERT(capacity_bytes >= 64 && (capacity_bytes & mask_) == 0);
  }

  // Room for a record, which is read after publish(); null, and it is dropped, if there is none.
  // Aligned to 8 bytes.
  std::byte* reserve(uint32_t size_bytes) {
    const size_t capacity = mask_ + 1;
    const size_t need = kHeadBytes + (size_bytes + size_t{7}) / 8 * 8;
    const size_t left = capacity - (reserved_ & mask_);
    // Records do not go around the end: the rest is skipped.
    const size_t skipped = need <= left ? 0 : left;
    if (reserved_ + skipped + need - known_read_ > capacity) {
      known_read_ = read_.load(std::memory_order_acquire);
      if (reserved_ + skipped + need - known_read_ > capacity) {
        dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return nullptr;
      }
    }
    if (skipped != 0) {
      head_at(reserved_) = kSkip;
      reserved_ += skipped;
    }
    head_at(reserved_) = size_bytes;
    std::byte* const record = &bytes_[(reserved_ & mask_) + kHeadBytes];
    reserved_ += need;
    return record;
  }
  // All that was reserved.
  void publish() { written_.store(reserved_, std::memory_order_release); }
  // Forgets what was reserved and not published.
  void take_back() { reserved_ = written_.load(std::memory_order_relaxed); }

  // By the reader: use(record, size_bytes) for each that is published.
  template <typename Use>
  void drain(Use&& use) {
    const size_t end = written_.load(std::memory_order_acquire);
    size_t at = read_.load(std::memory_order_relaxed);
    VERBENA_ASSERT(end - at <= mask_ + 1);
    while (at != end) {
      const uint64_t size_bytes = head_at(at);
      if (size_bytes == kSkip) {
        at += mask_ + 1 - (at & mask_);
        continue;
      }
      use(&bytes_[(at & mask_) + kHeadBytes], static_cast<uint32_t>(size_bytes));
      at += kHeadBytes + (size_bytes + size_t{7}) / 8 * 8;
    }
    read_.store(end, std::memory_order_release);
  }

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kHeadBytes = 8;
  static constexpr uint64_t kSkip = ~0ull;

  uint64_t& head_at(size_t position) {
    return *reinterpret_cast<uint64_t*>(&bytes_[position & mask_]);
  }

  const std::unique_ptr<std::byte[]> bytes_;
  const size_t mask_;
  // The writer's.
  size_t reserved_ = 0;
  size_t known_read_ = 0;
  std::atomic<uint64_t> dropped_{0};
  alignas(64) std::atomic<size_t> written_{0};
  alignas(64) std::atomic<size_t> read_{0};
};

}  // namespace verbena::soft::observe
