// Shortest way to try a command of `verbena`. For tests only: VERBENA_TOOL is theirs.
#pragma once

#include <regex>
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

// What it complained of: stderr without the lines of progress, which come on slow machines, and
// without warnings about the machine.
inline std::string complaints(const Outcome& outcome) {
  static const std::regex progress("\\[ *[0-9]+/[0-9]+\\][^\n]*\n");
  static const std::regex machine("[^\n]*(cycle counter is not steady|there is one CPU)[^\n]*\n");
  return std::regex_replace(std::regex_replace(outcome.err, progress, ""), machine, "");
}

}  // namespace verbena::test
