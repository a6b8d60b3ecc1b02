// `verbena reproduce`: the papers' experiments on simulated devices, compared with what the papers
// state, claim by claim.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "src/base/build_info.h"
#include "src/base/output.h"
#include "src/base/runtime.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/result/model_evidence.h"
#include "src/bench/result/result_file.h"
#include "src/bench/run/interrupt.h"
#include "src/cli/commands.h"
#include "src/cli/lab.h"
#include "src/cli/reproduce_points.h"
#include "src/cli/share.h"
#include "src/cli/tool.h"
#include "src/device/sim/profile_variants.h"
#include "src/device/sim/rnic_profile.h"
#include "src/reproduce/catalog.h"
#include "src/reproduce/figures.h"
#include "src/reproduce/summary.h"
#include "src/reproduce/verdict.h"

namespace verbena::cli {

namespace {

constexpr std::string_view kSimulated = "sim:";
constexpr uint64_t kMaxJobs = 1024;
constexpr uint32_t kUsualSeeds = 5;
constexpr uint64_t kMaxSeeds = 101;

constexpr const char* kReproduceHelp =
    R"(Every claim is a row of share/verbena/reproduce/claims.csv, and its check is an entry of
share/verbena/reproduce/checks/PAPER.toml: the points to measure, and what has to hold.
A number holds within 25 %; one about hardware, or one that the device's profile was calibrated
with, within 15 %. Calibrated ones do not count as reproduced. A share of a whole holds within the
same percentage of its distance from 100 %, where that is less. Orders, plateaus and crossovers have
to be as stated; a crossover between two measured points counts at the second one. What cannot be
checked is listed with the reason. Where a device is simulated, what is compared is the median over
several seeds, from VERBENA_SEED or 1 on, and verdicts say with how many of them a claim holds.
--variants says how far a verdict hangs on the device's parameters: each further variant of its
profile has every parameter within +-20 % of its value, or within the range of one that is assumed,
and takes as long as a seed. A claim that holds with all variants holds always, with four in five
mostly, with fewer by luck. Verdicts are those of the profile as given.

Exit code: 0 if everything was measured, whatever holds; 1 if something failed; 2 wrong usage;
130 Ctrl-C.

)";

struct ReproduceOptions {
  std::string what = "all";
  std::string device;
  std::string duration;
  std::string jobs;
  std::string seeds;
  std::string variants;
  std::string json;
  std::string results;
  std::string report;
};

// What is to be done, from the command line.
struct Reproduction {
  reproduce::Catalog catalog;
  std::set<std::string> chosen;
  uint32_t jobs = 0;         // 0: as suits the devices
  uint64_t duration_ns = 0;  // 0: what the checks say
  uint32_t seeds = kUsualSeeds;
  uint32_t variants = 1;
};

bool is_simulated(const std::string& device) { return device.starts_with(kSimulated); }

// Whether writing one would overwrite the other; writing both to /dev/null does not.
bool same_file(const std::string& path, const std::string& other) {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return false;
  }
  const auto whole = std::filesystem::weakly_canonical(path, error);
  return !error && whole == std::filesystem::weakly_canonical(other, error) && !error;
}

Status check_outputs(const ReproduceOptions& options) {
  const std::array<std::pair<std::string_view, std::string>, 3> outputs = {
      {{"--json", options.json}, {"--results", options.results}, {"--report", options.report}}};
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& [name, path] = outputs[i];
    if (path.empty()) continue;
    VERBENA_RETURN_IF_ERROR(bench::check_writable(path));
    for (size_t j = 0; j < i; ++j) {
      const auto& [other_name, other] = outputs[j];
      if (other.empty() || !same_file(path, other)) continue;
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("{} and {} name the same file, {}; name two", other_name, name, path));
    }
  }
  return Status::ok_status();
}

