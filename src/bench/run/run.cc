#include "src/bench/run/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "src/base/histogram.h"
#include "src/base/runtime.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/run/interrupt.h"
#include "src/bench/run/node_group.h"
#include "src/bench/run/placement.h"
#include "src/bench/run/simulated_nodes.h"
#include "src/device/sim/profile_variants.h"
#include "src/device/sim/simulated_node.h"

namespace verbena::bench {

namespace {

// Long enough for caches, page tables and the processor's clock; short beside a run.
constexpr uint64_t kWarmUpNs = 20'000'000;
constexpr uint64_t kCostNs = 10'000'000;
// For what takes no time by itself, on a machine that is busy with something else.
constexpr int64_t kStepTimeoutNs = 60'000'000'000;
// Each further queue pair, on a core that many share.
constexpr int64_t kConnectNs = 100'000'000;

// What both sides saw in one phase.
struct PhaseOutcome {
  Report requesters;
  Report responders;
};

void add(Report& sum, const Report& one) {
  if (one.requests + one.unanswered > 0) {
    const bool first = sum.requests + sum.unanswered == 0;
    sum.first_ns = first ? one.first_ns : std::min(sum.first_ns, one.first_ns);
    sum.last_ns = std::max(sum.last_ns, one.last_ns);
    sum.layout = one.layout;
  }
  sum.requests += one.requests;
  sum.unanswered += one.unanswered;
  sum.mismatches += one.mismatches;
  sum.arrivals += one.arrivals;
  sum.arrivals_ns = std::max(sum.arrivals_ns, one.arrivals_ns);
  for (size_t i = 0; i < sum.counters.size(); ++i) sum.counters[i] += one.counters[i];
  sum.costs.insert(sum.costs.end(), one.costs.begin(), one.costs.end());
  sum.dispatcher_costs.insert(sum.dispatcher_costs.end(), one.dispatcher_costs.begin(),
                              one.dispatcher_costs.end());
  sum.latencies.insert(sum.latencies.end(), one.latencies.begin(), one.latencies.end());
}

void add(CpuCost& sum, const CpuCost& one) {
  sum.cycles += one.cycles;
  if (!one.instructions) sum.instructions.reset();
  if (sum.instructions) *sum.instructions += *one.instructions;
}

class PointRunner {
 public:
  PointRunner(PointNodes& group, const Wiring& wiring, const Point& point,
              const RunOptions& options, uint64_t seed)
      : group_(group), wiring_(wiring), point_(point), options_(options), seed_(seed) {}

  Result<RunResult> run() {
    VERBENA_RETURN_IF_ERROR(connect());
    RunResult result;
    VERBENA_RETURN_IF_ERROR(warm_up());
    VERBENA_RETURN_IF_ERROR(measure_cost(&result));
    if (!options_.cost_only) VERBENA_RETURN_IF_ERROR(measure(&result));
    return result;
  }

  uint64_t lost() const { return lost_; }

 private:
  Status connect() {
    uint64_t run_key = 0;
    secure_random(&run_key, sizeof(run_key));
    std::vector<NodePlace> places;
    for (uint32_t number = 0; number < group_.size(); ++number) {
      const Hello& hello = group_.hello(number);
      places.push_back({.host = hello.host,
                        .cpus = hello.cpus,
                        .threads = threads_of(wiring_.nodes[number], point_)});
    }
    const std::vector<std::vector<int>> cpus = place_threads(places);
    for (uint32_t number = 0; number < group_.size(); ++number) {
      VERBENA_RETURN_IF_ERROR(group_.tell(number, {.kind = MessageKind::kSetup,
                                                   .setup = {.point = point_,
                                                             .node = number,
                                                             .run_key = run_key,
                                                             .seed = seed_,
                                                             .cpus = cpus[number]}}));
    }
    Message connect{.kind = MessageKind::kConnect};
    connect.addresses.resize(wiring_.responding.size());
    Status fits;
    VERBENA_RETURN_IF_ERROR(group_.collect(
        MessageKind::kListening, kSetupTimeoutNs, options_.stall_ns,
        [&](uint32_t number, const Message& message) {
          const WiredNode& node = wiring_.nodes[number];
          if (message.addresses.size() != node.responding) {
            fits = Status(StatusCode::kProtocolViolation,
                          "a node listens with another number of threads than it was told");
            return;
          }
          std::copy(message.addresses.begin(), message.addresses.end(),
                    connect.addresses.begin() + node.first_responding);
        }));
    VERBENA_RETURN_IF_ERROR(fits);
    VERBENA_RETURN_IF_ERROR(group_.tell_all(connect));
    return group_.collect(MessageKind::kConnected,
                          2 * kSetupTimeoutNs + kConnectNs * wiring_.queue_pairs(),
                          options_.stall_ns, [](uint32_t, const Message&) {});
  }

