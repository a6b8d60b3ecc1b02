// What the cache finds, keeps and gives up. Whether that is current: registration_changes_test.cc.
#include "src/memory/registration_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/soft_library.h"
#include "src/device/verbs_for_test.h"
#include "src/memory/changed_memory_for_test.h"

namespace verbena {
namespace {

using test::as_address;
using test::kPageBytes;
using test::map_pages;
using test::must;
using testing::HasSubstr;

class RegistrationCacheTest : public testing::Test {
 protected:
  static constexpr uint64_t kPages = 64;

  void SetUp() override {
    if (auto device = Device::open("soft0"); !device.ok()) {
      GTEST_SKIP() << "no soft0 here: " << device.status().message();
    }
    node_ = std::make_unique<test::Node>();
    memory_ = map_pages(kPages);
    make({});
  }
  void TearDown() override {
    cache_.reset();
    if (memory_ != nullptr) munmap(memory_, kPages * kPageBytes);
  }

  void make(const RegistrationCacheOptions& options) {
    lookup_.reset();
    cache_.reset();
    cache_ = must(RegistrationCache::create(node_->domain, options));
    lookup_ = std::make_unique<RegistrationLookup>(*cache_);
  }
  Registration get(uint64_t page, uint64_t pages, unsigned access = 0) {
    return must(lookup_->get(memory_ + page * kPageBytes, pages * kPageBytes, access));
  }

