#include "src/bench/join/join_workload.h"

#include <fmt/format.h>

#include <array>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/join/join_axes.h"
#include "src/bench/join/join_settings.h"
#include "src/bench/join/join_table.h"
#include "src/bench/join/join_threads.h"

namespace verbena::bench {

namespace {

using Settings = JoinSettings;

constexpr const char* kHelp =
    R"(Two relations of --tuples tuples of --tuple-size bytes are joined by their keys; each tuple finds
one. A run is one join, however long it takes. All combinations of the lists are measured.

--exchange says how tuples with equal keys come together:
  shuffle  Each of --nodes processes has --threads executors, and each of all executors a part of
           both relations. They send every tuple to the executor that its key decides, and join
           what comes.
  none     One process has all tuples, and joins them by --threads threads of oneTBB.

--method says how the shuffle writes tuples:
  basic      one WRITE for each
  sp         the CPU copies those of one executor into a buffer, which goes by one WRITE
  sgl        one WRITE for several, with a gather list
  automatic  the one that is estimated to be cheapest

Result rows are counted but not materialized. With --verify they are, and each is checked to be
there once, at the executor that its key decides. Simulating a tuple that goes by a WRITE of its
own takes some 5 us of this machine: choose fewer --tuples for a simulation. Their number matters to
caches only, and the model has none but those of the RNIC.

)";

constexpr std::array<std::string_view, 3> kExamples = {
    "verbena app join --threads 2 --exchange all --tuples 100000 --runs 1",
    "verbena app join --threads 2 --method basic,sp,sgl --tuples 100000 --runs 1 --verify",
    "verbena app join --nodes 1,...,8 --tuples 64000 --runs 1 --device sim:connectx3-40g"};

constexpr std::array<std::string_view, 3> kLineAxes = {"batch", "exchange", "method"};

constexpr std::array kMetrics = {
    ShareMetric{.json = "shuffle_ns_per_tuple", .part = kShuffleNs, .whole = kJoinedTuples},
    ShareMetric{.json = "partition_ns_per_tuple", .part = kPartitionNs, .whole = kJoinedTuples},
    ShareMetric{.json = "probe_ns_per_tuple", .part = kProbeNs, .whole = kJoinedTuples},
    ShareMetric{.json = "cycles_per_tuple", .part = kJoinCycles, .whole = kJoinedTuples},
    ShareMetric{.json = "result_per_outer_tuple", .part = kResultRows, .whole = kOuterTuples}};

class JoinWorkload : public Workload {
 public:
  JoinWorkload()
      : Workload({.name = "join",
                  .subject = "the join",
                  .has_topology = false,
                  .verifies = true,
                  .soft_huge_pages = false,
                  .axes = join_axes(),
                  .line_axes = kLineAxes,
                  .metrics = kMetrics,
                  .reads_payload = true,
                  .node_names = {.both = "executor"},
                  .command = {.name = "join",
                              .group = "app",
                              .summary = "The join of two relations, on one machine or by the "
                                         "shuffle",
                              .help = kHelp,
                              .operations_help = "No effect: a run is one join",
                              .examples = kExamples,
                              .over_hosts = true}}) {}

  Point point() const override {
    return {.workload = this,
            .topology = Topology::kManyToMany,
            .responder_nodes = 0,
            .settings = Settings()};
  }

  // Settings without effect keep their defaults, so that equal points compare equal.
  Result<Point> fit(Point point) const override {
    point.topology = Topology::kManyToMany;
    point.responder_nodes = 0;
    point.responder_threads = point.threads;
    Settings& settings = join_settings(point);
    if (settings.exchange == JoinExchangeKind::kNone) {
      if (point.nodes > 1) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("{} nodes cannot join without a shuffle; leave --nodes at 1, or "
                                  "choose --exchange shuffle",
                                  point.nodes));
      }
      settings.method = Settings().method;
      settings.batch = Settings().batch;
    }
    if (settings.method == ShuffleMethod::kBasic) settings.batch = 1;
    if (join_executors(point) <= kMostExecutors) return point;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} executors are too many: a shuffle has at most {}; lower "
                              "--nodes or --threads",
                              join_executors(point), kMostExecutors));
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    const Settings& settings = join_settings(point);
    if (is_shuffled(point)) {
      VERBENA_RETURN_IF_ERROR(check_shuffle(device, settings.method, settings.batch, "tuples"));
    } else if (device.kind == DeviceKind::kSimulated && point.threads > 1) {
      return {StatusCode::kUnsupported,
              fmt::format("a join without a shuffle runs its {} threads by oneTBB, which cannot be "
                          "simulated; choose --threads 1, or --exchange shuffle",
                          point.threads)};
    }
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    return {StatusCode::kLimitExceeded,
            fmt::format("a join of 2 x {} tuples of {} by {} executors needs {} of memory, {} are "
                        "available; lower --tuples or --threads",
                        settings.tuples, size_text(settings.tuple_bytes), join_executors(point),
                        size_text(needed_bytes), size_text(available_bytes))};
  }

  uint64_t memory_bytes(const Point& point) const override {
    const Settings& settings = join_settings(point);
    // Input, what came from others, and the result; partitions and tables besides.
    constexpr uint64_t kCopies = 3;
    constexpr uint64_t kWorkingBytes = 64;
    const uint64_t tuples = 2 * settings.tuples;
    const uint64_t buffers = uint64_t{join_executors(point)} * join_executors(point);
    return tuples * (kCopies * settings.tuple_bytes + kWorkingBytes) +
           (is_shuffled(point) ? buffers * 2 * ShuffleReceiverOptions().buffer_bytes : 0);
  }

  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_join_executor : run_join_acceptor;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const uint64_t bytes = join_settings(point).tuple_bytes;
    return {.value = bytes, .total = bytes};
  }

  std::string text(const Point& point) const override {
    return fmt::format("join {}, {} tuples, {} executors", line_text(point),
                       join_settings(point).tuples, join_executors(point));
  }

  // "x 16 sgl", "without shuffle".
  std::string line_text(const Point& point) const override {
    const Settings& settings = join_settings(point);
    if (!is_shuffled(point)) return "without shuffle";
    return fmt::format("x {} {}", settings.batch, shuffle_method_name(settings.method));
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return join_table(results);
  }
};

}  // namespace

const Workload& join_workload() {
  static const JoinWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
