// `verbena run -- PROGRAM ARGS` on the command line; run_command.h does the work.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/run_command.h"
#include "src/cli/tool.h"

namespace verbena::cli {

void add_run_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "run", "Start an unmodified verbs program that sees soft0 beside the real devices");
  command->prefix_command();
  // Parsed by run_program_command(); these are for the help page.
  const auto unused = std::make_shared<std::vector<std::string>>();
  command->add_option("PROGRAM", *unused, "The program and its arguments, behind --")
      ->option_text("...");
  command->callback([unused] {});
  command->footer(examples_text({"verbena run -- ibv_devinfo -d soft0",
                                 "verbena run -- ibv_rc_pingpong -d soft0 & sleep 1; "
                                 "verbena run -- ibv_rc_pingpong -d soft0 localhost"}));
}

bool asks_for_help(int argc, const char* const* argv) {
  if (argc != 3) return false;
  const std::string_view word = argv[2];
  return word == "--help" || word == "-h";
}

int run_program_command(int argc, const char* const* argv) {
  int first = 2;
  if (first < argc && std::string_view(argv[first]) == "--") ++first;
  return run_program(std::vector<std::string>(argv + first, argv + argc));
}

}  // namespace verbena::cli
