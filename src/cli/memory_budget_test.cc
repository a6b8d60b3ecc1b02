#include "src/cli/memory_budget.h"

#include <gtest/gtest.h>

namespace verbena::cli {
namespace {

TEST(MemoryBudgetTest, WhatEndsGivesBackWhatItTook) {
  MemoryBudget budget(100, 3);
  budget.take(0, 60);
  EXPECT_TRUE(budget.has(40));
  EXPECT_FALSE(budget.has(41));
  budget.take(1, 40);
  budget.give_back(0);
  EXPECT_EQ(budget.free_bytes(), 60u);
  budget.give_back(1);
  EXPECT_EQ(budget.free_bytes(), 100u);
}

TEST(MemoryBudgetTest, WhatIsTooLargeTakesAllAndLeavesNoMoreThanThereWas) {
  MemoryBudget budget(100, 3);
  budget.take(0, 1000);
  EXPECT_EQ(budget.free_bytes(), 0u);
  budget.give_back(0);
  EXPECT_EQ(budget.free_bytes(), 100u);
}

}  // namespace
}  // namespace verbena::cli
