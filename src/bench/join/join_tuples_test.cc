#include "src/bench/join/join_tuples.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "verbena/apps/join.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench {
namespace {

constexpr uint64_t kTuples = 1000;
constexpr uint32_t kTupleBytes = 24;

// The join of what one executor brings, by itself.
ArrowArrayStream joined(const JoinTuples& inner_of, const JoinTuples& outer_of) {
  ArrowArrayStream inner;
  ArrowArrayStream outer;
  ArrowArrayStream result = {};
  inner_of.inner(&inner);
  outer_of.outer(&outer);
  const auto done = join_tables(&inner, &outer, JoinTuples::options(1), &result);
  EXPECT_TRUE(done.ok()) << done.status().message();
  return result;
}

TEST(JoinTuples, FindOneAnotherEach) {
  const JoinTuples all(kTuples, kTupleBytes, 0, 1);
  EXPECT_EQ(all.count(), kTuples);
  ArrowArrayStream result = joined(all, all);
  EXPECT_EQ(all.mismatches(&result), 0u);
}

TEST(JoinTuples, AreSharedByAllExecutors) {
  uint64_t count = 0;
  for (uint32_t executor = 0; executor < 3; ++executor) {
    count += JoinTuples(kTuples, kTupleBytes, executor, 3).count();
  }
  EXPECT_EQ(count, kTuples);
  EXPECT_EQ(JoinTuples(2, kTupleBytes, 2, 3).count(), 0u);
}

TEST(JoinTuples, AreMissed) {
  const JoinTuples all(kTuples, kTupleBytes, 0, 1);
  // Every second outer tuple is not there.
  ArrowArrayStream result = joined(all, JoinTuples(kTuples, kTupleBytes, 0, 2));
  EXPECT_EQ(all.mismatches(&result), 1u);
}

// The whole result is right, but not all of it is one executor's.
TEST(JoinTuples, BelongToOneExecutor) {
  const JoinTuples all(kTuples, kTupleBytes, 0, 1);
  ArrowArrayStream result = joined(all, all);
  EXPECT_EQ(JoinTuples(kTuples, kTupleBytes, 0, 2).mismatches(&result), 1u);
}

TEST(JoinTuples, OfAnotherJoinAreNoted) {
  const JoinTuples all(kTuples, kTupleBytes, 0, 1);
  ArrowArrayStream result = joined(all, all);
  // Its outer tuples have the keys of others.
  EXPECT_GT(JoinTuples(kTuples - 10, kTupleBytes, 0, 1).mismatches(&result), kTuples / 2);
}

}  // namespace
}  // namespace verbena::bench
