#include "src/bench/experiment/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <span>
#include <string>

#include "src/base/assert.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/workloads.h"

namespace verbena::bench {

namespace {

constexpr size_t kMaxPoints = 100'000;

// What a topology has where nobody says how much.
uint32_t usual_nodes(Topology topology) {
  return topology == Topology::kOneToOne || topology == Topology::kOneToMany ? 1 : 2;
}
uint32_t usual_responders(Topology topology) {
  return topology == Topology::kOneToMany || topology == Topology::kManyToMany ? 2 : 1;
}

// Sets what follows from the topology; `given` tells whether an axis was set.
template <typename Given>
Status fit_topology(Point& point, const Given& given) {
  if (!given("responder-threads")) {
    point.responder_threads = point.topology == Topology::kManyToOne ? point.threads : 1;
  }
  VERBENA_ASSIGN_OR_RETURN(const TopologyShape shape, fitted(shape_of(point)));
  // M:1 needs no more responding threads than there are queue pairs; the others have their number.
  const bool contradicts =
      (given("responders") && point.responder_nodes != shape.responder_nodes) ||
      (given("responder-threads") && point.topology != Topology::kManyToOne &&
       point.responder_threads != shape.responder_threads);
  if (contradicts) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} with {} nodes of {} threads has {} responder nodes of {} "
                              "threads; leave --responders and --responder-threads out",
                              topology_name(point.topology), point.nodes, point.threads,
                              shape.responder_nodes, shape.responder_threads));
  }
  point.responder_nodes = shape.responder_nodes;
  point.responder_threads = shape.responder_threads;
  return Status::ok_status();
}

// The point of one combination.
Result<Point> make_point(const Sweep& sweep, const std::vector<uint64_t>& values) {
  const Workload& workload = sweep.workload();
  const std::span<const Axis> axes = workload.traits().axes;
  Point point = workload.point();
  if (workload.traits().has_topology) {
    point.topology = sweep.topology();
    point.nodes = usual_nodes(point.topology);
    point.responder_nodes = usual_responders(point.topology);
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    if (!sweep.values(axes[i]).empty()) axes[i].set(point, values[i]);
  }
  if (workload.traits().has_topology) {
    VERBENA_RETURN_IF_ERROR(fit_topology(point, [&](std::string_view name) {
      const Axis* axis = workload.find_axis(name);
      return axis != nullptr && !sweep.values(*axis).empty();
    }));
  }
  return workload.fit(std::move(point));
}

class GroupMaker {
 public:
  Status add(const Sweep& sweep) {
    std::vector<uint64_t> values(sweep.workload().traits().axes.size());
    return combine(sweep, 0, values);
  }
  std::vector<PointGroup> groups() {
    std::erase_if(groups_, [](const PointGroup& group) { return group.empty(); });
    return std::move(groups_);
  }

 private:
  // All values of this axis and of those behind it; compared axes are the last ones.
  Status combine(const Sweep& sweep, size_t index, std::vector<uint64_t>& values) {
    const std::span<const Axis> axes = sweep.workload().traits().axes;
    // Where nothing is compared, each point is a group.
    const bool compared = index == axes.size() || axes[index].compared;
    if (compared && (index == 0 || !axes[index - 1].compared)) groups_.emplace_back();
    if (index == axes.size()) {
      VERBENA_ASSIGN_OR_RETURN(Point point, make_point(sweep, values));
      if (!seen_.insert(key_of(point)).second) return Status::ok_status();
      groups_.back().push_back(std::move(point));
      if (seen_.size() <= kMaxPoints) return Status::ok_status();
      return Status(
          StatusCode::kLimitExceeded,
          fmt::format("more than {} points are too many for one run; split it", kMaxPoints));
    }
    const std::vector<uint64_t>& list = sweep.values(axes[index]);
    if (list.empty()) return combine(sweep, index + 1, values);
    for (const uint64_t value : list) {
      values[index] = value;
      VERBENA_RETURN_IF_ERROR(combine(sweep, index + 1, values));
    }
    return Status::ok_status();
  }

  std::vector<PointGroup> groups_;
  std::set<std::vector<uint64_t>> seen_;
};

}  // namespace

// --- sweeps ---

Sweep::Sweep(const Workload& workload)
    : workload_(&workload), values_(workload.traits().axes.size()) {
  for (const Axis& axis : workload.traits().axes) {
    if (axis.standard.empty()) continue;
    const Status set_standard = set(axis.name, axis.standard);
    VERBENA_ASSERT(set_standard.ok());
  }
}

Result<Sweep> Sweep::in(std::string_view topology, const Workload& workload) {
  Sweep sweep(workload);
  VERBENA_ASSIGN_OR_RETURN(sweep.topology_, parse_topology(topology));
  const bool named_by_letters =
      topology.size() > 3 && sweep.topology_ == Topology::kManyToOne;  // N-to-1
  if (named_by_letters && workload.find_axis("responder-threads") != nullptr) {
    VERBENA_RETURN_IF_ERROR(sweep.set("responder-threads", "1"));
  }
  return sweep;
}

