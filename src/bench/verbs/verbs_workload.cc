#include "src/bench/verbs/verbs_workload.h"

#include <fmt/format.h>

#include <array>

#include "src/bench/experiment/limits.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/verbs/verbs_axes.h"
#include "src/bench/verbs/verbs_settings.h"
#include "src/bench/verbs/verbs_table.h"
#include "src/bench/verbs/verbs_threads.h"

namespace verbena::bench {

namespace {

using Settings = VerbsSettings;

constexpr const char* kHelp =
    R"(Two nodes, each a process: the threads of one post work requests, each on a queue pair of its own;
a thread of the other owns the memory that they reach. All combinations of the lists are measured.

An operation moves --entries buffers of --size bytes. --method says how they become work requests:
  sp        the CPU copies them into one buffer for one work request (READ: out of one buffer)
  sgl       one work request with all of them in its gather list
  doorbell  a work request for each, all posted with one doorbell
With one entry, sgl and doorbell are the plain verb.

poll is no verb: it polls the marks of --entries channels of --size bytes in the own region, into
which nobody writes. Its latency is what polling so many channels takes.

Addresses: a region is used from its beginning to its end, again and again (seq), or each place is
drawn at random (rand).

Sockets: where a machine has several, the sockets of threads and regions can be chosen on both sides,
by what the RNIC is attached to (rnic) or is not (other). VERBENA_SOCKETS=2 declares two.

Over UC and UD queue pairs (--transport) a message may be lost, and its sender does not learn of it:
its operation is done when the RNIC has sent it. "arrived" is the share of SENDs that found a
receive. With --peers, each thread reaches as many other nodes in turn: over a connection to each,
or by one UD queue pair for all of them; on soft0 each is a process.

Latency is the time from before the CPU work and the post of an operation until its completion is
polled. Reliable ones complete when the other side has acknowledged them, on soft0 when they are
done. The bytes are not checked; 'verbena bench --verify' does that.

)";

constexpr std::array<std::string_view, 4> kExamples = {
    "verbena verbs --operation send --transport all --peers 16,128 --threads 4 --pending 16 "
    "--region 16KiB --device sim:connectx3-fdr",
    "verbena verbs --operation write,read --size 8,...,4KiB --pending 1,32 --duration 10ms",
    "verbena verbs --method all --entries 4,16 --inline 0 --pending 16 --device sim:connectx3-40g",
    "verbena verbs --operation fetch-add --threads 2 --duration 10ms --json atomics.json"};

constexpr std::array<std::string_view, 3> kLineAxes = {"operation", "transport", "method"};
constexpr std::array kMetrics = {
    ShareMetric{.json = "arrived_share", .part = kArrivedMessages, .whole = kSentMessages}};

// What goes over the transport, and to several peers.
Status check_turns(const Point& point) {
  const Settings& settings = verbs_settings(point);
  if (!settings.takes_turns()) return Status::ok_status();
  const bool writes = settings.operation == Operation::kWrite;
  const bool sends = settings.operation == Operation::kSend;
  const bool reads = settings.operation == Operation::kRead;
  const char* const transport = transport_name(settings.transport);
  const bool possible = sends || (writes && settings.transport != Transport::kUd) ||
                        (reads && settings.transport == Transport::kRc);
  if (!possible) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} over {}{}: rc takes write, read and send, uc write and send, ud "
                              "send; choose another --operation or --transport",
                              operation_name(settings.operation), transport,
                              settings.peers > 1 ? " to several peers" : ""));
  }
  if (settings.entries > 1 || settings.method == VectorMethod::kSp || point.signal_interval > 1 ||
      point.post_batch > 1) {
    return Status(StatusCode::kInvalidArgument,
                  "over uc and ud, and to several peers, each operation is one work request, "
                  "signaled and posted by itself; leave out --entries, --method sp, "
                  "--signal-interval and --post-batch");
  }
  return Status::ok_status();
}

Status check_datagrams(const Settings& settings, const DeviceInfo& device) {
  if (settings.transport != Transport::kUd || settings.size_bytes <= device.active_mtu_bytes) {
    return Status::ok_status();
  }
  return Status(
      StatusCode::kLimitExceeded,
      fmt::format("{} are asked for, a datagram of {} carries {} (the MTU of its port); "
                  "lower --size, or use --transport uc or rc",
                  size_text(settings.size_bytes), device.name, size_text(device.active_mtu_bytes)));
}

// The length of an SGE has 32 bits, and few devices take more than a gibibyte in a message.
Status check_length(const Settings& settings) {
  constexpr uint64_t kMostRequestBytes = uint64_t{1} << 30;
  if (!has_entries(settings.operation) || settings.request_bytes() <= kMostRequestBytes) {
    return Status::ok_status();
  }
  return Status(StatusCode::kLimitExceeded,
                fmt::format("a work request of {} is too long: one carries {}; lower --entries or "
                            "--size, or choose --method doorbell",
                            size_text(settings.request_bytes()), size_text(kMostRequestBytes)));
}

Status check_operation(const Settings& settings, const DeviceInfo& device) {
  if (is_atomic(settings.operation) && !device.atomics) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("{} has no atomics; choose another --operation or --device", device.name));
  }
  const bool gathers = has_entries(settings.operation) && settings.method == VectorMethod::kSgl;
  if (!gathers || settings.entries <= device.max_sges) return Status::ok_status();
  return Status(StatusCode::kLimitExceeded,
                fmt::format("a gather list of {} SGEs is too long: a work request of {} takes {}; "
                            "lower --entries, or choose --method sp or doorbell",
                            settings.entries, device.name, device.max_sges));
}

