// The ends of registrations: pages become private memory again, also beside threads and beside
// peers that stand still.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "src/base/runtime.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/pages/page_share_for_test.h"

namespace verbena::soft {
namespace {

using Sharing = PageShare::Sharing;
using Writers = PageShare::Writers;

constexpr uint64_t kWholeSpanBytes = 1ull << 47;

bool discards(char* memory, size_t bytes) { return madvise(memory, bytes, MADV_DONTNEED) == 0; }
bool is_zero(const char* memory, size_t bytes) {
  return std::all_of(memory, memory + bytes, [](char byte) { return byte == 0; });
}

TEST_P(PageShareTest, ReleasedPagesArePrivateMemory) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    // More than one move, not at their boundaries, partly untouched.
    const size_t bytes = 9 << 20;
    char* memory = map_private(bytes + 2 * kPage) + kPage;
    fill(memory, bytes / 2, 80);
    ASSERT_EQ(mprotect(memory + bytes - kPage, kPage, PROT_READ), 0);
    size_t mappings = 0;
    for (int round = 0; round < 5; ++round) {
      expect_shared(*share, memory, bytes);
      View view(*share, memory, bytes);
      share->release(memory, bytes, Sharing::kShared);
      EXPECT_FALSE(share->shares_any(memory, bytes));
      EXPECT_EQ(file_bytes(*share), 0u);
      store_release(view.get(), 'v');
      EXPECT_TRUE(holds(memory, bytes / 2, 80));
      EXPECT_TRUE(is_zero(memory + bytes / 2, bytes / 2));
      if (round == 0) mappings = count_mappings(memory, bytes);
    }
    // Those of both protections, however often they are registered.
    EXPECT_EQ(mappings, 2u);
    EXPECT_EQ(count_mappings(memory, bytes), mappings);
    ASSERT_TRUE(discards(memory + kPage, bytes / 2));
    EXPECT_TRUE(is_zero(memory + kPage, bytes / 2));
    EXPECT_TRUE(holds(memory, kPage, 80));
    EXPECT_EQ(mprotect(memory + bytes - kPage, kPage, PROT_READ | PROT_WRITE), 0);
    void* grown = mremap(memory, bytes - kPage, 2 * bytes, MREMAP_MAYMOVE);
    ASSERT_NE(grown, MAP_FAILED) << strerror(errno);
    EXPECT_TRUE(holds(static_cast<char*>(grown), kPage, 80));
  });
}

TEST_P(PageShareTest, OverlappingRegistrationsKeepTheirPages) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(6 * kPage);
    fill(memory, 6 * kPage, 81);
    expect_shared(*share, memory, 3 * kPage);
    // Both end and begin in the third page.
    expect_shared(*share, memory + 2 * kPage + 100, 3 * kPage);
    expect_shared(*share, memory, 3 * kPage);
    share->release(memory, 3 * kPage, Sharing::kShared);
    expect_same_both_ways(*share, memory, 6 * kPage);
    share->release(memory, 3 * kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory, 2 * kPage));
    expect_same_both_ways(*share, memory + 2 * kPage, 4 * kPage);
    share->release(memory + 2 * kPage + 100, 3 * kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory, 6 * kPage));
    EXPECT_EQ(file_bytes(*share), 0u);
    // New memory of the library is what it was.
    Result<void*> made = share->map_new(kPage);
    ASSERT_TRUE(made.ok());
    expect_shared(*share, *made, kPage);
    share->release(*made, kPage, Sharing::kShared);
    expect_same_both_ways(*share, static_cast<char*>(*made), kPage);
  });
}

