// What cannot be shared is left alone, with a reason; limits of mappings; new memory.
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/sanitizer.h"
#include "src/base/vma_query.h"
#include "src/device/soft/pages/page_share_for_test.h"

namespace verbena::soft {
namespace {

using Sharing = PageShare::Sharing;

#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
#define SKIP_AT_THE_LIMIT() GTEST_SKIP() << "the sanitizer needs mappings of its own"
#else
#define SKIP_AT_THE_LIMIT()                                                           \
  if (GetParam().options.mappings != VmaQuery::Source::kBest)                         \
    GTEST_SKIP() << "each query reads all of /proc/self/maps, too slow at the limit"; \
  if (MappingLimit().limit() > 300'000) GTEST_SKIP() << "vm.max_map_count is too large to reach"
#endif

// Makes mappings until only `left` more are possible.
class MappingLimit {
 public:
  MappingLimit() {
    std::ifstream file("/proc/sys/vm/max_map_count");
    file >> limit_;
  }
  size_t limit() const { return limit_; }
  // From call to call fewer.
  void leave(size_t left) {
    if (base_ == nullptr) {
      base_ = map_private(2 * limit_ * kPage, PROT_NONE, MAP_NORESERVE);
      used_ = count_mappings();
      page_ = 1;
    }
    for (; used_ + 2 + left <= limit_; page_ += 2, used_ += 2) {
      // What is shared in between counts as well.
      if (mprotect(base_ + page_ * kPage, kPage, PROT_READ) == 0) continue;
      ASSERT_EQ(errno, ENOMEM);
      return;
    }
  }
  void release() { munmap(base_, 2 * limit_ * kPage); }

 private:
  size_t limit_ = 0;
  size_t used_ = 0;
  size_t page_ = 0;
  char* base_ = nullptr;
};

TEST_P(PageShareTest, TooManyMappingsLeaveMemoryPrivate) {
  SKIP_AT_THE_LIMIT();
  run_alone([] {
    auto share = make();
    // Every distance from the limit: whichever step fails, contents stay.
    constexpr size_t kFarthest = 40;
    constexpr size_t kPages = 4 * kFarthest;
    char* memory = map_private(kPages * kPage);
    fill(memory, kPages * kPage, 51);
    char* readonly = map_private(kPages * kPage);
    fill(readonly, kPages * kPage, 52);
    ASSERT_EQ(mprotect(readonly, kPages * kPage, PROT_READ), 0);
    expect_shared(*share, memory, 1);
    MappingLimit limit;
    std::vector<size_t> kept;  // pages of `memory`
    size_t shared = 0;
    for (size_t left = kFarthest; left-- > 0;) {
      limit.leave(left);
      for (char* base : {memory, readonly}) {
        for (size_t page = 4 * left + 1; page < 4 * left + 4; page += 2) {
          Result<PageShare::Outcome> outcome = share->share(base + page * kPage, 1);
          ASSERT_TRUE(outcome.ok()) << outcome.status().message();
          if (outcome->sharing == Sharing::kShared) {
            ++shared;
            continue;
          }
          if (base == memory) kept.push_back(page);
          EXPECT_NE(outcome->reason.find("vm.max_map_count"), std::string::npos) << outcome->reason;
          share->release(base + page * kPage, 1, Sharing::kPrivate);
        }
      }
    }
    EXPECT_FALSE(kept.empty());
    EXPECT_GT(shared, 0u);
    EXPECT_TRUE(holds(memory, kPages * kPage, 51));
    EXPECT_TRUE(holds(readonly, kPages * kPage, 52));
    // With room again, everything can be shared, and nothing is left of what failed.
    limit.release();
    for (const size_t page : kept) {
      ASSERT_EQ(madvise(memory + page * kPage, kPage, MADV_DONTNEED), 0);
    }
    expect_shared(*share, memory, kPages * kPage);
    expect_shared(*share, readonly, kPages * kPage);
    for (const size_t page : kept) {
      for (size_t at = 0; at < kPage; ++at) ASSERT_EQ(memory[page * kPage + at], 0);
    }
    fill(memory, kPages * kPage, 51);
    EXPECT_TRUE(holds(readonly, kPages * kPage, 52));
    expect_same_both_ways(*share, memory, kPages * kPage);
  });
}

TEST_P(PageShareTest, ForkWorksAtTheLimitOfMappings) {
  SKIP_AT_THE_LIMIT();
  run_alone([] {
    auto share = make();
    char* memory = map_private(20 * kPage);
    fill(memory, 20 * kPage, 50);
    expect_shared(*share, memory, 20 * kPage);
    MappingLimit limit;
    limit.leave(0);
    EXPECT_TRUE(in_child([&] {
      // Private or gone, but not the parent's.
      int ends[2];
      if (pipe(ends) != 0) return false;
      if (write(ends[1], memory, 8) == 8) memset(memory, 1, 20 * kPage);
      return true;
    }));
    limit.release();
    EXPECT_TRUE(holds(memory, 20 * kPage, 50));
  });
}

TEST_P(PageShareTest, LeavesAloneWhatCannotBeShared) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    void* shared = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    expect_private(*share, shared, 8, "shared mapping of the application");
    expect_private(*share, map_private(kPage, PROT_NONE), kPage, "cannot be read");
    expect_private(*share, map_private(kPage, PROT_READ | PROT_EXEC), kPage, "executable");
    expect_private(*share, reinterpret_cast<void*>(&expect_private), 8, "executable");
    expect_private(*share, reinterpret_cast<void*>(getauxval(AT_SYSINFO_EHDR)), 8, "");
    void* huge = mmap(nullptr, 2 << 20, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
    if (huge != MAP_FAILED) expect_private(*share, huge, kPage, "huge pages");

    // One page of many: nothing is shared, and nothing lost.
    char* memory = map_private(4 * kPage);
    fill(memory, 4 * kPage, 60);
    ASSERT_EQ(mprotect(memory + 3 * kPage, kPage, PROT_NONE), 0);
    expect_private(*share, memory, 4 * kPage, "cannot be read");
    EXPECT_TRUE(holds(memory, 3 * kPage, 60));
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, RefusesWhatIsNotMapped) {
  run_alone([] {
    auto share = make();
    char* memory = map_private(3 * kPage);
    memset(memory, 1, 3 * kPage);
    ASSERT_EQ(munmap(memory + kPage, kPage), 0);
    for (const auto& [address, bytes] :
         {std::pair<char*, size_t>{memory, 3 * kPage},
          {memory + kPage, 1},
          {nullptr, 1},
          {memory, ~size_t{0}},
          {memory, ~size_t{0} - reinterpret_cast<uintptr_t>(memory)}}) {
      Result<PageShare::Outcome> outcome = share->share(address, bytes);
      ASSERT_FALSE(outcome.ok());
      EXPECT_EQ(outcome.status().code(), StatusCode::kInvalidArgument);
    }
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, NeedsAFileOfUnlimitedSize) {
  run_alone([] {
    const rlimit limit{1 << 30, 1 << 30};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    Result<std::unique_ptr<PageShare>> share = PageShare::create();
    ASSERT_FALSE(share.ok());
    EXPECT_NE(share.status().message().find("ulimit -f"), std::string::npos);
  });
}

// ---- new memory ----

TEST_P(PageShareTest, MapsNewMemory) {
  run_alone([] {
    auto share = make();
    for (const size_t bytes : {size_t{1}, 3 * kPage, size_t{5} << 20}) {
      Result<void*> memory = share->map_new(bytes);
      ASSERT_TRUE(memory.ok()) << memory.status().message();
      char* address = static_cast<char*>(*memory);
      for (size_t at = 0; at < bytes; at += 512) ASSERT_EQ(address[at], 0);
      fill(address, bytes, 70);
      expect_shared(*share, address, bytes);  // nothing to do
      expect_same_both_ways(*share, address, bytes);
      // Not the child's: the kernel finds no page there.
      EXPECT_TRUE(in_child([&] {
        int ends[2];
        return pipe(ends) == 0 && write(ends[1], address, 1) == -1 && errno == EFAULT;
      }));
      const uint64_t before = file_bytes(*share);
      share->unmap_new(address, bytes);
      EXPECT_LT(file_bytes(*share), before);
    }
    EXPECT_EQ(file_bytes(*share), 0u);
    EXPECT_FALSE(share->map_new(0).ok());
    EXPECT_FALSE(share->map_new(~uint64_t{0}).ok());
  });
}

}  // namespace
}  // namespace verbena::soft
