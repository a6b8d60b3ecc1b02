#include "src/device/sim/event_queue.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/base/runtime.h"

namespace verbena::sim {
namespace {

void nothing(void*, uint64_t) {}

TEST(EventQueueTest, AtTheSameTimeTheOrderIsThatOfInsertion) {
  EventQueue queue;
  for (uint64_t i = 0; i < 100; ++i) queue.push(7, nothing, nullptr, i);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(queue.pop().argument, i);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.next_at(), kNever);
}

TEST(EventQueueTest, WhatIsInsertedInAnyOrderComesInThatOfTime) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << seed);
  Random random(seed);
  EventQueue queue;
  // Some come while others are taken, as in a simulation.
  Time now = 0;
  uint64_t last_argument = 0;
  size_t taken = 0;
  constexpr uint64_t kEvents = 20'000;
  for (uint64_t i = 0; i < kEvents; ++i) {
    queue.push(now + random.below(50), nothing, nullptr, i);
    if (random.below(3) == 0) continue;
    const Event event = queue.pop();
    ASSERT_GE(event.at, now);
    if (event.at == now && taken > 0) {
      ASSERT_GT(event.argument, last_argument);
    }
    now = event.at;
    last_argument = event.argument;
    ++taken;
  }
  while (!queue.empty()) {
    ASSERT_EQ(queue.size(), kEvents - taken);
    const Event event = queue.pop();
    ASSERT_GE(event.at, now);
    if (event.at == now) {
      ASSERT_GT(event.argument, last_argument);
    }
    now = event.at;
    last_argument = event.argument;
    ++taken;
  }
  EXPECT_EQ(taken, kEvents);
}

}  // namespace
}  // namespace verbena::sim
