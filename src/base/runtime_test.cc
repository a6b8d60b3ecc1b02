#include "src/base/runtime.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <set>
#include <string>

namespace verbena {
namespace {

TEST(RuntimeTest, TimeDoesNotRunBackwardsAndASleepLastsItsTime) {
  uint64_t before = now_ns();
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t now = now_ns();
    ASSERT_GE(now, before);
    before = now;
  }
  sleep_ns(2'000'000);
  EXPECT_GE(now_ns() - before, 2'000'000u);
  sleep_ns(0);
}

TEST(RuntimeTest, AThreadRunsItsBodyUnderItsNameAndIsJoinedByItsOwner) {
  std::atomic<bool> ran{false};
  std::string name;
  {
    const Thread thread = start_thread("a name beyond 15 characters", [&] {
      char text[16] = {};
      pthread_getname_np(pthread_self(), text, sizeof(text));
      name = text;
      ran = true;
    });
    EXPECT_TRUE(thread.joinable());
  }
  EXPECT_TRUE(ran.load());
  EXPECT_EQ(name, "a name beyond 1");
}

TEST(RuntimeTest, AThreadCanBeMovedAndJoinedOnce) {
  std::atomic<int> runs{0};
  Thread first = start_thread("first", [&] { ++runs; });
  Thread second = std::move(first);
  EXPECT_FALSE(first.joinable());  // NOLINT: that is the point
  EXPECT_TRUE(second.joinable());
  // The thread that was there before is joined, not lost.
  second = start_thread("second", [&] { ++runs; });
  EXPECT_GE(runs.load(), 1);
  second.join();
  EXPECT_EQ(runs.load(), 2);
  EXPECT_FALSE(second.joinable());
  second.join();
  Thread none;
  EXPECT_FALSE(none.joinable());
}

TEST(RuntimeTest, SignalsStayWithTheApplicationsThreads) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  bool all_blocked = true;
  bool faults_arrive = true;
  start_thread("signals", [&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) {
      all_blocked = all_blocked && sigismember(&mask, signal) == 1;
    }
    // What a thread itself causes would end the process without a word.
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
      faults_arrive = faults_arrive && sigismember(&mask, fault) == 0;
    }
  }).join();
  EXPECT_TRUE(all_blocked);
  EXPECT_TRUE(faults_arrive);
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  }
}

TEST(RuntimeTest, UsableCpusAreThoseOfTheProcessEachOnce) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  const std::vector<int> cpus = usable_cpus();
  EXPECT_EQ(cpus.size(), static_cast<size_t>(CPU_COUNT(&set)));
  EXPECT_EQ(std::set<int>(cpus.begin(), cpus.end()).size(), cpus.size());
  for (int cpu : cpus) EXPECT_TRUE(CPU_ISSET(cpu, &set));
}

TEST(RuntimeTest, APinnedThreadRunsThereAndDoesNotChangeTheUsableCpus) {
  const std::vector<int> cpus = usable_cpus();
  for (int cpu : cpus) {
    start_thread("pinned", [&] {
      ASSERT_TRUE(pin_this_thread(cpu));
      EXPECT_EQ(sched_getcpu(), cpu);
      EXPECT_EQ(usable_cpus(), cpus);
    }).join();
  }
  EXPECT_FALSE(pin_this_thread(-1));
  EXPECT_FALSE(pin_this_thread((1 << 20) - 1));
  EXPECT_FALSE(pin_this_thread(1 << 20));
}

// Several pollers share one CPU and hand a token round. If one kept the CPU while it had nothing to
// do, a hand-off would take a scheduler's time slice, in which it looks some 100,000 times. How
// long it takes says nothing: others may use the CPU, too.
TEST(RuntimeTest, PollersOnOneCpuLetEachOtherRun) {
  constexpr int kPollers = 4;
  constexpr int kRounds = 200;
  constexpr uint64_t kMostLooksPerRound = 20'000;
  const int cpu = usable_cpus().front();
  std::atomic<int> turn{0};
  std::array<int, kPollers> rounds{};
  std::atomic<uint64_t> looks{0};
  {
    std::vector<Thread> threads;
    threads.reserve(kPollers);
    for (int self = 0; self < kPollers; ++self) {
      threads.push_back(start_thread("poller", [&, self] {
        pin_this_thread(cpu);
        Waiter waiter;
        uint64_t in_vain = 0;
        while (rounds[static_cast<size_t>(self)] < kRounds) {
          if (turn.load(std::memory_order_acquire) == self) {
            waiter.progress();
            ++rounds[static_cast<size_t>(self)];
            turn.store((self + 1) % kPollers, std::memory_order_release);
          } else {
            waiter.idle();
            ++in_vain;
          }
        }
        looks += in_vain;
      }));
    }
  }
  for (int done : rounds) EXPECT_EQ(done, kRounds);
  EXPECT_LT(looks.load(), kMostLooksPerRound * kRounds);
}

TEST(RuntimeTest, RandomNumbersFollowTheirSeed) {
  Random first(42);
  Random second(42);
  Random other(43);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const uint64_t number = first.next();
    EXPECT_EQ(number, second.next());
    differs = differs || number != other.next();
  }
  EXPECT_TRUE(differs);
  // The first number of SplitMix64 from the state 0, as published with it.
  EXPECT_EQ(Random(0).next(), 0xe220a8397b1dcdafu);
}

TEST(RuntimeTest, NumbersBelowABoundReachAllOfThemAlike) {
  Random random(run_seed());
  std::array<int, 7> seen{};
  for (int i = 0; i < 70'000; ++i) {
    const uint64_t number = random.below(seen.size());
    ASSERT_LT(number, seen.size());
    ++seen[number];
  }
  // 10000 expected; 1000 is more than ten standard deviations.
  for (int count : seen) EXPECT_NEAR(count, 10'000, 1000);
  EXPECT_EQ(random.below(1), 0u);
  EXPECT_LT(random.below(UINT64_MAX), UINT64_MAX);
}

// Tests have one without being told (tests/test_seed.h): nothing that is red is so by chance.
TEST(RuntimeTest, TheSeedOfTheRunIsThatOfTheEnvironment) {
  const char* text = std::getenv("VERBENA_SEED");
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(std::to_string(run_seed()), text);
  EXPECT_EQ(run_seed(), run_seed());
}

TEST(RuntimeTest, SecureRandomFillsEveryByteAndNeverRepeats) {
  std::array<unsigned char, 64> seen_nonzero{};
  std::set<std::string> drawn;
  for (int i = 0; i < 100; ++i) {
    std::array<unsigned char, 64> bytes{};
    secure_random(bytes.data(), bytes.size());
    for (size_t at = 0; at < bytes.size(); ++at) seen_nonzero[at] |= bytes[at];
    drawn.insert(std::string(bytes.begin(), bytes.end()));
  }
  EXPECT_EQ(drawn.size(), 100u);
  for (unsigned char bits : seen_nonzero) EXPECT_NE(bits, 0);
}

}  // namespace
}  // namespace verbena
