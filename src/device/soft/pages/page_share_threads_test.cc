// Pages are shared beside threads, system calls and signal handlers that use them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/pages/page_share_for_test.h"

namespace verbena::soft {
namespace {

using Sharing = PageShare::Sharing;
using Writers = PageShare::Writers;

alignas(65536) char initialized[65536] = {"initialized"};

// Two threads write to their own words in all pages that move, and to one word both atomically. A
// plain copy loses some of that in most runs.
TEST_P(PageShareTest, LosesNothingThatOtherThreadsWrite) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    constexpr size_t kRounds = 300;
    constexpr size_t kBlock = 64;
    char* memory = map_private(kRounds * kBlock * kPage);
    std::atomic<size_t> round{0};
    std::atomic<bool> moving{false};
    std::atomic<uint64_t> failures{0};
    std::atomic<uint64_t> passes[2] = {};
    auto word = [&](size_t block, size_t page, size_t index) {
      return reinterpret_cast<uint64_t*>(memory + (block * kBlock + page) * kPage) + index;
    };
    std::vector<uint64_t> last[2] = {std::vector<uint64_t>(kRounds),
                                     std::vector<uint64_t>(kRounds)};
    auto write = [&](size_t me) {
      for (size_t block; (block = round.load()) < kRounds;) {
        uint64_t& value = last[me][block];
        for (size_t page = 0; page < kBlock; ++page) {
          uint64_t* mine = word(block, page, me);
          if (load_relaxed(mine) != value) failures.fetch_add(1);
          store_relaxed(mine, value + 1);
          __atomic_fetch_add(word(block, page, 2), 1, __ATOMIC_RELAXED);
        }
        ++value;
        passes[me].fetch_add(1);
        // On few cores the others shall get their turn.
        if (!moving.load()) sched_yield();
      }
    };
    Thread a = start_thread("writer", [&] { write(0); });
    Thread b = start_thread("writer", [&] { write(1); });
    for (size_t block = 0; block < kRounds; ++block) {
      // Both are at work on this block before it moves.
      for (auto& count : passes) {
        const uint64_t now = count.load();
        wait_until([&] { return count.load() >= now + 2; });
      }
      moving.store(true);
      expect_shared(*share, memory + block * kBlock * kPage, kBlock * kPage);
      moving.store(false);
      round.store(block + 1);
    }
    a.join();
    b.join();
    EXPECT_EQ(failures.load(), 0u);
    for (size_t block = 0; block < kRounds; ++block) {
      for (size_t page = 0; page < kBlock; ++page) {
        ASSERT_EQ(*word(block, page, 0), last[0][block]);
        ASSERT_EQ(*word(block, page, 1), last[1][block]);
        ASSERT_EQ(*word(block, page, 2), last[0][block] + last[1][block]);
      }
    }
    expect_same_both_ways(*share, memory, kRounds * kBlock * kPage);
  });
}

