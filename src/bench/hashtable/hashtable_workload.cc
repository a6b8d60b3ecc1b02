#include "src/bench/hashtable/hashtable_workload.h"

#include <fmt/format.h>

#include <array>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/hashtable/hashtable_axes.h"
#include "src/bench/hashtable/hashtable_settings.h"
#include "src/bench/hashtable/hashtable_table.h"
#include "src/bench/hashtable/hashtable_threads.h"
#include "src/bench/hashtable/key_numbers.h"

namespace verbena::bench {

namespace {

using Settings = HashtableSettings;

constexpr const char* kHelp =
    R"(Each of --nodes processes has --threads front-ends, which use a hashtable in the memory of
--back-ends further processes by one-sided verbs. The table begins with --keys keys. All
combinations of the lists are measured.

Mixes of the Yahoo! Cloud Serving Benchmark:
  A       half searches, half updates
  B       95 % searches, 5 % updates
  C       searches alone
  D       95 % searches, mostly of new keys, 5 % insertions of them
  E       95 % scans of 1 to 100 keys, 5 % insertions
  F       half searches, half searches followed by an update of the same key
  custom  --reads percent searches, the rest updates
A hashtable has no order of keys: a scan searches for consecutively numbered ones, with up to 256
searches of a front-end on their way. It is one operation, which ends with the last of them.

--distribution says which keys:
  zipfian  key i in proportion to 1 / i^0.99, spread over all keys
  uniform  each as often as the others
  latest   zipfian, from the newest key on: those that this front-end inserted, then the others

--hot N puts the most used keys, one of N, into the hot area of the table at the beginning, in
blocks of --hot-entries. A front-end writes a block once for --theta modifications of its keys that
it has pending, or when the first of them has waited --hot-lease nanoseconds; others are promoted
and given back as it finds out what is used. With --acknowledgement buffered it answers an update
before it has written the block, which it does after --theta updates or half of --loss-window: a
front-end that dies loses what it answered and did not write. What is left at the end of a run is
written within the measured time. A simulation measures a part of the run in which as much is
written as is answered.

--sockets gives each back-end a table on each of so many sockets, with a part of the keys; front-end
i of a node runs on socket i. --links says which sockets are connected, as for `verbena remote`:
  one      all through the RNIC or its port of the first socket
  mesh     each front-end to each table, through the ports of their sockets
  matched  sockets to their like; a front-end reaches other tables by the proxy of their socket
  proxied  the same, and the table of its own socket, too

The result file has rate and latencies of each kind of operation. --verify checks that each value
that is read is one that was written for this key, as a whole, that none is older than what the
front-end itself has written and was answered, and at the end that all keys are there.

)";

constexpr std::array<std::string_view, 3> kExamples = {
    "verbena app hashtable --mix all --threads 2 --duration 50ms --verify",
    "verbena app hashtable --mix custom --reads 0,50,100 --pending 1,16 --duration 50ms",
    "verbena app hashtable --mix custom --reads 0 --hot 0,4 --sockets 2 --links one,matched "
    "--device sim:connectx3-40g"};

constexpr std::array<std::string_view, 5> kLineAxes = {"hot", "acknowledgement", "links",
                                                       "distribution", "mix"};

constexpr std::array kMetrics = {
    ShareMetric{
        .json = "work_requests_per_operation", .part = kWorkRequests, .whole = kDoneOperations},
    ShareMetric{.json = "rereads_per_operation", .part = kRereads, .whole = kDoneOperations},
    ShareMetric{.json = "lost_races_per_operation", .part = kLostRaces, .whole = kDoneOperations},
    ShareMetric{.json = "hot_hits_per_operation", .part = kHotHits, .whole = kDoneOperations},
    ShareMetric{.json = "modifications_per_flush", .part = kHotModifications, .whole = kHotFlushes},
    ShareMetric{.json = "buffered_per_operation", .part = kHotKept, .whole = kDoneOperations}};

class HashtableWorkload : public Workload {
 public:
  HashtableWorkload()
      : Workload({.name = "hashtable",
                  .subject = "the hashtable",
                  .has_topology = false,
                  .verifies = true,
                  .soft_huge_pages = false,
                  .axes = hashtable_axes(),
                  .line_axes = kLineAxes,
                  .metrics = kMetrics,
                  .kinds = kHashtableKinds,
                  .reads_payload = true,
                  .node_names = {.requesting = "front-end", .responding = "back-end"},
                  .command = {.name = "hashtable",
                              .group = "app",
                              .summary = "The hashtable in remote memory, under the mixes of YCSB",
                              .help = kHelp,
                              .operations_help = "How many operations each front-end carries out "
                                                 "in a run, instead of a time",
                              .examples = kExamples,
                              .over_hosts = true}}) {}

