// Blocks of memory, and what is kept of them.
#include "join/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace verbena::join_app {
namespace {

constexpr uint64_t kLargeBytes = uint64_t{8} << 20;

TEST(BlockTest, LargeOnesComeAgain) {
  drop_kept_memory();
  const void* first = nullptr;
  {
    const Block block(kLargeBytes);
    first = block.as<char>();
    EXPECT_EQ(kept_memory_bytes(), 0u);
  }
  EXPECT_EQ(kept_memory_bytes(), kLargeBytes);
  {
    // Somewhat smaller fits, much smaller or larger does not.
    const Block larger(kLargeBytes + 1);
    const Block smaller(kLargeBytes / 2);
    EXPECT_EQ(kept_memory_bytes(), kLargeBytes);
    const Block again(kLargeBytes - 4096);
    EXPECT_EQ(again.as<char>(), first);
    EXPECT_EQ(again.size_bytes(), kLargeBytes - 4096);
    EXPECT_EQ(kept_memory_bytes(), 0u);
    again.as<char>()[0] = 1;
    again.as<char>()[again.size_bytes() - 1] = 1;
  }
  EXPECT_EQ(kept_memory_bytes(), 2 * kLargeBytes + 1 + kLargeBytes / 2);
  drop_kept_memory();
  EXPECT_EQ(kept_memory_bytes(), 0u);
}

TEST(BlockTest, MovedOnesAreKeptOnce) {
  drop_kept_memory();
  {
    std::vector<Block> blocks;
    for (int i = 0; i < 3; ++i) blocks.emplace_back(kLargeBytes);
    Block other = std::move(blocks[1]);
    blocks[0] = std::move(other);
  }
  EXPECT_EQ(kept_memory_bytes(), 3 * kLargeBytes);
  drop_kept_memory();
}

TEST(BlockTest, SmallOnesAndMoreThanTheLimitAreNotKept) {
  drop_kept_memory();
  { const Block small(4096); }
  { const Block huge(kMostKeptBytes + kLargeBytes); }  // never written: it takes no memory
  EXPECT_EQ(kept_memory_bytes(), 0u);
}

}  // namespace
}  // namespace verbena::join_app
