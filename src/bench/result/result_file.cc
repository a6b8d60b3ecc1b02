#include "src/bench/result/result_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "src/base/build_info.h"
#include "src/base/file_descriptor.h"
#include "src/base/machine.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/result/model_evidence.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::bench {

namespace {

using nlohmann::json;

constexpr const char* kKinds = "kinds";
constexpr const char* kSettings = "settings";
constexpr const char* kCycles = "cycles_per_message";
constexpr const char* kInstructions = "instructions_per_message";

json cost_json(const std::optional<CpuCost>& cost) {
  if (!cost) return nullptr;
  json row = {{kCycles, cost->cycles}};
  if (cost->instructions) row[kInstructions] = *cost->instructions;
  return row;
}

// Per byte of the value too, as "patterns" 5 counts.
json cost_json(const std::optional<CpuCost>& cost, const Point& point) {
  json sides = cost_json(cost);
  if (cost) {
    const auto bytes = static_cast<double>(point.workload->operation_bytes(point).value);
    sides["cycles_per_byte"] = cost->cycles / bytes;
    if (cost->instructions) sides["instructions_per_byte"] = *cost->instructions / bytes;
  }
  return sides;
}

json kind_json(const KindResult& kind) {
  return {{"requests", kind.requests},
          {"rate_per_s", kind.rate_per_s},
          {"p50_ns", kind.p50_ns},
          {"p99_ns", kind.p99_ns},
          {"p999_ns", kind.p999_ns}};
}

KindResult kind_from(const json& row) {
  return {.requests = row.at("requests").get<uint64_t>(),
          .rate_per_s = row.at("rate_per_s").get<double>(),
          .p50_ns = row.at("p50_ns").get<double>(),
          .p99_ns = row.at("p99_ns").get<double>(),
          .p999_ns = row.at("p999_ns").get<double>()};
}

// What a single run found, so that a later session can go on from it.
json run_json(const RunResult& run, const WorkloadTraits& workload) {
  json row = {{"requests", run.requests}, {"rate_per_s", run.rate_per_s},
              {"p50_ns", run.p50_ns},     {"p99_ns", run.p99_ns},
              {"p999_ns", run.p999_ns},   {"mark_layout", mark_layout_name(run.layout)}};
  row["cpu"] = {{"requester", cost_json(run.requester_cost)},
                {"responder", cost_json(run.responder_cost)}};
  if (run.offered_rate_per_s > 0) row["offered_rate_per_s"] = run.offered_rate_per_s;
  for (size_t i = 0; i < run.metrics.size(); ++i) {
    if (run.metrics[i]) row[std::string(workload.metrics[i].json)] = *run.metrics[i];
  }
  for (size_t i = 0; i < run.kinds.size(); ++i) {
    if (run.kinds[i]) row[kKinds][std::string(workload.kinds[i])] = kind_json(*run.kinds[i]);
  }
  if (run.simulated) {
    row["simulation"] = {{"events", run.simulated->events},
                         {"virtual_ns", run.simulated->virtual_ns},
                         {"digest", fmt::format("{:016x}", run.simulated->digest)}};
  }
  return row;
}

json machine_json() {
  const Machine& machine = this_machine();
  char hostname[256] = {};
  gethostname(hostname, sizeof(hostname) - 1);
  return {{"hostname", hostname},
          {"cpu", machine.cpu_model},
          {"architecture", machine.architecture},
          {"sockets", machine.sockets},
          {"cores", machine.cores},
          {"hardware_threads", machine.hardware_threads},
          {"usable_cpus", machine.usable_cpus},
          {"numa_nodes", machine.numa_nodes},
          {"memory_bytes", machine.memory_bytes},
          {"page_bytes", machine.page_bytes},
          {"kernel", machine.kernel},
          {"os", machine.os},
          {"hypervisor", machine.hypervisor},
          {"counts_instructions", machine.counts_instructions},
          {"tsc_cycles_per_ns", machine.tsc_cycles_per_ns},
          {"build", machine.build}};
}

std::optional<CpuCost> cost_from(const json& cost) {
  if (!cost.is_object()) return std::nullopt;
  CpuCost read{.cycles = cost.at(kCycles).get<double>()};
  if (cost.contains(kInstructions)) read.instructions = cost.at(kInstructions).get<double>();
  return read;
}

// Throws std::invalid_argument for a name that no layout has.
MarkLayout layout_from(const json& name) {
  const Result<MarkLayout> layout = parse_mark_layout(name.get<std::string>());
  if (!layout.ok()) throw std::invalid_argument(layout.status().message());
  return *layout;
}

// The inverse of run_json(); throws std::exception where something is missing or wrong.
RunResult run_from(const json& row, const WorkloadTraits& workload) {
  RunResult run;
  run.requests = row.at("requests").get<uint64_t>();
  run.rate_per_s = row.at("rate_per_s").get<double>();
  run.offered_rate_per_s = row.value("offered_rate_per_s", 0.0);
  run.p50_ns = row.at("p50_ns").get<double>();
  run.p99_ns = row.at("p99_ns").get<double>();
  run.p999_ns = row.at("p999_ns").get<double>();
  run.layout = layout_from(row.at("mark_layout"));
  run.requester_cost = cost_from(row.at("cpu").at("requester"));
  run.responder_cost = cost_from(row.at("cpu").at("responder"));
  for (const ShareMetric& metric : workload.metrics) {
    auto share = row.find(metric.json);
    if (share == row.end() && !metric.former.empty()) share = row.find(metric.former);
    run.metrics.push_back(share == row.end() ? std::nullopt : std::optional(share->get<double>()));
  }
  for (const std::string_view kind : workload.kinds) {
    run.kinds.emplace_back();
    if (row.contains(kKinds) && row[kKinds].contains(kind)) {
      run.kinds.back() = kind_from(row[kKinds][std::string(kind)]);
    }
  }
  if (row.contains("simulation")) {
    const nlohmann::json& simulation = row.at("simulation");
    run.simulated = SimulationCounts{
        .events = simulation.at("events"),
        .virtual_ns = simulation.at("virtual_ns"),
        .digest = std::stoull(simulation.value("digest", std::string("0")), nullptr, 16)};
  }
  return run;
}

// Of which the runs have their random numbers; null where nobody noted it.
json seed_of(const json& settings) {
  return settings.is_object() ? settings.value("seed", json()) : json();
}

Status cannot_go_on(const std::string& path, std::string_view why) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("cannot go on from {}: {}; name another file, or leave --resume out to "
                            "begin anew",
                            path, why));
}

