// A region and its front-ends as nodes of a simulated cluster, with faults, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "verbena/connection.h"
#include "verbena/remote.h"

namespace verbena::remote {

// Faults as a seed says; in every second cluster only such that a reliable connection gets over.
inline sim::FaultSchedule draw_faults(Random& random) {
  sim::FaultSchedule faults;
  if (random.below(2) == 0) faults.loss_ppm = random.below(2) == 0 ? 1'000 : 20'000;
  if (random.below(4) == 0) {
    faults.delay_ppm = 10'000;
    faults.delay_most_ns = random.below(2) == 0 ? 5'000 : 300'000;
  }
  if (random.below(4) == 0) faults.link_flaps = 1 + static_cast<uint32_t>(random.below(4));
  if (random.below(4) == 0) faults.slow_percent = 200 + random.below(4'800);
  if (random.below(2) == 0) return faults;
  faults.within_ns = 200'000;
  if (random.below(2) == 0) {
    faults.crashes = 1;
  } else {
    faults.queue_pair_errors = 1 + static_cast<uint32_t>(random.below(2));
  }
  return faults;
}

class SimulatedRegions {
 public:
  // What a front-end does once it is connected.
  using Body = std::function<void(uint32_t front_end, RemoteRegion& region)>;

  SimulatedRegions(uint64_t seed, uint32_t front_ends, uint64_t region_bytes,
                   const sim::FaultSchedule& faults)
      : cluster_(front_ends + 1, seed), faults_(faults, seed, cluster_.simulation()) {
    const sim::OnNode here(cluster_.simulation(), cluster_.node(0));
    memory_.resize(region_bytes);
    region_ = test::must(expose_region(cluster_[0].device, cluster_[0].domain,
                                       {.memory = memory_, .handshake_timeout_ns = kPatienceNs}));
    listener_ = std::make_unique<ControlListener>(
        test::must(ControlListener::listen("127.0.0.1", 0, secret_)));
    ends_.resize(front_ends);
  }
  ~SimulatedRegions() {
    for (End& end : ends_) end.region.reset();
  }

  // Lets all front-ends do their part. False: one of a node that lives hangs.
  bool run(const RemoteRegionOptions& options, const Body& body) {
    back_end_ = cluster_.start(0, [this] {
      for (size_t i = 0; i < ends_.size(); ++i) {
        auto control = listener_->accept(kPatienceNs);
        if (!control.ok()) return;
        controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
        static_cast<void>(region_->accept(*controls_.back()));
      }
    });
    for (uint32_t i = 0; i < ends_.size(); ++i) {
      ends_[i].thread = cluster_.start(i + 1, [this, i, &options, &body] {
        ends_[i].status = open_and_use(i, options, body);
        ends_[i].ended = true;
      });
    }
    return cluster_.simulation().run_until([this] { return all_ended(); }, kEndNs);
  }

  sim::Cluster& cluster() { return cluster_; }
  std::vector<char>& memory() { return memory_; }
  template <typename T>
  T at(uint64_t offset_bytes) const {
    T value{};
    std::memcpy(&value, memory_.data() + offset_bytes, sizeof(T));
    return value;
  }
  // How a front-end fared; ok also if its node has crashed before its end.
  const Status& status(uint32_t front_end) const { return ends_[front_end].status; }
  bool crashed(uint32_t front_end) { return cluster_.node(front_end + 1).crashed; }
  // Its memory then means nothing: a WRITE may be acknowledged before it is there.
  bool back_end_crashed() { return cluster_.node(0).crashed; }

 private:
  // Longer than the retries of the simulated RNICs, and than any test's work.
  static constexpr int64_t kPatienceNs = 20'000'000'000;
  static constexpr uint64_t kEndNs = 1'000'000'000'000;

  struct End {
    std::unique_ptr<ControlConnection> control;
    std::unique_ptr<RemoteRegion> region;
    Status status;
    bool ended = false;
    Thread thread;
  };

  Status open_and_use(uint32_t number, RemoteRegionOptions options, const Body& body) {
    End& end = ends_[number];
    options.handshake_timeout_ns = kPatienceNs;
    VERBENA_ASSIGN_OR_RETURN(
        ControlConnection control,
        ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kPatienceNs));
    end.control = std::make_unique<ControlConnection>(std::move(control));
    sim::Cluster::Member& member = cluster_[number + 1];
    VERBENA_ASSIGN_OR_RETURN(end.region,
                             open_region(member.device, member.domain, *end.control, options));
    body(number, *end.region);
    return end.region->status();
  }
  bool all_ended() {
    for (uint32_t i = 0; i < ends_.size(); ++i) {
      if (!ends_[i].ended && !crashed(i)) return false;
    }
    return true;
  }

  sim::Cluster cluster_;
  sim::ScheduledFaults faults_;
  JobSecret secret_ = JobSecret::random();
  std::vector<char> memory_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<ExposedRegion> region_;
  std::unique_ptr<ControlListener> listener_;
  Thread back_end_;
  std::vector<End> ends_;
};

}  // namespace verbena::remote
