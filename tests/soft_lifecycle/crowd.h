// Threads of several processes that make, connect, use, reset and destroy queue pairs, regions and
// windows at the same time. Who comes first is not known, so there is no model of all outcomes:
// what has to hold in any order is checked.
//
//   - Each request that was posted completes once, in its order; after the first error none
//     succeeds. What belongs to a queue pair that was reset or destroyed does not come any more.
//   - A message arrives as it was sent, in a receive that was posted.
//   - Memory holds nothing but what its owner, or one who has access, has put there; nothing is
//     written once its region is deregistered.
//   - What is destroyed in order goes, and nothing stays behind.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace verbena::soft_lifecycle {

inline constexpr uint32_t kCrowdProcesses = 2;
inline constexpr uint32_t kCrowdThreads = 3;  // of a process
inline constexpr uint32_t kSeats = kCrowdProcesses * kCrowdThreads;
inline constexpr uint32_t kSeatQueuePairs = 6;
inline constexpr uint32_t kSeatRegions = 3;

// What a thread tells of its objects. It may be out of date when it is read: then it names what is
// gone, or another one.
struct Seat {
  std::atomic<uint32_t> numbers[kSeatQueuePairs];  // 0: none
  std::atomic<uint32_t> keys[kSeatRegions];
  std::atomic<uint32_t> window_key;
  std::atomic<uint64_t> arena;
};

// In memory that all share, zeroed at first.
struct Board {
  Seat seats[kSeats];
  std::atomic<uint64_t> steps;  // of all
  std::atomic<uint32_t> failed;
};

// Runs the threads of a process to their ends. Empty, or what is wrong.
std::string run_crowd(Board& board, uint32_t process, uint64_t seed, uint32_t steps);

}  // namespace verbena::soft_lifecycle