Sweep Sweep::of(const Workload& workload) { return Sweep(workload); }

Status Sweep::set(std::string_view axis_name, std::string_view text) {
  const Axis* axis = workload_->find_axis(axis_name);
  if (axis == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} have no axis '{}'; there are {}", workload_->traits().subject,
                              axis_name, workload_->axis_names()));
  }
  VERBENA_ASSIGN_OR_RETURN(values(*axis), axis->parse(text));
  return Status::ok_status();
}

const std::vector<uint64_t>& Sweep::values(const Axis& axis) const {
  return values_[static_cast<size_t>(&axis - workload_->traits().axes.data())];
}
std::vector<uint64_t>& Sweep::values(const Axis& axis) {
  return values_[static_cast<size_t>(&axis - workload_->traits().axes.data())];
}

uint64_t Sweep::usual_count(std::string_view axis_name) const {
  if (!workload_->traits().has_topology) return 0;
  if (axis_name == kNodesAxis.name) return usual_nodes(topology_);
  // Those of M:M are its nodes.
  const bool has_own = axis_name == kRespondersAxis.name && topology_ != Topology::kAllToAll;
  return has_own ? usual_responders(topology_) : 0;
}

void Sweep::limit(std::string_view axis_name, uint64_t most) {
  const Axis* axis = workload_->find_axis(axis_name);
  if (axis == nullptr) return;
  std::vector<uint64_t> limited;
  if (values(*axis).empty() && usual_count(axis->name) > most) limited = {most};
  for (const uint64_t value : values(*axis)) {
    const uint64_t kept = std::min(value, most);
    if (std::find(limited.begin(), limited.end(), kept) == limited.end()) limited.push_back(kept);
  }
  values(*axis) = std::move(limited);
}

// --- plans ---

Result<std::vector<PointGroup>> point_groups(const Plan& plan) {
  GroupMaker maker;
  for (const Sweep& sweep : plan.sweeps) VERBENA_RETURN_IF_ERROR(maker.add(sweep));
  return maker.groups();
}

uint64_t available_memory_bytes() {
  uint64_t available = UINT64_MAX;
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  for (uint64_t kib = 0; meminfo >> key >> kib; std::getline(meminfo, key)) {
    if (key == "MemAvailable:") available = kib * 1024;
  }
  // Inside a container this is the container's; it reads "max" where there is no limit.
  uint64_t limit = 0;
  uint64_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

Status check_huge_pages(const Point& point, const DeviceInfo& device, uint64_t free_huge_pages) {
  if (point.huge_pages == 0) return Status::ok_status();
  const bool soft = point.workload->traits().soft_huge_pages;
  if (device.kind == DeviceKind::kSimulated || (device.kind == DeviceKind::kSoft && !soft)) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format(
            "--huge-pages 1 changes nothing on {}: only RNICs translate addresses; leave it out",
            device.name));
  }
  if (free_huge_pages > 0) return Status::ok_status();
  return Status(StatusCode::kUnsupported,
                "there are no free pages of 2 MiB for --huge-pages 1; set some aside (sudo sysctl "
                "vm.nr_hugepages=512), or leave it out");
}

namespace {

uint64_t free_huge_pages() {
  uint64_t pages = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> pages;
  return pages;
}

}  // namespace

Status check_points(const std::vector<PointGroup>& groups, const DeviceInfo& device) {
  const uint64_t available_bytes = available_memory_bytes();
  const uint64_t huge_pages = free_huge_pages();
  for (const PointGroup& group : groups) {
    for (const Point& point : group) {
      VERBENA_RETURN_IF_ERROR(check_huge_pages(point, device, huge_pages));
      VERBENA_RETURN_IF_ERROR(point.workload->check(point, device, available_bytes));
    }
  }
  return Status::ok_status();
}

nlohmann::json plan_json(const Plan& plan) {
  nlohmann::json sweeps = nlohmann::json::array();
  for (const Sweep& sweep : plan.sweeps) {
    const WorkloadTraits& traits = sweep.workload().traits();
    nlohmann::json one = nlohmann::json::object();
    if (&sweep.workload() != workloads().front()) one["kind"] = traits.name;
    if (traits.has_topology) one["topology"] = topology_name(sweep.topology());
    for (const Axis& axis : traits.axes) {
      nlohmann::json values = nlohmann::json::array();
      for (const uint64_t value : sweep.values(axis)) values.push_back(axis.text(value));
      if (!values.empty()) one[std::string(axis.name)] = std::move(values);
    }
    sweeps.push_back(std::move(one));
  }
  nlohmann::json json = {
      {"sweeps", std::move(sweeps)}, {"runs", plan.runs}, {"verify", plan.run.verify}};
  if (plan.run.variants > 1) json["variants"] = plan.run.variants;
  const RunLength& length = plan.run.length;
  if (plan.run.messages > 0) {
    json["run_messages"] = plan.run.messages;
  } else if (length.requests == UINT64_MAX) {
    json["run_duration_ns"] = length.duration_ns;
  } else {
    json["run_requests"] = length.requests;
  }
  return json;
}

}  // namespace verbena::bench
