#include "src/bench/log/log_workload.h"

#include <fmt/format.h>

#include <array>
#include <bit>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/log/log_axes.h"
#include "src/bench/log/log_settings.h"
#include "src/bench/log/log_table.h"
#include "src/bench/log/log_threads.h"

namespace verbena::bench {

namespace {

using Settings = LogSettings;

constexpr const char* kHelp =
    R"(Each of --nodes processes has --threads threads, of which --readers read a log and the others append
to it, by one-sided verbs; the log is in the memory of --replicas further processes, each of which
has all of it. All combinations of the lists are measured. An operation appends --batch entries of
--entry-size bytes, which lie in registered memory; --method says how they are gathered:

  sp         the CPU copies them into one buffer
  sgl        one work request with a gather list
  doorbell   a work request for each
  automatic  the one that is estimated to be cheapest

--sockets lets thread i of a node run on socket i. --links says which port it uses: one, always that
of the first socket, or mesh, that of its own. The log lies on the first socket of its back-end.

The first reader makes room for what is appended; without readers, writers do, and drop what was
not read. --verify checks that every reader has read every acknowledged entry once, as it was
appended, and where its writer was told that it is: so all have read the same order. Without
readers, the first writer reads it.

)";

constexpr std::array<std::string_view, 3> kExamples = {
    "verbena app log --batch 1,...,32 --pending 4 --duration 50ms",
    "verbena app log --threads 3 --readers 1 --batch 8 --duration 50ms --verify",
    "verbena app log --nodes 1,...,4 --replicas 2 --batch 16 --method sp,sgl --device "
    "sim:connectx3-40g"};

constexpr std::array<std::string_view, 4> kLineAxes = {"links", "entry-size", "batch", "method"};

constexpr std::array kMetrics = {
    ShareMetric{.json = "skipped_per_batch", .part = kSkippedBatches, .whole = kAppendedBatches},
    ShareMetric{.json = "full_waits_per_batch", .part = kFullWaits, .whole = kAppendedBatches},
    ShareMetric{.json = "read_per_entry", .part = kReadEntries, .whole = kAppendedEntries},
    ShareMetric{
        .json = "hole_places_per_batch", .part = kSkippedPlaces, .whole = kAppendedBatches}};

constexpr uint32_t kMostPending = 256;
// As open_log_writer() has them: what method sp copies at once; and operations, for each of which
// there are as many work requests as a batch has pieces.
constexpr uint64_t kMostCopiedBytes = 1 << 20;
constexpr uint64_t kOperationsOfBatch = 6;
constexpr uint64_t kFurtherOperations = 9;
constexpr uint32_t kMostReplicas = 16;
constexpr uint64_t kMostBatchBytes = 16 << 20;

uint64_t batch_bytes(const Settings& settings) {
  return uint64_t{settings.batch} * settings.entry_bytes;
}
// With what describes it.
uint64_t copied_bytes(const Settings& settings) {
  return batch_bytes(settings) + 24 + uint64_t{8} * settings.batch;
}

class LogWorkload : public Workload {
 public:
  LogWorkload()
      : Workload({.name = "log",
                  .subject = "the log",
                  .has_topology = false,
                  .verifies = true,
                  .soft_huge_pages = false,
                  .axes = log_axes(),
                  .line_axes = kLineAxes,
                  .metrics = kMetrics,
                  .reads_payload = true,
                  .node_names = {.requesting = "writer", .responding = "replica"},
                  .command = {.name = "log",
                              .group = "app",
                              .summary = "The log in remote memory: writers, readers and replicas",
                              .help = kHelp,
                              .operations_help = "How many batches each writer appends in a run, "
                                                 "instead of a time",
                              .examples = kExamples,
                              .over_hosts = true}}) {}

  Point point() const override {
    return {.workload = this, .topology = Topology::kManyToOne, .settings = Settings()};
  }

