#include "src/device/soft/pages/page_counts.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/base/runtime.h"

namespace verbena::soft {
namespace {

using Range = PageCounts::Range;
using Ranges = std::vector<Range>;

TEST(PageCountsTest, NothingIsCoveredAtFirst) {
  const PageCounts counts;
  EXPECT_EQ(counts.parts({10, 20}, 0), Ranges({{10, 20}}));
  EXPECT_EQ(counts.parts({10, 20}, 1), Ranges());
  EXPECT_TRUE(counts.empty());
}

TEST(PageCountsTest, OverlapsCountTwice) {
  PageCounts counts;
  counts.add({10, 20});
  counts.add({15, 30});
  EXPECT_EQ(counts.parts({0, 40}, 0), Ranges({{0, 10}, {30, 40}}));
  EXPECT_EQ(counts.parts({0, 40}, 1), Ranges({{10, 15}, {20, 30}}));
  EXPECT_EQ(counts.parts({12, 18}, 2), Ranges({{15, 18}}));
  counts.remove({10, 20});
  EXPECT_EQ(counts.parts({0, 40}, 1), Ranges({{15, 30}}));
  counts.remove({15, 30});
  EXPECT_TRUE(counts.empty());
}

TEST(PageCountsTest, NeighboursAreOne) {
  PageCounts counts;
  counts.add({20, 30});
  counts.add({10, 20});
  EXPECT_EQ(counts.parts({0, 40}, 1), Ranges({{10, 30}}));
  counts.remove({20, 30});
  EXPECT_EQ(counts.parts({0, 40}, 1), Ranges({{10, 20}}));
}

TEST(PageCountsTest, AgreesWithCountingEachPage) {
  Random random(17);
  PageCounts counts;
  std::vector<uint32_t> pages(64);
  Ranges live;
  for (int step = 0; step < 3000; ++step) {
    if (live.size() < 12 && random.below(2) == 0) {
      const uint64_t begin = random.below(60);
      live.emplace_back(begin, begin + 1 + random.below(64 - begin));
      counts.add(live.back());
      for (uint64_t page = live.back().first; page < live.back().second; ++page) ++pages[page];
    } else if (!live.empty()) {
      const auto ended = live.begin() + static_cast<long>(random.below(live.size()));
      counts.remove(*ended);
      for (uint64_t page = ended->first; page < ended->second; ++page) --pages[page];
      live.erase(ended);
    }
    for (uint32_t count = 0; count < 3; ++count) {
      std::vector<bool> expected(pages.size());
      std::vector<bool> said(pages.size());
      for (size_t page = 0; page < pages.size(); ++page) expected[page] = pages[page] == count;
      for (const auto& [begin, end] : counts.parts({0, pages.size()}, count)) {
        for (uint64_t page = begin; page < end; ++page) said[page] = true;
      }
      ASSERT_EQ(said, expected) << step;
    }
    ASSERT_EQ(counts.empty(), live.empty());
  }
}

}  // namespace
}  // namespace verbena::soft
