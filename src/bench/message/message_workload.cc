#include "src/bench/message/message_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/message/message_axes.h"
#include "src/bench/message/message_collectives.h"
#include "src/bench/message/message_pairs.h"
#include "src/bench/message/message_settings.h"
#include "src/bench/message/message_table.h"
#include "src/bench/message/message_threads.h"
#include "src/bench/message/replay_source.h"

namespace verbena::bench {

namespace {

using Settings = MessageSettings;

constexpr const char* kHelp =
    R"(Rank 0 measures; --peers further processes with --peer-threads ranks each take part. Ranks send each
other tagged messages (verbena/message.h), as MPI programs do. All combinations of the lists are
measured. --test says what an operation is:

  latency        a message, and the peer's answer of the same size
  bandwidth      --window messages one behind the other, and a short answer to all of them
  bidirectional  such windows in both directions at once
  put            bytes into the peer's memory, and a message there and back behind them
  get            bytes from the peer's memory, and the same
  progress       one call of progress() that finds nothing, with all peers connected
  barrier        exchanges with ranks that differ in one bit
  broadcast      along a binomial tree, and a barrier behind it
  scatter        the same with a block for each rank
  allreduce      sums of 8 byte numbers along a binomial tree, and their broadcast
  replay         all calls of a program that `verbena trace` recorded, or of a NAS kernel's --skeleton,
                 with the time that it computes between them; --peers has to be one less than its ranks

The first six are between rank 0 and the last --active-peers of the others, in turn; all are
connected, and have sent a message before. Short messages go by the ring of a connection, which the receiver
polls, or by SEND; --channel says which of them there are, and with both, --polling-set, --policy and
--order whose ring is polled. Longer messages than --eager travel as --long-messages says: read by the
receiver, written by the sender, in chunks that both copy, or as is estimated to take least. With --reuse,
short ones from buffers that are used often are not copied either.

--verify checks every byte of every message, and the sums.

)";

constexpr std::array<std::string_view, 5> kExamples = {
    "verbena bench message --channel all --size 8,1024,65536 --duration 50ms --runs 1",
    "verbena bench message --test bandwidth,bidirectional --size 64,...,64KiB --duration 20ms",
    "verbena bench message --test barrier,allreduce --peers 3 --size 64 --duration 50ms --verify",
    "verbena bench message --test progress --peers 1,...,128 --device sim:infinihost-mt23108",
    "verbena bench message --test replay --skeleton cg --class A --iterations 2 --peers 3 "
    "--operations 1 --device sim:infinihost-mt23108"};

constexpr std::array<std::string_view, 4> kLineAxes = {"peers", "size", "test", "channel"};

constexpr std::array kMetrics = {
    ShareMetric{
        .json = "messages_per_operation", .part = kChannelMessages, .whole = kMessageOperations},
    ShareMetric{.json = "ring_share", .part = kRingMessages, .whole = kChannelMessages},
    ShareMetric{.json = "credit_messages_per_operation",
                .part = kCreditMessages,
                .whole = kMessageOperations},
    ShareMetric{.json = "unexpected_share", .part = kUnexpectedMessages, .whole = kChannelMessages},
    ShareMetric{.json = "pinned_bytes", .part = kPinnedBytes, .whole = kMessageOperations},
    ShareMetric{
        .json = "uncopied_per_operation", .part = kUncopiedMessages, .whole = kMessageOperations},
    ShareMetric{.json = "collective_ns", .part = kCollectiveNs, .whole = kCollectives}};

constexpr uint32_t kMostRanks = 16384;

Status message_refused(std::string why) { return {StatusCode::kInvalidArgument, std::move(why)}; }

class MessageWorkload : public Workload {
 public:
  MessageWorkload()
      : Workload({.name = "message",
                  .subject = "tagged messages",
                  .has_topology = false,
                  .verifies = true,
                  .soft_huge_pages = false,
                  .axes = message_axes(),
                  .line_axes = kLineAxes,
                  .metrics = kMetrics,
                  .reads_payload = true,
                  .node_names = {.requesting = "rank 0", .responding = "peer"},
                  .command = {.name = "message",
                              .group = "bench",
                              .summary = "Tagged messages between ranks: ping-pongs, windows, "
                                         "polling, collectives",
                              .help = kHelp,
                              .operations_help = "How many operations a run has, instead of a "
                                                 "time",
                              .examples = kExamples}}) {}

  Point point() const override {
    return {.workload = this, .topology = Topology::kManyToMany, .settings = Settings()};
  }