Result<Reproduction> read_options(const ReproduceOptions& options, const std::string& data) {
  Reproduction todo;
  VERBENA_ASSIGN_OR_RETURN(todo.catalog, reproduce::read_catalog(data));
  VERBENA_ASSIGN_OR_RETURN(todo.chosen, reproduce::select_claims(todo.catalog, options.what));
  if (!options.duration.empty()) {
    VERBENA_ASSIGN_OR_RETURN(todo.duration_ns, bench::parse_duration_ns(options.duration));
  }
  if (!options.jobs.empty()) {
    VERBENA_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> jobs,
        bench::parse_count_list(
            options.jobs, {.what = "number of jobs", .min = 1, .max = kMaxJobs, .single = true}));
    todo.jobs = static_cast<uint32_t>(jobs[0]);
  }
  if (!options.seeds.empty()) {
    VERBENA_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> seeds,
        bench::parse_count_list(
            options.seeds,
            {.what = "number of seeds", .min = 1, .max = kMaxSeeds, .single = true}));
    todo.seeds = static_cast<uint32_t>(seeds[0]);
  }
  if (!options.variants.empty()) {
    VERBENA_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> variants,
        bench::parse_count_list(
            options.variants,
            {.what = "number of variants", .min = 1, .max = sim::kMostVariants, .single = true}));
    todo.variants = static_cast<uint32_t>(variants[0]);
  }
  const std::string& device = options.device;
  const bool varies = device.empty() ||
                      (is_simulated(device) && device.find(sim::kVariantMark) == std::string::npos);
  if (todo.variants > 1 && !varies) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--variants {} varies the profile of a simulated RNIC, and {} has "
                              "none that varies; leave one of the two options out",
                              todo.variants, device));
  }
  if (!options.seeds.empty() && !device.empty() && !is_simulated(device)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("--seeds is for simulated devices, and {} is none; leave one of the "
                              "two options out",
                              device));
  }
  VERBENA_RETURN_IF_ERROR(check_outputs(options));
  return todo;
}

// What was set by the claims: for a simulated device what the list says, or, where its profile says
// so, by which parameters. A real device was set by none.
Result<reproduce::SpentClaims> spent_on(const std::string& device,
                                        const reproduce::SpentClaims& listed) {
  if (!is_simulated(device)) return reproduce::SpentClaims();
  const auto parameters = sim::profile_parameters(device.substr(kSimulated.size()));
  // A profile that there is not has no claims; who tries to use it says so.
  if (parameters.status().code() == StatusCode::kNotFound) return listed;
  if (!parameters.ok()) return parameters.status();
  reproduce::SpentClaims spent;
  for (const sim::ParameterText& parameter : *parameters) {
    for (const std::string& claim : parameter.claims) {
      std::string& names = spent[claim];
      names += (names.empty() ? "" : ", ") + parameter.name;
    }
  }
  spent.insert(listed.begin(), listed.end());  // of those that have no names yet
  return spent;
}

// Points of a real device would take the machine from each other.
uint32_t usual_jobs(const std::vector<PointList>& lists) {
  const bool simulated = std::all_of(
      lists.begin(), lists.end(), [](const PointList& list) { return is_simulated(list.device); });
  return simulated ? static_cast<uint32_t>(usable_cpus().size()) : 1;
}

// One line about what could not be measured; the verdicts have the rest.
int report_unmeasured(const std::vector<PointList>& lists) {
  size_t points = 0;
  size_t failed = 0;
  std::string first;
  for (const PointList& list : lists) {
    for (const reproduce::WantedPoint& wanted : list.points) {
      ++points;
      for (const reproduce::Measurement& one : list.measurements->runs(wanted.point)) {
        if (one.error.empty()) continue;
        if (first.empty()) first = one.error;
        ++failed;
        break;
      }
    }
  }
  if (failed == 0) return 0;
  return report_error(
      Status(StatusCode::kUnavailable,
             fmt::format("{} of {} points could not be measured: {}", failed, points, first)));
}

// How long measuring took: "353 points with 5 seeds each took 5 min 20 s"; empty where none was.
std::string time_text(const std::vector<PointList>& lists, uint64_t took_ns) {
  size_t points = 0;
  uint32_t seeds = 0;
  uint32_t variants = 0;
  for (const PointList& list : lists) {
    points += list.points.size();
    variants = std::max(variants, list.variants);
    seeds = std::max(seeds, list.runs);
  }
  if (points == 0) return "";
  const uint64_t seconds = (took_ns + 500'000'000) / 1'000'000'000;
  std::string each = seeds > 1 ? fmt::format(" with {} seeds each", seeds) : "";
  if (variants > 1) {
    each += fmt::format("{} {} variants", each.empty() ? " with" : " and", variants);
  }
  return fmt::format("{} point{}{} took {} min {} s\n", points, points == 1 ? "" : "s", each,
                     seconds / 60, seconds % 60);
}

