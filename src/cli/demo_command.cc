// `verbena demo`: the main job in one command. All protocols against each other on this machine,
// the applications, the tables, the plain answer and the page.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "src/base/output.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/result_file.h"
#include "src/bench/workloads.h"
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

// About 70 s on two cores; the quick one some 10 s.
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
    plan.run.length.duration_ns = 150'000'000;
  }
  plan.sweeps.push_back(std::move(sweep));
  return plan;
}

// What is varied of each application, on few threads: a machine may have two cores.
struct DemoApplication {
  const char* name;
  std::vector<std::pair<const char*, const char*>> axes;
};

const std::vector<DemoApplication>& demo_applications() {
  static const std::vector<DemoApplication> list = {
      {"hashtable", {{"mix", "A,C"}, {"pending", "1,4,16"}, {"keys", "20000"}}},
      {"log", {{"batch", "1,4,16,32"}}},
      {"shuffle", {{"nodes", "1"}, {"batch", "1,4,16"}, {"method", "sp,sgl"}}},
      {"join", {{"threads", "1,2"}, {"method", "sp,sgl"}, {"tuples", "200000"}}}};
  return list;
}

Result<bench::Plan> application_plan(const DemoApplication& application, bool quick) {
  bench::Sweep sweep = bench::Sweep::of(*bench::find_workload(application.name));
  for (const auto& [axis, text] : application.axes) {
    VERBENA_RETURN_IF_ERROR(sweep.set(axis, text));
  }
  bench::Plan plan;
  plan.runs = quick ? 1 : 3;
  plan.run.length.duration_ns = quick ? 20'000'000 : 150'000'000;
  plan.sweeps.push_back(std::move(sweep));
  return plan;
}

// Writes `file`. Returns the exit code.
int measure(const Tool& tool, bench::Plan plan, const std::string& file) {
  Experiment experiment;
  experiment.plan = std::move(plan);
  experiment.command = bench::command_text(tool.argc, tool.argv);
  experiment.json_path = file;
  return run_experiment(experiment);
}

// A page can be made of what there is, and wherever the text went.
bool has_results(int measured, const std::string& file) {
  std::error_code error;
  return (measured == 0 || measured == kExitFailure || measured == kExitClosedPipe) &&
         std::filesystem::exists(file, error);
}

int run_demo(const Tool& tool, const DemoOptions& options) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(options.output, error);
  std::filesystem::create_directories(folder, error);
  std::error_code unknown;
  if (!std::filesystem::is_directory(folder, unknown)) {
    return report_usage_error(
        fmt::format("cannot make the directory {}: {}; choose another one with --output",
                    folder.string(), error ? error.message() : "something else has that name"));
  }
  const std::string results = folder / "results.json";
  const std::string page = folder / "report.html";

  Result<bench::Plan> plan = demo_plan(options.quick);
  if (!plan.ok()) return report_error(plan.status());
  print_output("Five protocols on soft0, two processes, {}.\n",
               options.quick ? "about 10 seconds" : "about a minute");
  flush_output();
  int measured = measure(tool, std::move(*plan), results);
  if (!has_results(measured, results)) return measured;

  print_output("\nThe applications of remote memory, {}.\n",
               options.quick ? "a few seconds" : "about 20 seconds");
  flush_output();
  std::vector<std::string> files = {results};
  for (const DemoApplication& application : demo_applications()) {
    Result<bench::Plan> of_application = application_plan(application, options.quick);
    if (!of_application.ok()) return report_error(of_application.status());
    files.push_back(folder / fmt::format("{}.json", application.name));
    const int code = measure(tool, std::move(*of_application), files.back());
    if (!has_results(code, files.back())) return code;
    if (measured == 0) measured = code;
  }

  const int reported = write_report(page, files);
  if (reported != 0) return reported;
  print_output("\nWhich one should I use here?\n");
  flush_output();
  const int answered = print_verdict({results});
  if (answered != 0) return answered;
  print_output("\nReport:  {}\nResults: {}\n", page, fmt::join(files, " "));
  const int written = finish_output();
  return measured != 0 ? measured : written;
}

}  // namespace

void add_demo_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "demo",
      "Compare all protocols on this machine, say which one to use, and measure the applications");
  const auto options = std::make_shared<DemoOptions>();
  CLI::Option* output = command->add_option("--output", options->output,
                                            "Where result files and report.html are written");
  output->option_text("DIR (build/demo)");
  tool.takes_path[output] = true;
  command->add_flag("--quick", options->quick, "Fewer sizes and shorter runs: some 10 seconds");
  command->footer(examples_text({"verbena demo --quick --output answers"}));
  command->callback([&tool, options] { tool.exit_code = run_demo(tool, *options); });
}

}  // namespace verbena::cli