  Point point() const override {
    return {.workload = this, .topology = Topology::kManyToOne, .settings = Settings()};
  }

  // What means nothing to the mix is as usual, so that equal points are one.
  Result<Point> fit(Point point) const override {
    point.topology = point.responder_nodes == 1 ? Topology::kManyToOne : Topology::kManyToMany;
    point.responder_threads = 1;
    Settings& settings = hashtable_settings(point);
    const Settings usual;
    if (settings.mix == YcsbMix::kD) settings.distribution = KeyDistribution::kLatest;
    if (!inserts_keys(settings.mix)) settings.new_keys = usual.new_keys;
    settings.reads_percent = reads_percent(settings.mix, settings.reads_percent);
    if (settings.hot == 0 && settings.acknowledgement == kBuffered) {
      return Status(StatusCode::kInvalidArgument,
                    "only updates of the hot area are answered before they are published; choose "
                    "--acknowledgement published, or a --hot above 0");
    }
    if (settings.hot == 0) {
      settings.hot_entries = usual.hot_entries;
      settings.theta = usual.theta;
      settings.hot_lease_ns = usual.hot_lease_ns;
    }
    if (settings.acknowledgement != kBuffered) settings.loss_window_ns = usual.loss_window_ns;
    if (settings.sockets == 1) settings.links = usual.links;
    if (settings.keys < tables(point)) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} keys leave some of {} tables without any; raise --keys, or "
                                "lower --back-ends or --sockets",
                                settings.keys, tables(point)));
    }
    return point;
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    const Settings& settings = hashtable_settings(point);
    const HashtableFormat format = format_of(point);
    VERBENA_RETURN_IF_ERROR(hashtable_bytes(format).status());
    if (point.pending > KeyNumbers::kMostPending) {
      return {StatusCode::kLimitExceeded,
              fmt::format("a front-end of the hashtable has at most {} operations pending, not {}; "
                          "lower --pending",
                          KeyNumbers::kMostPending, point.pending)};
    }
    VERBENA_RETURN_IF_ERROR(
        check_queue_depth(region_options_of(point).pending, device, "--pending"));
    if (!device.atomics) {
      return {StatusCode::kUnsupported,
              fmt::format("{} has no atomics, which the hashtable needs; choose another --device",
                          device.name)};
    }
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    return {
        StatusCode::kLimitExceeded,
        fmt::format("{} keys of {} with values of {}, and {} front-end(s), need {} of memory, {} "
                    "are available; lower --keys, --value-size or --threads",
                    settings.keys, size_text(settings.key_bytes), size_text(settings.value_bytes),
                    front_ends(point), size_text(needed_bytes), size_text(available_bytes))};
  }

  uint64_t memory_bytes(const Point& point) const override {
    const HashtableFormat format = format_of(point);
    const RemoteRegionOptions options = region_options_of(point);
    const Result<uint64_t> table_bytes = hashtable_bytes(format);
    // A front-end keeps a copy of each block, and another one of what it buffers.
    const uint32_t copies = hashtable_settings(point).acknowledgement == kBuffered ? 2 : 1;
    const uint64_t table_in_front_end_bytes =
        (uint64_t{options.pending} + uint64_t{copies} * format.hot_blocks) * options.value_bytes;
    return tables(point) *
           ((table_bytes.ok() ? *table_bytes : 0) + front_ends(point) * table_in_front_end_bytes);
  }

  // So that what is answered early is published as fast in what is measured.
  uint64_t least_simulated_ns(const Point& point) const override {
    const Settings& settings = hashtable_settings(point);
    return settings.acknowledgement == kBuffered ? 4 * settings.loss_window_ns : 0;
  }

  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_hashtable_front_end : run_hashtable_back_end;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const Settings& settings = hashtable_settings(point);
    return {.value = settings.value_bytes, .total = settings.key_bytes + settings.value_bytes};
  }

  std::string text(const Point& point) const override {
    return fmt::format("hashtable {}, {} x {} front-ends, {} pending", line_text(point),
                       point.nodes, point.threads, point.pending);
  }

  // "A zipfian", "custom uniform hot 1/4 buffered matched".
  std::string line_text(const Point& point) const override {
    const Settings& settings = hashtable_settings(point);
    std::string line = fmt::format("{} {}", ycsb_mix_name(settings.mix),
                                   key_distribution_name(settings.distribution));
    if (settings.hot > 0) line += fmt::format(" hot 1/{}", settings.hot);
    if (settings.acknowledgement == kBuffered) line += " buffered";
    if (settings.sockets > 1) line += fmt::format(" {}", socket_links_name(settings.links));
    return line;
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return hashtable_table(results);
  }
};

}  // namespace

const Workload& hashtable_workload() {
  static const HashtableWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