TEST_P(PageShareTest, WhatPeersReachThroughTheKernelDoesNotMove) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 83);
    expect_shared(*share, memory, kPage);
    char* other = memory + kPage;
    ASSERT_EQ(
        mmap(other, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
        other);
    for (int i = 0; i < 2; ++i) expect_private(*share, memory, 2 * kPage, "");
    share->release(memory, kPage, Sharing::kShared);
    expect_same_both_ways(*share, memory, kPage);
    share->release(memory, 2 * kPage, Sharing::kPrivate);
    expect_same_both_ways(*share, memory, kPage);
    share->release(memory, 2 * kPage, Sharing::kPrivate);
    EXPECT_FALSE(share->shares_any(memory, kPage));
    // All memory at once.
    char* third = memory + 2 * kPage;
    expect_shared(*share, third, kPage);
    share->hold_everything(kWholeSpanBytes);
    share->release(third, kPage, Sharing::kShared);
    expect_same_both_ways(*share, third, kPage);
    expect_private(*share, third + kPage, kPage, "an earlier registration");
    share->release(third + kPage, kPage, Sharing::kPrivate);
    share->release(nullptr, kWholeSpanBytes, Sharing::kPrivate);
    EXPECT_FALSE(share->shares_any(third, kPage));
    expect_shared(*share, third, 2 * kPage);
    share->release(third, 2 * kPage, Sharing::kShared);
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, SharesAgainOnlyWhatIsSharedAndAccessible) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(6 * kPage);
    fill(memory, 6 * kPage, 83);
    EXPECT_FALSE(share->share_again(memory, 1, false)) << "it is private";
    expect_shared(*share, memory + kPage, 3 * kPage);
    EXPECT_FALSE(share->share_again(memory, 2 * kPage, false)) << "the first page is private";
    EXPECT_FALSE(share->share_again(memory + kPage, 4 * kPage, false)) << "the last one is";
    EXPECT_FALSE(share->share_again(memory + kPage, 0, false));
    EXPECT_FALSE(share->share_again(memory + kPage, ~0ull - kPage, false));
    ASSERT_EQ(mprotect(memory + 2 * kPage, kPage, PROT_READ), 0);
    EXPECT_FALSE(share->share_again(memory + kPage, 3 * kPage, true)) << "a page is read-only";
    ASSERT_EQ(mprotect(memory + 3 * kPage, kPage, PROT_NONE), 0);
    EXPECT_FALSE(share->share_again(memory + kPage, 3 * kPage, false)) << "a page is not readable";
    ASSERT_EQ(mprotect(memory + 2 * kPage, 2 * kPage, PROT_READ | PROT_WRITE), 0);
    // None of these registered anything; these do, besides share().
    EXPECT_TRUE(share->share_again(memory + kPage + 100, kPage, false));
    EXPECT_TRUE(share->share_again(memory + kPage, kPage, true));
    share->release(memory + kPage, 3 * kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory + 3 * kPage, kPage));
    share->release(memory + kPage, kPage, Sharing::kShared);
    expect_same_both_ways(*share, memory + kPage, 2 * kPage);
    share->release(memory + kPage + 100, kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory, 6 * kPage));
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, ReleasesMemoryThatMovedOrIsGone) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 4 * kPage;
    char* memory = map_private(bytes);
    char* elsewhere = map_private(bytes, PROT_NONE);
    fill(memory, bytes, 82);
    expect_shared(*share, memory, bytes);
    ASSERT_EQ(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere), elsewhere);
    share->release(memory, bytes, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(elsewhere, bytes));
    EXPECT_TRUE(holds(elsewhere, bytes, 82));
    expect_shared(*share, elsewhere, bytes);
    ASSERT_EQ(munmap(elsewhere, bytes), 0);
    share->release(elsewhere, bytes, Sharing::kShared);
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

// As LosesNothingThatOtherThreadsWrite, there and back.
TEST_P(PageShareTest, ReleasingLosesNothingThatOtherThreadsWrite) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    constexpr size_t kPages = 64;
    constexpr size_t kRounds = 200;
    char* memory = map_private(kPages * kPage);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> failures{0};
    std::atomic<uint64_t> passes[2] = {};
    auto word = [&](size_t page, size_t index) {
      return reinterpret_cast<uint64_t*>(memory + page * kPage) + index;
    };
    auto write = [&](size_t me) {
      for (uint64_t value = 0; !stop.load(); passes[me].store(++value)) {
        for (size_t page = 0; page < kPages; ++page) {
          if (load_relaxed(word(page, me)) != value) failures.fetch_add(1);
          store_relaxed(word(page, me), value + 1);
          __atomic_fetch_add(word(page, 2), 1, __ATOMIC_RELAXED);
        }
      }
    };
    Thread a = start_thread("writer", [&] { write(0); });
    Thread b = start_thread("writer", [&] { write(1); });
    for (size_t round = 0; round < kRounds; ++round) {
      const uint64_t before = passes[round % 2].load();
      wait_until([&] { return passes[round % 2].load() > before; });
      expect_shared(*share, memory, kPages * kPage);
      share->release(memory, kPages * kPage, Sharing::kShared);
    }
    stop.store(true);
    a.join();
    b.join();
    EXPECT_EQ(failures.load(), 0u);
    EXPECT_FALSE(share->shares_any(memory, kPages * kPage));
    for (size_t page = 0; page < kPages; ++page) {
      ASSERT_EQ(*word(page, 2), passes[0].load() + passes[1].load());
    }
  });
}

