#include "src/connect/endpoint.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <utility>

#include "src/device/verbs_control.h"

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
  ibv_cq* const sends = first->send_completions.get();
  ibv_cq* const receives = first->receive_completions.get();
  *first = std::move(*second);
  // A completion queue that had to go while its queue pair was there would be left behind: it could
  // still be destroyed.
  EXPECT_EQ(domain->control().destroy_cq(sends), EINVAL);
  EXPECT_EQ(domain->control().destroy_cq(receives), EINVAL);
}

}  // namespace
}  // namespace verbena::connect
