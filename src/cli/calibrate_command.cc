// `verbena calibrate`: a profile of a device of this machine, by which it can be simulated.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/base/machine.h"
#include "src/base/output.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/result/result_file.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/progress.h"
#include "src/calibrate/calibration.h"
#include "src/calibrate/calibration_text.h"
#include "src/cli/commands.h"
#include "src/cli/lab.h"
#include "src/cli/tool.h"
#include "src/device/sim/profile_files.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::cli {

namespace {

struct CalibrateOptions {
  std::string device = "soft0";
  std::string name;
  std::string out;
  std::string json;
  std::string report;
  std::string rounds = "5";
  std::string duration = "50ms";
  bool check = false;
};

// Where the profile goes.
Result<std::filesystem::path> profile_path(const CalibrateOptions& options) {
  if (!options.out.empty()) return std::filesystem::path(options.out);
  const std::string name = options.name.empty() ? options.device : options.name;
  if (name.find_first_of("/#@ ") != std::string::npos || name.empty()) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("'{}' is no name of a profile: it has one of '/', '#', '@' and blanks", name));
  }
  const std::vector<std::string> installed = sim::installed_profile_names();
  if (std::find(installed.begin(), installed.end(), name) != installed.end()) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("'{}' is a profile that verbena comes with; choose another --name", name));
  }
  const std::filesystem::path folder = sim::own_profile_directory();
  if (folder.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "there is no folder for own profiles, since VERBENA_PROFILES is set or HOME is "
                  "not; say with --out where to write the profile");
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("cannot make {}: {}; use --out", folder.string(), error.message()));
  }
  return folder / (name + ".toml");
}

// All of it or nothing: half a profile would be one that cannot be read.
Status write_profile(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::path whole = path;
  whole += ".new";
  std::ofstream file(whole, std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(whole, path, error);
  if (file && !error) return {};
  return {StatusCode::kUnavailable, fmt::format("cannot write {}", path.string())};
}

Result<calibrate::CalibrationOptions> read_calibrate_options(const CalibrateOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(
      const std::vector<uint64_t> rounds,
      bench::parse_count_list(options.rounds,
                              {.what = "number of rounds", .min = 1, .max = 100, .single = true}));
  VERBENA_ASSIGN_OR_RETURN(const uint64_t duration_ns, bench::parse_duration_ns(options.duration));
  return calibrate::CalibrationOptions{.device = options.device,
                                       .rounds = static_cast<uint32_t>(rounds.front()),
                                       .duration_ns = duration_ns,
                                       .check = options.check};
}

int run_calibration(const Tool& tool, const CalibrateOptions& options) {
  const auto todo = read_calibrate_options(options);
  if (!todo.ok()) return report_error(todo.status());
  const auto path = profile_path(options);
  if (!path.ok()) return report_error(path.status());
  for (const std::string& file : {path->string(), options.json, options.report}) {
    if (file.empty()) continue;
    const Status writable = bench::check_writable(file);
    if (!writable.ok()) return report_error(writable);
  }
  const auto steps = calibrate::calibration_steps(*todo);
  if (!steps.ok()) return report_error(steps.status());

  bench::catch_interrupts();
  bench::Progress progress(*steps);
  const auto step = [&](const std::string& what) { progress.step(what); };
  auto calibration = calibrate::calibrate(*todo, step);
  progress.clear();
  if (bench::interrupted()) return bench::interrupt_exit_code();
  if (!calibration.ok()) return report_error(calibration.status());

  const std::string command = bench::command_text(tool.argc, tool.argv);
  const std::string busy = calibrate::busy_text(*calibration);
  const Status written = write_profile(
      *path, sim::profile_text(fmt::format("{} on {}", options.device, this_machine().cpu_model),
                               fmt::format("By {}, commit {}.{}", command, this_machine().commit,
                                           busy.empty() ? "" : " Warning: " + busy + "."),
                               calibration->fitted.parameters));
  if (!written.ok()) return report_error(written);
  const Status predicted = calibrate::predict(step, &*calibration);
  progress.clear();
  if (bench::interrupted()) return bench::interrupt_exit_code();
  if (!predicted.ok()) return report_error(predicted);
  nlohmann::json document = bench::result_document({options.device, command}, {});
  document.erase("results");
  calibrate::add_to_json(*calibration, &document);
  if (!options.json.empty()) {
    const Status saved = bench::write_json_file(options.json, document);
    if (!saved.ok()) return report_error(saved);
  }
  print_output("{}{} is written{}\n", calibrate::calibration_text(*calibration), path->string(),
               options.out.empty()
                   ? fmt::format(": --device sim:{} simulates it", path->stem().string())
                   : "");
  const int printed = finish_output();
  if (options.report.empty() || printed != 0) return printed;
  return write_calibration(options.report, document);
}

}  // namespace

void add_calibrate_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "calibrate", "Measure a device of this machine, and write a profile that simulates it");
  const auto options = std::make_shared<CalibrateOptions>();
  command->add_option("--device", options->device, "A software RNIC")->option_text("NAME (soft0)");
  CLI::Option* name =
      command->add_option("--name", options->name, "Of the profile, among your own ones");
  name->option_text("NAME (the device's)");
  CLI::Option* out = command->add_option("--out", options->out, "Write the profile here instead");
  out->option_text("FILE")->excludes(name);
  command->add_option("--rounds", options->rounds, "How many times everything is measured")
      ->option_text("N (5)");
  command->add_option("--duration", options->duration, "How long each measurement lasts")
      ->option_text("TIME (50ms)");
  command->add_flag("--check", options->check,
                    "Also measure what nothing is calibrated by, and compare it with what the "
                    "profile predicts");
  CLI::Option* json =
      command->add_option("--json", options->json, "Write all that was measured to this file");
  json->option_text("FILE");
  CLI::Option* report = command->add_option(
      "--report", options->report,
      "Write a page about it, with --check of what was predicted beside what was measured");
  report->option_text("FILE.html");
  tool.takes_path[out] = tool.takes_path[json] = tool.takes_path[report] = true;
  command->footer(
      "Single verbs, and one pair of threads that exchange requests and responses, are measured\n"
      "together with the processor's memory. Each parameter of the profile is set so that the\n"
      "simulation of what tells it takes as long as it did. What is not measured keeps what the\n"
      "template has, and is marked as assumed.\n\n" +
      examples_text({"verbena calibrate --name here",
                     "verbena calibrate --check --rounds 1 --report soft0.html",
                     "verbena bench N-to-1 --nodes 8 --device sim:soft0"}));
  command->callback([&tool, options] { tool.exit_code = run_calibration(tool, *options); });
}

}  // namespace verbena::cli
