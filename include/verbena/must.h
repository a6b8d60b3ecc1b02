// For small programs, such as examples and tests: what fails ends the program.
//
//   const Device device = must(Device::open("soft0"));
//   must(sender->finish());
//
// A service goes on instead: see VERBENA_RETURN_IF_ERROR and VERBENA_ASSIGN_OR_RETURN (status.h).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "verbena/status.h"

namespace verbena {

// Returns if it is ok; else prints "error: MESSAGE" to standard error and ends the program with
// exit code 1, at once: without destructors, since other threads may be in the middle of something.
inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "error: %s\n", status.message().c_str());
  std::quick_exit(1);
}

// The same, and returns the value.
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(result).value();
}

}  // namespace verbena
