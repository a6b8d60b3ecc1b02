#include "src/device/soft/copy_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::soft {
namespace {

constexpr uint32_t kBytes = 4096;

constexpr uint64_t kNearLine = 100;

// How many of `copies` stream where one takes so many cycles for 1024 bytes, and a line so many.
int streamed_of(int copies, uint64_t plain_cycles, uint64_t streaming_cycles, CopyChoice& choice,
                uint32_t size_bytes = kBytes, uint64_t line_cycles = kNearLine) {
  int streamed = 0;
  for (int i = 0; i < copies; ++i) {
    const CopyChoice::Turn turn = choice.next(size_bytes);
    if (turn.streams) ++streamed;
    if (turn.is_timed) {
      const uint64_t cycles = turn.streams ? streaming_cycles : plain_cycles;
      choice.took(size_bytes, turn, line_cycles, cycles * size_bytes / 1024);
    }
  }
  return streamed;
}

TEST(CopyChoiceTest, NeverStreamsWhereTheCachesAreFast) {
  CopyChoice choice;
  EXPECT_EQ(streamed_of(10'000, 50, 160, choice), 0);
}

TEST(CopyChoiceTest, StreamsWhereLinesComeFromAnotherCpu) {
  CopyChoice choice;
  EXPECT_GT(streamed_of(10'000, 1200, 160, choice), 9'900);
}

TEST(CopyChoiceTest, TriesStreamingSeldomWhereItIsNoFaster) {
  CopyChoice choice;
  EXPECT_LE(streamed_of(10'000, 500, 290, choice), 40);
}

// Where lines are invalidated together, only the reader waits for each.
TEST(CopyChoiceTest, StreamsWhereTheReaderWouldWait) {
  CopyChoice choice;
  EXPECT_GT(streamed_of(10'000, 190, 320, choice, kBytes, 500), 9'900);
  EXPECT_EQ(streamed_of(10'000, 190, 320, choice, 2 * kBytes), 0);
}

TEST(CopyChoiceTest, FollowsWhatChanges) {
  CopyChoice choice;
  EXPECT_GT(streamed_of(2'000, 1200, 160, choice), 1'900);
  streamed_of(1'100, 50, 160, choice);
  EXPECT_EQ(streamed_of(2'000, 50, 160, choice), 0);
  streamed_of(300, 1200, 160, choice);
  EXPECT_GT(streamed_of(2'000, 1200, 160, choice), 1'900);
}

TEST(CopyChoiceTest, ForgivesInterruptedCopies) {
  CopyChoice choice;
  int plain = 0;
  for (int i = 0; i < 10'000; ++i) {
    const CopyChoice::Turn turn = choice.next(kBytes);
    ASSERT_FALSE(turn.streams);
    if (turn.is_timed) choice.took(kBytes, turn, kNearLine, ++plain % 4 == 0 ? 200 : 1'000'000);
  }
}

TEST(CopyChoiceTest, KnowsEachSizeByItself) {
  CopyChoice choice;
  streamed_of(100, 1200, 160, choice, 2048);
  EXPECT_GT(streamed_of(100, 1200, 160, choice, 2048), 90);
  EXPECT_EQ(streamed_of(100, 50, 160, choice, 2049), 0);
  EXPECT_EQ(streamed_of(100, 50, 160, choice, CopyChoice::kMostBytes), 0);
  EXPECT_GT(streamed_of(100, 1200, 160, choice, CopyChoice::kShortBytes + 1), 90);
}

// Whatever is chosen and timed.
TEST(CopyChoiceTest, CopiesEachOnce) {
  CopyChoice choice;
  int copied = 0;
  std::vector<std::byte> place(kBytes, std::byte{0xa5});
  for (int i = 0; i < 5'000; ++i) choice.copy(place.data(), kBytes, [&](bool) { ++copied; });
  EXPECT_EQ(place, std::vector<std::byte>(kBytes, std::byte{0xa5}));
  EXPECT_EQ(copied, 5'000);
}

}  // namespace
}  // namespace verbena::soft