// Each once.
std::vector<std::string> devices_of(const std::vector<PointList>& lists) {
  std::vector<std::string> devices;
  for (const PointList& list : lists) {
    if (std::find(devices.begin(), devices.end(), list.device) == devices.end()) {
      devices.push_back(list.device);
    }
  }
  return devices;
}

nlohmann::json results_json(const std::vector<PointList>& lists, const std::string& command) {
  nlohmann::json document =
      bench::result_document({lists.empty() ? "" : lists[0].device, command}, {});
  document["models"] = bench::models_json(devices_of(lists));
  for (const PointList& list : lists) {
    for (const reproduce::WantedPoint& wanted : list.points) {
      // Of several seeds the first: a figure has one value at a place.
      for (const reproduce::Measurement& one : list.measurements->runs(wanted.point)) {
        if (!one.ended() || !one.error.empty()) continue;
        document["results"].push_back(one.row);
        break;
      }
    }
  }
  return document;
}

// What the report page is made of; lab/README.md describes it.
nlohmann::json report_json(const Reproduction& todo,
                           const std::vector<reproduce::Verdict>& verdicts,
                           const std::map<std::string, reproduce::PaperData>& papers,
                           reproduce::Experiments& experiments,
                           const std::vector<PointList>& lists) {
  nlohmann::json document = {{"papers", nlohmann::json::array()},
                             {"devices", devices_of(lists)},
                             {"models", bench::models_json(devices_of(lists))},
                             {"commit", build_commit()},
                             {"verdicts", reproduce::to_json(verdicts)}};
  document["figures"] = reproduce::figures_json(todo.catalog, verdicts, papers, experiments);
  for (const reproduce::PaperChecks& paper : todo.catalog.papers) {
    if (!papers.contains(paper.paper)) continue;
    const reproduce::Tally count = reproduce::tally(verdicts, paper.paper);
    document["papers"].push_back(
        {{"paper", paper.paper}, {"summary", reproduce::summary_line(paper.paper, count)}});
  }
  return document;
}

int print_verdicts(const reproduce::Catalog& catalog,
                   const std::vector<reproduce::Verdict>& verdicts,
                   const std::map<std::string, reproduce::PaperData>& papers,
                   const std::vector<std::string>& devices, const std::string& took) {
  std::string summary;
  for (const reproduce::PaperChecks& paper : catalog.papers) {
    if (!papers.contains(paper.paper)) continue;
    print_output("{}\n\n{}\n", paper.paper, reproduce::verdicts_text(verdicts, paper.paper));
    summary += reproduce::summary_line(paper.paper, reproduce::tally(verdicts, paper.paper));
  }
  print_output("{}{}", summary, took);
  for (const std::string& device : devices) print_output("{}", bench::model_text(device));
  return finish_output();
}

