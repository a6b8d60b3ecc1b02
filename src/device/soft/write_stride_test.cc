#include "src/device/soft/write_stride.h"

#include <gtest/gtest.h>

namespace verbena::soft {
namespace {

TEST(WriteStrideTest, ForeseesSlotsOfARing) {
  WriteStride stride;
  EXPECT_EQ(stride.foresee(1000), WriteStride::kNone);
  EXPECT_EQ(stride.foresee(1100), WriteStride::kNone);
  EXPECT_EQ(stride.foresee(1200), 1200 + WriteStride::kAhead * 100);
  EXPECT_EQ(stride.foresee(1300), 1300 + WriteStride::kAhead * 100);
  // The ring begins anew.
  EXPECT_EQ(stride.foresee(1000), WriteStride::kNone);
  EXPECT_EQ(stride.foresee(1100), WriteStride::kNone);
  EXPECT_EQ(stride.foresee(1200), 1200 + WriteStride::kAhead * 100);
}

TEST(WriteStrideTest, ForeseesDownwardsAndNothingForOnePlace) {
  WriteStride stride;
  stride.foresee(5000);
  stride.foresee(4900);
  EXPECT_EQ(stride.foresee(4800), 4800 - WriteStride::kAhead * 100);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stride.foresee(4800), WriteStride::kNone);
}

}  // namespace
}  // namespace verbena::soft
