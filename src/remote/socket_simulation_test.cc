// Regions on several sockets in clusters in virtual time: what a proxy costs, and what becomes of
// its users when something fails.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/remote/simulated_regions_for_test.h"
#include "verbena/clock.h"
#include "verbena/remote_sockets.h"

namespace verbena::remote {
namespace {

constexpr uint32_t kSockets = 2;
constexpr uint32_t kThreads = 3;
constexpr uint64_t kSimulatedPartBytes = 4096;
constexpr uint64_t kSocketClusters =
    VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 10 : 100;
constexpr int64_t kPatienceNs = 20'000'000'000;
constexpr uint64_t kEndNs = 1'000'000'000'000;

// A back-end, node 0, and the threads of a front-end, node 1.
class SimulatedSockets {
 public:
  using Body = std::function<void(uint32_t thread, RemoteRegion& region)>;

  SimulatedSockets(uint64_t seed, const sim::FaultSchedule& faults)
      : cluster_(2, seed), faults_(faults, seed, cluster_.simulation()) {
    const sim::OnNode here(cluster_.simulation(), cluster_.node(0));
    back_end_.assign(kSockets, {&cluster_[0].device, &cluster_[0].domain});
    front_end_.assign(kSockets, {&cluster_[1].device, &cluster_[1].domain});
    region_ = test::must(expose_sockets(
        back_end_, {.size_bytes = kSimulatedPartBytes, .handshake_timeout_ns = kPatienceNs}));
    listener_ = std::make_unique<ControlListener>(
        test::must(ControlListener::listen("127.0.0.1", 0, secret_)));
  }

  // Each thread has a region of its own, thread i on socket i % 2. False: one hangs.
  bool run(const Body& body) {
    accepting_ = cluster_.start(0, [this] {
      for (uint32_t i = 0; i < kSockets + kThreads; ++i) {
        auto control = listener_->accept(kPatienceNs);
        if (!control.ok()) return;
        controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
        static_cast<void>(region_->accept(*controls_.back()));
      }
    });
    front_end_thread_ = cluster_.start(1, [this, &body] {
      serve(body);
      ended_ = true;
    });
    return cluster_.simulation().run_until([this] { return ended_ || cluster_.node(1).crashed; },
                                           kEndNs);
  }

  sim::Cluster& cluster() { return cluster_; }
  const Status& opened() const { return opened_; }
  const Status& status(uint32_t thread) const { return statuses_[thread]; }
  uint64_t word(uint32_t socket) const {
    uint64_t value = 0;
    std::memcpy(&value, region_->part(socket).data(), sizeof(value));
    return value;
  }

 private:
  void serve(const Body& body) {
    auto connections = connect_sockets(front_end_,
                                       [this] {
                                         return ControlConnection::connect(
                                             "127.0.0.1", listener_->port(), secret_, kPatienceNs);
                                       },
                                       {.proxy_pending = 4, .handshake_timeout_ns = kPatienceNs});
    opened_ = connections.status();
    if (!connections.ok()) return;
    std::vector<Thread> threads;
    statuses_.resize(kThreads);
    for (uint32_t i = 0; i < kThreads; ++i) {
      threads.push_back(start_thread("front-end", [&, i] {
        auto region = (*connections)->open_region(i % kSockets, {.region = {.pending = 8}});
        statuses_[i] = region.status();
        if (!region.ok()) return;
        body(i, **region);
        statuses_[i] = (*region)->status();
      }));
    }
    for (Thread& thread : threads) thread.join();
  }

