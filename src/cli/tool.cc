#include "src/cli/tool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

#include "src/base/build_info.h"
#include "src/base/output.h"
#include "src/bench/run/node_pool.h"
#include "src/cli/commands.h"
#include "verbena/version.h"

namespace verbena::cli {

namespace {

// The library's formatter, but footers stay as they were written: examples must not be wrapped.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_footer(const CLI::App* app) const override { return app->get_footer(); }
};

// The subcommand that was being parsed, as words: "verbena bench one-to-one".
std::string command_path(const CLI::App& app) {
  std::string path = app.get_name();
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().back();
    path += " " + command->get_name();
  }
  return path;
}

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// A word may stand there that is no subcommand, such as a topology.
bool takes_words(const CLI::App& command) {
  const std::vector<const CLI::Option*> options = command.get_options();
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->get_positional(); });
}

using Commands = std::vector<const CLI::App*>;

Commands commands_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::string command_names(const Commands& commands) {
  std::string names;
  for (const CLI::App* command : commands) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// What is wrong with the words that should be subcommands, or an option in front of one; the
// library would only say that a subcommand is missing. Returns the whole line, or nothing.
std::string wrong_command(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  for (int i = 1; i < argc; ++i) {
    const Commands children = commands_of(*command);
    if (children.empty()) return "";
    if (argv[i][0] == '-') {
      if (command->get_option_no_throw(argv[i]) != nullptr) return "";
      return fmt::format("'{}' has no option '{}'; see '{} --help'", path, argv[i], path);
    }
    const auto found = std::find_if(children.begin(), children.end(), [&](const CLI::App* child) {
      return child->get_name() == argv[i];
    });
    if (found == children.end() && takes_words(*command)) return "";
    if (found == children.end()) {
      return fmt::format("'{}' has no command '{}'; there are {}; see '{} --help'", path, argv[i],
                         command_names(children), path);
    }
    command = *found;
    path += " " + command->get_name();
  }
  if (command->get_require_subcommand_min() == 0) return "";
  return fmt::format("'{}' needs a command: {}; see '{} --help'", path,
                     command_names(commands_of(*command)), path);
}

// What a variable of a script left empty would be taken for an option that is not given, such as a
// result file's name. No option means anything by an empty value. Returns the whole line, or
// nothing.
std::string empty_argument(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (*argv[i] != '\0') continue;
    const std::string_view before = argv[i - 1];
    if (i == 1 || !before.starts_with('-')) return "an argument is empty: leave it out";
    return fmt::format("the value of {} is empty: give one, or leave the option out", before);
  }
  return "";
}

// Of options that are numbers, CLI11 says only "Could not convert: --size = 5GiB".
std::string parse_error_text(const CLI::ParseError& error) {
  const std::string text = in_one_line(error.what());
  constexpr std::string_view kNumber = "Could not convert: ";
  const size_t value = text.find(" = ");
  if (!text.starts_with(kNumber) || value == std::string::npos) return text;
  return fmt::format("{} cannot be '{}': give a number within its limits, without a unit",
                     std::string_view(text).substr(kNumber.size(), value - kNumber.size()),
                     std::string_view(text).substr(value + 3));
}

}  // namespace

Tool::Tool()
    : app("RDMA messaging: measure protocols side by side, and run verbs programs without an RNIC.",
          "verbena") {
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", fmt::format("verbena {} (commit {}, {})", kVersion,
                                                build_commit(), build_configuration()));
  app.require_subcommand(1);
  app.footer(examples_text(
      {"verbena devices",
       "verbena bench one-to-one --protocol all --response 64,4KiB --json results.json",
       "verbena report results.json"}));
  add_devices_command(*this);
  add_explain_command(*this);
  add_bench_command(*this);
  add_workload_commands(*this);
  add_demo_command(*this);
  add_report_command(*this);
  add_reproduce_command(*this);
  add_sim_command(*this);
  add_calibrate_command(*this);
  add_run_command(*this);
  add_top_command(*this);
  add_mpi_command(*this);
  add_trace_command(*this);
  add_completion_command(*this);
}

int run_tool(int argc, const char* const* argv) {
  // Not for people, so not in the tree.
  if (argc == 2 && std::string_view(argv[1]) == bench::kNodeCommand) {
    return bench::node_process_main();
  }
  Tool tool;
  tool.argc = argc;
  tool.argv = argv;
  if (const std::optional<int> exit_code = run_other_program(argc, argv)) return *exit_code;
  if (const std::string wrong = wrong_command(tool.app, argc, argv); !wrong.empty()) {
    return report_usage_error(wrong);
  }
  if (const std::string empty = empty_argument(argc, argv); !empty.empty()) {
    return report_usage_error(empty);
  }
  try {
    tool.app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    tool.app.exit(success, text, text);
    write_output(text.str());
    return finish_output();
  } catch (const CLI::ParseError& error) {
    return report_usage_error(
        fmt::format("{}; see '{} --help'", parse_error_text(error), command_path(tool.app)));
  }
  return tool.exit_code != 0 ? tool.exit_code : finish_output();
}

void refuse_options_in_front(CLI::App& parent, CLI::App& command) {
  for (CLI::Option* option : parent.get_options([](const CLI::Option*) { return true; })) {
    if (option != parent.get_help_ptr()) command.excludes(option);
  }
}

std::string examples_text(const std::vector<std::string>& examples) {
  std::string text = examples.size() == 1 ? "Example:\n" : "Examples:\n";
  for (const std::string& example : examples) text += "  " + example + "\n";
  return text;
}

int report_error(const Status& status) {
  const bool usage =
      status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound;
  print_error_output("verbena: error: {}\n", in_one_line(status.message()));
  return usage ? kExitUsage : kExitFailure;
}

int report_usage_error(const std::string& message) {
  return report_error(Status(StatusCode::kInvalidArgument, message));
}

int finish_output() {
  const int error = flush_output();
  if (error == 0) return 0;
  if (error == EPIPE) return kExitClosedPipe;
  static bool reported = false;
  if (std::exchange(reported, true)) return kExitFailure;
  return report_error(
      Status(StatusCode::kUnavailable,
             fmt::format("cannot write to standard output: {}; {}", std::strerror(error),
                         error == EBADF ? "it is closed" : "free space or choose another file")));
}

}  // namespace verbena::cli
