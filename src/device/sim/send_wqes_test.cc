#include "src/device/sim/send_wqes.h"

#include <gtest/gtest.h>

namespace verbena::sim {
namespace {

// Posts `count` WQEs, of which at most `pending` are not done, and looks at all that are not.
void expect_kept(uint32_t depth, uint64_t count, uint64_t pending) {
  SendWqes entries;
  entries.configure(depth, 2);
  for (uint64_t number = 0; number < count; ++number) {
    const uint64_t done = number < pending ? 0 : number - pending + 1;
    entries.add(number, done);
    entries.wqe(number) = {.wr_id = number};
    entries.sges(number)[1].addr = number;
    entries.inline_bytes(number).hold(8)[0] = static_cast<std::byte>(number);
    for (uint64_t kept = done; kept <= number; ++kept) {
      ASSERT_EQ(entries.wqe(kept).wr_id, kept);
      ASSERT_EQ(entries.sges(kept)[1].addr, kept);
      ASSERT_EQ(entries.inline_bytes(kept).bytes[0], static_cast<std::byte>(kept));
    }
  }
}

TEST(SendWqesTest, KeepsWhatIsNotDone) {
  for (const uint32_t depth : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 64u}) {
    for (const uint64_t pending : {1u, 2u, 3u, 5u, 8u, 64u}) {
      if (pending <= depth) expect_kept(depth, 500, pending);
    }
  }
}

TEST(SendWqesTest, UsesTheMemoryOfWhatIsDoneAgain) {
  SendWqes entries;
  entries.configure(64, 1);
  entries.add(0, 0);
  const Wqe* const first = &entries.wqe(0);
  for (uint64_t number = 1; number <= SendBlock::kEntries; ++number) entries.add(number, number);
  EXPECT_EQ(&entries.wqe(SendBlock::kEntries), first);
}

TEST(SendWqesTest, BeginsAnewWhenCleared) {
  SendWqes entries;
  entries.configure(8, 1);
  for (uint64_t number = 0; number < 30; ++number) entries.add(number, number);
  entries.clear();
  for (uint64_t number = 0; number < 8; ++number) {
    entries.add(number, 0);
    entries.wqe(number) = {.wr_id = number};
  }
  for (uint64_t number = 0; number < 8; ++number) EXPECT_EQ(entries.wqe(number).wr_id, number);
}

}  // namespace
}  // namespace verbena::sim
