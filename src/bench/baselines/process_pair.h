// Two processes, each on a core of its own, that carry out one experiment together.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench::baselines {

// Which CPUs everything here runs on: side 0 on the first, side 1 on the second.
struct CpuPair {
  int cpu[2] = {0, 1};
};

inline constexpr uint64_t kSharedBytes = uint64_t{8} << 20;

// What the two processes share: mapped before they part.
struct Board {
  // One cache line per side and subject.
  struct alignas(64) Line {
    std::atomic<uint64_t> value{0};
  };
  Line ball[2];    // handed over by the experiments themselves
  Line step[2];    // how many steps each side has reached
  Line failed[2];  // a side gave up
  uint64_t memory_address[2] = {};
  uint32_t memory_rkey[2] = {};
  double result[2] = {};  // what each side measured
  char error[2][512] = {};
  // Two buffers for copies, page-aligned.
  alignas(4096) char memory[2][kSharedBytes];
};

// One side's view.
class Side {
 public:
  Side(Board& board, int number) : board_(board), number_(number) {}

  int number() const { return number_; }
  Board& board() const { return board_; }
  // Waits until the other side has come as far; kUnavailable if it never does.
  Status meet();
  void set_result(double result) { board_.result[number_] = result; }

 private:
  Board& board_;
  int number_;
  uint64_t steps_ = 0;
};

// Forks two processes that each call `body`, and returns what side 0 measured. Fails if either
// does.
Result<double> run_pair(const CpuPair& cpus, const std::function<Status(Side&)>& body);

// What a side has that is connected to the other one and has the software device.
struct ConnectedSide {
  Side& side;
  const Device& device;
  const ProtectionDomain& domain;
  ControlConnection& control;
};
Result<double> run_connected_pair(const CpuPair& cpus,
                                  const std::function<Status(const ConnectedSide&)>& body);

}  // namespace verbena::bench::baselines