TEST_P(PageShareTest, PeersThatStandStillAreCutOff) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 4 * kPage;
    char* memory = map_private(bytes);
    fill(memory, bytes, 83);
    bool gone_on = false;
    const PageShare::StandingPeers standing{[&] { return gone_on; }, "process 7"};
    expect_shared(*share, memory, bytes);
    expect_shared(*share, memory + kPage, kPage);
    Status refused = share->cut_off(memory, bytes, Sharing::kShared, standing);
    EXPECT_NE(refused.message().find("another registration"), std::string::npos);
    expect_same_both_ways(*share, memory, bytes);
    share->release(memory + kPage, kPage, Sharing::kShared);
    fill(memory, bytes, 83);
    View view(*share, memory, bytes);
    Status cut = share->cut_off(memory, bytes, Sharing::kShared, standing);
    ASSERT_TRUE(cut.ok()) << cut.message();
    // It finds what it was reading, and what it writes is lost.
    EXPECT_TRUE(holds(view.get(), bytes, 83));
    fill(view.get(), bytes, 84);
    EXPECT_TRUE(holds(memory, bytes, 83));
    expect_private(*share, memory + kPage, 10, "process 7 is stopped");
    refused = share->cut_off(memory + kPage, 10, Sharing::kPrivate, standing);
    EXPECT_NE(refused.message().find("through the kernel"), std::string::npos);
    share->release(memory + kPage, 10, Sharing::kPrivate);
    gone_on = true;
    expect_shared(*share, memory, bytes);
    EXPECT_TRUE(holds(memory, bytes, 83));
    expect_same_both_ways(*share, memory, bytes);
    // What nobody registers again is given back without that.
    gone_on = false;
    cut = share->cut_off(memory, bytes, Sharing::kShared, standing);
    ASSERT_TRUE(cut.ok()) << cut.message();
    gone_on = true;
    EXPECT_GT(file_bytes(*share), 0u);
    share->check_standing_peers();
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

// Nothing is silently wrong where pages cannot move back: the kernel refuses to discard them.
TEST_P(PageShareTest, PagesThatCannotMoveBackAreLocked) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 85);
    expect_shared(*share, memory, 4 * kPage);
    std::atomic<bool> stop{false};
    std::atomic<bool> runs{false};
    Thread thread = start_thread("other", [&] {
      runs.store(true);
      wait_until([&] { return stop.load(); });
    });
    wait_until([&] { return runs.load(); });
    share->release(memory, 4 * kPage, Sharing::kShared);
    const bool moved = holds_threads(*share);
    EXPECT_EQ(share->shares_any(memory, 4 * kPage), !moved);
    EXPECT_EQ(discards(memory, kPage), moved);
    EXPECT_EQ(is_zero(memory, kPage), moved);
    EXPECT_FALSE(is_zero(memory + kPage, kPage));
    stop.store(true);
    thread.join();
    // With the thread gone, there and back.
    expect_shared(*share, memory, 4 * kPage);
    share->release(memory, 4 * kPage, Sharing::kShared);
    EXPECT_FALSE(share->shares_any(memory, 4 * kPage));
    EXPECT_TRUE(discards(memory, 4 * kPage));
    EXPECT_TRUE(is_zero(memory, 4 * kPage));
  });
}