Status cannot_write(const std::string& path, int error) {
  return Status(error == EACCES || error == EPERM || error == EROFS ? StatusCode::kPermissionDenied
                                                                    : StatusCode::kUnavailable,
                fmt::format("cannot write {}: {}; name a file in a directory that exists, that you "
                            "may write to and that has space",
                            path, std::strerror(error)));
}

// A link stays a link: what it points to is replaced.
std::string final_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  return error ? path : resolved.string();
}

// A new file beside `path`; its name comes back in `name`.
Result<FileDescriptor> open_temporary(const std::string& path, std::string* name) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("cannot write {}: it is not a regular file; name another file", path));
  }
  *name = path + ".XXXXXX";
  FileDescriptor file(mkostemp(name->data(), O_CLOEXEC));
  if (!file.valid()) return cannot_write(path, errno);
  // mkostemp() makes files for their owner alone; this one is like any other.
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(file.get(), 0666 & ~mask);
  return file;
}

bool write_all(int file, const std::string& text) {
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = ::write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    written += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

json to_json(const PointResult& result) {
  const Point& point = result.point;
  json row = {{"topology", topology_name(point.topology)},
              {"plan_number", result.number},
              {"verified", result.verified()},
              {"errors", result.errors},
              {"runs", result.runs.size()}};
  const WorkloadTraits& workload = point.workload->traits();
  for (const Axis& axis : workload.axes) row[std::string(axis.json)] = axis.to_json(point);
  const Result<Wiring> wiring = wire_connections(point);
  if (wiring.ok()) {
    row["nodes"] = wiring->nodes.size();
    row["queue_pairs"] = {{"all", wiring->queue_pairs()},
                          {"most_per_node", wiring->max_queue_pairs()}};
  }
  if (!result.error.empty()) row["error"] = result.error;
  if (!result.measured()) {
    row["rate_per_s"] = nullptr;
    row["value_bandwidth_bytes_per_s"] = nullptr;
    row["total_bandwidth_bytes_per_s"] = nullptr;
    row["latency_ns"] = {{"p50", nullptr}, {"p99", nullptr}, {"p999", nullptr}};
    row["runs"] = 1;  // the one that failed
    return row;
  }
  const Summary rate = result.rate_per_s();
  const Summary p50 = result.p50_ns();
  row["rate_per_s"] = rate.median;
  row["value_bandwidth_bytes_per_s"] = result.value_bandwidth_bytes_per_s();
  row["total_bandwidth_bytes_per_s"] = result.total_bandwidth_bytes_per_s();
  row["latency_ns"] = {
      {"p50", p50.median}, {"p99", result.p99_ns().median}, {"p999", result.p999_ns().median}};
  if (const std::optional<double> per_node = result.value_bandwidth_per_node_bytes_per_s()) {
    row["value_bandwidth_per_node_bytes_per_s"] = *per_node;
  }
  if (const std::optional<Band> band = result.rate_band()) {
    row["variants"] = result.variants;
    row["rate_band"] = {band->least, band->most};
    const Band p50_ns = result.p50_band_ns().value_or(Band());
    row["p50_band"] = {p50_ns.least, p50_ns.most};
  }
  if (const std::optional<double> offered = result.offered_rate_per_s()) {
    row["offered_rate_per_s"] = *offered;
    row["saturated"] = result.saturated();
  }
  row["requests_measured"] = result.requests();
  row["mean"] = {{"rate_per_s", rate.mean},
                 {"rate_deviation_per_s", rate.deviation},
                 {"p50_ns", p50.mean},
                 {"p50_deviation_ns", p50.deviation}};
  if (rate.has_spread()) {
    row["spread"] = {{"rate_min", rate.min},
                     {"rate_max", rate.max},
                     {"p50_min_ns", p50.min},
                     {"p50_max_ns", p50.max}};
  }
  row["cpu"] = {{"requester", cost_json(result.requester_cost(), point)},
                {"responder", cost_json(result.responder_cost(), point)}};
  for (size_t i = 0; i < workload.metrics.size(); ++i) {
    const std::optional<double> share = result.metric(i);
    if (share) row[std::string(workload.metrics[i].json)] = *share;
  }
  for (size_t i = 0; i < workload.kinds.size(); ++i) {
    const std::optional<KindResult> kind = result.kind(i);
    if (kind) row[kKinds][std::string(workload.kinds[i])] = kind_json(*kind);
  }
  if (!result.profile.is_null()) row["profile"] = result.profile;
  row["run_results"] = json::array();
  for (size_t run = 0; run < result.runs.size(); ++run) {
    row["run_results"].push_back(run_json(result.runs[run], workload));
    if (result.variants > 1) row["run_results"].back()["variant"] = run % result.variants;
  }
  return row;
}

json result_document(const ResultOrigin& origin, const std::vector<PointResult>& results) {
  json document = {{"device", origin.device},
                   {"machine", machine_json()},
                   {"commit", build_commit()},
                   {"command", origin.command},
                   {"results", json::array()}};
  if (json models = models_json({origin.device}); !models.empty()) document["models"] = models;
  if (!origin.settings.is_null()) document[kSettings] = origin.settings;
  if (!origin.plan.is_null()) document["plan"] = origin.plan;
  if (!origin.about.is_null()) document["experiment"] = origin.about;
  for (const PointResult& result : results) {
    json row = to_json(result);
    row["device"] = origin.device;
    document["results"].push_back(std::move(row));
  }
  return document;
}

Status write_json_file(const std::string& path, const json& document) {
  const std::string target = final_path(path);
  std::string temporary;
  VERBENA_ASSIGN_OR_RETURN(const FileDescriptor file, open_temporary(target, &temporary));
  // Bytes that are no UTF-8 (an argument may have them) must not cost the results.
  const std::string text = document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  if (write_all(file.get(), text) && rename(temporary.c_str(), target.c_str()) == 0) {
    return Status::ok_status();
  }
  const int error = errno;
  unlink(temporary.c_str());
  return cannot_write(path, error);
}

Status check_writable(const std::string& path) {
  std::string temporary;
  VERBENA_RETURN_IF_ERROR(open_temporary(final_path(path), &temporary).status());
  unlink(temporary.c_str());
  return Status::ok_status();
}

Result<std::vector<PointResult>> read_results(const std::string& path, const ResultOrigin& origin,
                                              const std::vector<PointGroup>& groups) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return std::vector<PointResult>{};
  std::ifstream file(path);
  // It would be replaced by one that has less.
  if (!file) return cannot_go_on(path, fmt::format("cannot read it: {}", std::strerror(errno)));
  const json document = json::parse(file, nullptr, false);
  if (!document.is_object() || !document.contains("plan") || !document.contains("results")) {
    return cannot_go_on(path, "it is not a result file with a plan");
  }
  if (document["plan"] != origin.plan) return cannot_go_on(path, "it belongs to another plan");
  if (document.value("device", json()) != origin.device) {
    return cannot_go_on(path, "it was measured on another device");
  }
  // Elsewhere each session draws one.
  if (origin.device.starts_with(sim::kDevicePrefix)) {
    const json seed = seed_of(document.value(kSettings, json()));
    const json own = seed_of(origin.settings);
    if (!seed.is_null() && !own.is_null() && seed != own) {
      return cannot_go_on(path, fmt::format("it was measured with VERBENA_SEED={}", seed.dump()));
    }
  }
  std::vector<Point> points;
  for (const PointGroup& group : groups) points.insert(points.end(), group.begin(), group.end());
  std::vector<PointResult> results;
  try {
    for (const json& row : document["results"]) {
      if (row.at("errors") != 0) continue;
      PointResult result;
      result.number = row.at("plan_number").get<uint64_t>();
      result.point = points.at(result.number);
      result.verify = origin.plan.value("verify", false);
      result.variants = origin.plan.value("variants", uint32_t{1});
      const Workload& workload = *result.point.workload;
      for (const json& run : row.at("run_results")) {
        result.runs.push_back(run_from(run, workload.traits()));
      }
      // Earlier versions kept runs in which nothing was answered.
      const bool is_empty = std::any_of(result.runs.begin(), result.runs.end(),
                                        [](const RunResult& run) { return run.requests == 0; });
      if (!result.measured() || is_empty) continue;
      if (row.contains("profile")) result.profile = row["profile"];
      workload.adopt(result.point, result.runs.back().layout);
      // Throws where it is none, now and not at the end of the session.
      static_cast<void>(workload.profiles_table({result}));
      results.push_back(std::move(result));
    }
  } catch (const std::exception& damaged) {
    return cannot_go_on(path, fmt::format("it is damaged ({})", damaged.what()));
  }
  return results;
}

std::string command_text(int argc, const char* const* argv) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%…";
  std::string text = "verbena";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    text += ' ';
    if (!argument.empty() && argument.find_first_not_of(kPlain) == std::string_view::npos) {
      text += argument;
      continue;
    }
    text += '\'';
    for (const char letter : argument) {
      if (letter == '\'') {
        text += "'\\''";
      } else {
        text += letter;
      }
    }
    text += '\'';
  }
  return text;
}

}  // namespace verbena::bench
