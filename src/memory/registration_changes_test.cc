// The cache and memory that the program changes: a registration that it answers with is of the
// pages that the program has there.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "src/memory/changed_memory_for_test.h"
#include "src/memory/registration_cache.h"

namespace verbena {
namespace {

using test::as_address;
using test::kPageBytes;
using test::map_pages;
using test::map_pages_anywhere;
using test::must;

constexpr unsigned kTargetAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// How the cache knows what is current.
enum class Knowing {
  kAddresses,  // soft0 reads sources where the program has them
  kAsked,      // soft0 is asked about the pages that it shares
  kInPlace,    // the same of memory that peers read where it lies
  kEvents,     // as with a device that pins pages
  kPinned,     // a device that does: VERBENA_TEST_DEVICE
};
std::ostream& operator<<(std::ostream& out, Knowing way) {
  constexpr const char* kNames[] = {"addresses", "asked", "in_place", "events", "pinned"};
  return out << kNames[static_cast<int>(way)];
}

const char* pinning_device() {
  const char* name = std::getenv("VERBENA_TEST_DEVICE");
  return name != nullptr && std::strcmp(name, "soft0") != 0 ? name : nullptr;
}
std::vector<Knowing> knowing_all() {
  if (pinning_device() != nullptr) return {Knowing::kPinned};
  return {Knowing::kAddresses, Knowing::kAsked, Knowing::kInPlace, Knowing::kEvents};
}
bool follows_events(Knowing knowing) {
  return knowing == Knowing::kEvents || knowing == Knowing::kPinned;
}
// Of memory that the device uses where the program has it, a registration stays.
bool stays(Knowing knowing) {
  return knowing == Knowing::kAddresses || knowing == Knowing::kInPlace;
}
bool is_target(Knowing knowing) {
  return knowing == Knowing::kAsked || knowing == Knowing::kPinned;
}

// Two connected queue pairs of this process, which move words by a registration.
class WordMover {
 public:
  explicit WordMover(const test::Node& node)
      : near_(node), far_(node), word_(node, kPageBytes, kTargetAccess) {
    test::connect(near_, far_);
  }

  // Whether each page of the program's memory is what a peer writes to, by the key.
  bool writes_to(char* memory, uint64_t pages, uint32_t rkey) {
    for (uint64_t page = 0; page < pages; ++page) {
      char* const target = memory + page * kPageBytes;
      word_.at<uint64_t>(0) = ++last_;
      if (!write(word_.sge(0, sizeof(uint64_t)), as_address(target), rkey)) return false;
      if (std::memcmp(target, &last_, sizeof(last_)) != 0) return false;
    }
    return true;
  }
  // Whether it is what a peer reads.
  bool reads_from(char* memory, uint64_t pages, uint32_t rkey) {
    for (uint64_t page = 0; page < pages; ++page) {
      char* const source = memory + page * kPageBytes;
      std::memcpy(source, &++last_, sizeof(last_));
      if (!move(IBV_WR_RDMA_READ, word_.sge(0, sizeof(last_)), as_address(source), rkey)) {
        return false;
      }
      if (word_.at<uint64_t>(0) != last_) return false;
    }
    return true;
  }
  // Whether it is what is sent.
  bool sends_from(char* memory, uint64_t pages, uint32_t lkey) {
    for (uint64_t page = 0; page < pages; ++page) {
      char* const source = memory + page * kPageBytes;
      std::memcpy(source, &++last_, sizeof(last_));
      if (!write({as_address(source), sizeof(last_), lkey}, word_.address(), word_.key())) {
        return false;
      }
      if (word_.at<uint64_t>(0) != last_) return false;
    }
    return true;
  }

 private:
  bool write(const ibv_sge& from, uint64_t to, uint32_t rkey) {
    return move(IBV_WR_RDMA_WRITE, from, to, rkey);
  }
  bool move(ibv_wr_opcode opcode, const ibv_sge& near, uint64_t far, uint32_t rkey) {
    if (test::post(near_.qp(),
                   {.opcode = opcode, .sges = {near}, .remote_address = far, .rkey = rkey}) != 0) {
      return false;
    }
    ibv_wc done{};
    for (Waiter waiter; ibv_poll_cq(near_.cq(), 1, &done) == 0;) waiter.idle();
    return done.status == IBV_WC_SUCCESS;
  }

