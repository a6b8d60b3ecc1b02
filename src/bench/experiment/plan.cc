#include "src/bench/experiment/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <string>

#include "src/base/assert.h"
#include "src/bench/experiment/size_list.h"

namespace verbena::bench {

namespace {

constexpr size_t kMaxPoints = 100'000;

size_t index_of(const Axis& axis) { return static_cast<size_t>(&axis - axes().data()); }

// What a topology has where nobody says how much.
uint32_t usual_nodes(Topology topology) {
  return topology == Topology::kOneToOne || topology == Topology::kOneToMany ? 1 : 2;
}
uint32_t usual_responders(Topology topology) {
  return topology == Topology::kOneToMany || topology == Topology::kManyToMany ? 2 : 1;
}

// A raw operation as it can be carried out; what it needs of the device is asked later.
Result<Point> fit_operation(Point point) {
  // Each thread has its queue pair to a thread of its own on the other node.
  point.topology = Topology::kManyToOne;
  point.responder_threads = point.threads;
  if (is_atomic(point.operation)) {
    point.size_bytes = sizeof(uint64_t);
    if (point.entries > 1 && point.method != VectorMethod::kDoorbell) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("one atomic works on 8 bytes, not on {} entries; leave --entries "
                                "at 1, or post as many atomics with --method doorbell",
                                point.entries));
    }
  }
  if (point.signal_interval > point.pending) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("with {} operations pending, nobody would learn of their end by "
                              "every {}th completion; lower --signal-interval to {} at most",
                              point.pending, point.signal_interval, point.pending));
  }
  if (point.region_bytes < operation_bytes(point)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("an operation of {} does not fit a region of {}; raise --region, or "
                              "lower --size or --entries",
                              size_text(operation_bytes(point)), size_text(point.region_bytes)));
  }
  return point;
}

// The point of one combination; `given` tells which axes were set.
Result<Point> make_point(const Sweep& sweep, const std::vector<uint64_t>& values) {
  Point point;
  point.topology = sweep.topology();
  point.nodes = sweep.subject() == Subject::kVerbs ? 1 : usual_nodes(point.topology);
  point.responder_nodes = usual_responders(point.topology);
  bool has_responders = false;
  bool has_responder_threads = false;
  for (size_t i = 0; i < values.size(); ++i) {
    const Axis& axis = axes()[i];
    if (sweep.values(axis).empty()) continue;
    axis.set(point, values[i]);
    has_responders = has_responders || axis.name == "responders";
    has_responder_threads = has_responder_threads || axis.name == "responder-threads";
  }
  if (sweep.subject() == Subject::kVerbs) return fit_operation(point);
  if (!has_responder_threads) {
    point.responder_threads = point.topology == Topology::kManyToOne ? point.threads : 1;
  }
  VERBENA_ASSIGN_OR_RETURN(const TopologyShape shape, fitted(shape_of(point)));
  // M:1 needs no more responding threads than there are queue pairs; the others have their number.
  const bool contradicts = (has_responders && point.responder_nodes != shape.responder_nodes) ||
                           (has_responder_threads && point.topology != Topology::kManyToOne &&
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
  if (!uses_mark_layout(point.protocol)) point.layout = MarkLayout::kLastBit;
  return point;
}

std::vector<uint64_t> key_of(const Point& point) {
  std::vector<uint64_t> key = {static_cast<uint64_t>(point.topology)};
  for (const Axis& axis : axes()) key.push_back(axis.get(point));
  return key;
}

class GroupMaker {
 public:
  Status add(const Sweep& sweep) {
    std::vector<uint64_t> values(axes().size());
    return combine(sweep, 0, values);
  }
  std::vector<PointGroup> groups() {
    std::erase_if(groups_, [](const PointGroup& group) { return group.empty(); });
    return std::move(groups_);
  }

 private:
  // All values of this axis and of those behind it; compared axes are the last ones.
  Status combine(const Sweep& sweep, size_t index, std::vector<uint64_t>& values) {
    if (index < axes().size() && axes()[index].compared &&
        (index == 0 || !axes()[index - 1].compared)) {
      groups_.emplace_back();
    }
    if (index == axes().size()) {
      VERBENA_ASSIGN_OR_RETURN(const Point point, make_point(sweep, values));
      if (!seen_.insert(key_of(point)).second) return Status::ok_status();
      groups_.back().push_back(point);
      if (seen_.size() <= kMaxPoints) return Status::ok_status();
      return Status(
          StatusCode::kLimitExceeded,
          fmt::format("more than {} points are too many for one run; split it", kMaxPoints));
    }
    const std::vector<uint64_t>& list = sweep.values(axes()[index]);
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

Result<Sweep> Sweep::in(std::string_view topology) {
  Sweep sweep;
  VERBENA_ASSIGN_OR_RETURN(sweep.topology_, parse_topology(topology));
  sweep.set_standards();
  const bool named_by_letters =
      topology.size() > 3 && sweep.topology_ == Topology::kManyToOne;  // N-to-1
  if (named_by_letters) VERBENA_RETURN_IF_ERROR(sweep.set("responder-threads", "1"));
  return sweep;
}

Sweep Sweep::of_verbs() {
  Sweep sweep;
  sweep.subject_ = Subject::kVerbs;
  sweep.topology_ = Topology::kManyToOne;
  sweep.set_standards();
  return sweep;
}

void Sweep::set_standards() {
  values_.resize(axes().size());
  for (const Axis& axis : axes()) {
    if (axis.standard.empty() || !axis.belongs_to(subject_)) continue;
    const Status set_standard = set(axis, axis.standard);
    VERBENA_ASSERT(set_standard.ok());
  }
}

Status Sweep::set(const Axis& axis, std::string_view text) {
  if (!axis.belongs_to(subject_)) {
    const bool verbs = subject_ == Subject::kVerbs;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} have no axis '{}'; there are {}",
                              verbs ? "raw verbs" : "requests and responses", axis.name,
                              axis_names(subject_)));
  }
  VERBENA_ASSIGN_OR_RETURN(values(axis), axis.parse(text));
  return Status::ok_status();
}

