// From how many reuses of a buffer on it pays to register it and to send from it, instead of
// copying each message into memory that is registered already ("bufreuse" 3.3).
//
// All here are pure functions of costs. Where these come from is the caller's choice: measured on
// this machine (measure_reuse_costs()), taken from a simulated RNIC's profile, or the paper's own
// table, which was measured on its machines.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace verbena {

// How messages of a size travel; the same buffer may pay on one and not on another.
enum class ReusePath {
  kEagerWrite,  // WRITE into the receiver's polled buffers: the paper's fast path
  kEagerSend,   // SEND and receive
  kOneSided,    // put, get
};
const char* reuse_path_name(ReusePath path);

// Of one message, in ns: the letters are the paper's.
struct ReuseCosts {
  double registration_ns = 0;  // R, once a buffer
  double copy_ns = 0;          // C, once a message
  double overhead_ns = 0;  // V, looking the buffer up in the table and in the registration cache
  double transfer_ns = 0;  // NT, NW or NR; equal in both ways
};

inline constexpr uint32_t kNeverPays = std::numeric_limits<uint32_t>::max();

// Equation 3: the least n with n > R / (C - V); kNeverPays where V >= C.
uint32_t least_reuses(const ReuseCosts& costs);
// Equations 1, 2, 4 and 5: what `messages` take in all. Messages that are received are copied there
// in both ways, and those of one-sided operations not at all.
double copied_ns(ReusePath path, const ReuseCosts& costs, uint64_t messages);
double in_place_ns(ReusePath path, const ReuseCosts& costs, uint64_t messages);
// Equation 6: the part of a latency that is saved, without the registration. Negative: it is lost.
double theoretical_improvement(const ReuseCosts& costs, double latency_ns);

// What messages of any size cost.
struct ReuseCostModel {
  double registration_ns = 0;
  double registration_page_ns = 0;  // for each page of 4 KiB
  double copy_ns = 0;
  double copy_byte_ns = 0;
  double overhead_ns = 0;

  // Of a buffer that begins with a page.
  ReuseCosts of(uint32_t bytes) const;
};

// The least number of reuses, by size. Copied freely: 4 KiB.
class ReuseThresholds {
 public:
  // Nothing ever pays.
  ReuseThresholds();
  // Equation 3 for each size. Messages below `least_bytes` never pay: those that are posted inline
  // need no registration, and the processor copies them in any case.
  static ReuseThresholds from_costs(const ReuseCostModel& costs, uint32_t least_bytes);
  // The paper's table 2, from 128 bytes on (5.1.1). It has the sizes of 512 bytes and of 1 to 8
  // KiB; between them this is linear, below 512 bytes the number rises as the size falls, since the
  // copy's cost does, and above 8 KiB it stays.
  static ReuseThresholds of_paper(ReusePath path);

  // Sizes are taken in steps of 64 bytes: of a step, what holds for its largest size. From 64 KiB
  // on it stays the same.
  uint32_t least_reuses(uint32_t bytes) const {
    if (bytes < least_bytes_) return kNeverPays;
    const uint32_t step = bytes == 0 ? 0 : (bytes - 1) / kStepBytes;
    return least_[step < kSteps ? step : kSteps - 1];
  }

 private:
  static constexpr uint32_t kStepBytes = 64;
  static constexpr uint32_t kSteps = 1024;

  template <typename Function>
  static ReuseThresholds tabulate(uint32_t least_bytes, Function&& least_of);

  uint32_t least_bytes_ = 0;
  std::array<uint32_t, kSteps> least_;
};

}  // namespace verbena
