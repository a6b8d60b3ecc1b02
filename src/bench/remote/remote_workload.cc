#include "src/bench/remote/remote_workload.h"

#include <fmt/format.h>

#include <array>
#include <bit>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/remote/remote_axes.h"
#include "src/bench/remote/remote_settings.h"
#include "src/bench/remote/remote_table.h"
#include "src/bench/remote/remote_threads.h"

namespace verbena::bench {

namespace {

using Settings = RemoteSettings;

constexpr const char* kHelp =
    R"(Each of --nodes processes has --threads threads, which use the memory of one further process.
All combinations of the lists are measured; what means nothing to an operation is left out.

  write      Writes --size bytes into the thread's own --region. --consolidation says how:
               none       one WRITE for each
               shared     kept in blocks of --block bytes; after --theta modifications of a block,
                          or 1 ms, its modified bytes are written, and before that where
                          another block needs its place (--kept)
               exclusive  the same, and nobody else writes into the region: one WRITE per block
  lock       Takes the one lock that all threads share, and gives it back at once.
  sequencer  Takes --range numbers from the one sequencer that all threads share.

--version says where the word of a lock or sequencer is:
  local      in memory that the threads of the one node share
  remote     in remote memory: compare-and-swap and fetch-and-add by the RNIC
  rpc        at a server, whose one thread answers calls by SEND and RECEIVE

--sockets gives each of so many sockets a part of the memory, and writes go to all parts in turn or
at random; thread i runs on socket i. --links says which sockets are connected:
  one        all through the RNIC or its port of the first socket, wherever threads and memory are
  mesh       each thread to each part, through the ports of their sockets
  matched    sockets to their like; a thread reaches other parts by the proxy of their socket
  proxied    the same, and the part of its own socket, too

Who finds the lock held tries again; with --backoff on after a pause, which doubles from 1 us to
64 us. --verify checks that nobody has the lock beside its holder, that no number is given twice,
and that the region has what was written last.

)";

constexpr std::array<std::string_view, 3> kExamples = {
    "verbena remote --consolidation none,exclusive --theta 1,...,16 --duration 10ms",
    "verbena remote --operation lock --version all --backoff all --threads 1,2 --duration 10ms",
    "verbena remote --operation sequencer --version remote,rpc --nodes 1,...,8 --device "
    "sim:connectx3-40g"};

constexpr std::array<std::string_view, 5> kLineAxes = {"operation", "version", "backoff",
                                                       "consolidation", "links"};

constexpr std::array kMetrics = {
    ShareMetric{
        .json = "round_trips_per_operation", .part = kRoundTrips, .whole = kCountedOperations},
    ShareMetric{.json = "attempts_per_acquisition", .part = kAttempts, .whole = kAcquisitions},
    ShareMetric{.json = "queue_pairs_to_back_end", .part = kQueuePairs, .whole = kBackEnds}};

// What means nothing to the operation is as usual, so that equal points are one.
void fit_settings(Point& point) {
  Settings& settings = remote_settings(point);
  const Settings usual;
  if (settings.operation == RemoteOperation::kWrite) {
    settings.version = usual.version;
  } else {
    settings.consolidation = usual.consolidation;
    settings.pattern = usual.pattern;
    settings.size_bytes = usual.size_bytes;
    settings.region_bytes = usual.region_bytes;
    settings.sockets = usual.sockets;
  }
  if (settings.consolidation == ConsolidationKind::kNone) {
    settings.block_bytes = usual.block_bytes;
    settings.theta = usual.theta;
    settings.kept_blocks = usual.kept_blocks;
  }
  if (settings.operation != RemoteOperation::kLock) settings.backoff = usual.backoff;
  if (settings.operation != RemoteOperation::kSequencer) settings.range = usual.range;
  if (settings.sockets == 1) settings.links = usual.links;
  if (!can_be_pending(settings)) point.pending = 1;
}

class RemoteWorkload : public Workload {
 public:
  RemoteWorkload()
      : Workload({.name = "remote",
                  .subject = "operations on remote memory",
                  .has_topology = false,
                  .verifies = true,
                  .soft_huge_pages = false,
                  .axes = remote_axes(),
                  .line_axes = kLineAxes,
                  .metrics = kMetrics,
                  .command = {
                      .name = "remote",
                      .summary = "Measure operations on remote memory: consolidated writes, locks, "
                                 "sequencers",
                      .help = kHelp,
                      .operations_help = "How many operations each thread carries out in a run, "
                                         "instead of a time",
                      .examples = kExamples}}) {}

