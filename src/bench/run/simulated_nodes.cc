#include "src/bench/run/simulated_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "src/base/runtime.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/run/placement.h"
#include "src/device/sim/rnic_profile.h"
#include "src/device/sim/simulated_node.h"

namespace verbena::bench {

uint64_t simulation_seed() {
  const char* text = std::getenv("VERBENA_SEED");
  return text != nullptr && *text != '\0' ? run_seed() : 1;
}

void fit_to_simulation(const std::string& device, bool chosen, Plan* plan) {
  constexpr uint64_t kMessages = 40'000;
  if (chosen || !device.starts_with(sim::kDevicePrefix)) return;
  plan->run.messages = kMessages;
}

SimulatedNodes::SimulatedNodes(uint64_t seed, bool copy_all)
    : begun_ns_(machine_now_ns()),
      simulation_({.seed = seed, .copy_all = copy_all}),
      secret_(JobSecret::random()),
      hello_{.host = host_identity(), .cpus = {}, .token = 0} {}

SimulatedNodes::~SimulatedNodes() { static_cast<void>(leave()); }

Status SimulatedNodes::leave() {
  Status status;
  for (uint32_t number = 0; number < size(); ++number) {
    nodes_[number]->point.reset();
    const sim::Node& node = simulation_.node(number);
    if (node.crashed || node.threads.empty()) continue;
    status = {StatusCode::kInternal,
              fmt::format("{} threads of simulated node {} hang", node.threads.size(), number)};
  }
  return status;
}

bool SimulatedNodes::survivors_settled() {
  for (uint32_t number = 0; number < size(); ++number) {
    Node& node = *nodes_[number];
    if (simulation_.node(number).crashed || node.point == nullptr) continue;
    if (!node.point->settled() && node.point->failure().ok()) return false;
  }
  return true;
}

Status SimulatedNodes::add(const std::string& device, uint32_t count) {
  VERBENA_ASSIGN_OR_RETURN(const sim::Profile profile,
                           sim::load_profile(device.substr(sim::kDevicePrefix.size())));
  for (uint32_t i = 0; i < count; ++i) {
    const sim::OnNode here(simulation_, simulation_.add_node(profile));
    VERBENA_ASSIGN_OR_RETURN(Device opened, Device::open(device));
    VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(opened));
    nodes_.emplace_back(new Node{std::move(opened), std::move(domain), nullptr});
  }
  return Status::ok_status();
}

SimulationCounts SimulatedNodes::counts() const {
  return {.events = simulation_.events(),
          .virtual_ns = simulation_.now() / sim::kPsPerNs,
          .digest = simulation_.digest(),
          .wall_s = static_cast<double>(machine_now_ns() - begun_ns_) / 1e9};
}

Status SimulatedNodes::tell(uint32_t number, const Message& message) {
  Node& node = *nodes_[number];
  const sim::OnNode here(simulation_, simulation_.node(number));
  if (message.kind != MessageKind::kSetup) return node.point->begin(message);
  const Point& point = message.setup.point;
  if (wiring_ == nullptr) {
    VERBENA_ASSIGN_OR_RETURN(Wiring wiring, wire(shape_of(point)));
    wiring_ = std::make_shared<JobWiring>(std::move(wiring), point.model);
  }
  node.point = std::make_unique<PointNode>(node.device, node.domain, secret_, "simulated",
                                           message.setup, wiring_);
  return node.point->start();
}

Status SimulatedNodes::failure() {
  for (uint32_t number = 0; number < size(); ++number) {
    if (simulation_.node(number).crashed) {
      return {StatusCode::kUnavailable, fmt::format("simulated node {} has crashed", number)};
    }
    const Status status = nodes_[number]->point->failure();
    if (status.ok()) continue;
    return {status.code(), fmt::format("simulated node {}: {}", number, status.message())};
  }
  return Status::ok_status();
}

bool SimulatedNodes::all_settled() {
  while (settled_ < size() && nodes_[settled_]->point->settled()) ++settled_;
  return settled_ == size();
}

Status SimulatedNodes::collect(MessageKind /*kind*/, int64_t timeout_ns, uint64_t /*stall_ns*/,
                               const Take& take) {
  settled_ = 0;
  const uint64_t now = now_ns();
  const uint64_t deadline_ns = now + std::min(static_cast<uint64_t>(timeout_ns), UINT64_MAX - now);
  const bool settled =
      simulation_.run_until([this] { return all_settled() || !failure().ok(); }, deadline_ns);
  VERBENA_RETURN_IF_ERROR(failure());
  if (!settled) {
    return {StatusCode::kTimeout,
            fmt::format("the simulated nodes did not finish within {} ms of virtual time",
                        timeout_ns / 1'000'000)};
  }
  for (uint32_t number = 0; number < size(); ++number)
    take(number, nodes_[number]->point->answer());
  return Status::ok_status();
}

}  // namespace verbena::bench
