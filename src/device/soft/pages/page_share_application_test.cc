// What the application does to its memory afterwards: moves, unmaps, discards and allocates it
// anew.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "src/device/soft/pages/page_share_for_test.h"

namespace verbena::soft {
namespace {

TEST_P(PageShareTest, FindsMemoryThatMoved) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 4 * kPage;
    char* memory = map_private(bytes);
    fill(memory, bytes, 12);
    expect_shared(*share, memory, bytes);
    char* elsewhere = map_private(bytes, PROT_NONE);
    ASSERT_EQ(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere), elsewhere);
    // New memory at the old address: it must not be what moved away.
    void* again =
        mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    ASSERT_EQ(again, memory);
    memory[0] = 'n';
    expect_shared(*share, memory, bytes);
    EXPECT_TRUE(holds(elsewhere, bytes, 12));
    EXPECT_EQ(memory[0], 'n');
    EXPECT_EQ(memory[kPage], 0);
    expect_same_both_ways(*share, memory, bytes);
    EXPECT_TRUE(holds(elsewhere, bytes, 12));
    expect_shared(*share, elsewhere, bytes);
    EXPECT_TRUE(holds(elsewhere, bytes, 12));
    expect_same_both_ways(*share, elsewhere, bytes);
  });
}

// Behind new memory lies what was there before: its place in the file is the new memory's.
TEST_P(PageShareTest, FindsMemoryThatMovedToWhereSharingGoesOn) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 2 * kPage;
    char* memory = map_private(2 * bytes);
    fill(memory, bytes, 19);
    expect_shared(*share, memory, bytes);
    ASSERT_EQ(mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, memory + bytes),
              memory + bytes);
    ASSERT_EQ(
        mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
        memory);
    fill(memory, bytes, 20);
    expect_shared(*share, memory, 2 * bytes);
    EXPECT_TRUE(holds(memory, bytes, 20));
    EXPECT_TRUE(holds(memory + bytes, bytes, 19));
    expect_same_both_ways(*share, memory, 2 * bytes);
  });
}

TEST_P(PageShareTest, FindsMemoryThatChangedPlaces) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 2 * kPage;
    char* a = map_private(bytes);
    char* b = map_private(bytes);
    char* aside = map_private(bytes, PROT_NONE);
    fill(a, bytes, 13);
    fill(b, bytes, 14);
    expect_shared(*share, a, bytes);
    expect_shared(*share, b, bytes);
    constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED;
    ASSERT_EQ(mremap(a, bytes, bytes, kFlags, aside), aside);
    ASSERT_EQ(mremap(b, bytes, bytes, kFlags, a), a);
    ASSERT_EQ(mremap(aside, bytes, bytes, kFlags, b), b);
    expect_shared(*share, a, bytes);
    expect_shared(*share, b, bytes);
    EXPECT_TRUE(holds(a, bytes, 14));
    EXPECT_TRUE(holds(b, bytes, 13));
    expect_same_both_ways(*share, a, bytes);
    expect_same_both_ways(*share, b, bytes);
  });
}

TEST_P(PageShareTest, FindsNewMemoryAtAnOldAddress) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 8 * kPage;
    char* memory = map_private(bytes);
    fill(memory, bytes, 15);
    expect_shared(*share, memory, bytes);
    ASSERT_EQ(munmap(memory, bytes), 0);
    void* again =
        mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    ASSERT_EQ(again, memory);
    fill(memory + kPage, kPage, 16);
    expect_shared(*share, memory, bytes);
    EXPECT_TRUE(holds(memory + kPage, kPage, 16));
    View view(*share, memory, bytes);
    for (size_t at = 2 * kPage; at < bytes; ++at) {
      ASSERT_EQ(memory[at], 0) << "the old contents came back";
      ASSERT_EQ(view.get()[at], 0);
    }
    expect_same_both_ways(*share, memory, bytes);
  });
}

TEST_P(PageShareTest, ReallocDoesNotReachIntoNeighbours) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 32 * kPage;
    char* pair = map_private(2 * bytes);
    fill(pair, 2 * bytes, 17);
    expect_shared(*share, pair, bytes);
    expect_shared(*share, pair + bytes, bytes);
    // What realloc() tries first. Growing would reach the neighbour's pages in the file.
    EXPECT_EQ(mremap(pair, bytes, 2 * bytes, MREMAP_MAYMOVE), MAP_FAILED);
    EXPECT_TRUE(holds(pair, 2 * bytes, 17));

    char* block = static_cast<char*>(malloc(1 << 20));
    fill(block, 1 << 20, 18);
    expect_shared(*share, block, 1 << 20);
    block = static_cast<char*>(realloc(block, 4 << 20));
    EXPECT_TRUE(holds(block, 1 << 20, 18));
    memset(block, 1, 4 << 20);
    expect_shared(*share, block, 4 << 20);
    expect_same_both_ways(*share, block, 4 << 20);
    block = static_cast<char*>(realloc(block, 1 << 20));
    expect_shared(*share, block, 1 << 20);
    expect_same_both_ways(*share, block, 1 << 20);
    free(block);
    EXPECT_TRUE(share->shares_any(pair + bytes - 1, 2));
    EXPECT_FALSE(share->shares_any(&share, 1));
  });
}

TEST_P(PageShareTest, ForgetsWhatIsDiscarded) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    char* memory = map_private(8 * kPage);
    fill(memory, 8 * kPage, 19);
    char* untouched = map_private(kPage);
    untouched[0] = 'u';
    expect_shared(*share, memory, 8 * kPage);
    const uint64_t before = file_bytes(*share);
    share->forget(memory + 2 * kPage, 3 * kPage);
    share->forget(untouched, kPage);
    EXPECT_EQ(untouched[0], 'u');
    EXPECT_TRUE(holds(memory, 2 * kPage, 19));
    EXPECT_EQ(file_bytes(*share), before - 3 * kPage);
    for (size_t at = 2 * kPage; at < 5 * kPage; ++at) ASSERT_EQ(memory[at], 0);
    EXPECT_NE(memory[5 * kPage + 1], 0);
    expect_same_both_ways(*share, memory, 8 * kPage);
    share->forget(memory, 8 * kPage);
    ASSERT_EQ(munmap(memory, 8 * kPage), 0);
    EXPECT_EQ(file_bytes(*share), 0u);
  });
}

TEST_P(PageShareTest, CollectsWhatWasUnmappedInSilence) {
  SKIP_IF_ALWAYS_THREADED();
  run_alone([] {
    auto share = make();
    const size_t bytes = 8 << 20;
    char* kept = map_private(bytes);
    fill(kept, bytes, 20);
    expect_shared(*share, kept, bytes);
    for (int i = 0; i < 20; ++i) {
      // Never at the same address: it stays reserved.
      char* memory = map_private(bytes);
      memset(memory, 1, bytes);
      expect_shared(*share, memory, bytes);
      ASSERT_EQ(mmap(memory, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0),
                memory);
    }
    EXPECT_LE(file_bytes(*share), (64u << 20) + 3 * bytes);
    EXPECT_TRUE(holds(kept, bytes, 20));
    expect_same_both_ways(*share, kept, bytes);
  });
}

}  // namespace
}  // namespace verbena::soft