// Threads share, move and free their own blocks, which share pages with those of other threads.
TEST_P(PageShareTest, ThreadsShareTheHeapAtTheSameTime) {
  const uint64_t seed = run_seed();
  RecordProperty("seed", std::to_string(seed));
  run_alone([seed] {
    auto share = make();
    if (!holds_threads(*share)) return;
    constexpr size_t kThreads = 4;
    std::atomic<uint64_t> wrong{0};
    std::vector<Thread> threads;
    for (size_t me = 0; me < kThreads; ++me) {
      threads.push_back(start_thread("sharer", [&, me] {
        Random random(seed + me);
        struct Block {
          char* memory = nullptr;
          size_t bytes = 0;
          uint64_t salt = 0;
        };
        std::vector<Block> blocks(16);
        for (int step = 0; step < 300; ++step) {
          Block& block = blocks[random.below(blocks.size())];
          if (block.memory == nullptr) {
            block.bytes = 16 + random.below(random.below(8) == 0 ? 300'000 : 3000);
            block.memory = static_cast<char*>(malloc(block.bytes));
            block.salt = random.next();
            fill(block.memory, block.bytes, block.salt);
          }
          if (!holds(block.memory, block.bytes, block.salt)) wrong.fetch_add(1);
          switch (random.below(4)) {
            case 0:
            case 1:
              expect_shared(*share, block.memory, block.bytes);
              break;
            case 2: {
              const size_t bytes = block.bytes + random.below(100'000);
              block.memory = static_cast<char*>(realloc(block.memory, bytes));
              if (!holds(block.memory, block.bytes, block.salt)) wrong.fetch_add(1);
              block.bytes = bytes;
              fill(block.memory, block.bytes, block.salt);
              break;
            }
            default:
              free(block.memory);
              block.memory = nullptr;
              continue;
          }
          if (!holds(block.memory, block.bytes, block.salt)) wrong.fetch_add(1);
        }
      }));
    }
    for (Thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0u) << "VERBENA_SEED=" << seed;
  });
}

TEST_P(PageShareTest, SystemCallsOfOtherThreadsSucceedMeanwhile) {
  run_alone([] {
    auto share = make();
    if (share->writers() != Writers::kHeld) return;
    constexpr size_t kRounds = 300;
    constexpr size_t kBlock = 8;
    char* memory = map_private(kRounds * kBlock * kPage);
    const int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    ASSERT_GE(zero, 0);
    ASSERT_GE(null, 0);
    std::atomic<size_t> round{0};
    std::atomic<uint64_t> calls{0};
    std::atomic<int> failures{0};
    Thread caller = start_thread("caller", [&] {
      for (size_t at; (at = round.load()) < kRounds;) {
        char* block = memory + at * kBlock * kPage;
        if (read(zero, block + 8, kBlock * kPage - 8) != static_cast<ssize_t>(kBlock * kPage - 8) ||
            write(null, block, kBlock * kPage) != static_cast<ssize_t>(kBlock * kPage)) {
          failures.fetch_add(1);
        }
        if (calls.fetch_add(1) % 4 == 0) sched_yield();
      }
    });
    for (size_t at = 0; at < kRounds; ++at) {
      const uint64_t before = calls.load();
      wait_until([&] { return calls.load() != before; });
      expect_shared(*share, memory + at * kBlock * kPage, kBlock * kPage);
      round.store(at + 1);
    }
    caller.join();
    EXPECT_EQ(failures.load(), 0);
  });
}

uint64_t* signal_counter = nullptr;
uint64_t signals_seen = 0;

TEST_P(PageShareTest, SignalHandlersMayUseTheMemory) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    constexpr size_t kRounds = 300;
    char* memory = map_private(kRounds * kPage);
    memset(memory, 0, kRounds * kPage);
    signal_counter = reinterpret_cast<uint64_t*>(memory);
    struct sigaction action {};
    action.sa_handler = [](int) {
      ++*signal_counter;
      ++signals_seen;
    };
    action.sa_flags = SA_RESTART;
    ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
    const itimerval often{{0, 50}, {0, 50}};
    ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
    uint64_t sum = 0;
    for (size_t page = 0; page < kRounds; ++page) {
      expect_shared(*share, memory + page * kPage, kPage);
      sigset_t alarm, before;
      sigemptyset(&alarm);
      sigaddset(&alarm, SIGALRM);
      sigprocmask(SIG_BLOCK, &alarm, &before);
      sum += *signal_counter;
      if (page + 1 < kRounds)
        signal_counter = reinterpret_cast<uint64_t*>(memory + (page + 1) * kPage);
      sigprocmask(SIG_SETMASK, &before, nullptr);
    }
    const itimerval never{};
    ASSERT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
    // Those after the last check went to the last page.
    EXPECT_LE(sum, signals_seen);
    EXPECT_EQ(sum + *signal_counter - sum, *signal_counter);
    uint64_t total = 0;
    for (size_t page = 0; page < kRounds; ++page) {
      total += *reinterpret_cast<uint64_t*>(memory + page * kPage);
    }
    EXPECT_EQ(total, signals_seen);
    EXPECT_GT(total, 0u);
  });
}

TEST(PageShareQuietTest, SharesBesideThreadsThatDoNotWrite) {
  run_alone([] {
    auto share = PageShare::create({.best = PageShare::Writers::kNone, .quiet = true}).value();
    char* memory = map_private(3 * kPage);
    fill(memory, 3 * kPage, 5);
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("other", [&] {
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    expect_shared(*share, memory, 3 * kPage);
    EXPECT_TRUE(holds(memory, 3 * kPage, 5));
    expect_same_both_ways(*share, memory, 3 * kPage);
    stop.store(true);
    thread.join();
  });
}

TEST_P(PageShareTest, WithoutUserfaultfdThreadsKeepMemoryPrivate) {
  run_alone([] {
    auto share = make();
    if (holds_threads(*share)) return;
    std::unique_ptr<char[]> block(new char[100]);
    strcpy(block.get(), "contents");
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("other", [&] {
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    expect_private(*share, block.get(), 100, "sysctl vm.unprivileged_userfaultfd=1");
    EXPECT_STREQ(block.get(), "contents");
    stop.store(true);
    thread.join();
    if (VERBENA_THREAD_SANITIZER) return;
    // Peers may still write through the kernel, until the registration has ended.
    expect_private(*share, block.get(), 100, "an earlier registration");
    share->release(block.get(), 100, Sharing::kPrivate);
    expect_private(*share, block.get(), 100, "an earlier registration");
    share->release(block.get(), 100, Sharing::kPrivate);
    share->release(block.get(), 100, Sharing::kPrivate);
    expect_shared(*share, block.get(), 100);
    EXPECT_STREQ(block.get(), "contents");
  });
}

TEST_P(PageShareTest, ServiceThreadsDoNotCount) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("service", [&] {
      share->exempt_this_thread();
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    char* memory = map_private(kPage);
    strcpy(memory, "contents");
    expect_shared(*share, memory, kPage);
    expect_shared(*share, initialized, sizeof(initialized));
    EXPECT_STREQ(memory, "contents");
    EXPECT_STREQ(initialized, "initialized");
    stop.store(true);
    thread.join();
  });
}

}  // namespace
}  // namespace verbena::soft
