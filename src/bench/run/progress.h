// Shows on stderr how far a long job is: one line that is written over on a terminal, else a line
// now and then.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::bench {

class Progress {
 public:
  // `weight` is that of all steps together, where they take unequally long; 0: they do not.
  explicit Progress(uint64_t steps, double weight = 0);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The next step begins; `what` says which.
  void step(const std::string& what, double weight = 1);
  // Takes the line away, so that something else can be written.
  void clear();

 private:
  static constexpr uint64_t kTerminalPeriodNs = 100'000'000;
  static constexpr uint64_t kOtherPeriodNs = 10'000'000'000;

  uint64_t steps_;
  double weight_;
  double begun_weight_ = 0;
  double last_weight_ = 0;
  uint64_t begun_ = 0;
  bool terminal_;
  bool shown_ = false;
  uint64_t start_ns_;
  uint64_t last_ns_;
};

// " 1:05 left", as what is done took `elapsed_ns`; empty where that says nothing yet: steps of a
// start are unlike the others.
std::string remaining_text(double done_weight, double weight, uint64_t elapsed_ns);

}  // namespace verbena::bench