  Result<Point> fit(Point point) const override {
    point.topology = Topology::kManyToMany;
    point.nodes = point.threads = point.pending = 1;
    Settings& settings = message_settings(point);
    const uint32_t peers = message_ranks(point) - 1;
    if (peers >= kMostRanks) {
      return message_refused(
          fmt::format("{} ranks are more than a messenger knows, {}; lower --peers or "
                      "--peer-threads",
                      peers + 1, kMostRanks));
    }
    if (settings.test == MessageTest::kReplay) {
      // Refuses what is no recording, or of another number of ranks.
      VERBENA_RETURN_IF_ERROR(replay_job(point).status());
    }
    if (settings.test == MessageTest::kBarrier || settings.test == MessageTest::kProgress ||
        settings.test == MessageTest::kReplay) {
      settings.size_bytes = Settings().size_bytes;
    }
    if (is_collective(settings.test) || settings.test == MessageTest::kProgress) {
      settings.active = 1;
    } else if (settings.active > peers) {
      return message_refused(fmt::format(
          "{} active peers of {}; lower --active-peers or raise --peers", settings.active, peers));
    }
    if (settings.test == MessageTest::kAllreduce &&
        (settings.size_bytes == 0 || settings.size_bytes % sizeof(uint64_t) != 0)) {
      return message_refused(
          fmt::format("{} B are no whole number of the 8 byte numbers that allreduce sums; choose "
                      "--size {}",
                      settings.size_bytes, (settings.size_bytes / 8 + 1) * 8));
    }
    constexpr uint32_t kMostPolled = 1024;
    if (settings.channel == MessageChannel::kRing && peers > kMostPolled) {
      return message_refused(
          fmt::format("with --channel ring all {} peers are polled, and a polling set has at most "
                      "{}; lower --peers, or choose --channel both",
                      peers, kMostPolled));
    }
    return point;
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    const Settings& settings = message_settings(point);
    VERBENA_RETURN_IF_ERROR(check_queue_depth(settings.ring_slots + settings.credits + 1, device,
                                              "--ring-slots or --credits"));
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    return {StatusCode::kLimitExceeded,
            fmt::format("{} ranks with messages of {} need {} of memory, {} are available; lower "
                        "--size, --window, --buffers, --ring-slots, --eager or --peers",
                        message_ranks(point), size_text(settings.size_bytes),
                        size_text(needed_bytes), size_text(available_bytes))};
  }

  uint64_t memory_bytes(const Point& point) const override {
    const uint32_t ranks = message_ranks(point);
    const bool collective = is_collective(message_settings(point).test);
    if (message_settings(point).test == MessageTest::kReplay) {
      const auto job = replay_job(point);
      return (job.ok() ? replay_memory_bytes(**job) : 0) +
             ranks *
                 rank_bytes(point, 1,
                            std::min(2 * static_cast<uint32_t>(std::bit_width(ranks)), ranks - 1));
    }
    const uint64_t buffer_bytes =
        collective ? collective_memory_bytes(point) : pair_memory_bytes(point);
    // Of a collective, ranks talk to those whose number differs in one bit.
    const uint32_t partners = collective ? 2 * std::bit_width(ranks) : 1;
    return ranks * (buffer_bytes + rank_bytes(point, 1, std::min(partners, ranks - 1))) +
           rank_bytes(point, 0, ranks - 1);
  }

  uint64_t messages_of_operation(const Point& point) const override {
    const Settings& settings = message_settings(point);
    const uint64_t ranks = message_ranks(point);
    if (has_window(settings.test)) return settings.window;
    if (settings.test == MessageTest::kReplay) {
      const auto job = replay_job(point);
      return job.ok() ? std::max(replay_messages(**job), uint64_t{1}) : 1;
    }
    // Each of a collective's and its barrier's steps.
    return is_collective(settings.test) ? ranks * std::bit_width(ranks) : 1;
  }

  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_measuring_rank : run_other_rank;
  }

  bool is_followed(const Point& point) const override {
    return message_settings(point).test == MessageTest::kLatency;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const Settings& settings = message_settings(point);
    const uint64_t bytes = settings.size_bytes;
    switch (settings.test) {
      case MessageTest::kLatency:
        return {.value = bytes, .total = 2 * bytes};
      case MessageTest::kBandwidth:
        return {.value = settings.window * bytes, .total = settings.window * bytes};
      case MessageTest::kBidirectional:
        return {.value = 2 * settings.window * bytes, .total = 2 * settings.window * bytes};
      case MessageTest::kProgress:
      case MessageTest::kBarrier:
      case MessageTest::kReplay:
        return {};
      default:
        return {.value = bytes, .total = bytes * (message_ranks(point) - 1)};
    }
  }

  std::string text(const Point& point) const override {
    return fmt::format("message {}, {} ranks", line_text(point), message_ranks(point));
  }

  // "latency 8 B ring", "replay cg.B send".
  std::string line_text(const Point& point) const override {
    const Settings& settings = message_settings(point);
    if (settings.test == MessageTest::kReplay) {
      const bool recorded = settings.skeleton == ReplaySkeleton::kRecorded;
      return fmt::format("replay {}{}{} {}", replay_skeleton_name(settings.skeleton),
                         recorded ? "" : ".",
                         recorded ? "" : trace::nas_class_name(settings.nas_class),
                         message_channel_name(settings.channel));
    }
    return fmt::format("{} {} {}", message_test_name(settings.test), size_text(settings.size_bytes),
                       message_channel_name(settings.channel));
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return message_table(results);
  }

 private:
  // Of one rank's messenger that talks to so many others, about.
  static uint64_t rank_bytes(const Point& point, uint32_t rank, uint32_t connections) {
    const MessengerOptions options = messenger_options(point, rank);
    // A ring has two ends. A connection has buffers to send from, and receives for as many and for
    // credits.
    const uint64_t rings = uint64_t{2} * std::min(options.polling_set, connections);
    constexpr uint32_t kFurther = 8;
    return (rings * options.ring_slots +
            uint64_t{connections} * (2 * options.queue_credits + kFurther)) *
           options.slot_bytes;
  }
};

}  // namespace

const Workload& message_workload() {
  static const MessageWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
