// What the programs of perftest have of their own.
#pragma once

#include <string>

namespace verbena::test {

// perftest measures how fast the cycle counter runs, and gives up where the CPU was taken from it
// meanwhile: whoever runs it does so again.
inline bool perftest_gave_up(int exit_code, const std::string& output) {
  return exit_code != 0 && output.find("Can't produce a report") != std::string::npos;
}
inline constexpr int kPerftestAttempts = 20;

}  // namespace verbena::test