TEST_P(PageShareTest, AStackOfAnotherThreadIsReleasedOrLocked) {
  run_alone([] {
    auto share = make();
    if (!holds_threads(*share)) return;
    std::atomic<char*> stack{nullptr};
    std::atomic<bool> stop{false};
    bool elsewhere = false;
    Thread thread = start_thread("worker", [&] {
      char buffer[16 * 4096];
      fill(buffer, sizeof(buffer), 87);
      // AddressSanitizer keeps such variables elsewhere.
      elsewhere = labs(buffer - static_cast<char*>(__builtin_frame_address(0))) > 131072;
      char* pages = buffer + (kPage - reinterpret_cast<uintptr_t>(buffer) % kPage);
      expect_shared(*share, pages, 2 * kPage);
      stack.store(pages);
      wait_until([&] { return stop.load(); });
      EXPECT_TRUE(holds(buffer, sizeof(buffer), 87));
    });
    wait_until([&] { return stack.load() != nullptr; });
    char* pages = stack.load();
    share->release(pages, 2 * kPage, Sharing::kShared);
    const bool moved = share->writers() == Writers::kHeld || elsewhere;
    EXPECT_EQ(share->shares_any(pages, 2 * kPage), !moved);
    if (!moved) {
      EXPECT_FALSE(discards(pages, kPage));
    }
    stop.store(true);
    thread.join();
  });
}

// The right to lock memory, and the limit without it.
void forbid_locked_memory() {
  const rlimit none{0, 0};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, rights), 0);
  rights[0].effective &= ~(1u << CAP_IPC_LOCK);
  ASSERT_EQ(syscall(SYS_capset, &header, rights), 0);
}

// Of a program that does not know that it is registered: an allocator takes zeroes for granted.
TEST_P(PageShareTest, DiscardsAreRefusedWhereThatIsAskedFor) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    constexpr auto kRefused = PageShare::Discards::kDoneOrRefused;
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 89);
    const auto expect_refused = [&](const char* when) {
      EXPECT_FALSE(discards(memory, 4 * kPage)) << when;
      EXPECT_EQ(errno, EINVAL) << when;
      expect_same_both_ways(*share, memory, 4 * kPage);
    };
    const auto release = [&] { share->release(memory, 4 * kPage, Sharing::kShared); };
    const auto share_so = [&] {
      Result<PageShare::Outcome> outcome = share->share(memory, 4 * kPage, kRefused);
      ASSERT_TRUE(outcome.ok());
      EXPECT_EQ(outcome->sharing, Sharing::kShared) << outcome->reason;
    };
    share_so();
    expect_refused("at once");
    release();
    EXPECT_TRUE(discards(memory, 4 * kPage));
    EXPECT_TRUE(is_zero(memory, 4 * kPage));
    // Beside one that did not ask for it.
    for (const bool again : {false, true}) {
      expect_shared(*share, memory, 4 * kPage);
      if (again) {
        EXPECT_TRUE(share->share_again(memory, 4 * kPage, true, kRefused));
      } else {
        share_so();
      }
      expect_refused(again ? "again" : "later");
      release();
      expect_refused("of two, the other one has ended");
      release();
      EXPECT_TRUE(discards(memory, 4 * kPage));
    }
    // Somebody tells of them: no lock is needed.
    PageShare::set_discards_seen();
    forbid_locked_memory();
    share_so();
  });
}

TEST_P(PageShareTest, WithoutLocksWhatMayBeDiscardedStaysPrivate) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    constexpr auto kRefused = PageShare::Discards::kDoneOrRefused;
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 90);
    forbid_locked_memory();
    Result<PageShare::Outcome> outcome = share->share(memory, 4 * kPage, kRefused);
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->sharing, Sharing::kPrivate);
    EXPECT_NE(outcome->reason.find("ulimit -l"), std::string::npos) << outcome->reason;
    EXPECT_TRUE(holds(memory, 4 * kPage, 90));
    EXPECT_TRUE(discards(memory, 4 * kPage));
    EXPECT_TRUE(is_zero(memory, 4 * kPage));
    share->release(memory, 4 * kPage, Sharing::kPrivate);
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, WithoutLocksWhatCouldNotMoveBackStaysPrivate) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 88);
    forbid_locked_memory();
    if (!holds_threads(*share)) {
      expect_private(*share, memory, 4 * kPage, "ulimit -l");
      EXPECT_FALSE(share->shares_any(memory, 4 * kPage));
      EXPECT_EQ(file_bytes(*share), 0u);
      share->release(memory, 4 * kPage, Sharing::kPrivate);
      PageShare::set_discards_seen();
    }
    EXPECT_TRUE(holds(memory, 4 * kPage, 88));
    expect_shared(*share, memory, 4 * kPage);
    share->release(memory, 4 * kPage, Sharing::kShared);
    EXPECT_TRUE(discards(memory, 4 * kPage));
    EXPECT_TRUE(is_zero(memory, 4 * kPage));
  });
}

}  // namespace
}  // namespace verbena::soft
