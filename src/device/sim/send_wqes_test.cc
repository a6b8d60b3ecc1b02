#include "src/device/sim/send_wqes.h"

#include <gtest/gtest.h>

namespace verbena::sim {
namespace {

Wqe inline_wqe(uint64_t number) {
  return {.wr_id = number,
          .length_bytes = static_cast<uint32_t>(1 + number * 7 % 200),
          .sges = static_cast<uint8_t>(number % 4),
          .inlined = true};
}

void add(SendWqes& wqes, uint64_t number) {
  const Wqe wqe = inline_wqe(number);
  wqes.add(wqe);
  for (uint64_t i = 0; i < wqe.sges; ++i) wqes.sges(number)[i].addr = number + i;
  for (uint64_t i = 0; i < wqe.length_bytes; ++i) {
    wqes.inline_bytes(number)[i] = static_cast<std::byte>(number + i);
  }
}

void expect(SendWqes& wqes, uint64_t number) {
  const Wqe& wqe = wqes.wqe(number);
  ASSERT_EQ(wqe.wr_id, number);
  for (uint64_t i = 0; i < wqe.sges; ++i) ASSERT_EQ(wqes.sges(number)[i].addr, number + i);
  for (uint64_t i = 0; i < wqe.length_bytes; ++i) {
    ASSERT_EQ(wqes.inline_bytes(number)[i], static_cast<std::byte>(number + i));
  }
}

// Posts `count` WQEs, of which `pending` are not done, and looks at all that are not.
void expect_kept(uint64_t count, uint64_t pending) {
  WqePool pool;
  SendWqes wqes;
  SendWqes others;  // of another queue pair
  wqes.configure(pool, 0);
  others.configure(pool, 40);
  for (uint64_t number = 0; number < count; ++number) {
    add(wqes, number);
    add(others, number);
    const uint64_t done = number < pending ? 0 : number - pending + 1;
    for (uint64_t kept = done; kept <= number; ++kept) expect(wqes, kept);
    wqes.release_below(done);
    others.release_below(number);
  }
}

TEST(SendWqesTest, KeepsWhatIsNotDone) {
  for (const uint64_t pending : {1u, 2u, 3u, 5u, 8u, 64u}) expect_kept(500, pending);
}

TEST(SendWqesTest, UsesTheMemoryOfWhatIsDoneAgain) {
  WqePool pool;
  SendWqes wqes;
  SendWqes others;
  wqes.configure(pool, 0);
  others.configure(pool, 0);
  wqes.add({.wr_id = 1, .sges = 2});
  const Wqe* const first = &wqes.wqe(0);
  wqes.release_below(1);
  others.add({.wr_id = 2, .sges = 2});
  EXPECT_EQ(&others.wqe(0), first);
}

TEST(SendWqesTest, BeginsAnewWhenCleared) {
  WqePool pool;
  SendWqes wqes;
  wqes.configure(pool, 0);
  for (uint64_t number = 0; number < 30; ++number) add(wqes, number);
  wqes.release_below(25);
  wqes.clear();
  for (uint64_t number = 0; number < 8; ++number) add(wqes, number);
  for (uint64_t number = 0; number < 8; ++number) expect(wqes, number);
}

}  // namespace
}  // namespace verbena::sim
