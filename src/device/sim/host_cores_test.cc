#include "src/device/sim/host_cores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/cluster_for_test.h"

namespace verbena::sim {
namespace {

constexpr uint64_t kHostSwitchNs = 1000;
constexpr uint64_t kHostPollNs = 10;
constexpr uint64_t kHostPauseNs = 30;
constexpr uint64_t kHostQueueNs = 15;
constexpr uint64_t kHostHoldNs =
    Waiter::kSpinsCrowded * (kHostPollNs + kHostQueueNs + kHostPauseNs);

Profile shared_host(uint64_t cores) {
  Profile profile = test_profile();
  profile.shared_host = 1;
  profile.cores = cores;
  profile.sockets = 1;
  profile.jitter_percent = 0;
  profile.cpu_switch = kHostSwitchNs * kPsPerNs;
  profile.cpu_poll = kHostPollNs * kPsPerNs;
  profile.poll_empty = kHostQueueNs * kPsPerNs;
  profile.cpu_slice = 3'000'000 * kPsPerNs;
  profile.cpu_pause = kHostPauseNs * kPsPerNs;
  return profile;
}

// Works for so long, and lets others see it every now and then.
void work(Simulation& simulation, uint64_t duration_ns) {
  constexpr uint64_t kPieceNs = 10'000;
  for (uint64_t done = 0; done < duration_ns; done += kPieceNs) {
    simulation.charge(std::min(kPieceNs, duration_ns - done) * kPsPerNs);
    simulation.catch_up();
  }
}

TEST(HostCoresTest, ThreadsOfAllNodesShareTheCores) {
  constexpr uint64_t kWorkNs = 30'000'000;
  Cluster cluster(4, 1, shared_host(2));
  std::vector<uint64_t> ended_ns;
  std::vector<Thread> threads;
  for (size_t node = 0; node < 4; ++node) {
    threads.push_back(cluster.start(node, [&] {
      work(cluster.simulation(), kWorkNs);
      ended_ns.push_back(now_ns());
    }));
  }
  for (Thread& thread : threads) thread.join();
  // Twice as much work as cores; none of them idles, and all threads have their slices in turn.
  EXPECT_GE(ended_ns.back(), 2 * kWorkNs);
  EXPECT_LE(ended_ns.back(), 2 * kWorkNs + 100 * kHostSwitchNs);
  EXPECT_GE(ended_ns.front(), kWorkNs * 3 / 2);
}

// One of its threads works, one polls, and one sleeps and wakes.
TEST(HostCoresTest, ACrashedNodeLeavesTheCoresToOthers) {
  constexpr uint64_t kWorkNs = 30'000'000;
  for (uint64_t crash_ns = 100'000; crash_ns < 12'000'000; crash_ns += 397'000) {
    SCOPED_TRACE(crash_ns);
    Cluster cluster(2, 1, shared_host(1));
    Simulation& simulation = cluster.simulation();
    bool ended = false;
    std::vector<Thread> threads;
    threads.push_back(cluster.start(0, [&] { work(simulation, 1000 * kWorkNs); }));
    threads.push_back(cluster.start(0, [&] {
      for (Waiter waiter;;) waiter.idle();
    }));
    threads.push_back(cluster.start(0, [&] {
      for (;;) sleep_ns(50'000);
    }));
    threads.push_back(cluster.start(1, [&] {
      work(simulation, kWorkNs);
      ended = true;
    }));
    simulation.at(
        crash_ns * kPsPerNs, [](void* node, uint64_t) { static_cast<Node*>(node)->crash(); },
        &cluster.node(0));
    ASSERT_TRUE(simulation.run_until([&] { return ended; }, 20 * kWorkNs));
    EXPECT_LE(now_ns(), kWorkNs + crash_ns + 10 * kHostSwitchNs);
    for (Thread& thread : threads) thread.join();
  }
}

TEST(HostCoresTest, ANodeMayCrashByItsOwnThread) {
  Cluster cluster(2, 1, shared_host(1));
  bool ended = false;
  Thread own = cluster.start(0, [&] {
    cluster.node(0).crash();
    sleep_ns(1000);
    ADD_FAILURE() << "it goes on";
  });
  Thread other = cluster.start(1, [&] {
    work(cluster.simulation(), 1'000'000);
    ended = true;
  });
  EXPECT_TRUE(cluster.simulation().run_until([&] { return ended; }, 1'000'000'000));
  own.join();
  other.join();
}

TEST(HostCoresTest, ACoreForEachThreadIsAsACoreOfItsOwn) {
  constexpr uint64_t kWorkNs = 5'000'000;
  Cluster cluster(2, 1, shared_host(2));
  std::vector<Thread> threads;
  uint64_t last_ns = 0;
  for (size_t node = 0; node < 2; ++node) {
    threads.push_back(cluster.start(node, [&] {
      work(cluster.simulation(), kWorkNs);
      last_ns = std::max(last_ns, now_ns());
    }));
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(last_ns, kWorkNs + kHostSwitchNs);  // that of its start
}

TEST(HostCoresTest, APollerKeepsItsCoreForAWhileAfterItsLastFind) {
  Cluster cluster(2, 1, shared_host(1));
  bool ended = false;
  uint64_t polls_from_ns = 0;
  uint64_t works_from_ns = 0;
  Thread poller = cluster.start(0, [&] {
    work(cluster.simulation(), 50'000);
    polls_from_ns = now_ns();
    while (!ended) VirtualTime::current()->idle(UINT64_MAX);
  });
  Thread worker = cluster.start(1, [&] {
    works_from_ns = now_ns();
    work(cluster.simulation(), 100'000);
    ended = true;
    VirtualTime::current()->wake_pollers();
  });
  poller.join();
  worker.join();
  // The empty poll itself, then as many as Waiter makes, then the other thread's turn.
  EXPECT_EQ(works_from_ns, polls_from_ns + kHostPollNs + kHostHoldNs + kHostSwitchNs);
}

TEST(HostCoresTest, AFindWaitsForAPollersTurn) {
  constexpr size_t kPollers = 5;
  Cluster cluster(kPollers + 1, 1, shared_host(2));
  bool ended = false;
  std::vector<uint64_t> found_ns;
  uint64_t woken_ns = 0;
  std::vector<Thread> threads;
  for (size_t node = 0; node < kPollers; ++node) {
    threads.push_back(cluster.start(node, [&] {
      while (!ended) VirtualTime::current()->idle(UINT64_MAX);
      found_ns.push_back(now_ns());
    }));
  }
  threads.push_back(cluster.start(kPollers, [&] {
    sleep_ns(500'000);
    ended = true;
    woken_ns = now_ns();
    VirtualTime::current()->wake_pollers();
  }));
  for (Thread& thread : threads) thread.join();
  ASSERT_EQ(found_ns.size(), kPollers);
  // A core goes round among three of them at most: the last one comes third.
  EXPECT_GE(found_ns.back(), woken_ns + kHostSwitchNs);
  EXPECT_LE(found_ns.back(), woken_ns + (kPollers + 1) * (kHostSwitchNs + kHostPollNs));
}

// Of two workers that share a core, one goes to that whose threads have found nothing for long.
TEST(HostCoresTest, AThreadThatWaitsMovesToAnIdleCore) {
  constexpr uint64_t kWorkNs = 6'000'000;
  constexpr uint64_t kWorkFromNs = 4'000'000;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    SCOPED_TRACE(seed);
    Cluster cluster(5, seed, shared_host(2));
    bool ended = false;
    uint64_t last_ns = 0;
    std::vector<Thread> pollers;
    for (size_t node = 0; node < 3; ++node) {
      pollers.push_back(cluster.start(node, [&] {
        while (!ended) VirtualTime::current()->idle(UINT64_MAX);
      }));
    }
    std::vector<Thread> workers;
    for (size_t node = 3; node < 5; ++node) {
      workers.push_back(cluster.start(node, [&] {
        sleep_ns(kWorkFromNs);
        work(cluster.simulation(), kWorkNs);
        last_ns = std::max(last_ns, now_ns());
      }));
    }
    for (Thread& worker : workers) worker.join();
    ended = true;
    for (Thread& poller : pollers) poller.join();
    EXPECT_LE(last_ns, kWorkFromNs + kWorkNs * 3 / 2);
  }
}

// However often it polls, a thread leaves no event behind for each time.
TEST(HostCoresTest, APollingThreadHasOneTimer) {
  Cluster cluster(1, 1, shared_host(1));
  Simulation& simulation = cluster.simulation();
  bool ended = false;
  Thread poller = cluster.start(0, [&] {
    for (int i = 0; i < 1000; ++i) VirtualTime::current()->idle(now_ns() + 500'000'000);
    while (!ended) VirtualTime::current()->idle(UINT64_MAX);
  });
  for (int i = 0; i < 1000; ++i) {
    cluster.pass(100);
    VirtualTime::current()->wake_pollers();
  }
  const uint64_t before = simulation.events();
  cluster.pass(5'000'000);
  EXPECT_LE(simulation.events(), before + 100);
  ended = true;
  VirtualTime::current()->wake_pollers();
  poller.join();
}

TEST(HostCoresTest, ASleepingThreadTakesNoCore) {
  constexpr uint64_t kWorkNs = 2'000'000;
  Cluster cluster(2, 1, shared_host(1));
  uint64_t ended_ns = 0;
  Thread sleeper = cluster.start(0, [] { sleep_ns(1'000'000); });
  Thread worker = cluster.start(1, [&] {
    work(cluster.simulation(), kWorkNs);
    ended_ns = now_ns();
  });
  sleeper.join();
  worker.join();
  EXPECT_LE(ended_ns, kWorkNs + 3 * kHostSwitchNs);
}

}  // namespace
}  // namespace verbena::sim
