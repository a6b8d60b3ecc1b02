// `verbena run -- PROGRAM ARGS` on the command line; run_command.h does the work. And the way past
// the parser to it, to `verbena mpi` and to `verbena trace`.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/check_option.h"
#include "src/cli/commands.h"
#include "src/cli/run_command.h"
#include "src/cli/tool.h"

namespace verbena::cli {

void add_run_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "run", "Start an unmodified verbs program that sees soft0 beside the real devices");
  command->prefix_command();
  // Parsed by run_other_program(); these are for the help page.
  const auto unused = std::make_shared<std::vector<std::string>>();
  command->add_option("PROGRAM", *unused, "The program and its arguments, behind --")
      ->option_text("...");
  const auto unused_check = std::make_shared<std::string>();
  command->add_option("--check", *unused_check, "Report misuse of verbs, see below")
      ->option_text("[=OPTIONS]");
  command->callback([unused, unused_check] {});
  command->footer(check_help() + "\n\n" +
                  examples_text({"verbena run -- ibv_devinfo -d soft0",
                                 "verbena run -- ibv_rc_pingpong -d soft0 & sleep 1; "
                                 "verbena run -- ibv_rc_pingpong -d soft0 localhost",
                                 "verbena run --check=suppress=leak -- ibv_devinfo -d soft0"}));
}

namespace {

// `verbena run`'s own options, up to the program: passes them on by the environment. Moves `first`
// behind them.
Status take_run_options(int argc, const char* const* argv, int& first) {
  constexpr std::string_view kCheck = "--check";
  for (; first < argc; ++first) {
    const std::string_view option = argv[first];
    const bool bare = option == kCheck;
    if (!bare && !(option.starts_with(kCheck) && option[kCheck.size()] == '=')) break;
    const Status set = set_check(bare ? "" : option.substr(kCheck.size() + 1));
    if (!set.ok()) return set;
  }
  return {};
}

}  // namespace

std::optional<int> run_other_program(int argc, const char* const* argv) {
  if (argc < 2) return std::nullopt;
  const std::string_view command = argv[1];
  if (command != "run" && command != "mpi" && command != "trace") return std::nullopt;
  int first = 2;
  std::string_view next = first < argc ? argv[first] : "";
  if (command == "trace") {
    // `trace show` and `trace replay` are commands of ours, and so is the help.
    if (next == "record") {
      next = ++first < argc ? argv[first] : "";
    } else if (!next.starts_with('-')) {
      return std::nullopt;
    }
    if (next == "--help" || next == "-h") return std::nullopt;
    return record_mpi_program(std::vector<std::string>(argv + first, argv + argc));
  }
  if (argc == 3 && (next == "--help" || next == "-h")) return std::nullopt;
  if (command == "run") {
    if (const Status taken = take_run_options(argc, argv, first); !taken.ok()) {
      return fail_command(taken.code() == StatusCode::kInvalidArgument ? kExitUsage : kExitFailure,
                          taken.message());
    }
    next = first < argc ? argv[first] : "";
  }
  if (next == "--") ++first;
  const std::vector<std::string> arguments(argv + first, argv + argc);
  return command == "run" ? run_program(arguments) : run_mpi_program(arguments);
}

}  // namespace verbena::cli
