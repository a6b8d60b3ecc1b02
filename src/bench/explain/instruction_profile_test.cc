#include "src/bench/explain/instruction_profile.h"

#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

CallgrindDump poll(Side side, uint32_t messages, uint64_t poll, uint64_t copy) {
  return {.side = side,
          .messages = messages,
          .instructions_by_function = {{"poll<1>(int)", poll}, {"copy(char*)", copy}}};
}

TEST(InstructionProfile, IsOfAllPollsOfASideWithoutTheCountingItself) {
  const CallgrindDump dumps[] = {
      {.side = Side::kRequester, .messages = 0, .instructions_by_function = {{"begin", 10}}},
      poll(Side::kRequester, 1, 110, 100),
      poll(Side::kRequester, 3, 210, 200),
      poll(Side::kResponder, 2, 60, 20),
  };
  const InstructionProfile profile = instruction_profile(dumps);
  ASSERT_TRUE(profile.requester && profile.responder);
  EXPECT_DOUBLE_EQ(profile.requester->per_message, 150);  // (210 + 410 - 2 * 10) / 4
  EXPECT_DOUBLE_EQ(profile.requester->messages_per_poll, 2);
  ASSERT_EQ(profile.requester->functions.size(), 2u);
  EXPECT_EQ(profile.requester->functions[0].function, "poll");
  EXPECT_DOUBLE_EQ(profile.requester->functions[0].share, 320.0 / 620);
  EXPECT_DOUBLE_EQ(profile.responder->per_message, 40);
  EXPECT_DOUBLE_EQ(profile.responder->functions[0].share, 0.75);
}

TEST(InstructionProfile, DispatchersMoveEachMessageOfTheRequestersTwice) {
  const CallgrindDump dumps[] = {poll(Side::kRequester, 1, 80, 20),
                                 poll(Side::kDispatcher, 4, 500, 100)};
  const InstructionProfile profile = instruction_profile(dumps);
  EXPECT_DOUBLE_EQ(profile.requester->per_message, 100 + 300);
  EXPECT_DOUBLE_EQ(profile.requester->functions[0].share, (80.0 + 250) / 400);
  EXPECT_FALSE(profile.responder);
}

TEST(InstructionProfile, HasNothingWhereNoPollWasSeen) {
  const CallgrindDump only_counting[] = {{.side = Side::kRequester, .messages = 0}};
  EXPECT_FALSE(instruction_profile(only_counting).requester);
  EXPECT_FALSE(instruction_profile({}).responder);
}

}  // namespace
}  // namespace verbena::bench
