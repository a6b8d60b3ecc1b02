// Everything that one benchmark is to measure, and in which order.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/point.h"
#include "src/bench/experiment/run_options.h"
#include "src/bench/experiment/workload.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena::bench {

inline constexpr uint64_t kMaxRuns = 1000;  // of each variant
inline constexpr uint64_t kMaxRequests = 1'000'000'000'000;
// A run that is limited by its requests ends after a day all the same.
inline constexpr uint64_t kUnlimitedRunNs = 86'400'000'000'000;

// All combinations of some values on each axis of a workload, in one topology.
class Sweep {
 public:
  // A single point, on every axis what Axis::standard says. `topology` as people write it: N-to-1
  // is M:1 with a single responding thread where nothing else is said.
  static Result<Sweep> in(std::string_view topology, const Workload& workload);
  // The same where users choose no topology (WorkloadTraits::has_topology).
  static Sweep of(const Workload& workload);

  // kInvalidArgument says what the axis takes, or that the workload has no such axis.
  Status set(std::string_view axis_name, std::string_view text);

  const Workload& workload() const { return *workload_; }
  Topology topology() const { return topology_; }
  // Of an axis of the workload; empty where the topology decides.
  const std::vector<uint64_t>& values(const Axis& axis) const;
  // Replaces what is above `most` by it, also where the topology decides; nothing where the
  // workload has no such axis.
  void limit(std::string_view axis_name, uint64_t most);

 private:
  explicit Sweep(const Workload& workload);
  // How many nodes of a role the topology has by itself; 0: it is another axis.
  uint64_t usual_count(std::string_view axis_name) const;
  std::vector<uint64_t>& values(const Axis& axis);

  const Workload* workload_;
  Topology topology_ = Topology::kOneToOne;
  std::vector<std::vector<uint64_t>> values_;  // by axis
};

struct Plan {
  std::vector<Sweep> sweeps;
  uint32_t runs = 3;
  RunOptions run;
  bool profile = false;  // profiler.h, once per point
  nlohmann::json about;  // of an experiment file: title, paper, figure, machine

  // Of each point, over all variants of a simulated device.
  uint32_t runs_of_point() const { return runs * run.variants; }
};

// Points that differ only in what is compared (Axis::compared). Their runs take turns, since
// machines change their speed from minute to minute: what is compared must be measured side by
// side.
using PointGroup = std::vector<Point>;
// Each point once, with what its topology decides filled in. kInvalidArgument where a combination
// contradicts its topology, kLimitExceeded where there are too many.
Result<std::vector<PointGroup>> point_groups(const Plan& plan);

// Whether the points can be carried out on this device and machine, before anything starts.
//   kLimitExceeded  too many pending requests for a queue pair, or more memory than there is
//   kUnsupported    what this device or machine has not, such as huge pages
Status check_points(const std::vector<PointGroup>& groups, const DeviceInfo& device);
// Of that, whether huge pages that are asked for would be used. Results must not say so otherwise.
Status check_huge_pages(const Point& point, const DeviceInfo& device, uint64_t free_huge_pages);

// What is planned, for the result file: two plans with equal ones measure the same.
nlohmann::json plan_json(const Plan& plan);

// Memory that this process could still get, by the machine and by the limit of its control group;
// UINT64_MAX if that cannot be found out.
uint64_t available_memory_bytes();

}  // namespace verbena::bench
