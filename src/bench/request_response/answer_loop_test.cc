#include "src/bench/request_response/answer_loop.h"

#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

TEST(LookCount, CountsFromTheFirstRequestToTheLast) {
  LookCount looks;
  for (const uint32_t found : {0u, 0u, 1u, 0u, 2u, 0u, 0u}) looks.count(found);
  EXPECT_EQ(looks.polls(), 3u);
  EXPECT_EQ(LookCount().polls(), 0u);
}

TEST(LookCount, EmptyMailboxesAndEmptyQueues) {
  // 90 mailboxes, on average 15 requests at a look through them ("patterns" table 2).
  const Looks mailboxes = looks_of(100, 1500, 90, /*mailboxes=*/true, /*pending=*/1);
  EXPECT_EQ(mailboxes.all, 9000u);
  EXPECT_EQ(mailboxes.empty, 7500u);
  const Looks deep = looks_of(100, 1500, 90, /*mailboxes=*/true, /*pending=*/8);
  EXPECT_EQ(deep.all, 10500u);
  EXPECT_EQ(deep.empty, 9000u);
  const Looks queue = looks_of(100, 1500, 90, /*mailboxes=*/false, /*pending=*/1);
  EXPECT_EQ(queue.all, 1600u);
  EXPECT_EQ(queue.empty, 100u);
}

}  // namespace
}  // namespace verbena::bench