Status Sweep::set(std::string_view axis_name, std::string_view text) {
  const Axis* axis = find_axis(axis_name);
  if (axis == nullptr) {
    return Status(StatusCode::kInvalidArgument, fmt::format("there is no axis '{}'", axis_name));
  }
  return set(*axis, text);
}

const std::vector<uint64_t>& Sweep::values(const Axis& axis) const {
  return values_[index_of(axis)];
}
std::vector<uint64_t>& Sweep::values(const Axis& axis) { return values_[index_of(axis)]; }

void Sweep::limit(const Axis& axis, uint64_t most) {
  std::vector<uint64_t> limited;
  for (const uint64_t value : values(axis)) {
    const uint64_t kept = std::min(value, most);
    if (std::find(limited.begin(), limited.end(), kept) == limited.end()) limited.push_back(kept);
  }
  values(axis) = std::move(limited);
}

// --- plans ---

Result<std::vector<PointGroup>> point_groups(const Plan& plan) {
  GroupMaker maker;
  for (const Sweep& sweep : plan.sweeps) VERBENA_RETURN_IF_ERROR(maker.add(sweep));
  return maker.groups();
}

std::string point_text(const Point& point) {
  if (subject_of(point) == Subject::kVerbs) {
    std::string vector;
    if (point.entries > 1) {
      vector = fmt::format("{} x {}, ", vector_method_name(point.method), point.entries);
    }
    return fmt::format("{}, {}{}, {} pending, {} threads", operation_name(point.operation), vector,
                       size_text(point.size_bytes), point.pending, point.threads);
  }
  std::string shape;
  if (point.topology != Topology::kOneToOne) {
    shape = fmt::format("{} {}x{}, ", topology_name(point.topology), point.nodes, point.threads);
  }
  return fmt::format("{}{}, {} request, {} response, {} pending", shape,
                     protocol_name(point.protocol), size_text(point.request_bytes),
                     size_text(point.response_bytes), point.pending);
}

uint64_t memory_bytes(const Point& point) {
  if (subject_of(point) == Subject::kVerbs) {
    const uint64_t staging_bytes = point.pending * operation_bytes(point);
    return point.threads * (2 * point.region_bytes + staging_bytes);
  }
  const Result<Wiring> wiring = wire_connections(point);
  const uint64_t queue_pairs = wiring.ok() ? wiring->queue_pairs() : 1;
  // Each side has a slot of its own for what it sends and for what it receives.
  return queue_pairs * 2 * pending_per_queue_pair(point) *
         (uint64_t{point.request_bytes} + uint64_t{point.response_bytes});
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
  const bool verbs = subject_of(point) == Subject::kVerbs;
  if (device.kind == DeviceKind::kSimulated || (device.kind == DeviceKind::kSoft && !verbs)) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} has no use for huge pages: only RNICs translate addresses; "
                              "leave --huge-pages 1 out",
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

