#include "src/bench/shuffle/shuffle_workload.h"

#include <fmt/format.h>

#include <array>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/shuffle/shuffle_axes.h"
#include "src/bench/shuffle/shuffle_settings.h"
#include "src/bench/shuffle/shuffle_table.h"
#include "src/bench/shuffle/shuffle_threads.h"

namespace verbena::bench {

namespace {

using Settings = ShuffleSettings;

constexpr const char* kHelp =
    R"(Each of --nodes processes has --threads senders and --receivers receivers; with --receiver-nodes,
the receivers are in so many further processes instead. Every sender is connected to every receiver,
and sends each record to the one that the hash of its key decides, by WRITEs into its memory. All
combinations of the lists are measured. An operation takes --chunk records of --record-size bytes,
which lie in registered memory; --method says how they go:

  basic      one WRITE for each
  sp         the CPU copies those of one receiver into a buffer, which goes by one WRITE
  sgl        one WRITE for several, with a gather list
  automatic  the one that is estimated to be cheapest

Receivers take what has come, do nothing with it, and give the space back. With --distribution
zipfian key i of a million comes in proportion to 1 / i^0.99, so some receivers get more than
others. --verify checks that each receiver gets each of its records once and as it was sent, by
counts and sums; their order means nothing.

)";

constexpr std::array<std::string_view, 3> kExamples = {
    "verbena app shuffle --method basic,sp,sgl --batch 1,4,16 --duration 20ms --runs 1",
    "verbena app shuffle --threads 2 --receivers 2 --distribution all --duration 20ms --verify",
    "verbena app shuffle --nodes 2,4 --receivers 2 --method all --runs 1 --device "
    "sim:connectx3-40g"};

constexpr std::array<std::string_view, 4> kLineAxes = {"record-size", "batch", "distribution",
                                                       "method"};

constexpr std::array kMetrics = {
    ShareMetric{.json = "writes_per_record", .part = kRecordWrites, .whole = kSentRecords},
    ShareMetric{.json = "counters_per_record", .part = kCounterWrites, .whole = kSentRecords},
    ShareMetric{.json = "credit_reads_per_record", .part = kCreditReads, .whole = kSentRecords},
    ShareMetric{.json = "refusals_per_record", .part = kRefusals, .whole = kSentRecords},
    ShareMetric{.json = "received_per_record", .part = kReceivedRecords, .whole = kSentRecords},
    ShareMetric{.json = "sender_cycles_per_record", .part = kSenderCycles, .whole = kSentRecords},
    ShareMetric{
        .json = "receiver_cycles_per_record", .part = kReceiverCycles, .whole = kReceivedRecords}};

// Of a batch: records, lengths, counter, credits.
constexpr uint32_t kWorkRequestsOfBatch = 4;

class ShuffleWorkload : public Workload {
 public:
  ShuffleWorkload()
      : Workload(
            {.name = "shuffle",
             .subject = "the shuffle",
             .has_topology = false,
             .verifies = true,
             .soft_huge_pages = false,
             .axes = shuffle_axes(),
             .line_axes = kLineAxes,
             .metrics = kMetrics,
             .reads_payload = true,
             .node_names = {.requesting = "sender", .responding = "receiver", .both = "executor"},
             .command = {.name = "shuffle",
                         .group = "app",
                         .summary = "The shuffle: records from all senders to the receivers "
                                    "that their keys decide",
                         .help = kHelp,
                         .operations_help = "How many chunks of records each sender sends in "
                                            "a run, instead of a time",
                         .examples = kExamples,
                         .over_hosts = true}}) {}

  Point point() const override {
    return {.workload = this,
            .topology = Topology::kManyToMany,
            .responder_nodes = 0,
            .settings = Settings()};
  }

  Result<Point> fit(Point point) const override {
    point.topology = Topology::kManyToMany;
    Settings& settings = shuffle_settings(point);
    if (settings.method == ShuffleMethod::kBasic) settings.batch = 1;
    if (shuffle_senders(point) <= kMostExecutors && shuffle_receivers(point) <= kMostExecutors) {
      return point;
    }
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{} senders and {} receivers are too many: a shuffle has at most {} of each; "
                    "lower --nodes, --threads or --receivers",
                    shuffle_senders(point), shuffle_receivers(point), kMostExecutors));
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    const Settings& settings = shuffle_settings(point);
    VERBENA_RETURN_IF_ERROR(check_shuffle(device, settings.method, settings.batch, "records"));
    VERBENA_RETURN_IF_ERROR(
        check_queue_depth(settings.writes * kWorkRequestsOfBatch, device, "--writes"));
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    return {StatusCode::kLimitExceeded,
            fmt::format("{} senders and {} receivers with buffers of {} need {} of memory, {} are "
                        "available; lower --buffer, --record-size, --writes or --threads",
                        shuffle_senders(point), shuffle_receivers(point),
                        size_text(settings.buffer_bytes), size_text(needed_bytes),
                        size_text(available_bytes))};
  }

  uint64_t memory_bytes(const Point& point) const override {
    const Settings& settings = shuffle_settings(point);
    // A sender has a buffer as large as the receiver's.
    constexpr uint64_t kBuffers = 2;
    return uint64_t{shuffle_senders(point)} *
           (kBuffers * shuffle_receivers(point) * settings.buffer_bytes +
            shuffle_ring_records(point) * settings.record_bytes);
  }

  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_shuffle_sender : run_shuffle_receiver;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const Settings& settings = shuffle_settings(point);
    const uint64_t bytes = uint64_t{settings.chunk} * settings.record_bytes;
    return {.value = bytes, .total = bytes};
  }

  std::string text(const Point& point) const override {
    return fmt::format("shuffle {}, {} senders, {} receivers", line_text(point),
                       shuffle_senders(point), shuffle_receivers(point));
  }

  // "64 B x 16 sgl".
  std::string line_text(const Point& point) const override {
    const Settings& settings = shuffle_settings(point);
    return fmt::format("{} x {} {}{}", size_text(settings.record_bytes), settings.batch,
                       shuffle_method_name(settings.method),
                       settings.keys == RecordKeys::kUniform ? "" : " zipfian");
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return shuffle_table(results);
  }
};

}  // namespace

const Workload& shuffle_workload() {
  static const ShuffleWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
