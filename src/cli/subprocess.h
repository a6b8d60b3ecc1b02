// Programs that a subcommand starts and waits for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::cli {

// Where a program's output goes; empty: where ours goes.
struct OutputFiles {
  std::string standard{};
  std::string error{};
};

// Starts `arguments[0]` (searched for in PATH) with further environment variables and waits for its
// end. Its exit code; 128 + the signal that killed it. kNotFound if there is no such program.
Result<int> run_and_wait(const std::vector<std::string>& arguments,
                         const std::map<std::string, std::string>& environment,
                         const OutputFiles& output = {});

}  // namespace verbena::cli
