// A member of a job in a process of its own. Usage: rpc_member_process PORT, with the job's secret
// in VERBENA_TEST_SECRET.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "tests/rpc_member.h"

int main(int argc, char** argv) {
  using verbena::rpc_test::kExitFailed;
  using verbena::rpc_test::kSecretVariable;
  const char* text = std::getenv(kSecretVariable);
  if (argc != 2 || text == nullptr) return 2;
  const auto secret = verbena::JobSecret::from_string(text);
  if (!secret.ok()) return 2;
  const verbena::Status status =
      verbena::rpc_test::live(static_cast<uint16_t>(std::atoi(argv[1])), *secret);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", status.message());
  return kExitFailed;
}
