#include "src/base/assert.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

TEST(AssertDeathTest, NamesConditionAndPlace) {
  const int queue_depth = 3;
  // ccache, where it is told a base_dir, compiles by a name relative to the build folder.
  EXPECT_DEATH(
      VERBENA_ASSERT(queue_depth > 4),
      "verbena: (\\.\\./)*src/base/assert_test\\.cc:[0-9]+: assertion failed: queue_depth > 4");
}

TEST(AssertTest, EvaluatesItsConditionOnce) {
  int evaluated = 0;
  VERBENA_ASSERT(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

#ifdef NDEBUG
TEST(AssertTest, DebugAssertCostsNothingInRelease) {
  int evaluated = 0;
  VERBENA_DEBUG_ASSERT(++evaluated == 2);
  EXPECT_EQ(evaluated, 0);
}
#else
TEST(AssertDeathTest, DebugAssertHoldsInDebug) {
  EXPECT_DEATH(VERBENA_DEBUG_ASSERT(1 == 2), "assertion failed: 1 == 2");
}
#endif

}  // namespace
}  // namespace verbena
