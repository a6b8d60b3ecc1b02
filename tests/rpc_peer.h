// A process of the request/response tests that can be killed at any moment.
#pragma once

#include <cstdint>
#include <string>

#include "tests/rpc_support.h"
#include "tests/support/child_process.h"

namespace verbena::rpc_test {

// Runs `program PORT` with the secret in its environment.
class PeerProcess : public test::ChildProcess {
 public:
  PeerProcess(const char* name, uint16_t port, const JobSecret& secret)
      : ChildProcess({std::string(VERBENA_TEST_PROCESSES "/") + name, std::to_string(port)},
                     {.environment = {{kSecretVariable, std::string(secret.text())}}}) {}
};

}  // namespace verbena::rpc_test
