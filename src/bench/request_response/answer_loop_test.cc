#include "src/bench/request_response/answer_loop.h"

#include <gtest/gtest.h>

#include <array>

namespace verbena::bench {
namespace {

TEST(PollCount, CountsFromTheFirstRequestToTheLast) {
  // 90 mailboxes: a poll of the responder polls all of them ("patterns" table 2).
  std::array<uint64_t, 90> mailboxes{};
  PollCount polls;
  for (const uint32_t requests : {0u, 15u, 0u, 30u, 15u, 0u}) {
    for (size_t i = 0; i < mailboxes.size(); ++i) mailboxes[i] = i < requests ? 1 : 0;
    uint32_t found = 0;
    for (const uint64_t& mailbox : mailboxes) found += poll_word(&mailbox) != 0 ? 1 : 0;
    polls.count(found);
  }
  EXPECT_EQ(polls.between().polls, 4 * 90u);
  EXPECT_EQ(polls.between().empty_polls, 4 * 90u - 60);
}

TEST(PollCount, IsNothingWithoutRequests) {
  const uint64_t mailbox = 0;
  PollCount polls;
  polls.count(static_cast<uint32_t>(poll_word(&mailbox)));
  EXPECT_EQ(polls.between().polls, 0u);
}

}  // namespace
}  // namespace verbena::bench
