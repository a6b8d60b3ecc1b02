#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/spawn.h"
#include "src/calibrate/parameter_probe.h"
#include "verbena/must.h"

namespace verbena::calibrate {
namespace {

// Another program that always wants the CPU that this thread is pinned to.
class BusyProgram {
 public:
  BusyProgram() : pid_(must(spawn({"sh", "-c", "while :; do :; done"}))) {}
  BusyProgram(const BusyProgram&) = delete;
  ~BusyProgram() {
    kill(pid_, SIGKILL);
    static_cast<void>(wait_for_exit(pid_));
  }

 private:
  pid_t pid_;
};

double value_of(const std::vector<Probe>& probes, std::string_view name) {
  const auto found = std::find_if(probes.begin(), probes.end(),
                                  [name](const Probe& one) { return one.parameter == name; });
  if (found != probes.end()) return found->value;
  ADD_FAILURE() << "no parameter " << name;
  return 0;
}

// A thread that gives way there waits for their slices, each of some milliseconds.
TEST(HostProbeTest, WhatOtherProgramsTakeOfACpuIsNoTimeOfASwitch) {
  const std::vector<int> cpus = usable_cpus();
  pin_this_thread(cpus.front());
  const std::array<BusyProgram, 3> others;
  pin_this_thread(cpus);
  const HostProbes found = probe_host();
  EXPECT_GT(value_of(found.probes, "cpu_switch"), 0);
  EXPECT_LT(value_of(found.probes, "cpu_switch"), 50'000);
  // Two fifths, where there are no more.
  EXPECT_GT(found.cpu_share, 0);
  EXPECT_LT(found.cpu_share, 0.8);
}

}  // namespace
}  // namespace verbena::calibrate
