#include "src/cli/reproduce_points.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/spawn.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/progress.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/cli/memory_budget.h"
#include "src/cli/share.h"
#include "src/cli/tool.h"
#include "src/device/sim/profile_variants.h"
#include "src/device/sim/rnic_profile.h"

namespace verbena::cli {

namespace {

using reproduce::Measurement;
using reproduce::WantedPoint;

// A folder for the results of the processes, gone with its owner.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    std::string name = std::filesystem::temp_directory_path(error) / "verbena-reproduce-XXXXXX";
    if (!error && mkdtemp(name.data()) == nullptr) error.assign(errno, std::generic_category());
    if (!error) path_ = name;
    why_ = error.message();
  }
  ~ScratchFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }  // empty: there is none, and why() says why
  const std::string& why() const { return why_; }

 private:
  std::string path_;
  std::string why_;
};

// One point with everything spelled out, so that no file and no standard has a say.
std::vector<std::string> bench_command(const std::string& tool, const std::string& device,
                                       const WantedPoint& wanted, const std::string& json) {
  const bench::Point& point = wanted.point;
  const bench::WorkloadTraits& workload = point.workload->traits();
  std::vector<std::string> command = {tool};
  if (!workload.command.group.empty()) command.emplace_back(workload.command.group);
  command.emplace_back(workload.command.name);
  if (workload.has_topology) command.emplace_back(bench::topology_name(point.topology));
  const auto add = [&](std::string name, std::string value) {
    command.push_back(std::move(name));
    command.push_back(std::move(value));
  };
  for (const bench::Axis& axis : workload.axes) {
    add(fmt::format("--{}", axis.name), axis.text(axis.get(point)));
  }
  add("--device", device);
  add("--runs", "1");
  if (wanted.operations != 0) {
    add(workload.has_topology ? "--requests" : "--operations",
        fmt::format("{}", wanted.operations));
  } else if (wanted.duration_ns != 0) {
    add("--duration", fmt::format("{}ns", wanted.duration_ns));
  }
  add("--json", json);
  return command;
}

// What a process wrote about its failure.
std::string last_line(const std::string& path) {
  constexpr std::string_view kPrefix = "verbena: error: ";
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last.starts_with(kPrefix) ? last.substr(kPrefix.size()) : last;
}

uint64_t memory_bytes(const bench::Point& point) { return point.workload->memory_bytes(point); }

// Roughly how long a point takes: its process, its memory, and its time. A simulation spends that
// for each node that is a bottleneck, and something for each request that is under way.
double expected_ns(const PointList& list, const WantedPoint& wanted) {
  constexpr double kProcessNs = 20e6;
  constexpr double kByteNs = 1;
  constexpr double kSimulatedNs = 80;  // of this machine for one of a busy node
  constexpr double kPendingNs = 40e3;
  const bench::Point& point = wanted.point;
  const double setup_ns = kProcessNs + kByteNs * static_cast<double>(memory_bytes(point));
  constexpr double kOperationNs = 20e3;  // some, in virtual time
  const double duration_ns = wanted.operations != 0
                                 ? kOperationNs * static_cast<double>(wanted.operations)
                                 : static_cast<double>(wanted.duration_ns);
  if (!list.device.starts_with(sim::kDevicePrefix)) return setup_ns + duration_ns;
  const auto wiring = bench::wire_connections(point);
  const double queue_pairs = wiring.ok() ? static_cast<double>(wiring->queue_pairs()) : 1;
  return setup_ns + kSimulatedNs * std::min(point.nodes, point.responder_nodes) * duration_ns +
         kPendingNs * queue_pairs * point.pending;
}

// One run of a point.
struct Work {
  const PointList* list;
  const WantedPoint* wanted;
  uint32_t run;
};

class Measurer {
 public:
  Measurer(std::vector<Work> work, std::string tool, std::string folder)
      : work_(std::move(work)),
        tool_(std::move(tool)),
        folder_(std::move(folder)),
        progress_(work_.size(), weight_of_all()),
        memory_(bench::available_memory_bytes(), work_.size()) {}

  void run_worker() {
    while (const std::optional<size_t> index = take()) {
      int exit_code = 0;
      Measurement measurement = measure(*index, &exit_code);
      give_back(*index, std::move(measurement), exit_code);
    }
  }

  const std::string& hopeless() const { return hopeless_; }

