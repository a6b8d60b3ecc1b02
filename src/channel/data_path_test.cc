// What each function of verbena/data_path.h does, and what it counts.
#include "verbena/data_path.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <utility>

#include "src/base/runtime.h"
#include "src/channel/fake_queue_for_test.h"

namespace verbena {
namespace {

class DataPathTest : public testing::Test {
 protected:
  // Since the last call.
  DataPathStatistics counted() {
    const DataPathStatistics before = std::exchange(last_, data_path_statistics());
    return last_ - before;
  }
  void expect(uint64_t polls, uint64_t empty_polls) {
    const DataPathStatistics now = counted();
    EXPECT_EQ(now.polls, polls);
    EXPECT_EQ(now.empty_polls, empty_polls);
    EXPECT_EQ(now.bytes_copied + now.bytes_cleared + now.hand_overs, 0u);
  }

 private:
  DataPathStatistics last_ = data_path_statistics();
};

TEST_F(DataPathTest, APollOfAWordIsEmptyWhereItIsZero) {
  uint64_t word = 0;
  EXPECT_EQ(poll_word(&word), 0u);
  expect(1, 1);
  store_word(&word, uint64_t{7});
  EXPECT_EQ(poll_word(&word), 7u);
  expect(1, 0);
  const uint8_t byte = 3;
  EXPECT_EQ(poll_word(&byte), 3);
  expect(1, 0);
}

TEST_F(DataPathTest, APollOfACounterIsEmptyWhereItIsAsBefore) {
  uint64_t counter = 7;
  EXPECT_EQ(poll_counter(&counter, uint64_t{7}), 7u);
  expect(1, 1);
  store_word(&counter, uint64_t{9});
  EXPECT_EQ(poll_counter(&counter, uint64_t{7}), 9u);
  expect(1, 0);
}

TEST_F(DataPathTest, APollOfAMarkIsEmptyWhereItIsAnything) {
  char last = 0;
  EXPECT_EQ(poll_mark(&last, 0xa5), 0);
  last = 0x11;
  EXPECT_EQ(poll_mark(&last, 0xa5), 0x11);
  expect(2, 2);
  last = static_cast<char>(0xa5);
  EXPECT_EQ(poll_mark(&last, 0xa5), 0xa5);
  expect(1, 0);
}

TEST_F(DataPathTest, AMarkedWordIsThereOnceItsHighestBitIs) {
  alignas(8) char bytes[8] = {5, 0, 0, 0, 0, 0, 0, 0x7f};
  uint64_t word = 0;
  EXPECT_FALSE(poll_marked_word(bytes, &word));
  expect(1, 1);
  bytes[7] = static_cast<char>(0x80);
  ASSERT_TRUE(poll_marked_word(bytes, &word));
  EXPECT_EQ(word, uint64_t{1} << 63 | 5);
  expect(1, 0);
}

TEST_F(DataPathTest, WordsOfAFoundMessageAreNoPolls) {
  uint32_t word = 9;
  EXPECT_EQ(read_word(&word), 9u);
  store_word(&word, uint32_t{0});
  EXPECT_EQ(word, 0u);
  expect(0, 0);
}

TEST_F(DataPathTest, APublishedWordIsAHandOver) {
  uint64_t word = 0;
  publish_word(&word, uint64_t{4});
  EXPECT_EQ(counted().hand_overs, 1u);
  EXPECT_EQ(consume_word(&word), 4u);
  expect(1, 0);
  store_word(&word, uint64_t{0});
  EXPECT_EQ(consume_word(&word), 0u);
  expect(1, 1);
}

TEST_F(DataPathTest, BytesAreCounted) {
  std::array<char, 100> from;
  from.fill('x');
  std::array<char, 100> to{};
  copy_bytes(to.data(), from.data(), 60);
  EXPECT_EQ(std::memcmp(to.data(), from.data(), 60), 0);
  EXPECT_EQ(to[60], 0);
  DataPathStatistics now = counted();
  EXPECT_EQ(now.bytes_copied, 60u);
  EXPECT_EQ(now.bytes_cleared, 0u);
  clear_bytes(to.data(), 40);
  EXPECT_EQ(to[39], 0);
  EXPECT_EQ(to[40], 'x');
  now = counted();
  EXPECT_EQ(now.bytes_copied, 0u);
  EXPECT_EQ(now.bytes_cleared, 40u);
}

TEST_F(DataPathTest, APollOfACompletionQueueIsEmptyWhereNothingIsThere) {
  channel::FakeQueue fake;
  ibv_wc completions[4];
  EXPECT_EQ(poll_completions(fake.completions(), 4, completions), 0);
  expect(1, 1);
  EXPECT_EQ(poll_messages(fake.completions(), 4, completions), 0);
  expect(1, 1);
  fake.arrivals.resize(3);
  EXPECT_EQ(poll_completions(fake.completions(), 4, completions), 3);
  expect(1, 0);
  fake.arrivals.resize(2);
  EXPECT_EQ(poll_messages(fake.completions(), 4, completions), 2);
  expect(1, 0);
}

TEST_F(DataPathTest, EachThreadHasCountsOfItsOwn) {
  uint64_t word = 0;
  poll_word(&word);
  Thread other = start_thread("other", [&word] {
    EXPECT_EQ(data_path_statistics().polls, 0u);
    poll_word(&word);
    EXPECT_EQ(data_path_statistics().polls, 1u);
  });
  other.join();
  expect(1, 1);
  static_assert(alignof(internal::DataPathCounters) == 64);
  static_assert(sizeof(internal::DataPathCounters) % 64 == 0, "no other thread's beside it");
}

}  // namespace
}  // namespace verbena
