// `verbena report`: the HTML page from result files.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/base/output.h"
#include "src/cli/commands.h"
#include "src/cli/lab.h"
#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

struct ReportOptions {
  std::vector<std::string> inputs;
  std::string output = "report.html";
};

}  // namespace

void add_report_command(Tool& tool) {
  CLI::App* command =
      tool.app.add_subcommand("report", "Write a page with plots and answers from result files");
  const auto options = std::make_shared<ReportOptions>();
  CLI::Option* inputs = command->add_option(
      "FILE", options->inputs, "Result files, or directories with *.json; several can be compared");
  inputs->required()->option_text("...");
  CLI::Option* output =
      command->add_option("-o,--output", options->output,
                          "The page to write; it is self-contained and needs no network");
  output->option_text("OUT.html (report.html)");
  tool.takes_path[inputs] = tool.takes_path[output] = true;
  command->footer(
      examples_text({"verbena bench one-to-one --protocol all --json results.json",
                     "verbena report results.json", "verbena report -o two.html results.json ."}));
  command->callback([&tool, options] {
    tool.exit_code = write_report(options->output, options->inputs);
    if (tool.exit_code != 0) return;
    std::error_code error;
    const std::filesystem::path path = std::filesystem::absolute(options->output, error);
    print_output("{}\n", error ? options->output : path.string());
  });
}

}  // namespace verbena::cli
