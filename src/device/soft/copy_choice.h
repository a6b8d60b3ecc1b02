// Chooses how to copy a long message into a peer's memory: by stores through this CPU's caches, or
// by stores past them (non-temporal ones, "streaming").
//
// Where another CPU has read the destination, each of its lines must first come from there, and
// goes back when the message is read: on an AMD EPYC 29 ns a line between two groups of cores, 7
// within one, and 4 past the caches. Where this CPU has the lines itself it takes 1, and streaming
// stores would push them out. No instruction tells where lines are, so a few copies of each size
// are timed now and then, and the faster way is kept for the next ones.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "src/base/assert.h"
#include "src/base/tsc.h"
#include "src/device/soft/copy.h"

namespace verbena::soft {

class CopyChoice {
 public:
  // Shorter stores wait in the CPU, and what comes after them goes on.
  static constexpr uint32_t kShortBytes = 1024;
  static constexpr uint32_t kMostBytes = 1u << 20;

  struct Turn {
    bool streams = false;
    bool is_timed = false;
  };

  // `copy(bool streams)` copies kShortBytes + 1 to kMostBytes to `destination`.
  template <typename CopyBytes>
  void copy(std::byte* destination, uint32_t size_bytes, CopyBytes&& copy) {
    if constexpr (!kCanStream) return copy(false);
    const Turn turn = next(size_bytes);
    if (!turn.is_timed) [[likely]]
      return copy(turn.streams);
    const uint64_t begun_cycles = read_tsc_ordered();
    // In the middle: some programs read the ends only.
    if (!turn.streams) take_line_of(destination + size_bytes / 2);
    const uint64_t line_cycles = read_tsc_ordered();
    copy(turn.streams);
    wait_for_stores();
    const uint64_t end_cycles = read_tsc_ordered();
    took(size_bytes, turn, line_cycles - begun_cycles, end_cycles - line_cycles);
  }

  // What copy() decides, and learns: cycles until this CPU had one line, and those of the copy.
  Turn next(uint32_t size_bytes) { return sizes_[index_of(size_bytes)].next(); }
  void took(uint32_t size_bytes, const Turn& turn, uint64_t line_cycles, uint64_t copy_cycles) {
    Size& size = sizes_[index_of(size_bytes)];
    const uint64_t cycles_per_kib = copy_cycles * 1024 / size_bytes;
    if (turn.streams) {
      size.streaming_took(cycles_per_kib);
    } else {
      size.plain_took(line_cycles, cycles_per_kib);
    }
  }

 private:
  enum class Phase : uint8_t { kTimePlain, kPlain, kTimeStreaming, kStreaming };

  // Copies of one length, or up to twice that.
  class Size {
   public:
    Turn next() {
      if (left_ == 0) [[unlikely]]
        enter_next();
      --left_;
      return {.streams = phase_ == Phase::kTimeStreaming || phase_ == Phase::kStreaming,
              .is_timed = phase_ == Phase::kTimePlain || phase_ == Phase::kTimeStreaming};
    }
    // Of several counts the least: the others were interrupted, or brought the lines here. Who
    // reads the message waits for its lines as well: for each as long as this CPU did, or for
    // memory; for several at once.
    void plain_took(uint64_t line_cycles, uint64_t cycles_per_kib) {
      const uint64_t far_cycles = line_cycles - std::min(line_cycles, kNearLineCycles);
      plain_cycles_ =
          std::min(plain_cycles_, cycles_per_kib + far_cycles * kLinesOfKib / kLinesAtOnce);
    }
    void streaming_took(uint64_t cycles_per_kib) {
      streaming_cycles_ =
          std::min(streaming_cycles_, cycles_per_kib + kLinesOfKib * kMemoryLineCycles);
    }

   private:
    static constexpr uint16_t kTimedCopies = 4;
    static constexpr uint16_t kCopies = 250;
    static constexpr uint16_t kCopiesAfterBoth = 1000;
    static constexpr uint64_t kLinesOfKib = 16;
    // Of a line in the caches of this CPU's group.
    static constexpr uint64_t kNearLineCycles = 100;
    static constexpr uint64_t kLinesAtOnce = 5;
    // Of lines that are read one behind the other.
    static constexpr uint64_t kMemoryLineCycles = 14;
    // Streaming takes no fewer anywhere.
    static constexpr uint64_t kStreamingCyclesMin = kLinesOfKib * (8 + kMemoryLineCycles);

    void enter_next() {
      switch (phase_) {
        case Phase::kTimePlain:
          return plain_cycles_ > kStreamingCyclesMin ? enter(Phase::kTimeStreaming, kTimedCopies)
                                                     : enter(Phase::kPlain, kCopies);
        case Phase::kTimeStreaming:
          return enter(streaming_cycles_ < plain_cycles_ ? Phase::kStreaming : Phase::kPlain,
                       kCopiesAfterBoth);
        case Phase::kPlain:
        case Phase::kStreaming:
          plain_cycles_ = streaming_cycles_ = kUnknown;
          return enter(Phase::kTimePlain, kTimedCopies);
      }
    }
    void enter(Phase phase, uint16_t copies) {
      phase_ = phase;
      left_ = copies;
    }

    static constexpr uint64_t kUnknown = ~uint64_t{0};
    // For 1024 bytes, at both ends; the least since they were last timed.
    uint64_t plain_cycles_ = kUnknown;
    uint64_t streaming_cycles_ = kUnknown;
    Phase phase_ = Phase::kTimePlain;
    uint16_t left_ = kTimedCopies;
  };

  static uint32_t index_of(uint32_t size_bytes) {
    VERBENA_DEBUG_ASSERT(size_bytes > kShortBytes && size_bytes <= kMostBytes);
    return static_cast<uint32_t>(std::bit_width(size_bytes - 1) - std::bit_width(kShortBytes));
  }

  static constexpr int kSizes = std::bit_width(kMostBytes - 1) - std::bit_width(kShortBytes) + 1;
  Size sizes_[kSizes];
};

}  // namespace verbena::soft
