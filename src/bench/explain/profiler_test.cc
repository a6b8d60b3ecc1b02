#include "src/bench/explain/profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

TEST(Profile, SharesAreOfEachSide) {
  const SampleProfile profile = parse_profile(
      "  30.00%;respond-0;[.] poll(int)\n"
      "  10.00%;respond-1;[.] poll(int)\n"
      "  10.00%;respond-0;[.] copy<8>(char*)\n"
      "\n"
      "  15.00%;request-0;[.] post\n"
      "   5.00%;dispatch-0;[.] post\n"
      "  30.00%;verbena-node;[.] main\n");
  ASSERT_EQ(profile.responder.size(), 2u);
  EXPECT_EQ(profile.responder[0].function, "poll");
  EXPECT_DOUBLE_EQ(profile.responder[0].share, 0.8);
  EXPECT_EQ(profile.responder[1].function, "copy");
  ASSERT_EQ(profile.requester.size(), 1u);
  EXPECT_DOUBLE_EQ(profile.requester[0].share, 1);
  EXPECT_TRUE(parse_profile("nonsense").responder.empty());
}

}  // namespace
}  // namespace verbena::bench