class VerbsWorkload : public Workload {
 public:
  VerbsWorkload()
      : Workload(
            {.name = "verbs",
             .subject = "raw verbs",
             .has_topology = false,
             .verifies = false,
             .soft_huge_pages = true,
             .axes = verbs_axes(),
             .line_axes = kLineAxes,
             .metrics = kMetrics,
             .command = {
                 .name = "verbs",
                 .summary =
                     "Measure raw verbs: WRITE, READ, SEND, atomics, vector IO, access patterns",
                 .help = kHelp,
                 .operations_help = "How many operations each thread posts in a run, "
                                    "instead of a time",
                 .examples = kExamples}}) {}

  Point point() const override {
    return {.workload = this, .topology = Topology::kManyToOne, .settings = Settings()};
  }

  Result<Point> fit(Point point) const override {
    // Each thread has its queue pair to a thread of its own on the other node.
    point.responder_threads = point.threads;
    Settings& settings = verbs_settings(point);
    VERBENA_RETURN_IF_ERROR(check_turns(point));
    if (settings.peers > 1) {
      point.topology = Topology::kOneToMany;
      point.responder_nodes = settings.peers;
    }
    if (settings.operation != Operation::kSend) settings.remote_core = SocketPlace::kAny;
    if (is_atomic(settings.operation)) {
      settings.size_bytes = sizeof(uint64_t);
      if (settings.entries > 1 && settings.method != VectorMethod::kDoorbell) {
        return Status(StatusCode::kInvalidArgument,
                      fmt::format("one atomic works on 8 bytes, not on {} entries; leave --entries "
                                  "at 1, or post as many atomics with --method doorbell",
                                  settings.entries));
      }
    }
    if (point.signal_interval > point.pending) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("with {} pending operations of which only every {}th work request is "
                      "signaled, none may ever complete; lower --signal-interval to at most {}",
                      point.pending, point.signal_interval, point.pending));
    }
    if (settings.region_bytes < settings.header_bytes() + settings.operation_bytes()) {
      return Status(
          StatusCode::kInvalidArgument,
          fmt::format("an operation of {} does not fit a region of {}; raise --region, or "
                      "lower --size or --entries",
                      size_text(settings.header_bytes() + settings.operation_bytes()),
                      size_text(settings.region_bytes)));
    }
    return point;
  }

  Status check(const Point& point, const DeviceInfo& device,
               uint64_t available_bytes) const override {
    const Settings& settings = verbs_settings(point);
    VERBENA_RETURN_IF_ERROR(
        check_queue_depth(uint64_t{point.pending} * settings.requests_per_operation(), device,
                          "--pending or --entries"));
    VERBENA_RETURN_IF_ERROR(check_length(settings));
    VERBENA_RETURN_IF_ERROR(check_operation(settings, device));
    VERBENA_RETURN_IF_ERROR(check_datagrams(settings, device));
    const uint64_t needed_bytes = memory_bytes(point);
    if (needed_bytes <= available_bytes) return Status::ok_status();
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("regions of {} for {} threads need {} of memory on both sides "
                              "together, {} are available; lower --region or --threads",
                              size_text(settings.region_bytes), point.threads,
                              size_text(needed_bytes), size_text(available_bytes)));
  }

  uint64_t memory_bytes(const Point& point) const override {
    const Settings& settings = verbs_settings(point);
    const uint64_t staging_bytes = point.pending * settings.operation_bytes();
    return point.threads * ((1 + settings.peers) * settings.region_bytes + staging_bytes);
  }

  ThreadBody body(ThreadRole role, const Point& /*point*/) const override {
    return role == ThreadRole::kRequesting ? run_verbs_requesting_thread
                                           : run_verbs_responding_thread;
  }

  OperationBytes operation_bytes(const Point& point) const override {
    const uint64_t bytes = verbs_settings(point).operation_bytes();
    return {.value = bytes, .total = bytes};
  }

  std::string text(const Point& point) const override {
    const Settings& settings = verbs_settings(point);
    std::string vector;
    if (settings.entries > 1) {
      vector = fmt::format("{} x {}, ", vector_method_name(settings.method), settings.entries);
    }
    if (settings.takes_turns()) {
      vector = fmt::format("{}, {} peers, ", transport_name(settings.transport), settings.peers);
    }
    return fmt::format("{}, {}{}, {} pending, {} threads", operation_name(settings.operation),
                       vector, size_text(settings.size_bytes), point.pending, point.threads);
  }

  // The verb, and how entries are put together.
  std::string line_text(const Point& point) const override {
    const Settings& settings = verbs_settings(point);
    std::string operation = operation_name(settings.operation);
    if (settings.transport != Transport::kRc) {
      operation += std::string(" over ") + transport_name(settings.transport);
    }
    const bool plain = settings.entries == 1 && settings.method != VectorMethod::kSp;
    return plain ? operation : operation + " " + vector_method_name(settings.method);
  }

  std::string table(const std::vector<PointResult>& results) const override {
    return verbs_table(results);
  }
};

}  // namespace

const Workload& verbs_workload() {
  static const VerbsWorkload kWorkload;
  return kWorkload;
}

}  // namespace verbena::bench