  std::unique_ptr<test::Node> node_;
  char* memory_ = nullptr;
  std::unique_ptr<RegistrationCache> cache_;
  std::unique_ptr<RegistrationLookup> lookup_;
};

TEST_F(RegistrationCacheTest, TheSameMemoryIsRegisteredOnce) {
  const Registration first = get(0, 2);
  const Registration second = get(0, 2);
  EXPECT_EQ(first.lkey(), second.lkey());
  EXPECT_EQ(cache_->statistics().registrations, 1u);
  EXPECT_EQ(lookup_->hits(), 1u);
  // Within it, from any byte on.
  EXPECT_EQ(must(lookup_->get(memory_ + 5000, 100, 0)).lkey(), first.lkey());
  EXPECT_EQ(must(lookup_->get(memory_ + 8191, 1, 0)).lkey(), first.lkey());
  EXPECT_EQ(cache_->statistics().registrations, 1u);
  // Beyond it.
  EXPECT_NE(must(lookup_->get(memory_ + 8191, 2, 0)).lkey(), first.lkey());
}

TEST_F(RegistrationCacheTest, WholePagesAreRegisteredAndNoOthers) {
  const Registration bytes = must(lookup_->get(memory_ + kPageBytes + 100, kPageBytes, 0));
  EXPECT_EQ(bytes.pages().begin, as_address(memory_) + kPageBytes);
  EXPECT_EQ(bytes.pages().end, as_address(memory_) + 3 * kPageBytes);
}

TEST_F(RegistrationCacheTest, AccessIsWhatWasAskedForAndNothingMore) {
  const Registration source = get(0, 1, 0);
  const Registration target = get(0, 1, IBV_ACCESS_LOCAL_WRITE);
  EXPECT_NE(source.lkey(), target.lkey());
  EXPECT_EQ(get(0, 1, 0).lkey(), source.lkey());
  EXPECT_EQ(get(0, 1, IBV_ACCESS_LOCAL_WRITE).lkey(), target.lkey());
}

TEST_F(RegistrationCacheTest, TheAccessesOfOneBufferAreRememberedBesideEachOther) {
  constexpr unsigned kAccesses[] = {0, IBV_ACCESS_REMOTE_READ,
                                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
  for (const unsigned access : kAccesses) get(0, 1, access);
  const uint64_t before = lookup_->hits();
  for (int round = 0; round < 3; ++round) {
    for (const unsigned access : kAccesses) get(0, 1, access);
  }
  EXPECT_EQ(lookup_->hits() - before, 9u);
}

TEST_F(RegistrationCacheTest, ALongerRangeReplacesThoseWithinIt) {
  const uint64_t inside = get(1, 1).serial();
  const Registration used = get(2, 1);
  const uint64_t beside = get(3, 2).serial();
  const Registration all = get(0, 4);
  auto now = cache_->statistics();
  EXPECT_EQ(now.regions, 2u) << "all, and the one that goes beyond it";
  EXPECT_EQ(now.outdated_in_use, 1u);
  EXPECT_EQ(now.kept_bytes, 6 * kPageBytes);
  EXPECT_EQ(get(1, 1).serial(), all.serial());
  EXPECT_NE(get(1, 1).serial(), inside);
  EXPECT_EQ(get(3, 2).serial(), beside);
  // Its keys are those of a region as long as somebody uses them.
  EXPECT_NE(used.lkey(), all.lkey());
}

TEST_F(RegistrationCacheTest, FindRegistersNothing) {
  EXPECT_FALSE(lookup_->find(memory_, 100, 0));
  EXPECT_EQ(cache_->statistics().registrations, 0u);
  const uint64_t serial = get(0, 1).serial();
  RegistrationLookup other(*cache_);
  const Registration found = other.find(memory_ + 50, 100, 0);
  ASSERT_TRUE(found);
  EXPECT_EQ(found.serial(), serial);
  EXPECT_FALSE(other.find(memory_ + 50, kPageBytes, 0));
}

TEST_F(RegistrationCacheTest, TheOneUsedLongestAgoGoes) {
  make({.max_regions = 3});
  const uint64_t first = get(0, 1).serial();
  const uint64_t second = get(1, 1).serial();
  const uint64_t third = get(2, 1).serial();
  EXPECT_EQ(get(0, 1).serial(), first);
  get(3, 1);
  EXPECT_EQ(get(0, 1).serial(), first);
  EXPECT_EQ(get(2, 1).serial(), third);
  EXPECT_NE(get(1, 1).serial(), second);
  EXPECT_EQ(cache_->statistics().evictions, 2u);
}

TEST_F(RegistrationCacheTest, WhatIsInUseStays) {
  make({.max_bytes = 2 * kPageBytes});
  const Registration first = get(0, 1);
  const Registration second = get(1, 1);
  // No room: for this use alone.
  {
    const Registration third = get(2, 1);
    EXPECT_EQ(cache_->statistics().not_kept, 1u);
    EXPECT_EQ(cache_->statistics().outdated_in_use, 1u);
    EXPECT_NE(get(2, 1).serial(), third.serial());
  }
  EXPECT_EQ(cache_->statistics().outdated_in_use, 0u);
  EXPECT_EQ(cache_->statistics().kept_bytes, 2 * kPageBytes);
  EXPECT_EQ(get(0, 1).serial(), first.serial());
  // Larger than all there is room for: others are not given up for it.
  get(4, 3);
  EXPECT_EQ(cache_->statistics().regions, 2u);
}

TEST_F(RegistrationCacheTest, ClearKeepsWhatIsInUse) {
  const Registration used = get(0, 1);
  get(1, 1);
  cache_->clear();
  EXPECT_EQ(cache_->statistics().regions, 1u);
  EXPECT_EQ(get(0, 1).serial(), used.serial());
}

TEST_F(RegistrationCacheTest, WhatIsForgottenIsRegisteredAnew) {
  const Registration used = get(0, 4);
  const uint64_t other = get(8, 1).serial();
  cache_->forget(memory_ + 3 * kPageBytes, 1);
  EXPECT_NE(get(0, 1).serial(), used.serial());
  EXPECT_EQ(get(8, 1).serial(), other);
  EXPECT_EQ(cache_->statistics().outdated_in_use, 1u);
  cache_->forget(nullptr, UINT64_MAX);
  EXPECT_EQ(cache_->statistics().regions, 0u);
}

TEST_F(RegistrationCacheTest, MemoryThatIsNotThereIsRefusedInOneLine) {
  char* const hole = map_pages(1, nullptr, PROT_NONE);
  munmap(hole, kPageBytes);
  const auto missing = lookup_->get(hole, 1, 0);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kInvalidArgument);
  for (const auto& [address, bytes] :
       {std::pair<uint64_t, uint64_t>{4096, 0}, {UINT64_MAX - 10, 100}, {4096, UINT64_MAX}}) {
    const auto refused = lookup_->get(reinterpret_cast<void*>(address), bytes, 0);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(),
                HasSubstr("cannot register " + std::to_string(bytes) + " bytes at 0x"));
    EXPECT_THAT(refused.status().message(), HasSubstr("the length must be positive"));
  }
  EXPECT_EQ(cache_->statistics().regions, 0u);
}

TEST_F(RegistrationCacheTest, AChildOfForkIsRefused) {
  const Registration used = get(0, 1);
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = lookup_->get(memory_, 1, 0);
    const bool said = !refused.ok() &&
                      refused.status().message().find("forked") != std::string::npos &&
                      cache_->explain().find("forked") != std::string::npos;
    cache_->forget(memory_, 1);
    cache_->clear();
    _exit(said && !lookup_->find(memory_, 1, 0) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(get(0, 1).serial(), used.serial());
}

// What is used little stays where it is: moving its pages is for what is used much.
class InPlaceCacheTest : public RegistrationCacheTest {
 protected:
  static constexpr unsigned kReadable = IBV_ACCESS_REMOTE_READ;
  // Of a page: ten uses are worth its move.
  static constexpr InPlaceCosts kCosts = {
      .use_ns = 10, .use_byte_ns = 0, .share_ns = 60, .share_page_ns = 40};
  static constexpr uint64_t kUsesOfAPage = 10;

  void SetUp() override {
    RegistrationCacheTest::SetUp();
    if (IsSkipped()) return;
    make({.in_place = kCosts});
    soft_ = must(load_soft_rnic());
  }
  bool shared(uint64_t page, uint64_t pages) const {
    return soft_->shares_any(memory_ + page * kPageBytes, pages * kPageBytes);
  }

  const soft::SoftRnic* soft_ = nullptr;
};

TEST_F(InPlaceCacheTest, WhatPeersReadIsSharedOnceItsUsesCostAsMuch) {
  uint64_t serial = 0;
  for (uint64_t use = 0; use < kUsesOfAPage; ++use) {
    const Registration used = get(0, 1, kReadable);
    if (use == 0) serial = used.serial();
    EXPECT_EQ(used.serial(), serial);
    EXPECT_FALSE(shared(0, 1)) << "use " << use;
  }
  EXPECT_EQ(cache_->statistics().in_place, 1u);
  EXPECT_EQ(cache_->statistics().shared_later, 0u);
  const Registration later = get(0, 1, kReadable);
  EXPECT_NE(later.serial(), serial);
  EXPECT_TRUE(shared(0, 1));
  EXPECT_EQ(get(0, 1, kReadable).serial(), later.serial());
  const auto now = cache_->statistics();
  EXPECT_EQ(now.shared_later, 1u);
  EXPECT_EQ(now.registrations, 2u);
  EXPECT_EQ(now.regions, 1u);
  EXPECT_EQ(now.kept_bytes, kPageBytes);
}

TEST_F(InPlaceCacheTest, AFindSharesToo) {
  get(0, 1, kReadable);
  for (uint64_t use = 1; use <= kUsesOfAPage; ++use) {
    EXPECT_TRUE(lookup_->find(memory_, kPageBytes, kReadable));
  }
  EXPECT_TRUE(shared(0, 1));
}

TEST_F(InPlaceCacheTest, UsesCountByTheirBytes) {
  make({.in_place = InPlaceCosts{.use_byte_ns = 1, .share_ns = kPageBytes}});
  for (int use = 0; use < 8; ++use) {
    must(lookup_->get(memory_ + 100, kPageBytes / 8, kReadable));
    EXPECT_FALSE(shared(0, 1));
  }
  must(lookup_->get(memory_, 1, kReadable));
  EXPECT_TRUE(shared(0, 1));
}

TEST_F(InPlaceCacheTest, WhatIsInUseKeepsItsKeysAfterTheChange) {
  const Registration used = get(0, 1, kReadable);
  for (uint64_t use = 1; use < kUsesOfAPage; ++use) get(0, 1, kReadable);
  const Registration later = get(0, 1, kReadable);
  EXPECT_TRUE(shared(0, 1));
  EXPECT_NE(used.rkey(), later.rkey());
  EXPECT_EQ(cache_->statistics().outdated_in_use, 1u);
  test::End near(*node_);
  test::End far(*node_);
  test::connect(near, far);
  test::Buffer target(*node_, kPageBytes, IBV_ACCESS_LOCAL_WRITE);
  for (const Registration* each : {&used, &later}) {
    memory_[5] = static_cast<char>(memory_[5] + 1);
    ASSERT_EQ(test::post(near.qp(), {.opcode = IBV_WR_RDMA_READ,
                                     .sges = {target.sge(0, kPageBytes)},
                                     .remote_address = as_address(memory_),
                                     .rkey = each->rkey()}),
              0);
    ibv_wc done{};
    for (Waiter waiter; ibv_poll_cq(near.cq(), 1, &done) == 0;) waiter.idle();
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
    EXPECT_EQ(target.at<char>(5), memory_[5]);
  }
}

TEST_F(InPlaceCacheTest, WhoWritesGetsSharedPagesAtOnce) {
  get(0, 1, unsigned{IBV_ACCESS_LOCAL_WRITE} | unsigned{IBV_ACCESS_REMOTE_WRITE});
  EXPECT_TRUE(shared(0, 1));
  EXPECT_EQ(cache_->statistics().in_place, 0u);
  // What is shared already costs nothing to share.
  get(0, 1, kReadable);
  EXPECT_EQ(cache_->statistics().in_place, 0u);
}

TEST_F(InPlaceCacheTest, WhatOwnRequestsFillStaysForGood) {
  for (uint64_t use = 0; use < 3 * kUsesOfAPage; ++use) {
    get(0, 1, unsigned{IBV_ACCESS_LOCAL_WRITE} | kOwnRequests);
  }
  EXPECT_FALSE(shared(0, 1));
  EXPECT_EQ(cache_->statistics().registrations, 1u);
  EXPECT_EQ(cache_->statistics().in_place, 1u);
}

TEST_F(InPlaceCacheTest, MemoryThatIsGoneIsNotFound) {
  for (const unsigned access : {kReadable, unsigned{IBV_ACCESS_LOCAL_WRITE} | kOwnRequests}) {
    char* const pages = map_pages(2);
    must(lookup_->get(pages, 2 * kPageBytes, access));
    munmap(pages + kPageBytes, kPageBytes);
    EXPECT_FALSE(lookup_->find(pages, 2 * kPageBytes, access)) << access;
    EXPECT_EQ(lookup_->get(pages, 2 * kPageBytes, access).status().code(),
              StatusCode::kInvalidArgument);
    munmap(pages, kPageBytes);
  }
}

// As memory that is allocated for each message: to share it was in vain, and is so again.
TEST_F(InPlaceCacheTest, MemoryThatIsReplacedAfterItWasSharedHasToBeUsedTwiceAsMuch) {
  char* const page = map_pages(1);
  for (uint64_t uses = kUsesOfAPage; uses <= 4 * kUsesOfAPage; uses *= 2) {
    for (uint64_t use = 0; use < uses; ++use) {
      must(lookup_->get(page, kPageBytes, kReadable));
      EXPECT_FALSE(soft_->shares_any(page, kPageBytes)) << "use " << use << " of " << uses;
      map_pages(1, page);
    }
    must(lookup_->get(page, kPageBytes, kReadable));
    EXPECT_TRUE(soft_->shares_any(page, kPageBytes)) << uses;
    munmap(page, kPageBytes);
    map_pages(1, page);
  }
  munmap(page, kPageBytes);
}

// Half of it was unmapped since, so it cannot be shared as a whole.
TEST_F(InPlaceCacheTest, APartThatIsLeftIsRegisteredAnew) {
  char* const pages = map_pages(2);
  for (uint64_t use = 0; use < 14; ++use) must(lookup_->get(pages, 2 * kPageBytes, kReadable));
  munmap(pages + kPageBytes, kPageBytes);
  for (uint64_t use = 0; use <= kUsesOfAPage; ++use) must(lookup_->get(pages, 1, kReadable));
  EXPECT_TRUE(soft_->shares_any(pages, kPageBytes));
  munmap(pages, kPageBytes);
}

// Larger than what is kept with its predecessor.
TEST_F(InPlaceCacheTest, TheSuccessorTakesTheRoom) {
  make({.max_bytes = kPageBytes, .in_place = kCosts});
  const Registration used = get(0, 1, kReadable);
  for (uint64_t use = 1; use <= kUsesOfAPage; ++use) get(0, 1, kReadable);
  const auto now = cache_->statistics();
  EXPECT_EQ(now.not_kept, 0u);
  EXPECT_EQ(now.regions, 1u);
  EXPECT_TRUE(shared(0, 1));
}

TEST_F(RegistrationCacheTest, SaysHowItKnows) {
  EXPECT_THAT(cache_->explain(), HasSubstr("the device tells"));
  make({.use_events = false, .assume_pinned = true});
  const uint64_t serial = get(0, 1).serial();
  EXPECT_NE(get(0, 1).serial(), serial);
  EXPECT_THAT(cache_->explain(), HasSubstr("keeps no registrations: userfaultfd is switched off"));
}

// Against lists that are searched from end to end.
TEST_F(RegistrationCacheTest, RandomUseIsThatOfANaiveCache) {
  struct Kept {
    uint64_t serial;
    uint64_t begin;
    uint64_t end;
    uint64_t used;
    int references;
  };
  struct Held {
    Registration registration;
    uint64_t serial;
  };
  constexpr uint64_t kMostBytes = 40 * kPageBytes;
  constexpr uint32_t kMostRegions = 8;
  make({.max_bytes = kMostBytes, .max_regions = kMostRegions});
  Random random(run_seed());
  std::list<Kept> kept;
  std::vector<Held> held;
  uint64_t clock = 1;
  const auto kept_bytes = [&] {
    uint64_t bytes = 0;
    for (const Kept& one : kept) bytes += one.end - one.begin;
    return bytes;
  };
  for (int step = 0; step < 30'000; ++step) {
    if (held.size() >= 6 || (!held.empty() && random.below(3) == 0)) {
      const size_t at = random.below(held.size());
      for (Kept& one : kept) one.references -= one.serial == held[at].serial ? 1 : 0;
      std::swap(held[at], held.back());
      held.pop_back();
      continue;
    }
    const uint64_t first = random.below(kPages);
    const uint64_t pages = 1 + random.below(std::min<uint64_t>(12, kPages - first));
    const uint64_t begin = as_address(memory_) + first * kPageBytes;
    const uint64_t end = begin + pages * kPageBytes;
    Registration got = get(first, pages);
    ASSERT_LE(got.pages().begin, begin);
    ASSERT_GE(got.pages().end, end);
    const auto covers = std::find_if(kept.begin(), kept.end(),
                                     [&](const Kept& one) { return one.serial == got.serial(); });
    const bool any = std::any_of(kept.begin(), kept.end(), [&](const Kept& one) {
      return one.begin <= begin && one.end >= end;
    });
    ASSERT_EQ(covers != kept.end(), any) << "step " << step;
    if (covers != kept.end()) {
      covers->used = clock;
      covers->references += 1;
    } else {
      ++clock;
      bool room = true;
      while (room && (kept_bytes() + (end - begin) > kMostBytes || kept.size() >= kMostRegions)) {
        auto oldest = kept.end();
        for (auto at = kept.begin(); at != kept.end(); ++at) {
          if (at->references > 0) continue;
          if (oldest == kept.end() ||
              std::pair(at->used, at->serial) < std::pair(oldest->used, oldest->serial)) {
            oldest = at;
          }
        }
        room = oldest != kept.end();
        if (room) kept.erase(oldest);
      }
      if (room) {
        kept.remove_if([&](const Kept& one) { return one.begin >= begin && one.end <= end; });
        kept.push_back({got.serial(), begin, end, clock, 1});
      }
    }
    ASSERT_EQ(cache_->statistics().regions, kept.size()) << "step " << step;
    ASSERT_EQ(cache_->statistics().kept_bytes, kept_bytes()) << "step " << step;
    const uint64_t serial = got.serial();
    held.push_back({std::move(got), serial});
  }
}

TEST_F(RegistrationCacheTest, ThreadsShareRegions) {
  make({.max_regions = 12});
  constexpr int kThreads = 4;
  std::vector<Thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("test", [&, t] {
      RegistrationLookup lookup(*cache_);
      Random random(run_seed() + static_cast<uint64_t>(t));
      std::vector<Registration> held;
      for (int i = 0; i < 20'000; ++i) {
        const uint64_t first = random.below(20);
        const uint64_t bytes = (1 + random.below(4)) * kPageBytes;
        auto got = lookup.get(memory_ + first * kPageBytes, bytes, 0);
        const uint64_t begin = as_address(memory_) + first * kPageBytes;
        if (!got.ok() || got->pages().begin > begin || got->pages().end < begin + bytes) {
          wrong.fetch_add(1);
          continue;
        }
        held.push_back(std::move(*got));
        if (held.size() > 5) held.erase(held.begin() + static_cast<int64_t>(random.below(5)));
        if (random.below(1000) == 0) cache_->forget(memory_, kPageBytes * random.below(20));
      }
    }));
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(cache_->statistics().outdated_in_use, 0u);
  cache_->clear();
  EXPECT_EQ(cache_->statistics().regions, 0u);
}

TEST(SimulatedRegistrationCacheTest, AHitCostsLessThanARegistrationInVirtualTime) {
  sim::Cluster cluster(1);
  uint64_t miss_ns = 0;
  uint64_t hit_ns = 0;
  const std::vector<char> memory(4 * kPageBytes);
  Thread thread = cluster.start(0, [&] {
    const auto cache = must(RegistrationCache::create(cluster[0].domain));
    RegistrationLookup lookup(*cache);
    const uint64_t begun_ns = now_ns();
    must(lookup.get(memory.data(), memory.size(), 0));
    const uint64_t missed_ns = now_ns();
    constexpr int kHits = 100;
    for (int i = 0; i < kHits; ++i) must(lookup.get(memory.data(), memory.size(), 0));
    EXPECT_EQ(lookup.hits(), uint64_t{kHits});
    miss_ns = missed_ns - begun_ns;
    hit_ns = (now_ns() - missed_ns) / kHits;
  });
  thread.join();
  EXPECT_GT(hit_ns, 0u) << "it is charged";
  EXPECT_GT(miss_ns, 100 * hit_ns);
}

}  // namespace
}  // namespace verbena