 private:
  double weight_of_all() const {
    double sum = 0;
    for (const Work& work : work_) sum += expected_ns(*work.list, *work.wanted);
    return sum;
  }

  std::optional<size_t> take() {
    std::unique_lock lock(mutex_);
    const auto fits = [&] {
      return done() || running_ == 0 || memory_.has(memory_bytes(work_[next_].wanted->point));
    };
    changed_.wait(lock, fits);
    if (done()) return std::nullopt;
    const auto& [list, wanted, run] = work_[next_];
    const bench::Point& point = wanted->point;
    memory_.take(next_, memory_bytes(point));
    ++running_;
    progress_.step(fmt::format("{} on {}", point.workload->text(point), list->device),
                   expected_ns(*list, *wanted));
    return next_++;
  }

  bool done() const { return next_ == work_.size() || !hopeless_.empty() || bench::interrupted(); }

  Measurement measure(size_t index, int* exit_code) {
    const auto [list, wanted, run] = work_[index];
    const std::string json = fmt::format("{}/{}.json", folder_, index);
    const std::string errors = fmt::format("{}/{}.errors", folder_, index);
    // Of one run only, the seed is what the environment says, as for whoever runs a single point.
    std::map<std::string, std::string> seed;
    if (list->all_runs() > 1) seed["VERBENA_SEED"] = std::to_string(bench::simulation_seed() + run);
    const std::string device = sim::variant_name(list->device, list->variant_of(run));
    const Result<int> ended =
        run_and_wait(bench_command(tool_, device, *wanted, json),
                     {.environment = std::move(seed),
                      .files = {{STDOUT_FILENO, "/dev/null"}, {STDERR_FILENO, errors}}});
    if (!ended.ok()) return {.error = ended.status().message()};
    *exit_code = *ended;
    if (*ended != 0) {
      const std::string line = last_line(errors);
      return {.error = line.empty() ? fmt::format("the measurement ended with exit code {}", *ended)
                                    : line};
    }
    std::ifstream file(json);
    const nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
    if (!document.is_object() || document.value("results", nlohmann::json::array()).empty()) {
      return {.error = "the measurement left no result"};
    }
    return {.row = document["results"][0]};
  }

  void give_back(size_t index, Measurement measurement, int exit_code) {
    const std::unique_lock lock(mutex_);
    const auto [list, wanted, run] = work_[index];
    // What one point is refused for may be its own; what the first is refused for is everybody's.
    if (measurement.error.empty()) any_ = true;
    if (!any_ && exit_code == kExitUsage) hopeless_ = measurement.error;
    if (!bench::interrupted()) {
      list->measurements->add(wanted->point, std::move(measurement), run);
    }
    memory_.give_back(index);
    --running_;
    changed_.notify_all();
  }

  const std::vector<Work> work_;
  const std::string tool_;
  const std::string folder_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  bench::Progress progress_;
  MemoryBudget memory_;
  size_t next_ = 0;
  size_t running_ = 0;
  bool any_ = false;
  std::string hopeless_;
};

}  // namespace

Status measure_points(const std::vector<PointList>& lists, uint32_t jobs) {
  std::vector<Work> work;
  for (const PointList& list : lists) {
    for (const WantedPoint& wanted : list.points) {
      for (uint32_t run = 0; run < list.all_runs(); ++run) work.push_back({&list, &wanted, run});
    }
  }
  if (work.empty()) return Status::ok_status();
  // The largest first, so that none of them is left when the others are done.
  std::stable_sort(work.begin(), work.end(), [](const auto& a, const auto& b) {
    return memory_bytes(a.wanted->point) > memory_bytes(b.wanted->point);
  });
  VERBENA_ASSIGN_OR_RETURN(const std::string tool, own_path());
  const ScratchFolder folder;
  if (folder.path().empty()) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("cannot make a temporary directory: {}; let TMPDIR name one that "
                              "you may write to",
                              folder.why()));
  }
  Measurer measurer(std::move(work), tool, folder.path());
  bench::catch_interrupts();
  {
    std::vector<Thread> workers;
    for (uint32_t i = 1; i < jobs; ++i) {
      workers.push_back(start_thread("reproduce", [&] { measurer.run_worker(); }));
    }
    measurer.run_worker();
  }
  if (measurer.hopeless().empty()) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument, measurer.hopeless());
}

}  // namespace verbena::cli
