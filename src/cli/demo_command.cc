// `verbena demo`: the main job in one command. All protocols against each other on this machine,
// the table, the plain answer and the page.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "src/base/output.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/result_file.h"
#include "src/cli/commands.h"
#include "src/cli/experiment.h"
#include "src/cli/lab.h"
#include "src/cli/tool.h"

namespace verbena::cli {

namespace {

struct DemoOptions {
  std::string output = "build/demo";
  bool quick = false;
};

// About 100 s on two cores; the quick one some 10 s.
Result<bench::Plan> demo_plan(bool quick) {
  bench::Plan plan;
  VERBENA_ASSIGN_OR_RETURN(bench::Sweep sweep,
                           bench::Sweep::in("one-to-one", bench::request_response_workload()));
  VERBENA_RETURN_IF_ERROR(sweep.set("pending", "1,16"));
  if (quick) {
    VERBENA_RETURN_IF_ERROR(sweep.set("response", "64,4KiB,64KiB"));
    plan.runs = 2;
    plan.run.length.duration_ns = 50'000'000;
  } else {
    VERBENA_RETURN_IF_ERROR(sweep.set("response", "64,256,1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB"));
    plan.runs = 3;
    plan.run.length.duration_ns = 250'000'000;
  }
  plan.sweeps.push_back(std::move(sweep));
  return plan;
}

int run_demo(const Tool& tool, const DemoOptions& options) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(options.output, error);
  std::filesystem::create_directories(folder, error);
  if (!std::filesystem::is_directory(folder)) {
    return report_usage_error(
        fmt::format("cannot make the directory {}: {}; choose another one with --output",
                    folder.string(), error ? error.message() : "something else has that name"));
  }
  const std::string results = folder / "results.json";
  const std::string page = folder / "report.html";

  Experiment experiment;
  Result<bench::Plan> plan = demo_plan(options.quick);
  if (!plan.ok()) return report_error(plan.status());
  experiment.plan = std::move(*plan);
  experiment.command = bench::command_text(tool.argc, tool.argv);
  experiment.json_path = results;
  print_output("Five protocols on soft0, two processes, {}.\n",
               options.quick ? "about 10 seconds" : "about two minutes");
  flush_output();
  const int measured = run_experiment(experiment);
  // A page can be made of what there is, and wherever the text went.
  const bool has_results = measured == 0 || measured == kExitFailure || measured == kExitClosedPipe;
  if (!has_results) return measured;
  if (!std::filesystem::exists(results, error)) return measured;

  const int reported = write_report(page, {results});
  if (reported != 0) return reported;
  print_output("\nWhich one should I use here?\n");
  flush_output();
  const int answered = print_verdict({results});
  if (answered != 0) return answered;
  print_output("\nReport:  {}\nResults: {}\n", page, results);
  const int written = finish_output();
  return measured != 0 ? measured : written;
}

}  // namespace

void add_demo_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "demo", "Compare all protocols on this machine and say which one to use");
  const auto options = std::make_shared<DemoOptions>();
  CLI::Option* output = command->add_option("--output", options->output,
                                            "Where results.json and report.html are written");
  output->option_text("DIR (build/demo)");
  tool.takes_path[output] = true;
  command->add_flag("--quick", options->quick, "Fewer sizes and shorter runs: some 10 seconds");
  command->footer(examples_text({"verbena demo --quick --output answers"}));
  command->callback([&tool, options] { tool.exit_code = run_demo(tool, *options); });
}

}  // namespace verbena::cli
