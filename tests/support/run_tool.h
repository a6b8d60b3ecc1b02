// Shortest way to try a command of `verbena`. For tests only: VERBENA_TOOL is theirs.
#pragma once

#include <string>
#include <vector>

#include "tests/support/tool_process.h"

namespace verbena::test {

// `verbena` with these arguments, to its end.
inline Outcome run_tool(const std::vector<std::string>& arguments,
                        const std::string& directory = "") {
  std::vector<std::string> command = {VERBENA_TOOL};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return ToolProcess(command, {}, directory).wait();
}

}  // namespace verbena::test
