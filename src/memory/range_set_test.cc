#include "src/memory/range_set.h"

#include <gtest/gtest.h>

#include <bitset>
#include <cstdint>
#include <vector>

#include "src/base/runtime.h"

namespace verbena {
namespace {

TEST(RangeSetTest, RandomRangesAreThoseOfABitSet) {
  constexpr uint64_t kAddresses = 64;
  Random random(run_seed());
  RangeSet set;
  std::bitset<kAddresses> naive;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t begin = random.below(kAddresses);
    const uint64_t end = begin + random.below(kAddresses - begin + 1);
    const bool adds = random.below(2) == 0;
    if (adds) {
      set.add({begin, end});
    } else {
      set.remove({begin, end});
    }
    for (uint64_t at = begin; at < end; ++at) naive[at] = adds;

    std::bitset<kAddresses> found;
    uint64_t last_end = 0;
    bool first = true;
    for (const AddressRange& range : set.all()) {
      ASSERT_LT(range.begin, range.end);
      ASSERT_TRUE(first || range.begin > last_end) << "ranges that touch are one";
      first = false;
      last_end = range.end;
      for (uint64_t at = range.begin; at < range.end; ++at) found.set(at);
    }
    ASSERT_EQ(found, naive) << "step " << step;

    uint64_t looked_at = begin;
    for (const AddressRange& part : set.within({begin, end})) {
      for (; looked_at < part.begin; ++looked_at) ASSERT_FALSE(naive[looked_at]);
      for (; looked_at < part.end; ++looked_at) ASSERT_TRUE(naive[looked_at]);
    }
    ASSERT_LE(looked_at, end);
    for (; looked_at < end; ++looked_at) ASSERT_FALSE(naive[looked_at]) << "step " << step;
  }
}

}  // namespace
}  // namespace verbena
