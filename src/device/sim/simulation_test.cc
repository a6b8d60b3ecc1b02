#include "src/device/sim/simulation.h"

#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/cluster_for_test.h"
#include "verbena/data_path.h"

namespace verbena::sim {
namespace {

constexpr uint64_t kUs = 1000;

class SimulationTest : public testing::Test {
 protected:
  Cluster cluster_{2};
};

TEST_F(SimulationTest, IsCurrentWhileItExists) {
  EXPECT_EQ(Simulation::current(), &cluster_.simulation());
}

// How long each of so many threads, all at work, takes for what takes one alone 1 us.
std::vector<uint64_t> times_ns(size_t threads, uint64_t cores) {
  Profile profile = test_profile();
  profile.cores = cores;
  profile.jitter_percent = 0;
  profile.hyperthread_percent = 150;
  profile.cpu_copy_kib = kUs * kPsPerNs;  // 1 us per KiB
  Cluster cluster(1, /*seed=*/1, profile);
  std::vector<uint64_t> took(threads);
  std::vector<Thread> all;
  for (uint64_t& ns : took) {
    all.push_back(cluster.start(0, [&ns] {
      sleep_ns(kUs);
      const uint64_t begin_ns = now_ns();
      count_copied_bytes(1024);
      ns = now_ns() - begin_ns;
      sleep_ns(10 * kUs);
    }));
  }
  for (Thread& thread : all) thread.join();
  return took;
}

TEST(HyperthreadTest, OnlyThoseWhoShareACoreAreSlowed) {
  EXPECT_EQ(times_ns(3, 3), (std::vector<uint64_t>{1000, 1000, 1000}));
  EXPECT_EQ(times_ns(4, 3), (std::vector<uint64_t>{1500, 1000, 1000, 1500}));
  EXPECT_EQ(times_ns(6, 3), std::vector<uint64_t>(6, 1500));
  EXPECT_EQ(times_ns(7, 3), std::vector<uint64_t>(7, 1500));
}

TEST_F(SimulationTest, SleepingTakesVirtualTimeAndNoCpuTime) {
  uint64_t slept_ns = 0;
  uint64_t cycles = 0;
  Thread thread = cluster_.start(0, [&] {
    const uint64_t begin_ns = now_ns();
    sleep_ns(3'600'000'000'000);
    slept_ns = now_ns() - begin_ns;
    cycles = VirtualTime::current()->cycles();
  });
  thread.join();
  EXPECT_EQ(slept_ns, 3'600'000'000'000u);
  EXPECT_EQ(cycles, 0u);
}

TEST_F(SimulationTest, ThreadsTakeTurnsInTheOrderOfTheirClocks) {
  std::string order;
  Thread slow = cluster_.start(0, [&] {
    for (int i = 0; i < 3; ++i) {
      sleep_ns(30);
      order += 's';
    }
  });
  Thread fast = cluster_.start(1, [&] {
    for (int i = 0; i < 8; ++i) {
      sleep_ns(10);
      order += 'f';
    }
  });
  slow.join();
  fast.join();
  // Both wake at 30 and 60: first whoever fell asleep first.
  EXPECT_EQ(order, "ffsfffsfffs");
}

// What a thread computes puts its clock ahead; what it looks at then must be of that time.
TEST_F(SimulationTest, AThreadThatIsAheadLetsTheOthersCatchUpBeforeItLooks) {
  int value = 0;
  int seen_before = -1;
  int seen_after = -1;
  Simulation& simulation = cluster_.simulation();
  Thread writer = cluster_.start(1, [&] {
    sleep_ns(500);
    value = 1;
    sleep_ns(1000);
    value = 2;
  });
  Thread reader = cluster_.start(0, [&] {
    simulation.charge(400 * kPsPerNs);
    simulation.catch_up();
    seen_before = value;
    simulation.charge(600 * kPsPerNs);
    simulation.catch_up();
    seen_after = value;
    // Work takes a fifth more or less than it does on average.
    EXPECT_GE(now_ns(), 800u);
    EXPECT_LE(now_ns(), 1200u);
  });
  writer.join();
  reader.join();
  EXPECT_EQ(seen_before, 0);
  EXPECT_EQ(seen_after, 1);
}

TEST_F(SimulationTest, TimeNeverRunsBackwards) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << seed);
  Simulation& simulation = cluster_.simulation();
  Time latest = 0;
  std::vector<Thread> threads;
  for (uint64_t i = 0; i < 20; ++i) {
    threads.push_back(cluster_.start(i % 2, [&, i] {
      Random random(seed + i);
      for (int step = 0; step < 500; ++step) {
        if (random.below(2) == 0) {
          simulation.charge(random.below(300) * kPsPerNs);
          simulation.catch_up();
        } else {
          const uint64_t begin_ns = now_ns();
          const uint64_t duration_ns = random.below(200);
          sleep_ns(duration_ns);
          ASSERT_EQ(now_ns(), begin_ns + duration_ns);
        }
        ASSERT_GE(simulation.now(), latest);
        latest = simulation.now();
      }
    }));
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_GT(latest, 0u);
}

TEST_F(SimulationTest, WaitersAreWokenWhereTheyWait) {
  int first = 0;
  int second = 0;
  uint64_t woken_ns = 0;
  bool woken = false;
  bool other_woken = true;
  Simulation& simulation = cluster_.simulation();
  Thread waiter = cluster_.start(0, [&] {
    woken = simulation.wait_at(&first, UINT64_MAX);
    woken_ns = now_ns();
  });
  Thread other = cluster_.start(0, [&] { other_woken = simulation.wait_at(&second, 50 * kUs); });
  Thread waker = cluster_.start(1, [&] {
    sleep_ns(5 * kUs);
    simulation.wake_all_at(&first);
  });
  waker.join();
  waiter.join();
  other.join();
  EXPECT_TRUE(woken);
  EXPECT_EQ(woken_ns, 5 * kUs);
  EXPECT_FALSE(other_woken);
  EXPECT_EQ(now_ns(), 50 * kUs);
}

TEST_F(SimulationTest, AWaitThatTimedOutIsNotWokenAgain) {
  int place = 0;
  std::vector<bool> outcomes;
  Simulation& simulation = cluster_.simulation();
  Thread waiter = cluster_.start(0, [&] {
    outcomes.push_back(simulation.wait_at(&place, 1 * kUs));
    // An earlier deadline must not end this wait.
    outcomes.push_back(simulation.wait_at(&place, 9 * kUs));
    outcomes.push_back(simulation.wait_at(&place, 20 * kUs));
    sleep_ns(30 * kUs);
  });
  Thread waker = cluster_.start(1, [&] {
    sleep_ns(5 * kUs);
    simulation.wake_all_at(&place);
  });
  waiter.join();
  waker.join();
  EXPECT_EQ(outcomes, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(now_ns(), 50 * kUs);
}

TEST_F(SimulationTest, EachWaitEndsAtItsOwnDeadline) {
  int place = 0;
  std::vector<uint64_t> ended_us;
  Simulation& simulation = cluster_.simulation();
  Thread waiter = cluster_.start(0, [&] {
    EXPECT_TRUE(simulation.wait_at(&place, 100 * kUs));
    for (const uint64_t deadline_us : {9, 50, 50, 100, 300, 200}) {
      EXPECT_FALSE(simulation.wait_at(&place, deadline_us * kUs));
      ended_us.push_back(now_ns() / kUs);
    }
    EXPECT_TRUE(simulation.wait_at(&place, UINT64_MAX));
  });
  Thread waker = cluster_.start(1, [&] {
    sleep_ns(5 * kUs);
    simulation.wake_all_at(&place);
    sleep_ns(500 * kUs);
    simulation.wake_all_at(&place);
  });
  waiter.join();
  waker.join();
  EXPECT_EQ(ended_us, (std::vector<uint64_t>{9, 50, 50, 100, 300, 300}));
}

TEST_F(SimulationTest, WaitsThatWereWokenLeaveNoEvents) {
  constexpr int kWaits = 1000;
  int place = 0;
  int waits = 0;
  size_t left = 0;
  Simulation& simulation = cluster_.simulation();
  Thread waiter = cluster_.start(0, [&] {
    while (waits < kWaits && simulation.wait_at(&place, 1'000'000'000)) ++waits;
    left = simulation.pending_events();
  });
  Thread waker = cluster_.start(1, [&] {
    for (int i = 0; i < kWaits; ++i) {
      sleep_ns(kUs);
      simulation.wake_all_at(&place);
    }
  });
  waiter.join();
  waker.join();
  EXPECT_EQ(waits, kWaits);
  EXPECT_LE(left, 4u);
}

TEST_F(SimulationTest, ConditionsAndMutexesWorkBetweenThreads) {
  std::mutex mutex;
  Condition changed;
  int turn = 0;
  std::string order;
  const auto play = [&](int mine, char letter) {
    for (int i = 0; i < 3; ++i) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return turn == mine; });
      order += letter;
      turn = 1 - turn;
      lock.unlock();
      changed.notify_all();
    }
  };
  Thread b = cluster_.start(0, [&] { play(1, 'b'); });
  Thread a = cluster_.start(0, [&] { play(0, 'a'); });
  a.join();
  b.join();
  EXPECT_EQ(order, "ababab");

  bool ready = true;
  Thread impatient = cluster_.start(0, [&] {
    std::unique_lock lock(mutex);
    ready = changed.wait_for(lock, 7 * kUs, [] { return false; });
  });
  const uint64_t begin_ns = now_ns();
  impatient.join();
  EXPECT_FALSE(ready);
  EXPECT_EQ(now_ns() - begin_ns, 7 * kUs);
}

TEST_F(SimulationTest, AnIdlePollerSleepsUntilItIsWokenOrDue) {
  Simulation& simulation = cluster_.simulation();
  uint64_t due_ns = 0;
  uint64_t woken_ns = 0;
  Thread poller = cluster_.start(0, [&] {
    Waiter waiter;
    waiter.idle(now_ns() + 5 * kUs);
    due_ns = now_ns();
    waiter.idle(now_ns() + 500 * kUs);
    woken_ns = now_ns();
  });
  Thread waker = cluster_.start(1, [&] {
    sleep_ns(100 * kUs);
    simulation.wake_pollers();
  });
  poller.join();
  waker.join();
  EXPECT_GE(due_ns, 5 * kUs);
  EXPECT_LT(due_ns, 6 * kUs);
  EXPECT_GE(woken_ns, 100 * kUs);
  EXPECT_LT(woken_ns, 101 * kUs);
}

// Whatever the data path counts takes time, without another word to the simulation.
TEST_F(SimulationTest, AThreadIsChargedForWhatItsDataPathCounts) {
  const Profile& profile = cluster_.node(0).profile;
  Thread thread = cluster_.start(0, [&] {
    uint64_t word = 0;
    char mark = 1;
    uint64_t begun_ns = 0;
    // Work takes a fifth more or less than it does on average.
    const auto expect_about = [&begun_ns](Time time) {
      const double ns = static_cast<double>(time) / kPsPerNs;
      EXPECT_NEAR(static_cast<double>(now_ns() - begun_ns), ns, 0.25 * ns + 1);
      begun_ns = now_ns();
    };
    begun_ns = now_ns();
    expect_about(0);
    for (int i = 0; i < 100; ++i) poll_word(&word);
    expect_about(100 * profile.cpu_poll);
    for (int i = 0; i < 10; ++i) poll_mark(&mark, 1);
    expect_about(10 * (profile.cpu_poll + profile.cpu_device_line + profile.cpu_message));
    std::vector<char> from(10'240);
    std::vector<char> to(from.size());
    copy_bytes(to.data(), from.data(), to.size());
    expect_about(10 * profile.cpu_copy_kib);
    clear_bytes(to.data(), to.size());
    expect_about(10 * profile.cpu_copy_kib);
    publish_word(&word, uint64_t{1});
    expect_about(0);
    for (int i = 0; i < 10; ++i) consume_word(&word);
    expect_about(10 * (profile.cpu_poll + profile.cpu_line_transfer));
    store_word(&word, uint64_t{0});
    expect_about(0);
  });
  thread.join();
}

// Two that share a core are slower; those that wait for something else share none.
TEST_F(SimulationTest, ThreadsThatWaitTakeNoCore) {
  const Profile& profile = cluster_.node(0).profile;
  std::mutex mutex;
  Condition over;
  bool is_over = false;
  std::vector<Thread> waiting;
  for (uint64_t i = 0; i < profile.cores * profile.sockets; ++i) {
    waiting.push_back(cluster_.start(0, [&] {
      std::unique_lock lock(mutex);
      over.wait(lock, [&] { return is_over; });
    }));
  }
  uint64_t took_ns = 0;
  Thread worker = cluster_.start(0, [&] {
    sleep_ns(kUs);  // until they wait
    const uint64_t begun_ns = now_ns();
    const uint64_t word = 0;
    for (int i = 0; i < 1000; ++i) poll_word(&word);
    took_ns = now_ns() - begun_ns;
    const std::lock_guard lock(mutex);
    is_over = true;
    over.notify_all();
  });
  worker.join();
  waiting.clear();
  const double alone_ns = 1000.0 * static_cast<double>(profile.cpu_poll) / kPsPerNs;
  EXPECT_NEAR(static_cast<double>(took_ns), alone_ns, 0.25 * alone_ns);
}

TEST_F(SimulationTest, APublishedWordIsSeenByThePollersOfItsNode) {
  uint64_t word = 0;
  uint64_t seen_ns = 0;
  Thread poller = cluster_.start(0, [&] {
    Waiter waiter;
    while (consume_word(&word) == 0) waiter.idle();
    seen_ns = now_ns();
  });
  Thread publisher = cluster_.start(0, [&] {
    sleep_ns(100 * kUs);
    publish_word(&word, uint64_t{1});
  });
  poller.join();
  publisher.join();
  EXPECT_GE(seen_ns, 100 * kUs);
  EXPECT_LT(seen_ns, 101 * kUs);
}

TEST_F(SimulationTest, EachThreadHasStatisticsOfItsOwn) {
  const uint64_t word = 0;
  std::vector<Thread> threads;
  for (uint64_t i = 0; i < 3; ++i) {
    threads.push_back(cluster_.start(i % 2, [&word, i] {
      for (uint64_t poll = 0; poll < 10 * (i + 1); ++poll) {
        poll_word(&word);
        sleep_ns(10);
      }
      EXPECT_EQ(data_path_statistics().polls, 10 * (i + 1));
    }));
  }
  const uint64_t outside = data_path_statistics().polls;
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(data_path_statistics().polls, outside);
}

// A poller that nobody wakes polls again all the same: peers may have gone.
TEST_F(SimulationTest, AnIdlePollerPollsAgainAfterAMillisecond) {
  Thread poller = cluster_.start(0, [&] {
    Waiter waiter;
    waiter.idle();
  });
  poller.join();
  EXPECT_GE(now_ns(), 1'000'000u);
  EXPECT_LT(now_ns(), 1'001'000u);
}

TEST_F(SimulationTest, ThreadsJoinThreads) {
  uint64_t joined_ns = 0;
  Thread outer = cluster_.start(0, [&] {
    Thread inner = start_thread("inner", [] { sleep_ns(40); });
    sleep_ns(10);
    inner.join();
    joined_ns = now_ns();
    Thread ended = start_thread("ended", [] {});
    sleep_ns(10);
    ended.join();
  });
  outer.join();
  EXPECT_EQ(joined_ns, 40u);
  EXPECT_TRUE(cluster_.node(0).threads.empty());
}

TEST_F(SimulationTest, ADeadlockIsNoticed) {
  int place = 0;
  Simulation& simulation = cluster_.simulation();
  bool ended = false;
  Thread stuck = cluster_.start(0, [&] {
    simulation.wait_at(&place, UINT64_MAX);
    ended = true;
  });
  EXPECT_FALSE(simulation.run_until([&] { return ended; }));
  simulation.wake_all_at(&place);
  EXPECT_TRUE(simulation.run_until([&] { return ended; }));
}

// Longer than virtual time can count: as good as for ever, so it must not seem to end.
TEST_F(SimulationTest, AWaitOfCenturiesIsADeadlockToo) {
  int place = 0;
  Simulation& simulation = cluster_.simulation();
  bool ended = false;
  Thread stuck = cluster_.start(0, [&] {
    simulation.wait_at(&place, UINT64_MAX - 1);
    ended = true;
  });
  bool slept = false;
  Thread sleeper = cluster_.start(0, [&] {
    sleep_ns(1);
    sleep_ns(UINT64_MAX);
    slept = true;
  });
  EXPECT_FALSE(simulation.run_until([&] { return ended || slept; }));
  EXPECT_LT(now_ns(), kUs);
  simulation.wake_all_at(&place);
  EXPECT_TRUE(simulation.run_until([&] { return ended; }));
  cluster_.node(0).crash();  // the sleeper never ends
}

TEST_F(SimulationTest, RunUntilStopsAtItsDeadline) {
  bool ended = false;
  Thread sleeper = cluster_.start(0, [&] {
    sleep_ns(10 * kUs);
    ended = true;
  });
  EXPECT_FALSE(cluster_.simulation().run_until([&] { return ended; }, 9 * kUs));
  EXPECT_EQ(now_ns(), 9 * kUs);
  EXPECT_TRUE(cluster_.simulation().run_until([&] { return ended; }, 10 * kUs));
  sleeper.join();
}

TEST_F(SimulationTest, ThreadsOfACrashedNodeStandStill) {
  int steps = 0;
  bool seen = false;
  Thread victim = cluster_.start(0, [&] {
    for (;; ++steps) sleep_ns(kUs);
  });
  Thread killer = cluster_.start(1, [&] {
    sleep_ns(10 * kUs + 1);
    cluster_.node(0).crash();
    victim.join();
    seen = true;
  });
  killer.join();
  EXPECT_TRUE(seen);
  EXPECT_EQ(steps, 10);
}

// Its own thread's clock may be ahead of the moment of the crash.
TEST_F(SimulationTest, ACrashStopsTheRunningThreadAtItsNextLook) {
  Simulation& simulation = cluster_.simulation();
  simulation.at(
      100 * kPsPerNs, [](void* node, uint64_t) { static_cast<Node*>(node)->crash(); },
      &cluster_.node(0));
  bool survived = false;
  Thread victim = cluster_.start(0, [&] {
    simulation.charge(200 * kPsPerNs);
    simulation.catch_up();
    survived = true;
  });
  victim.join();
  EXPECT_FALSE(survived);
}

TEST(SimulationSeedTest, RandomNumbersDependOnTheSeedAlone) {
  const auto draw = [](uint64_t seed) {
    Cluster cluster(2, seed);
    std::vector<uint64_t> drawn(2);
    secure_random(drawn.data(), drawn.size() * sizeof(drawn[0]));
    drawn.push_back(VirtualTime::current()->random());
    return drawn;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

}  // namespace
}  // namespace verbena::sim
