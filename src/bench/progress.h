// Shows on stderr how far a long job is: one line that is written over on a terminal, else a line
// now and then.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::bench {

class Progress {
 public:
  explicit Progress(uint64_t steps);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The next step begins; `what` says which.
  void step(const std::string& what);
  // Takes the line away, so that something else can be written.
  void clear();

 private:
  static constexpr uint64_t kTerminalPeriodNs = 100'000'000;
  static constexpr uint64_t kOtherPeriodNs = 10'000'000'000;

  std::string remaining_text(uint64_t elapsed_ns) const;

  uint64_t steps_;
  uint64_t begun_ = 0;
  bool terminal_;
  bool shown_ = false;
  uint64_t start_ns_;
  uint64_t last_ns_;
};

}  // namespace verbena::bench