  test::End near_;
  test::End far_;
  test::Buffer word_;
  uint64_t last_ = 0;
};

class RegistrationChangesTest : public testing::TestWithParam<Knowing> {
 protected:
  void SetUp() override {
    auto device = Device::open(GetParam() == Knowing::kPinned ? pinning_device() : "soft0");
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    if (follows_events(GetParam()) && !test::why_no_events().empty()) {
      GTEST_SKIP() << test::why_no_events();
    }
    ProtectionDomain domain = must(ProtectionDomain::create(*device));
    node_ = std::make_unique<test::Node>(test::Node{std::move(*device), std::move(domain)});
    cache_ = must(RegistrationCache::create(
        node_->domain, {.in_place = in_place(), .assume_pinned = GetParam() == Knowing::kEvents}));
    lookup_ = std::make_unique<RegistrationLookup>(*cache_);
    mover_ = std::make_unique<WordMover>(*node_);
  }

  // With events, soft0 takes the place of a device that pins pages, which it does not.
  bool reaches(WordMover& mover, const Registration& registration, char* memory,
               uint64_t pages) const {
    if (GetParam() == Knowing::kInPlace)
      return mover.reads_from(memory, pages, registration.rkey());
    return is_target(GetParam()) ? mover.writes_to(memory, pages, registration.rkey())
                                 : mover.sends_from(memory, pages, registration.lkey());
  }
  // Shared after some uses, so that tests see it change.
  std::optional<InPlaceCosts> in_place() const {
    if (GetParam() != Knowing::kInPlace) return std::nullopt;
    return InPlaceCosts{.use_ns = 1, .share_ns = 20};
  }

  // In an emulated guest, too, where all is slow.
  bool is_pinned() const { return GetParam() == Knowing::kPinned; }
  unsigned access() const {
    if (GetParam() == Knowing::kInPlace) return IBV_ACCESS_REMOTE_READ;
    return is_target(GetParam()) ? kTargetAccess : 0;
  }
  Registration get(const char* memory, uint64_t pages) {
    return must(lookup_->get(memory, pages * kPageBytes, access()));
  }
  // Other pages lie at the address than those of the registration.
  void expect_other(uint64_t serial, char* memory, uint64_t pages) {
    EXPECT_TRUE(reaches(*mover_, get(memory, pages), memory, pages));
    if (stays(GetParam())) return;
    EXPECT_NE(get(memory, pages).serial(), serial);
    // Kept again, once the thread that reads events has had a processor.
    for (Waiter waiter; get(memory, pages).serial() != get(memory, pages).serial();) waiter.idle();
  }