  // Every byte is checked, whatever the user asked for: numbers of messages that do not arrive
  // whole mean nothing. Each slot is used at least twice, so that all memory was touched.
  Status warm_up() {
    const RunLength& measured = options_.length;
    const uint64_t slots = uint64_t{point_.pending} * wiring_.requesting.front().peers.size();
    RunLength length;
    length.duration_ns = std::min(kWarmUpNs, measured.duration_ns);
    length.requests = std::max<uint64_t>(std::min<uint64_t>(measured.requests, 10'000), 2 * slots);
    if (options_.messages > 0) {
      length = {.requests = messages_of_thread() / 8 + 1, .duration_ns = kUnlimitedRunNs};
    }
    // A simulation moves bytes by plain copies, and all its points can be verified in one run each.
    const bool verify = options_.verify || options_.messages == 0;
    VERBENA_ASSIGN_OR_RETURN(const PhaseOutcome outcome,
                             run_phase(PhaseKind::kWarmUp, verify, length));
    note_rate(outcome.requesters);
    if (outcome.requesters.mismatches > 0 || outcome.responders.mismatches > 0) {
      return Status(
          StatusCode::kProtocolViolation,
          fmt::format("{} requests and {} responses arrived corrupted: other bytes than were sent",
                      outcome.responders.mismatches, outcome.requesters.mismatches));
    }
    return Status::ok_status();
  }

  Status measure_cost(RunResult* result) {
    RunLength length;
    length.duration_ns = timed_length().duration_ns;
    if (!options_.cost_only) length.duration_ns = std::min(kCostNs, length.duration_ns);
    // In a simulation one message costs what the other does.
    if (options_.messages > 0) length.duration_ns /= 16;
    length.requests = std::max<uint64_t>(options_.length.requests, point_.pending);
    VERBENA_ASSIGN_OR_RETURN(const PhaseOutcome outcome,
                             run_phase(PhaseKind::kCost, /*verify=*/false, length));
    result->requester_cost = mean_cost(outcome.requesters.costs);
    if (const auto dispatchers = mean_cost(outcome.responders.dispatcher_costs)) {
      if (result->requester_cost) add(*result->requester_cost, *dispatchers);
    }
    result->responder_cost = mean_cost(outcome.responders.costs);
    if (result->responder_cost && result->responder_cost->cycles == 0 && result->requester_cost &&
        result->requester_cost->instructions) {
      result->responder_cost->instructions = 0;
    }
    return Status::ok_status();
  }

  Status measure(RunResult* result) {
    VERBENA_ASSIGN_OR_RETURN(const PhaseOutcome outcome,
                             run_phase(PhaseKind::kTimed, options_.verify, timed_length()));
    const Report& requesters = outcome.requesters;
    const std::span<const std::string_view> kinds = point_.workload->traits().kinds;
    const auto latency_ns = std::make_unique<Histogram>();
    std::vector<Histogram> of_kinds(kinds.size());
    for (const LatencyCount& latency : requesters.latencies) {
      latency_ns->record(latency.ns, latency.count);
      if (latency.kind < kinds.size()) of_kinds[latency.kind].record(latency.ns, latency.count);
    }
    result->requests = requesters.requests;
    result->errors = requesters.mismatches + outcome.responders.mismatches;
    // First post to last response of all threads: where they do not run all the time, that counts.
    const uint64_t elapsed_ns = std::max<uint64_t>(requesters.last_ns - requesters.first_ns, 1);
    const auto summary = [elapsed_ns](uint64_t requests, const Histogram& latency) {
      return KindResult{
          .requests = requests,
          .rate_per_s = static_cast<double>(requests) / static_cast<double>(elapsed_ns) * 1e9,
          .p50_ns = static_cast<double>(latency.quantile(0.5)),
          .p99_ns = static_cast<double>(latency.quantile(0.99)),
          .p999_ns = static_cast<double>(latency.quantile(0.999))};
    };
    const KindResult all = summary(requesters.requests, *latency_ns);
    result->rate_per_s = all.rate_per_s;
    result->p50_ns = all.p50_ns;
    result->p99_ns = all.p99_ns;
    result->p999_ns = all.p999_ns;
    for (const Histogram& latency : of_kinds) {
      result->kinds.emplace_back();
      if (latency.count() > 0) result->kinds.back() = summary(latency.count(), latency);
    }
    if (requesters.arrivals_ns > 0) {
      result->offered_rate_per_s = static_cast<double>(requesters.arrivals) /
                                   static_cast<double>(requesters.arrivals_ns) * 1e9;
    }
    result->layout = requesters.layout;
    const auto counted = [&](size_t counter) {
      return static_cast<double>(requesters.counters[counter] +
                                 outcome.responders.counters[counter]);
    };
    for (const ShareMetric& metric : point_.workload->traits().metrics) {
      result->metrics.emplace_back();
      if (counted(metric.whole) == 0) continue;
      result->metrics.back() = counted(metric.part) / counted(metric.whole);
    }
    return Status::ok_status();
  }

  // Of each requesting thread, of the messages that are asked for.
  uint64_t messages_of_thread() const { return operations() / wiring_.requesting.size() + 1; }
  uint64_t operations() const {
    const uint64_t each = std::max<uint64_t>(point_.workload->messages_of_operation(point_), 1);
    return (options_.messages + each - 1) / each;
  }

  void note_rate(const Report& requesters) {
    const uint64_t elapsed_ns = std::max<uint64_t>(requesters.last_ns - requesters.first_ns, 1);
    ns_per_request_ = static_cast<double>(elapsed_ns) /
                      static_cast<double>(std::max(requesters.requests, uint64_t{1}));
  }

  // A run of a simulation lasts as long as its messages take, by the rate of the warm-up: a
  // duration and no number, since threads that were done earlier would leave the others a quieter
  // network.
  RunLength timed_length() const {
    if (options_.messages == 0) return options_.length;
    constexpr double kRounds = 2.5;
    double slots = 0;
    for (const auto& thread : wiring_.requesting) {
      slots += static_cast<double>(point_.pending) *
               (wiring_.random_peer ? 1 : static_cast<double>(thread.peers.size()));
    }
    const double messages = std::max(static_cast<double>(operations()), kRounds * slots);
    double ns_per_request = ns_per_request_;
    if (point_.arrival_rate_per_s > 0) {
      // The warm-up sends as fast as it can; so many do not arrive.
      ns_per_request =
          std::max(ns_per_request, 1e9 / static_cast<double>(point_.arrival_rate_per_s));
    }
    return {.requests = UINT64_MAX,
            .duration_ns = std::max(static_cast<uint64_t>(messages * ns_per_request) + 1000,
                                    std::max(point_.workload->least_simulated_ns(point_),
                                             options_.least_simulated_ns))};
  }

  Result<PhaseOutcome> run_phase(PhaseKind kind, bool verify, const RunLength& length) {
    const auto nothing = [](uint32_t, const Message&) {};
    PhaseOutcome outcome;
    Phase phase{.kind = kind,
                .verify = verify,
                .number = ++phases_,
                .length = length,
                .stall_ns = options_.stall_ns};
    if (options_.messages > 0) {
      // Only what is measured needs all that the point has pending, and it does not need its end.
      constexpr uint32_t kPendingBefore = 4;
      if (kind == PhaseKind::kTimed) phase.settle_ns = length.duration_ns / 2 + 1;
      if (kind != PhaseKind::kTimed) phase.most_pending = kPendingBefore;
    }
    VERBENA_RETURN_IF_ERROR(group_.tell_all({.kind = MessageKind::kPhase, .phase = phase}));
    VERBENA_RETURN_IF_ERROR(
        group_.collect(MessageKind::kBegun, kStepTimeoutNs, options_.stall_ns, nothing));
    const bool watched = kind == PhaseKind::kTimed && options_.before_timed;
    if (watched) VERBENA_RETURN_IF_ERROR(options_.before_timed(group_.processes()));
    VERBENA_RETURN_IF_ERROR(group_.tell_all(
        {.kind = MessageKind::kGo, .go = {.host = host_identity(), .now_ns = now_ns()}}));
    // The nodes themselves notice where nothing moves any more. Until then it may take longer than
    // its length says: one operation may be a whole program, and a check may read all there is.
    const auto patience_ns = static_cast<int64_t>(
        std::min(length.duration_ns, static_cast<uint64_t>(INT64_MAX) - kUnlimitedRunNs) +
        kUnlimitedRunNs);
    lost_ = 1;  // unless all have been counted
    VERBENA_RETURN_IF_ERROR(group_.collect(
        MessageKind::kFinished, patience_ns, options_.stall_ns,
        [&](uint32_t, const Message& message) { add(outcome.requesters, message.report); }));
    lost_ = outcome.requesters.unanswered;
    if (watched) options_.after_timed();
    VERBENA_RETURN_IF_ERROR(group_.tell_all({.kind = MessageKind::kEndOfPhase}));
    VERBENA_RETURN_IF_ERROR(group_.collect(
        MessageKind::kReport, kStepTimeoutNs, options_.stall_ns,
        [&](uint32_t, const Message& message) { add(outcome.responders, message.report); }));
    return outcome;
  }

  PointNodes& group_;
  const Wiring& wiring_;
  const Point& point_;
  const RunOptions& options_;
  uint64_t seed_;
  double ns_per_request_ = 0;  // of all threads together, in the warm-up
  uint64_t phases_ = 0;
  uint64_t lost_ = 0;
};

}  // namespace

Result<RunResult> run_on_nodes(PointNodes& nodes, const Wiring& wiring, const Point& point,
                               const RunOptions& options, uint64_t seed, RunFailure* failure) {
  PointRunner runner(nodes, wiring, point, options, seed);
  Result<RunResult> result = runner.run();
  failure->lost = runner.lost();
  return result;
}

namespace {

// Where threads share cores, each has its slice several times, also in the half that is measured.
uint64_t turns_ns(const sim::Profile& profile, const Wiring& wiring, const Point& point) {
  constexpr uint64_t kTurns = 2;
  uint64_t threads = 0;
  for (const WiredNode& node : wiring.nodes) threads += threads_of(node, point);
  const uint64_t cores = profile.cores * profile.sockets;
  if (profile.shared_host == 0 || threads <= cores) return 0;
  return kTurns * (threads + cores - 1) / cores * profile.cpu_slice / sim::kPsPerNs;
}

// The nodes exist for this run only, and so does their time.
Result<RunResult> run_simulated_point(const std::string& device, const Point& point,
                                      const RunOptions& options, uint32_t run, const Wiring& wiring,
                                      RunFailure* failure) {
  const uint64_t seed = simulation_seed() + run;
  const uint32_t variant = run % options.variants;
  SimulatedNodes nodes(
      seed, options.verify || options.messages == 0 || point.workload->traits().reads_payload);
  VERBENA_RETURN_IF_ERROR(
      nodes.add(sim::variant_name(device, variant), static_cast<uint32_t>(wiring.nodes.size())));
  RunOptions own = options;
  own.least_simulated_ns = turns_ns(nodes.simulation().node(0).profile, wiring, point);
  Result<RunResult> result = run_on_nodes(nodes, wiring, point, own, seed, failure);
  if (result.ok()) result->simulated = nodes.counts();
  if (result.ok() || variant == 0) return result;
  return Status(result.status().code(), fmt::format("on {}: {}", sim::variant_name(device, variant),
                                                    result.status().message()));
}

}  // namespace

Result<RunResult> run_point(NodePool& pool, const Point& point, const RunOptions& options,
                            uint32_t run, RunFailure* failure) {
  *failure = {};
  VERBENA_ASSIGN_OR_RETURN(const Wiring wiring, wire(shape_of(point)));
  if (!pool.simulated_device().empty()) {
    return run_simulated_point(pool.simulated_device(), point, options, run, wiring, failure);
  }
  Result<std::vector<NodeLink*>> nodes =
      pool.take(static_cast<uint32_t>(wiring.nodes.size()), options.stall_ns);
  if (!nodes.ok()) {
    failure->nodes_remain = false;
    return nodes.status();
  }
  NodeGroup group(std::move(*nodes), wiring);
  PointRunner runner(group, wiring, point, options, run_seed());
  Result<RunResult> result = runner.run();
  failure->lost = runner.lost();
  group.tear_down();
  failure->nodes_remain = group.nodes_remain();
  if (interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
  const Status why = group.failure();
  if (result.ok()) return why.ok() ? std::move(result) : why;
  return why.ok() ? std::move(result) : why;
}

}  // namespace verbena::bench
