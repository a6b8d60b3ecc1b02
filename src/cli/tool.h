// The command line of `verbena`: what every subcommand has in common.
//
// A subcommand lives in a file of its own and is added to the tree by its add_..._command(); its
// callback runs while the command line is parsed and leaves the exit code in the tool.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
// As shells say of programs that wrote into a closed pipe.
inline constexpr int kExitClosedPipe = 141;

struct Tool {
  Tool();
  Tool(const Tool&) = delete;
  Tool& operator=(const Tool&) = delete;

  CLI::App app;
  int argc = 0;
  const char* const* argv = nullptr;
  int exit_code = 0;
  // What shell completion offers for an option or a positional: its possible values, or paths.
  std::map<const CLI::Option*, std::vector<std::string>> choices;
  std::map<const CLI::Option*, bool> takes_path;
};

// Parses and carries out a command line. Returns the exit code.
int run_tool(int argc, const char* const* argv);

// Of a command below another one that has options and words of its own: these mean nothing to it,
// so that they stand in front of it is wrong usage.
void refuse_options_in_front(CLI::App& parent, CLI::App& command);

// Text below the options of a help page: examples, one per line, that work as printed.
std::string examples_text(const std::vector<std::string>& examples);

// "verbena: error: ..." on standard error, in one line. Returns the exit code that fits: 2 where
// the command line is at fault, else 1.
int report_error(const Status& status);
int report_usage_error(const std::string& message);

// Standard output could be written to the end, or the exit code for a full disk (one line, however
// often it is asked) and for a reader that wants no more (none).
int finish_output();

}  // namespace verbena::cli