int reproduce_claims(const Tool& tool, const ReproduceOptions& options) {
  const Result<std::string> data = find_share("reproduce", "claims.csv");
  if (!data.ok()) return report_error(data.status());
  const Result<std::string> experiment_folder = find_share("experiments", "msgproto-fig10a.toml");
  if (!experiment_folder.ok()) return report_error(experiment_folder.status());
  const Result<Reproduction> todo = read_options(options, *data);
  if (!todo.ok()) return report_error(todo.status());

  reproduce::Experiments experiments(*experiment_folder);
  std::map<std::string, reproduce::PaperData> papers;
  std::vector<PointList> lists;
  for (const reproduce::PaperChecks& paper : todo->catalog.papers) {
    const bool chosen = std::any_of(
        todo->catalog.claims.begin(), todo->catalog.claims.end(), [&](const auto& claim) {
          return claim.paper == paper.paper && todo->chosen.contains(claim.id);
        });
    if (!chosen) continue;
    reproduce::PaperData& data_of_paper = papers[paper.paper];
    auto points = reproduce::wanted_points(todo->catalog, paper, todo->chosen, experiments);
    if (!points.ok()) return report_error(points.status());
    if (points->empty()) continue;
    for (reproduce::WantedPoint& one : *points) {
      if (todo->duration_ns == 0) continue;
      one.duration_ns = todo->duration_ns;
      one.operations = 0;
    }
    const std::string device = options.device.empty() ? paper.device : options.device;
    const auto spent = spent_on(device, todo->catalog.spent);
    if (!spent.ok()) return report_error(spent.status());
    data_of_paper.spent = *spent;
    const uint32_t runs = is_simulated(device) ? todo->seeds : 1;
    data_of_paper.runs = runs;
    data_of_paper.variants = is_simulated(device) ? todo->variants : 1;
    lists.push_back({.device = device,
                     .points = std::move(*points),
                     .runs = runs,
                     .variants = static_cast<uint32_t>(data_of_paper.variants),
                     .measurements = &data_of_paper.measurements});
  }
  const uint64_t begun_ns = machine_now_ns();
  const Status measured = measure_points(lists, todo->jobs != 0 ? todo->jobs : usual_jobs(lists));
  if (bench::interrupted()) return bench::interrupt_exit_code();
  if (!measured.ok()) return report_error(measured);

  const std::vector<reproduce::Verdict> verdicts =
      reproduce::judge(todo->catalog, todo->chosen, papers, experiments);
  const std::string took = time_text(lists, machine_now_ns() - begun_ns);
  const int printed = print_verdicts(todo->catalog, verdicts, papers, devices_of(lists), took);
  if (!options.json.empty()) {
    const Status written = bench::write_json_file(options.json, reproduce::to_json(verdicts));
    if (!written.ok()) return report_error(written);
  }
  if (!options.results.empty()) {
    const Status written = bench::write_json_file(
        options.results, results_json(lists, bench::command_text(tool.argc, tool.argv)));
    if (!written.ok()) return report_error(written);
  }
  if (!options.report.empty()) {
    const nlohmann::json document = report_json(*todo, verdicts, papers, experiments, lists);
    const int reported = write_reproduction(options.report, document);
    if (reported != 0) return reported;
  }
  const int unmeasured = report_unmeasured(lists);
  return unmeasured != 0 ? unmeasured : printed;
}

}  // namespace

void add_reproduce_command(Tool& tool) {
  CLI::App* command = tool.app.add_subcommand(
      "reproduce", "Run the papers' experiments on simulated devices and compare claim by claim");
  const auto options = std::make_shared<ReproduceOptions>();
  const auto add = [&](const std::string& name, std::string& value, const std::string& text,
                       const std::string& help) {
    return command->add_option(name, value, help)->option_text(text);
  };
  CLI::Option* what =
      add("WHAT", options->what, "(all)",
          "all, a paper, or a figure: the name of a file in experiments/, such as msgproto-fig10a");
  tool.choices[what] = {"all", "patterns", "msgproto", "memsem", "bufreuse", "mpiiba"};
  add("--device", options->device, "NAME",
      "Measure on this device instead of the simulated RNIC of the paper");
  add("--duration", options->duration, "TIME",
      "How long each point is measured (in virtual time, where it is simulated)");
  add("--jobs", options->jobs, "N",
      "How many points are measured at once (default: simulated, one per core; others, 1)");
  add("--seeds", options->seeds, "N",
      "How many times each point is simulated, each with another seed (default: 5)");
  add("--variants", options->variants, "N",
      "On how many variants of the profile each point is simulated (default: 1), in so many times "
      "the time");
  CLI::Option* json = add("--json", options->json, "FILE",
                          "Write the verdicts to this file: a list with one object per claim");
  CLI::Option* results =
      add("--results", options->results, "FILE",
          "Write the measurements to this file, for 'verbena report': of several "
          "seeds those of the first");
  CLI::Option* report = add("--report", options->report, "FILE.html",
                            "Draw the figures on this page, together with what the papers state");
  tool.takes_path[json] = tool.takes_path[results] = tool.takes_path[report] = true;
  command->footer(
      kReproduceHelp +
      examples_text({"verbena reproduce mpiiba --seeds 1 --json verdicts.json",
                     "verbena reproduce patterns-fig4a --device soft0 --duration 5ms"}));
  command->callback([&tool, options] { tool.exit_code = reproduce_claims(tool, *options); });
}

}  // namespace verbena::cli
