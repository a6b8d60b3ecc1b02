#include "src/connect/endpoint.h"

#include <gtest/gtest.h>

namespace verbena::connect {
namespace {

TEST(EndpointTest, AssignmentLeavesNothingOfTheOldOne) {
  auto device = Device::open("soft0");
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  auto domain = ProtectionDomain::create(*device);
  ASSERT_TRUE(domain.ok()) << domain.status().message();
  const EndpointPlan plan{.arena_bytes = 4096, .send_depth_wrs = 4, .own_receives = 1};
  auto first = make_endpoint(*device, *domain, plan);
  ASSERT_TRUE(first.ok()) << first.status().message();
  auto second = make_endpoint(*device, *domain, plan);
  ASSERT_TRUE(second.ok()) << second.status().message();
  ibv_qp* const queue_pair = second->queue_pair.get();
  // What cannot be destroyed, such as a completion queue still in use, is a warning.
  testing::internal::CaptureStderr();
  *first = std::move(*second);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(first->queue_pair.get(), queue_pair);
}

}  // namespace
}  // namespace verbena::connect
