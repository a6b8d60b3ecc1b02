#include "src/base/instruction_count.h"

#include <gtest/gtest.h>

namespace verbena {
namespace {

void spin(int rounds) {
  for (int i = 0; i < rounds; ++i) asm volatile("" ::: "memory");
}

TEST(InstructionCountTest, EitherCountsOrSaysWhyNot) {
  const Result<InstructionCounter> counter = InstructionCounter::open();
  EXPECT_EQ(counter.ok(), InstructionCounter::available());
  if (!counter.ok()) {
    EXPECT_FALSE(counter.status().message().empty());
    EXPECT_TRUE(counter.status().code() == StatusCode::kUnsupported ||
                counter.status().code() == StatusCode::kPermissionDenied);
  }
}

TEST(InstructionCountTest, CountsInProportion) {
  const Result<InstructionCounter> counter = InstructionCounter::open();
  if (!counter.ok()) GTEST_SKIP() << counter.status().message();
  const uint64_t start = counter->read();
  spin(1'000'000);
  const uint64_t middle = counter->read();
  spin(10'000'000);
  const uint64_t end = counter->read();
  EXPECT_GT(middle - start, 1'000'000u);
  const double ratio = static_cast<double>(end - middle) / static_cast<double>(middle - start);
  EXPECT_NEAR(ratio, 10, 0.5);
}

}  // namespace
}  // namespace verbena
