#include "src/bench/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

using testing::HasSubstr;

DeviceInfo device() {
  DeviceInfo info;
  info.name = "toy0";
  info.max_queue_pair_wrs = 1024;
  return info;
}

TEST(Plan, GroupsHoldWhatIsCompared) {
  Plan plan;
  plan.protocols.assign(all_protocols().begin(), all_protocols().end());
  plan.layouts = {MarkLayout::kLastBit, MarkLayout::kHeadTail};
  plan.response_bytes = {64, 4096};
  plan.pending = {1, 16};
  const std::vector<PointGroup> groups = point_groups(plan);
  ASSERT_EQ(groups.size(), 4u);
  for (const PointGroup& group : groups) {
    // send/send and read have no mark, the three others come with each layout.
    EXPECT_EQ(group.size(), 2u + 3u * 2u);
    for (const Point& point : group) {
      EXPECT_EQ(point.response_bytes, group.front().response_bytes);
      EXPECT_EQ(point.pending, group.front().pending);
    }
  }
}

TEST(Plan, RefusesWhatCannotBeDone) {
  Plan plan;
  plan.protocols = {Protocol::kWriteWrite};
  EXPECT_TRUE(check_plan(plan, device()).ok());

  plan.pending = {1, 1024};
  Status status = check_plan(plan, device());
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("1024"), HasSubstr("--pending")));

  plan.pending = {1000};
  plan.response_bytes = {kMaxMessageBytes};
  status = check_plan(plan, device());
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("512 MiB"), HasSubstr("available")));
}

TEST(Plan, CountsTheMemoryOfBothSides) {
  EXPECT_EQ(memory_bytes({.request_bytes = 64, .response_bytes = 4032, .pending = 16}),
            2u * 65536u);
  EXPECT_GT(available_memory_bytes(), 0u);
}

}  // namespace
}  // namespace verbena::bench
