// main() of a program that a test starts as its peer: PROGRAM PORT ..., where PORT is the test's
// control port, with the job's secret in the environment.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "verbena/connection.h"

namespace verbena::test {

inline constexpr const char* kSecretVariable = "VERBENA_TEST_SECRET";

// `run` is Status(uint16_t port, const JobSecret&). Returns the exit code: 2 for other arguments or
// no secret; `failed`, and why on standard error, if `run` failed.
template <typename Run>
int run_peer(int argc, char** argv, const Run& run, int failed = 1, int arguments = 1) {
  const char* const text = std::getenv(kSecretVariable);
  if (argc != 1 + arguments || text == nullptr) return 2;
  const auto secret = JobSecret::from_string(text);
  if (!secret.ok()) return 2;
  const Status status = run(static_cast<uint16_t>(std::atoi(argv[1])), *secret);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return failed;
}

}  // namespace verbena::test
