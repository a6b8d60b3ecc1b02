#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "verbena/data_path.h"

namespace verbena {
namespace {

constexpr size_t kPageBytes = 4096;

// Whole pages, so that the distance of two addresses within their pages can be chosen.
struct Pages {
  explicit Pages(size_t bytes) : room(bytes + 2 * kPageBytes) {
    const auto at = reinterpret_cast<uintptr_t>(room.data());
    first = room.data() + (kPageBytes - at % kPageBytes) % kPageBytes;
  }
  std::vector<uint8_t> room;
  uint8_t* first;
};

class LongCopyTest : public ::testing::TestWithParam<size_t> {};

// However source and destination lie in their pages, and from either end (every second copy between
// the same buffers): every byte, and none beside them.
TEST_P(LongCopyTest, CopiesEveryByteAndNoOther) {
  const size_t bytes = GetParam();
  Pages source(bytes);
  Pages destination(bytes);
  std::iota(source.room.begin(), source.room.end(), uint8_t{0});
  for (const size_t from : {0u, 1u, 24u, 63u}) {
    for (size_t ahead = 0; ahead <= 33; ++ahead) {
      SCOPED_TRACE(std::to_string(from) + " and " + std::to_string(ahead) + " behind it");
      const size_t to = from + ahead;
      for (int turn = 0; turn < 3; ++turn) {
        std::fill(destination.room.begin(), destination.room.end(), uint8_t{0xA5});
        copy_bytes(destination.first + to, source.first + from, bytes);
        ASSERT_EQ(std::memcmp(destination.first + to, source.first + from, bytes), 0);
        const auto untouched = [](uint8_t byte) { return byte == 0xA5; };
        const auto begin = destination.room.begin() +
                           (destination.first - destination.room.data()) +
                           static_cast<ptrdiff_t>(to);
        EXPECT_TRUE(std::all_of(destination.room.begin(), begin, untouched));
        EXPECT_TRUE(
            std::all_of(begin + static_cast<ptrdiff_t>(bytes), destination.room.end(), untouched));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, LongCopyTest,
                         ::testing::Values(0, 1, internal::kPlainCopyBytes,
                                           internal::kPlainCopyBytes + 1, 2111, 2112, 4096, 4097,
                                           10'000, 16'385, 20'000, 65'528),
                         [](const auto& test) { return std::to_string(test.param) + "Bytes"; });

TEST(LongCopyCountTest, IsCountedAsOtherCopiesAre) {
  Pages source(kPageBytes);
  Pages destination(kPageBytes);
  const DataPathStatistics before = data_path_statistics();
  copy_bytes(destination.first + 8, source.first, 4000);
  EXPECT_EQ((data_path_statistics() - before).bytes_copied, 4000u);
}

}  // namespace
}  // namespace verbena
