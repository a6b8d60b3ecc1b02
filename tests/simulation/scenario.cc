#include "tests/simulation/scenario.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "src/base/runtime.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/run/run.h"
#include "src/bench/run/simulated_nodes.h"

namespace verbena::simulation_test {

namespace {

using bench::Point;

constexpr const char* kDevice = "sim:connectx3-fdr";
constexpr uint32_t kMostNodes = 6;
// Longer than any patience of a requester (closed_loop.h) or of a handshake.
constexpr uint64_t kSurvivorsNs = 130'000'000'000;

template <typename T>
T one_of(Random& random, std::span<const T> values) {
  return values[random.below(values.size())];
}
uint32_t between(Random& random, uint32_t least, uint32_t most) {
  return least + static_cast<uint32_t>(random.below(most - least + 1));
}
bool one_in(Random& random, uint64_t n) { return random.below(n) == 0; }

// Mostly small ones; some around the packets' boundaries, some of several packets.
uint32_t draw_size(Random& random) {
  switch (random.below(4)) {
    case 0:
      return between(random, 2040, 2056);
    case 1:
      return between(random, 16, 9000);
    default:
      return between(random, 16, 200);
  }
}

void draw_topology(Random& random, Point* point) {
  for (;;) {
    point->topology = one_of(random, bench::all_topologies());
    point->nodes = between(random, 1, 4);
    point->threads = between(random, 1, 3);
    point->responder_nodes = between(random, 1, 3);
    point->responder_threads = between(random, 1, 3);
    const Result<bench::TopologyShape> shape = bench::fitted(shape_of(*point));
    if (!shape.ok()) continue;
    point->nodes = shape->nodes;
    point->threads = shape->threads;
    point->responder_nodes = shape->responder_nodes;
    point->responder_threads = shape->responder_threads;
    const Result<bench::Wiring> wiring = bench::wire(*shape);
    if (wiring.ok() && wiring->nodes.size() <= kMostNodes) return;
  }
}

Status broken(std::string what) { return {StatusCode::kInternal, std::move(what)}; }

Status check_result(const Scenario& scenario, const bench::Wiring& wiring,
                    const bench::RunResult& result) {
  if (result.errors != 0) {
    return broken(fmt::format("{} requests or responses were lost or torn", result.errors));
  }
  const uint64_t least = scenario.requests * wiring.requesting.size();
  if (result.requests < least) {
    return broken(fmt::format("{} requests were answered, not {}", result.requests, least));
  }
  return {};
}

// No fault excuses wrong bytes or our own defects.
bool excusable(const Status& status) {
  return status.code() != StatusCode::kProtocolViolation && status.code() != StatusCode::kInternal;
}

}  // namespace

Scenario draw(uint64_t seed) {
  Random random(seed);
  Scenario scenario{.seed = seed, .point = bench::request_response_workload().point()};
  Point& point = scenario.point;
  bench::RequestResponseSettings& settings = bench::request_response_settings(point);
  draw_topology(random, &point);
  settings.protocol = one_of(random, all_protocols());
  settings.layout = one_of(random, all_mark_layouts());
  settings.request_bytes = draw_size(random);
  settings.response_bytes = draw_size(random);
  point.pending = between(random, 1, 6);
  settings.receive_queues = one_of(random, all_receive_queues());
  if (one_in(random, 4)) point.model = bench::ConnectionModel::kDispatcher;
  if (one_in(random, 4)) point.wait = bench::WaitMode::kBlock;
  if (one_in(random, 2)) point.inline_bytes = between(random, 0, 300);
  if (one_in(random, 2)) point.signal_interval = between(random, 1, 8);
  if (one_in(random, 4)) point.post_batch = between(random, 2, 4);
  if (one_in(random, 8)) point.active_ppm = 500'000;
  scenario.requests = between(random, 4, 24);

  if (one_in(random, 2)) scenario.faults.loss_ppm = one_in(random, 2) ? 1'000 : 20'000;
  if (one_in(random, 4)) {
    scenario.faults.delay_ppm = 10'000;
    scenario.faults.delay_most_ns = one_in(random, 2) ? 5'000 : 300'000;
  }
  if (one_in(random, 4)) scenario.faults.link_flaps = between(random, 1, 4);
  if (one_in(random, 4)) scenario.faults.slow_percent = between(random, 200, 5'000);
  if (one_in(random, 10)) scenario.faults.queue_pair_errors = between(random, 1, 2);
  if (one_in(random, 16)) scenario.faults.crashes = 1;
  if (one_in(random, 4)) settings.poll_batch = between(random, 1, 2);
  return scenario;
}

Scenario draw_unreliable(uint64_t seed) {
  constexpr uint32_t kMtuBytes = 2048;  // of kDevice
  Scenario scenario = draw(seed);
  Random random(~seed);
  bench::RequestResponseSettings& settings = bench::request_response_settings(scenario.point);
  settings.transport = one_in(random, 2) ? Transport::kUc : Transport::kUd;
  settings.protocol = Protocol::kSendSend;
  if (settings.transport == Transport::kUd) {
    settings.request_bytes = std::min(settings.request_bytes, kMtuBytes);
    settings.response_bytes = std::min(settings.response_bytes, kMtuBytes);
  } else if (one_in(random, 2)) {
    settings.protocol = Protocol::kWriteWrite;
  }
  settings.layout = MarkLayout::kImmediate;
  // Over UD also the one queue pair that all requesters of a thread share.
  if (settings.transport == Transport::kUc) settings.receive_queues = ReceiveQueues::kPerConnection;
  if (scenario.faults.loss_ppm == 0) scenario.faults.loss_ppm = one_in(random, 2) ? 5'000 : 50'000;
  return scenario;
}

std::string describe(const Scenario& scenario) {
  const Point& point = scenario.point;
  const bench::RequestResponseSettings& settings = bench::request_response_settings(point);
  return fmt::format(
      "{} {}x{} to {}x{}, {} {} over {}, {} B / {} B, pending {}, receive queues {}, dispatcher "
      "{}, "
      "block {}, inline {}, signal {}, batch {}, poll {}, {} requests; {}",
      bench::topology_name(point.topology), point.nodes, point.threads, point.responder_nodes,
      point.responder_threads, protocol_name(settings.protocol), layout_text(settings),
      transport_name(settings.transport), settings.request_bytes, settings.response_bytes,
      point.pending, receive_queues_name(settings.receive_queues),
      point.model == bench::ConnectionModel::kDispatcher, point.wait == bench::WaitMode::kBlock,
      point.inline_bytes, point.signal_interval, point.post_batch, settings.poll_batch,
      scenario.requests, sim::describe(scenario.faults));
}

Outcome carry_out(const Scenario& scenario) {
  Outcome outcome;
  const Result<bench::Wiring> wiring = bench::wire(shape_of(scenario.point));
  if (!wiring.ok()) return {.broken = wiring.status(), .run = {}};
  bench::SimulatedNodes nodes(scenario.seed, true);
  outcome.broken = nodes.add(kDevice, static_cast<uint32_t>(wiring->nodes.size()));
  if (!outcome.broken.ok()) return outcome;
  const sim::ScheduledFaults faults(scenario.faults, scenario.seed, nodes.simulation());

  bench::RunOptions options;
  options.length = {.requests = scenario.requests, .duration_ns = 1'000'000'000'000};
  options.verify = true;
  bench::RunFailure failure;
  const Result<bench::RunResult> result =
      bench::run_on_nodes(nodes, *wiring, scenario.point, options, scenario.seed, &failure);
  outcome.run = result.status();
  if (result.ok()) {
    outcome.requests = result->requests;
    outcome.broken = check_result(scenario, *wiring, *result);
  } else if (scenario.must_finish() || !excusable(result.status())) {
    outcome.broken = result.status();
  } else {
    // Who is left finishes its step, or says why not.
    const uint64_t deadline_ns = now_ns() + kSurvivorsNs;
    if (!nodes.simulation().run_until([&] { return nodes.survivors_settled(); }, deadline_ns)) {
      outcome.broken = broken("a node neither finished its step nor reported why not");
    }
  }
  const Status left = nodes.leave();
  if (outcome.broken.ok()) outcome.broken = left;
  outcome.digest = nodes.simulation().digest();
  outcome.virtual_ns = now_ns();
  return outcome;
}

}  // namespace verbena::simulation_test
