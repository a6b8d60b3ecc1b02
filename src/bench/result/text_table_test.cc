#include "src/bench/result/text_table.h"

#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

TEST(TextTable, AlignsColumns) {
  EXPECT_EQ(
      text_table({{"name", "size", "rate"}, {"a", "64 B", "1"}, {"bbbbbb", "4 KiB", "10"}}, 1),
      "name     size  rate\n"
      "a        64 B     1\n"
      "bbbbbb  4 KiB    10\n");
}

TEST(TextTable, RemarksDoNotWidenColumns) {
  EXPECT_EQ(text_table({{"a", "b", "c"}, {"1", "failed: a long story"}, {"2", "3", "4"}}, 1),
            "a  b  c\n"
            "1  failed: a long story\n"
            "2  3  4\n");
}

TEST(TextTable, EmptyRowsSeparate) {
  EXPECT_EQ(text_table({{"a", "b"}, {"1", "2"}, {}, {"3", "4"}}, 0), "a  b\n1  2\n\n3  4\n");
}

TEST(TextTable, CountsCharactersNotBytes) {
  EXPECT_EQ(text_table({{"µ", "x"}, {"ab", "y"}}, 2), "µ   x\nab  y\n");
}

TEST(NumberText, HasThreeDigitsAndAUnit) {
  EXPECT_EQ(time_text(281.4), "281 ns");
  EXPECT_EQ(time_text(1236), "1.24 us");
  EXPECT_EQ(time_text(999.6), "1.00 us");
  EXPECT_EQ(time_text(9.996), "10.0 ns");
  EXPECT_EQ(time_text(12'345'678), "12.3 ms");
  EXPECT_EQ(time_text(5e12), "5000 s");
  EXPECT_EQ(rate_text(3'210'000), "3.21 M/s");
  EXPECT_EQ(bandwidth_text(10.44e9), "10.4 GB/s");
  EXPECT_EQ(count_text(12345.6), "12346");
  EXPECT_EQ(count_text(0), "0.00");
}

}  // namespace
}  // namespace verbena::bench
