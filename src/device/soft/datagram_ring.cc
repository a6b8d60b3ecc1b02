#include "src/device/soft/datagram_ring.h"

#include <bit>

#include "src/base/assert.h"

namespace verbena::soft {
namespace {

size_t whole_lines(size_t size_bytes) {
  return (size_bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

}  // namespace

size_t DatagramRing::bytes_for(uint32_t slots, uint32_t receives, size_t stride_bytes) {
  return sizeof(QpShared) + receives * stride_bytes +
         whole_lines(slots * sizeof(std::atomic<uint64_t>)) + slots * sizeof(Datagram) +
         slots * kDatagramPayloadBytes;
}

DatagramRing::DatagramRing(void* memory, uint32_t slots, uint32_t receives, size_t stride_bytes)
    : shared_(static_cast<QpShared*>(memory)), mask_(slots - 1) {
  VERBENA_ASSERT(std::has_single_bit(slots));
  receives_ = static_cast<std::byte*>(memory) + sizeof(QpShared);
  std::byte* claims = receives_ + receives * stride_bytes;
  claims_ = reinterpret_cast<std::atomic<uint64_t>*>(claims);
  std::byte* datagrams = claims + whole_lines(slots * sizeof(std::atomic<uint64_t>));
  datagrams_ = reinterpret_cast<Datagram*>(datagrams);
  payloads_ = datagrams + slots * sizeof(Datagram);
  DatagramShared& shown = shared_->datagram;
  shown.claims = reinterpret_cast<uint64_t>(claims);
  shown.datagrams = reinterpret_cast<uint64_t>(datagrams);
  shown.payloads = reinterpret_cast<uint64_t>(payloads_);
  shown.slot_count = slots;
  // As if somebody had taken each in the lap before.
  for (uint32_t i = 0; i < slots; ++i) claims_[i].store(make_datagram_claim(i - slots, 0));
}

void DatagramRing::renew() {
  // Where peers may have written.
  DatagramShared& shown = shared_->datagram;
  shown.claims = reinterpret_cast<uint64_t>(claims_);
  shown.datagrams = reinterpret_cast<uint64_t>(datagrams_);
  shown.payloads = reinterpret_cast<uint64_t>(payloads_);
  shown.slot_count = slots();
  shown.qkey.store(0);
  shared_->ready_bit = kNoReadyBit;
  shared_->shared_receive_queue = 0;
  forbid();
}

bool DatagramRing::find(uint32_t* position) {
  if (arrived()) {
    *position = next_;
    return true;
  }
  return find_behind(position);
}

bool DatagramRing::find_behind(uint32_t* position) {
  show_progress();
  for (uint32_t passed = 0; passed <= mask_ && pass_given_up(); ++passed) {
  }
  if (arrived()) {
    *position = next_;
    return true;
  }
  if (!claimed(next_)) return false;
  for (uint32_t ahead = 1; ahead <= kLookAhead && ahead <= mask_; ++ahead) {
    const uint32_t candidate = next_ + ahead;
    if ((done_ >> ahead & 1) != 0) continue;
    if (!claimed(candidate)) return false;
    if (!published(candidate)) continue;
    // A sender finishes its datagrams in their order: one that it took before this is there now.
    for (uint32_t before = 0; before <= ahead; ++before) {
      if ((done_ >> before & 1) == 0 && published(next_ + before)) {
        *position = next_ + before;
        return true;
      }
    }
  }
  return false;
}

// A position whose taker has ended, or whose claim is none at all: only a defect of a sender leaves
// such. The latter is set right for the next lap.
bool DatagramRing::pass_given_up() {
  std::atomic<uint64_t>& word = claims_[next_ & mask_];
  uint64_t claim = word.load(std::memory_order_acquire);
  const uint32_t position = claimed_position(claim);
  const bool is_free = position == next_ - slots() && (claim & kClaimVoid) == 0;
  const bool is_taken = position == next_ && (claim & kClaimVoid) == 0;
  if (is_free || is_taken || arrived()) return false;
  if (!word.compare_exchange_strong(claim, make_datagram_claim(next_, 0))) return false;
  void_one();
  advance();
  return true;
}

void DatagramRing::void_one() {
  shared_->datagram.voided.store(++voided_, std::memory_order_relaxed);
}

// Says again what a broken sender may have overwritten: without it nobody would send any more.
void DatagramRing::show_progress() {
  DatagramShared& shown = shared_->datagram;
  if (shown.voided.load(std::memory_order_relaxed) != voided_)
    shown.voided.store(voided_, std::memory_order_relaxed);
  if (shown.retired.load(std::memory_order_relaxed) != next_)
    shown.retired.store(next_, std::memory_order_release);
}

void DatagramRing::forbid() {
  voided_ = next_ + static_cast<uint32_t>(std::popcount(done_));
  shared_->datagram.voided.store(voided_);
  shared_->datagram.retired.store(next_);
}

}  // namespace verbena::soft
