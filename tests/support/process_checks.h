// CHECK() for small programs that a test runs as processes: without GoogleTest, whose runtime would
// be part of what is tried. main() returns 1 if `failures` is not 0.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace verbena::test {

inline int failures = 0;

inline void check_at(bool holds, const char* what, int line) {
  if (holds) return;
  std::printf("FAILED in line %d: %s (errno: %s)\n", line, what, std::strerror(errno));
  ++failures;
}

}  // namespace verbena::test

#define CHECK(condition) verbena::test::check_at((condition), #condition, __LINE__)