Status check_queue(const Point& point, const DeviceInfo& device) {
  const bool verbs = subject_of(point) == Subject::kVerbs;
  const uint64_t pending = verbs ? uint64_t{point.pending} * requests_per_operation(point)
                                 : pending_per_queue_pair(point);
  if (pending + 1 <= device.max_queue_pair_wrs) return Status::ok_status();
  return Status(
      StatusCode::kLimitExceeded,
      fmt::format("{} pending requests are too many: a queue pair of {} takes {} work "
                  "requests; lower --pending{}",
                  pending, device.name, device.max_queue_pair_wrs, verbs ? " or --entries" : ""));
}

Status check_operation(const Point& point, const DeviceInfo& device) {
  if (is_atomic(point.operation) && !device.atomics) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("{} has no atomics; choose another --operation or --device", device.name));
  }
  const bool gathers = has_entries(point.operation) && point.method == VectorMethod::kSgl;
  if (!gathers || point.entries <= device.max_sges) {
    return Status::ok_status();
  }
  return Status(StatusCode::kLimitExceeded,
                fmt::format("a gather list of {} entries is too long: a work request of {} takes "
                            "{}; lower --entries, or choose --method sp or doorbell",
                            point.entries, device.name, device.max_sges));
}

Status check_memory(const Point& point, uint64_t available_bytes) {
  const uint64_t needed_bytes = memory_bytes(point);
  if (needed_bytes <= available_bytes) return Status::ok_status();
  if (subject_of(point) == Subject::kVerbs) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("regions of {} for {} threads need {} of memory on both sides "
                              "together, {} are available; lower --region or --threads",
                              size_text(point.region_bytes), point.threads, size_text(needed_bytes),
                              size_text(available_bytes)));
  }
  return Status(
      StatusCode::kLimitExceeded,
      fmt::format("{} pending requests of {} with responses of {} need {} of memory "
                  "on all sides together, {} are available; lower --request, "
                  "--response, --pending or the number of threads",
                  point.pending, size_text(point.request_bytes), size_text(point.response_bytes),
                  size_text(needed_bytes), size_text(available_bytes)));
}

}  // namespace

Status check_points(const std::vector<PointGroup>& groups, const DeviceInfo& device) {
  const uint64_t available_bytes = available_memory_bytes();
  const uint64_t huge_pages = free_huge_pages();
  for (const PointGroup& group : groups) {
    for (const Point& point : group) {
      VERBENA_RETURN_IF_ERROR(check_huge_pages(point, device, huge_pages));
      VERBENA_RETURN_IF_ERROR(check_queue(point, device));
      if (subject_of(point) == Subject::kVerbs) {
        VERBENA_RETURN_IF_ERROR(check_operation(point, device));
      }
      VERBENA_RETURN_IF_ERROR(check_memory(point, available_bytes));
    }
  }
  return Status::ok_status();
}

nlohmann::json plan_json(const Plan& plan) {
  nlohmann::json sweeps = nlohmann::json::array();
  for (const Sweep& sweep : plan.sweeps) {
    const bool verbs = sweep.subject() == Subject::kVerbs;
    nlohmann::json one = verbs ? nlohmann::json{{"kind", "verbs"}}
                               : nlohmann::json{{"topology", topology_name(sweep.topology())}};
    for (const Axis& axis : axes()) {
      nlohmann::json values = nlohmann::json::array();
      for (const uint64_t value : sweep.values(axis)) values.push_back(axis.text(value));
      if (!values.empty()) one[std::string(axis.name)] = std::move(values);
    }
    sweeps.push_back(std::move(one));
  }
  nlohmann::json json = {
      {"sweeps", std::move(sweeps)}, {"runs", plan.runs}, {"verify", plan.run.verify}};
  const RunLength& length = plan.run.length;
  if (length.requests == UINT64_MAX) {
    json["run_duration_ns"] = length.duration_ns;
  } else {
    json["run_requests"] = length.requests;
  }
  return json;
}

}  // namespace verbena::bench