  Point point() const override {
    return {.workload = this, .topology = Topology::kManyToOne, .settings = Settings()};
  }

  Result<Point> fit(Point point) const override {
    fit_settings(point);
    point.responder_nodes = point.responder_threads = 1;
    const Settings& settings = remote_settings(point);
    if (settings.version == WordVersion::kLocal && point.nodes > 1) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} nodes share no local memory; leave --nodes at 1, or choose "
                                "--version remote or rpc",
                                point.nodes));
    }
    if (!std::has_single_bit(settings.block_bytes)) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("a block of {} B is no power of two; choose --block {}",
                                settings.block_bytes, std::bit_floor(settings.block_bytes)));
    }
    if (settings.sockets > 1 && settings.consolidation != ConsolidationKind::kNone) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("writes on {} sockets are not consolidated here; leave --sockets "
                                "at 1, or --consolidation at none",
                                settings.sockets));
    }
    if (settings.size_bytes > settings.region_bytes) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("a write of {} does not fit a region of {}; raise --region, or "
                                "lower --size",
                                size_text(settings.size_bytes), size_text(settings.region_bytes)));
    }
    return point;
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    const Settings& settings = remote_settings(point);
    VERBENA_RETURN_IF_ERROR(check_queue_depth(point.pending, device, "--pending"));
    if (settings.operation != RemoteOperation::kWrite && settings.version == WordVersion::kRemote &&
        !device.atomics) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("{} has no atomics; choose --version local or rpc, or another "
                                "--device",
                                device.name));
    }
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    const bool keeps = settings.consolidation != ConsolidationKind::kNone;
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("regions of {}{} for {} threads need {} of memory, {} are available; "
                              "lower --region,{} --nodes or --threads",
                              size_text(settings.region_bytes),
                              keeps ? fmt::format(" and {} blocks of {}", settings.kept_blocks,
                                                  size_text(settings.block_bytes))
                                    : "",
                              point.nodes * point.threads, size_text(needed_bytes),
                              size_text(available_bytes), keeps ? " --kept, --block," : ""));
  }

  uint64_t memory_bytes(const Point& point) const override {
    const Settings& settings = remote_settings(point);
    // Of each thread: what it has on its way, and the blocks that it keeps.
    const bool keeps = settings.consolidation != ConsolidationKind::kNone;
    const uint64_t entry_bytes = keeps ? settings.block_bytes : settings.size_bytes;
    const uint64_t entries = point.pending + (keeps ? std::bit_ceil(settings.kept_blocks) : 0);
    return exposed_bytes(point) + uint64_t{point.nodes} * point.threads * entries * entry_bytes;
  }

  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_remote_requesting_thread
                                           : run_remote_responding_thread;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const Settings& settings = remote_settings(point);
    const uint64_t bytes =
        settings.operation == RemoteOperation::kWrite ? settings.size_bytes : sizeof(uint64_t);
    return {.value = bytes, .total = bytes};
  }

  std::string text(const Point& point) const override {
    return fmt::format("{}, {} x {} threads, {} pending", line_text(point), point.nodes,
                       point.threads, point.pending);
  }

  // "lock rpc", "write exclusive".
  std::string line_text(const Point& point) const override {
    const Settings& settings = remote_settings(point);
    const std::string operation = remote_operation_name(settings.operation);
    if (settings.operation != RemoteOperation::kWrite) {
      const bool pauses =
          settings.operation == RemoteOperation::kLock && settings.backoff == Backoff::kOn;
      return operation + " " + word_version_name(settings.version) + (pauses ? " back-off" : "");
    }
    if (settings.consolidation == ConsolidationKind::kNone) {
      return settings.sockets == 1 ? operation
                                   : operation + " " + socket_links_name(settings.links);
    }
    return operation + " " + consolidation_kind_name(settings.consolidation);
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return remote_table(results);
  }
};

}  // namespace

const Workload& remote_workload() {
  static const RemoteWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
