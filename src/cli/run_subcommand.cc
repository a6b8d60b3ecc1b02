// `verbena run [OPTIONS] -- PROGRAM ARGS` on the command line; run_command.h does the work. And the
// way past the parser to it, to `verbena mpi` and to `verbena trace`.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/cli/check_option.h"
#include "src/cli/commands.h"
#include "src/cli/run_arguments.h"
#include "src/cli/run_command.h"
#include "src/cli/tool.h"

namespace verbena::cli {

void add_run_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "run", "Start an unmodified verbs program that sees soft0 beside the real devices");
  command->prefix_command();
  // Parsed by run_other_program(); these are for the help page.
  const auto unused = std::make_shared<std::vector<std::string>>();
  for (const RunOption& option : run_options()) {
    CLI::Option* added = command->add_option(option.name, *unused, option.help);
    added->option_text(option.placeholder);
    if (std::string_view(option.placeholder) == "FILE") tool.takes_path[added] = true;
  }
  command->add_option("PROGRAM", *unused, "The program and its arguments, behind --")
      ->option_text("...");
  command->callback([unused] {});
  command->footer(
      "A FILE is this user's alone (mode 0600). Each %p in its name becomes the process's number;\n"
      "without one, the first process that opens soft0 writes FILE, and each other one inserts "
      "its\n"
      "number: t.json, t.4711.json. Memory is bounded: what comes faster than it is written is\n"
      "dropped, counted and said. A packet file has what its process requested and the answers;\n"
      "mergecap joins those of several. VERBENA_LOG=info says why a verb failed.\n\n"
      "FAULTS are joined by commas. P is a probability, TIME in ns, us, ms or s:\n"
      "  drop=P              a packet is lost: RC sends it again, UC and UD lose the message\n"
      "  rnr=P               the receiver is not ready\n"
      "  delay=P:TIME        an operation takes up to so much longer\n"
      "  qp-error=P          a queue pair goes to the error state at an operation\n"
      "  kill-after=N|TIME   the process is killed after so many operations or so long\n"
      "  seed=N              which of them; the same ones for the same seed\n"
      "LINK is latency=TIME of one way, rate=BITS per second and direction of the process's port\n"
      "(kbps, Mbps, Gbps or Tbps), or both.\n\n" +
      check_help() + "\n\n" +
      examples_text({"verbena run -- ibv_devinfo -d soft0",
                     "verbena run -- ibv_rc_pingpong -d soft0 & sleep 1; " +
                         std::string("verbena run -- ibv_rc_pingpong -d soft0 localhost"),
                     "verbena run --trace t.json --pcap p.pcap -- ibv_devinfo -d soft0",
                     "verbena run --fault drop=1e-3,delay=0.01:50us,seed=7 --link " +
                         std::string("latency=2us,rate=100Gbps -- ibv_devinfo -d soft0"),
                     "verbena run --check=suppress=leak -- ibv_devinfo -d soft0"}));
}

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
  if (command == "mpi" && next == "--") ++first;
  std::vector<std::string> arguments(argv + first, argv + argc);
  if (command == "mpi") return run_mpi_program(arguments);
  if (const Status status = take_run_options(arguments); !status.ok()) return report_error(status);
  return run_program(arguments);
}

}  // namespace verbena::cli