  std::unique_ptr<test::Node> node_;
  std::unique_ptr<RegistrationCache> cache_;
  std::unique_ptr<RegistrationLookup> lookup_;
  std::unique_ptr<WordMover> mover_;
};

TEST_P(RegistrationChangesTest, UnmappedAndMappedAnew) {
  char* const memory = map_pages(4);
  const uint64_t serial = get(memory, 4).serial();
  EXPECT_EQ(get(memory, 4).serial(), serial);
  ASSERT_EQ(munmap(memory, 4 * kPageBytes), 0);
  if (GetParam() != Knowing::kAddresses) {
    EXPECT_FALSE(lookup_->get(memory, kPageBytes, access()).ok());
  }
  map_pages(4, memory);
  expect_other(serial, memory, 4);
  munmap(memory, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, APartIsReplaced) {
  char* const memory = map_pages(8);
  const Registration used = get(memory, 8);
  map_pages(1, memory + 3 * kPageBytes);
  expect_other(used.serial(), memory, 8);
  expect_other(used.serial(), memory + 3 * kPageBytes, 1);
  munmap(memory, 8 * kPageBytes);
}

// The end of one registration does not end the following of pages that another one has, too.
TEST_P(RegistrationChangesTest, APartThatWasRegisteredByItself) {
  char* const memory = map_pages(8);
  get(memory, 1);
  get(memory + 3 * kPageBytes, 2);
  uint64_t serial = get(memory, 6).serial();  // in their place
  map_pages(1, memory + 3 * kPageBytes);
  expect_other(serial, memory, 6);
  serial = get(memory, 6).serial();
  map_pages(1, memory);
  expect_other(serial, memory, 6);
  // One that overlaps is forgotten.
  serial = get(memory, 6).serial();
  get(memory + 4 * kPageBytes, 4);
  cache_->forget(memory + 7 * kPageBytes, 1);
  EXPECT_EQ(get(memory, 6).serial(), serial);
  map_pages(1, memory + 5 * kPageBytes);
  expect_other(serial, memory, 6);
  munmap(memory, 8 * kPageBytes);
}

TEST_P(RegistrationChangesTest, ReplacedInOneCall) {
  char* const memory = map_pages(4);
  const uint64_t serial = get(memory, 4).serial();
  map_pages(4, memory);
  expect_other(serial, memory, 4);
  munmap(memory, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, ReadOnlyMemoryInItsPlace) {
  char* const memory = map_pages(4);
  const uint64_t serial = get(memory, 4).serial();
  map_pages(4, memory, PROT_READ);
  const auto other = lookup_->get(memory, 4 * kPageBytes, access());
  if (is_target(GetParam())) {
    EXPECT_FALSE(other.ok()) << "it cannot be written";
  } else {
    ASSERT_TRUE(other.ok());
    if (GetParam() == Knowing::kEvents) {
      EXPECT_NE(other->serial(), serial);
    }
  }
  munmap(memory, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, RemappedShorterAndLonger) {
  char* const memory = map_pages(64);
  uint64_t serial = get(memory, 4).serial();
  ASSERT_EQ(mremap(memory, 4 * kPageBytes, 2 * kPageBytes, 0), memory);
  map_pages(2, memory + 2 * kPageBytes);
  expect_other(serial, memory, 4);
  munmap(memory, 64 * kPageBytes);

  char* const growing = map_pages(1);
  serial = get(growing, 1).serial();
  void* const grown = mremap(growing, kPageBytes, 32 * kPageBytes, MREMAP_MAYMOVE);
  if (grown != MAP_FAILED) {  // what is shared with peers may refuse
    char* const now = static_cast<char*>(grown);
    const Registration all = get(now, 32);
    EXPECT_EQ(all.pages().end, as_address(now) + 32 * kPageBytes);
    if (now != growing && GetParam() != Knowing::kAddresses) {
      EXPECT_NE(all.serial(), serial);
    }
    munmap(grown, 32 * kPageBytes);
  } else {
    munmap(growing, kPageBytes);
  }
}

TEST_P(RegistrationChangesTest, MovedAway) {
  char* const memory = map_pages(4);
  char* const other = map_pages(4);
  const uint64_t serial = get(memory, 4).serial();
  const uint64_t replaced = get(other, 4).serial();
  ASSERT_EQ(mremap(memory, 4 * kPageBytes, 4 * kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED, other),
            other);
  map_pages(4, memory);
  expect_other(serial, memory, 4);
  expect_other(replaced, other, 4);
  munmap(memory, 4 * kPageBytes);
  munmap(other, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, MovedAwayWithoutUnmapping) {
  char* const memory = map_pages(4);
  const uint64_t serial = get(memory, 4).serial();
  void* const moved =
      mremap(memory, 4 * kPageBytes, 4 * kPageBytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
  if (moved != MAP_FAILED) {
    if (follows_events(GetParam())) expect_other(serial, memory, 4);
    get(static_cast<char*>(moved), 4);
    munmap(moved, 4 * kPageBytes);
  }
  munmap(memory, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, TheHeapShrinksAndGrows) {
  // No malloc() between the calls: it uses the same heap.
  constexpr uint64_t kBytes = 8 * kPageBytes;
  void* const top = sbrk(0);
  const uint64_t align = (kPageBytes - as_address(top) % kPageBytes) % kPageBytes;
  ASSERT_NE(sbrk(static_cast<intptr_t>(align + kBytes)), reinterpret_cast<void*>(-1));
  char* const memory = static_cast<char*>(top) + align;
  std::memset(memory, 1, kBytes);
  const uint64_t serial = get(memory + 4 * kPageBytes, 4).serial();
  if (sbrk(0) == memory + kBytes) {
    sbrk(-static_cast<intptr_t>(4 * kPageBytes));
    sbrk(4 * kPageBytes);
    std::memset(memory + 4 * kPageBytes, 2, 4 * kPageBytes);
    expect_other(serial, memory + 4 * kPageBytes, 4);
  }
}

// An allocator takes zeroes for granted where it could discard pages.
TEST_P(RegistrationChangesTest, DiscardedPagesAreZeroOrTheKernelRefuses) {
  constexpr int kUses = 40;  // also once what was left in place is shared
  char* const memory = map_pages(4);
  for (int use = 0; use < kUses; ++use) {
    get(memory, 4);
    std::memset(memory, 7, 4 * kPageBytes);
    errno = 0;
    const bool done = madvise(memory + kPageBytes, kPageBytes, MADV_DONTNEED) == 0;
    EXPECT_EQ(errno, done ? 0 : EINVAL);
    ASSERT_EQ(memory[kPageBytes], done ? 0 : 7) << "use " << use;
    EXPECT_TRUE(reaches(*mover_, get(memory, 4), memory, 4));
  }
  munmap(memory, 4 * kPageBytes);
}

// soft0 and the program keep the same pages.
class PinnedChangesTest : public RegistrationChangesTest {};

TEST_P(PinnedChangesTest, DiscardedPages) {
  char* const memory = map_pages(4);
  for (const int advice : {MADV_DONTNEED, MADV_FREE}) {
    const uint64_t serial = get(memory, 4).serial();
    ASSERT_EQ(madvise(memory + kPageBytes, kPageBytes, advice), 0);
    expect_other(serial, memory, 4);
  }
  munmap(memory, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, ForkChangesNothingHere) {
  char* const memory = map_pages(4);
  const uint64_t serial = get(memory, 4).serial();
  const pid_t child = fork();
  if (child == 0) {
    munmap(memory, 4 * kPageBytes);
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  std::memset(memory, 3, 4 * kPageBytes);
  const Registration after = get(memory, 4);
  EXPECT_TRUE(reaches(*mover_, after, memory, 4));
  if (GetParam() != Knowing::kAsked) {  // soft0 may have moved the pages
    EXPECT_EQ(after.serial(), serial);
  }
  munmap(memory, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, LargePagesOfTheKernelsChoice) {
  constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
  char* const memory = map_pages(3 * kHugeBytes / kPageBytes);
  char* const huge = reinterpret_cast<char*>((as_address(memory) + kHugeBytes) & ~(kHugeBytes - 1));
  madvise(huge, kHugeBytes, MADV_HUGEPAGE);
  std::memset(huge, 2, kHugeBytes);
  const uint64_t serial = get(huge, kHugeBytes / kPageBytes).serial();
  EXPECT_EQ(get(huge + 5 * kPageBytes, 2).serial(), serial);
  map_pages(1, huge + 7 * kPageBytes);
  expect_other(serial, huge, kHugeBytes / kPageBytes);
  munmap(memory, 3 * kHugeBytes);
}

TEST_P(RegistrationChangesTest, PagesSetAsideAsHuge) {
  constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
  void* const mapped = mmap(nullptr, kHugeBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (mapped == MAP_FAILED) GTEST_SKIP() << "no huge pages are set aside (vm.nr_hugepages)";
  char* const memory = static_cast<char*>(mapped);
  const uint64_t serial = get(memory + kPageBytes, 2).serial();
  ASSERT_EQ(munmap(memory, kHugeBytes), 0);
  map_pages(4, memory);
  if (follows_events(GetParam())) expect_other(serial, memory + kPageBytes, 2);
  munmap(memory, 4 * kPageBytes);
}

TEST_P(RegistrationChangesTest, SharedMemoryIsNotKeptWhereItIsPinned) {
  void* const mapped =
      mmap(nullptr, 4 * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  char* const memory = static_cast<char*>(mapped);
  const uint64_t serial = get(memory, 4).serial();
  // MADV_REMOVE, or a hole that another process makes, would go unnoticed.
  if (follows_events(GetParam())) {
    EXPECT_NE(get(memory, 4).serial(), serial);
    EXPECT_EQ(cache_->statistics().regions, 0u);
  }
  ASSERT_EQ(madvise(memory, kPageBytes, MADV_REMOVE), 0);
  get(memory, 4);
  munmap(memory, 4 * kPageBytes);
}

// What is pinned is not kept if it is shared.
class SegmentChangesTest : public RegistrationChangesTest {};

TEST_P(SegmentChangesTest, AnotherSegmentIsAttached) {
  const int first = shmget(IPC_PRIVATE, 2 * kPageBytes, 0600);
  const int second = shmget(IPC_PRIVATE, 2 * kPageBytes, 0600);
  if (first < 0 || second < 0) GTEST_SKIP() << "no System V segments here: " << strerror(errno);
  void* const attached = shmat(first, nullptr, 0);
  ASSERT_NE(attached, reinterpret_cast<void*>(-1));
  const uint64_t serial = get(static_cast<char*>(attached), 2).serial();
  ASSERT_EQ(shmdt(attached), 0);
  ASSERT_EQ(shmat(second, attached, 0), attached);
  expect_other(serial, static_cast<char*>(attached), 2);
  shmdt(attached);
  shmctl(first, IPC_RMID, nullptr);
  shmctl(second, IPC_RMID, nullptr);
}

TEST_P(RegistrationChangesTest, WhatIsInUseIsNotTakenAway) {
  char* const memory = map_pages(4);
  {
    const Registration used = get(memory, 4);
    ASSERT_EQ(munmap(memory, 4 * kPageBytes), 0);
    map_pages(4, memory);
    const Registration anew = get(memory, 4);
    if (!stays(GetParam())) {
      EXPECT_NE(anew.lkey(), used.lkey());
      EXPECT_GE(cache_->statistics().outdated_in_use, 1u);
    }
  }
  EXPECT_EQ(cache_->statistics().outdated_in_use, 0u);
  EXPECT_LE(cache_->statistics().regions, 1u);
  munmap(memory, 4 * kPageBytes);
}

// Random changes of one area, against the number of times that each page was replaced.
TEST_P(RegistrationChangesTest, RandomChangesAreNeverMissed) {
  constexpr uint64_t kPages = 48;
  // Neither unmapped nor, with events, mapped without memory: -1.
  std::array<int64_t, kPages> versions{};
  int64_t next_version = 1;
  char* const memory = map_pages(kPages);
  std::map<uint64_t, std::pair<uint64_t, std::vector<int64_t>>> known;  // by serial
  std::vector<Registration> held;
  Random random(run_seed());
  const auto replace = [&](uint64_t first, uint64_t pages, bool there) {
    for (uint64_t page = first; page < first + pages; ++page) {
      versions[page] = there ? next_version++ : -1;
    }
  };
  for (int step = 0; step < (is_pinned() ? 500 : 3'000); ++step) {
    const uint64_t first = random.below(kPages);
    const uint64_t pages = 1 + random.below(std::min<uint64_t>(8, kPages - first));
    char* const at = memory + first * kPageBytes;
    switch (random.below(follows_events(GetParam()) ? 12 : 11)) {
      case 0:
        map_pages(pages, at);
        replace(first, pages, true);
        break;
      case 1:  // a hole, which nobody else fills
        map_pages(pages, at, PROT_NONE);
        replace(first, pages, false);
        break;
      case 2: {
        const uint64_t to = random.below(kPages - pages + 1);
        if (to < first + pages && first < to + pages) break;
        bool whole = true;
        for (uint64_t i = 0; i < pages; ++i) whole = whole && versions[first + i] >= 0;
        if (!whole) break;
        // Refused where the pages are several mappings.
        if (mremap(at, pages * kPageBytes, pages * kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                   memory + to * kPageBytes) == MAP_FAILED) {
          // The kernel may have unmapped what was there already.
          map_pages(pages, memory + to * kPageBytes);
          map_pages(pages, at);
          replace(first, pages, true);
        } else {
          map_pages(pages, at, PROT_NONE);
          replace(first, pages, false);
        }
        replace(to, pages, true);
        break;
      }
      case 11:
        if (madvise(at, pages * kPageBytes, random.below(2) == 0 ? MADV_DONTNEED : MADV_FREE) ==
            0) {
          for (uint64_t i = 0; i < pages; ++i) {
            if (versions[first + i] >= 0) versions[first + i] = next_version++;
          }
        }
        break;
      default: {
        bool whole = true;
        for (uint64_t i = 0; i < pages; ++i) whole = whole && versions[first + i] >= 0;
        auto got = lookup_->get(at, pages * kPageBytes, access());
        if (!whole) {
          // A hole cannot be registered, and what was there is not found any more.
          if (is_target(GetParam())) {
            ASSERT_FALSE(got.ok()) << "step " << step;
          }
          break;
        }
        ASSERT_TRUE(got.ok()) << got.status().message();
        const uint64_t begin = (got->pages().begin - as_address(memory)) / kPageBytes;
        const uint64_t end = (got->pages().end - as_address(memory)) / kPageBytes;
        ASSERT_LE(begin, first);
        ASSERT_GE(end, first + pages);
        ASSERT_TRUE(reaches(*mover_, *got, at, pages)) << "stale at step " << step;
        const std::vector<int64_t> now(versions.begin() + static_cast<int64_t>(begin),
                                       versions.begin() + static_cast<int64_t>(end));
        const auto found = known.try_emplace(got->serial(), begin, now).first;
        if (follows_events(GetParam())) {
          ASSERT_EQ(found->second.second, now) << "stale at step " << step;
        }
        if (random.below(2) == 0) held.push_back(std::move(*got));
        break;
      }
    }
    if (held.size() > 4) held.erase(held.begin() + static_cast<int64_t>(random.below(4)));
  }
  held.clear();
  munmap(memory, kPages * kPageBytes);
}

// Threads map, register and unmap; the kernel gives the addresses of one to the other at once.
TEST_P(RegistrationChangesTest, ThreadsThatFreeWhileOthersRegister) {
  constexpr int kThreads = 4;
  const int rounds = GetParam() == Knowing::kEvents ? 4'000 : is_pinned() ? 100 : 400;
  std::mutex mutex;
  std::map<uint64_t, uint64_t> mapping_of;  // by serial
  std::atomic<uint64_t> next_mapping = 1;
  std::atomic<uint64_t> stale = 0;
  std::atomic<uint64_t> failed = 0;
  std::atomic<uint64_t> kept = 0;
  std::vector<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("test", [&, t] {
      RegistrationLookup lookup(*cache_);
      WordMover mover(*node_);
      Random random(run_seed() + static_cast<uint64_t>(t));
      for (int i = 0; i < rounds; ++i) {
        const uint64_t pages = 1 + random.below(3);
        char* const memory = map_pages_anywhere(pages);
        const uint64_t mapping = next_mapping.fetch_add(1);
        for (int use = 0; use < 3; ++use) {
          const auto got = lookup.get(memory, pages * kPageBytes, access());
          if (!got.ok()) {
            failed.fetch_add(1);
            continue;
          }
          if (!reaches(mover, *got, memory, pages)) stale.fetch_add(1);
          const std::lock_guard lock(mutex);
          const auto [found, first] = mapping_of.emplace(got->serial(), mapping);
          // soft0's regions are of addresses: they become current again when the memory is shared.
          if (follows_events(GetParam()) && found->second != mapping) stale.fetch_add(1);
          if (!first) kept.fetch_add(1);
        }
        munmap(memory, pages * kPageBytes);
      }
    }));
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(stale.load(), 0u);
  EXPECT_EQ(failed.load(), 0u);
  EXPECT_GT(kept.load(), 0u) << "the test has tested something";
  EXPECT_EQ(cache_->statistics().outdated_in_use, 0u);
}

// The same with the C library's allocator, which takes locks and gives memory back inside of them.
TEST_P(RegistrationChangesTest, ThreadsThatAllocateWhileOthersRegister) {
  constexpr int kThreads = 4;
  const int rounds = is_pinned() ? 50 : GetParam() == Knowing::kAsked ? 200 : 2'000;
  std::atomic<uint64_t> failed = 0;
  std::vector<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("test", [&, t] {
      RegistrationLookup lookup(*cache_);
      Random random(run_seed() + static_cast<uint64_t>(t));
      for (int i = 0; i < rounds; ++i) {
        const uint64_t bytes = 1 + random.below(random.below(2) == 0 ? 10'000 : 400'000);
        const std::unique_ptr<char[]> memory(new char[bytes]);
        std::memset(memory.get(), t, bytes);
        if (!lookup.get(memory.get(), bytes, access()).ok()) failed.fetch_add(1);
      }
    }));
  }
  for (Thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Ways, RegistrationChangesTest, testing::ValuesIn(knowing_all()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Ways, PinnedChangesTest,
                         testing::Values(pinning_device() != nullptr ? Knowing::kPinned
                                                                     : Knowing::kEvents),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Ways, SegmentChangesTest,
                         testing::Values(Knowing::kAddresses, Knowing::kAsked),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace verbena
