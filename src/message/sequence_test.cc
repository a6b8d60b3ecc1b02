#include "src/message/sequence.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace verbena::message {
namespace {

TEST(Sequence, TheNextAndThoseAheadOfIt) {
  Sequence sequence(3);
  EXPECT_EQ(sequence.place(0), Sequence::Place::kNext);
  EXPECT_EQ(sequence.place(1), Sequence::Place::kAhead);
  EXPECT_EQ(sequence.place(2), Sequence::Place::kAhead);
  EXPECT_EQ(sequence.place(3), Sequence::Place::kBroken);
  sequence.advance();
  EXPECT_EQ(sequence.place(0), Sequence::Place::kBroken);
  EXPECT_EQ(sequence.place(1), Sequence::Place::kNext);
  EXPECT_EQ(sequence.place(3), Sequence::Place::kAhead);
}

TEST(Sequence, NumbersWrap) {
  Sequence sequence(10, ~uint32_t{0} - 1);
  EXPECT_EQ(sequence.place(~uint32_t{0}), Sequence::Place::kAhead);
  EXPECT_EQ(sequence.place(1), Sequence::Place::kAhead);
  EXPECT_EQ(sequence.place(20), Sequence::Place::kBroken);
  for (int i = 0; i < 3; ++i) sequence.advance();
  EXPECT_EQ(sequence.expected(), 1u);
  EXPECT_EQ(sequence.place(1), Sequence::Place::kNext);
  EXPECT_EQ(sequence.place(0), Sequence::Place::kBroken);
}

}  // namespace
}  // namespace verbena::message