  Result<Point> fit(Point point) const override {
    point.topology = point.responder_nodes == 1 ? Topology::kManyToOne : Topology::kManyToMany;
    point.responder_threads = 1;
    Settings& settings = log_settings(point);
    if (settings.sockets == 1) settings.links = Settings().links;
    const auto refused = [](std::string why) {
      return Status(StatusCode::kInvalidArgument, std::move(why));
    };
    if (settings.readers >= point.threads) {
      return refused(
          fmt::format("{} readers of {} threads leave no writer; raise --threads, or "
                      "lower --readers",
                      settings.readers, point.threads));
    }
    if (settings.sockets > 1 && has_proxies(settings.links)) {
      return refused(
          fmt::format("the log lies on one socket of its back-end, so there are no connections "
                      "between matching sockets; choose --links one or mesh, not {}",
                      socket_links_name(settings.links)));
    }
    if (!std::has_single_bit(settings.capacity_bytes)) {
      return refused(fmt::format("a capacity of {} B is no power of two; choose --capacity {}",
                                 settings.capacity_bytes, std::bit_ceil(settings.capacity_bytes)));
    }
    // Room is made behind the readers, some batches behind them.
    const uint64_t least_batches = settings.readers > 0 ? 32 : 8;
    const uint64_t most_bytes = std::min(settings.capacity_bytes / least_batches, kMostBatchBytes);
    if (batch_bytes(settings) > most_bytes) {
      return refused(
          fmt::format("{} entries of {} are more than the {} of a batch that a log of {} "
                      "takes; raise --capacity, or lower --batch or --entry-size",
                      settings.batch, size_text(settings.entry_bytes), size_text(most_bytes),
                      size_text(settings.capacity_bytes)));
    }
    if (point.responder_nodes > kMostReplicas) {
      return refused(fmt::format("{} replicas are more than a log has, {}; lower --replicas",
                                 point.responder_nodes, kMostReplicas));
    }
    return point;
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    const Settings& settings = log_settings(point);
    if (point.pending > kMostPending) {
      return {StatusCode::kLimitExceeded,
              fmt::format("a writer of the log has at most {} batches pending, not {}; lower "
                          "--pending",
                          kMostPending, point.pending)};
    }
    VERBENA_RETURN_IF_ERROR(check_atomics(device, "the log"));
    if (settings.method == VectorMethod::kSgl && settings.batch + 1 > device.max_sges) {
      return {StatusCode::kLimitExceeded,
              fmt::format("batches of {} entries take {} gather entries, {} has {}; lower --batch, "
                          "or choose another --method",
                          settings.batch, settings.batch + 1, device.name, device.max_sges)};
    }
    if (settings.method == VectorMethod::kSp && copied_bytes(settings) > kMostCopiedBytes) {
      return {StatusCode::kLimitExceeded,
              fmt::format("{} entries of {}, and what describes them, are more than the {} that sp "
                          "copies at once; lower --batch or --entry-size, or choose another "
                          "--method",
                          settings.batch, size_text(settings.entry_bytes),
                          size_text(kMostCopiedBytes))};
    }
    const uint64_t requests =
        (point.pending * kOperationsOfBatch + kFurtherOperations) * (settings.batch + 1) + 1;
    if (requests > device.max_queue_pair_wrs) {
      return {StatusCode::kLimitExceeded,
              fmt::format("{} pending batches of {} entries need a send queue of {} work requests, "
                          "{} has {}; lower --pending or --batch",
                          point.pending, settings.batch, requests, device.name,
                          device.max_queue_pair_wrs)};
    }
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    return {StatusCode::kLimitExceeded,
            fmt::format("{} replicas of {} and {} writers need {} of memory, {} are available; "
                        "lower --capacity, --replicas, --pending or --threads",
                        point.responder_nodes, size_text(settings.capacity_bytes),
                        log_writers(point), size_text(needed_bytes), size_text(available_bytes))};
  }

  uint64_t memory_bytes(const Point& point) const override {
    const Settings& settings = log_settings(point);
    // A writer has its entries, what describes them, and copies where they are gathered.
    constexpr uint64_t kCopies = 3;
    return point.responder_nodes * (settings.capacity_bytes + settings.capacity_bytes / 8) +
           uint64_t{log_writers(point)} * point.pending * batch_bytes(settings) * kCopies;
  }

  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_log_front_end : run_log_store;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const uint64_t bytes = batch_bytes(log_settings(point));
    return {.value = bytes, .total = bytes};
  }

  std::string text(const Point& point) const override {
    const Settings& settings = log_settings(point);
    return fmt::format("log {}, {} x {} writers and {} readers, {} pending", line_text(point),
                       point.nodes, point.threads - settings.readers, settings.readers,
                       point.pending);
  }

  // "64 B x 32 sgl mesh".
  std::string line_text(const Point& point) const override {
    const Settings& settings = log_settings(point);
    std::string line = fmt::format("{} x {} {}", size_text(settings.entry_bytes), settings.batch,
                                   vector_method_name(settings.method));
    if (settings.sockets > 1) line += fmt::format(" {}", socket_links_name(settings.links));
    return line;
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return log_table(results);
  }
};

}  // namespace

const Workload& log_workload() {
  static const LogWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