  sim::Cluster cluster_;
  sim::ScheduledFaults faults_;
  JobSecret secret_ = JobSecret::random();
  std::vector<SocketDevice> back_end_;
  std::vector<SocketDevice> front_end_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<ExposedSockets> region_;
  std::unique_ptr<ControlListener> listener_;
  Thread accepting_;
  Thread front_end_thread_;
  std::vector<Status> statuses_;
  Status opened_;
  bool ended_ = false;
};

// What a thread did to the first word of each part, and what it knows to be done.
struct Adds {
  uint64_t posted = 0;
  uint64_t done = 0;
};

void add_to_all(RemoteRegion& region, uint64_t operations, std::vector<Adds>& adds) {
  Waiter waiter;
  for (uint64_t posted = 0; region.status().ok();) {
    const uint64_t part = posted % kSockets;
    if (posted < operations &&
        region.post_fetch_and_add({part * kSimulatedPartBytes}, 1, part) == PostResult::kPosted) {
      ++adds[part].posted;
      ++posted;
      continue;
    }
    if (posted == operations && region.outstanding() == 0) return;
    const uint32_t found =
        region.poll([&](const RemoteCompletion& done) { ++adds[done.token].done; });
    found > 0 ? waiter.progress() : waiter.idle();
  }
}

// Also with crashes, lost packets and queue pairs that break: nobody hangs, what is acknowledged
// has happened, and nothing happens twice.
TEST(SocketSimulationTest, NobodyHangsWhateverGoesWrong) {
  const uint64_t first_seed = run_seed();
  uint64_t without_failure = 0;
  for (uint64_t seed = first_seed; seed < first_seed + kSocketClusters; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SimulatedSockets sockets(seed, draw_faults(random));
    std::vector<std::vector<Adds>> adds(kThreads, std::vector<Adds>(kSockets));
    ASSERT_TRUE(sockets.run(
        [&](uint32_t thread, RemoteRegion& region) { add_to_all(region, 200, adds[thread]); }));
    if (sockets.cluster().node(0).crashed || sockets.cluster().node(1).crashed) continue;
    if (!sockets.opened().ok()) continue;
    for (uint32_t part = 0; part < kSockets; ++part) {
      uint64_t posted = 0;
      uint64_t done = 0;
      for (const auto& of_thread : adds) {
        posted += of_thread[part].posted;
        done += of_thread[part].done;
      }
      EXPECT_LE(done, sockets.word(part));
      EXPECT_GE(posted, sockets.word(part));
    }
    bool ok = true;
    for (uint32_t i = 0; i < kThreads; ++i) ok = ok && sockets.status(i).ok();
    if (ok) ++without_failure;
  }
  // Faults that a reliable connection gets over are most of them.
  EXPECT_GT(without_failure, kSocketClusters / 4);
}

// Not inlined: in a function as large as the test's body, gcc 12's check for null pointers takes
// the address of a thread_local variable for one.
[[gnu::noinline]] DataPathStatistics statistics_of_thread() { return data_path_statistics(); }

// A hand-over takes time, which the simulation charges: but far less than the operation.
TEST(SocketSimulationTest, AProxyCostsTwoHandOvers) {
  SimulatedSockets sockets(1, {});
  uint64_t own_ns = 0;
  uint64_t proxied_ns = 0;
  DataPathStatistics own;
  DataPathStatistics proxied;
  ASSERT_TRUE(sockets.run([&](uint32_t thread, RemoteRegion& region) {
    if (thread != 0) return;
    constexpr int kOperations = 100;
    for (uint64_t part = 0; part < kSockets; ++part) {
      const DataPathStatistics before = statistics_of_thread();
      const uint64_t begun_ns = now_ns();
      for (int i = 0; i < kOperations; ++i) {
        EXPECT_TRUE(region.write(RemotePointer<uint64_t>{part * kSimulatedPartBytes}, 1).ok());
      }
      (part == 0 ? own_ns : proxied_ns) = (now_ns() - begun_ns) / kOperations;
      (part == 0 ? own : proxied) = statistics_of_thread() - before;
    }
    EXPECT_EQ(own.hand_overs, 0u);
    EXPECT_EQ(proxied.hand_overs, 100u);
  }));
  ASSERT_TRUE(sockets.status(0).ok()) << sockets.status(0).message();
  EXPECT_GT(proxied_ns, own_ns + 100);
  EXPECT_LT(proxied_ns, own_ns + 1000);
}

}  // namespace
}  // namespace verbena::remote
