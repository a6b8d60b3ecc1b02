#include "src/bench/experiment/size_list.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr ListLimits kSizes{"request size", 1, 1u << 30};
constexpr ListLimits kCounts{"number of pending requests", 1, 4096};

std::vector<uint64_t> sizes(std::string_view text) {
  Result<std::vector<uint64_t>> list = parse_size_list(text, kSizes);
  EXPECT_TRUE(list.ok()) << list.status().message();
  return list.ok() ? *list : std::vector<uint64_t>();
}

std::string refusal(const Result<std::vector<uint64_t>>& list) {
  EXPECT_FALSE(list.ok());
  EXPECT_EQ(list.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(list.status().message(), testing::Not(HasSubstr("\n")));
  return list.status().message();
}

TEST(SizeList, TakesSingleValuesListsAndUnits) {
  EXPECT_THAT(sizes("64"), ElementsAre(64));
  EXPECT_THAT(sizes("64,100, 4KiB"), ElementsAre(64, 100, 4096));
  EXPECT_THAT(sizes("1mib,1 GiB,7B"), ElementsAre(1 << 20, 1 << 30, 7));
  EXPECT_THAT(sizes("64,64B,64"), ElementsAre(64));
}

TEST(SizeList, FillsRangesWithPowersOfTwo) {
  EXPECT_THAT(sizes("64,…,512"), ElementsAre(64, 128, 256, 512));
  EXPECT_THAT(sizes("64,...,512"), ElementsAre(64, 128, 256, 512));
  EXPECT_THAT(sizes("100, … ,600"), ElementsAre(100, 128, 256, 512, 600));
  EXPECT_THAT(sizes("1,...,4,…,16,100"), ElementsAre(1, 2, 4, 8, 16, 100));
  EXPECT_EQ(sizes("64,…,1MiB").size(), 15u);
}

TEST(SizeList, RefusesWhatIsNoList) {
  for (const char* text : {"", ",", "64,", ",64", "x", "64x", "64KB", "-1", "1.5", "0x40", "…",
                           "...", "64,…", "…,64", "64,…,…,128", "64 128", "64..128", "∞"}) {
    EXPECT_THAT(refusal(parse_size_list(text, kSizes)), HasSubstr("request size")) << text;
  }
  EXPECT_THAT(refusal(parse_count_list("1KiB", kCounts)), HasSubstr("1,16"));
}

TEST(SizeList, CanBeASingleValue) {
  constexpr ListLimits kPort{"port", 0, 65535, /*single=*/true};
  EXPECT_THAT(parse_count_list("7471", kPort).value(), ElementsAre(7471));
  for (const char* text : {"1,2", "x", "65536", ""}) {
    const std::string message = refusal(parse_count_list(text, kPort));
    EXPECT_THAT(message, HasSubstr("port"));
    EXPECT_THAT(message, testing::Not(HasSubstr("list")));
  }
}

TEST(SizeList, NamesTheLimits) {
  EXPECT_THAT(refusal(parse_size_list("2GiB", kSizes)), HasSubstr("1 B to 1 GiB"));
  EXPECT_THAT(refusal(parse_size_list("0", kSizes)), HasSubstr("1 B to 1 GiB"));
  EXPECT_THAT(refusal(parse_size_list("99999999999999999999999", kSizes)), HasSubstr("1 GiB"));
  EXPECT_THAT(refusal(parse_size_list("18446744073709551615GiB", kSizes)), HasSubstr("1 GiB"));
  EXPECT_THAT(refusal(parse_count_list("4097", kCounts)), HasSubstr("1 to 4096"));
  EXPECT_THAT(refusal(parse_size_list("512,…,64", kSizes)), HasSubstr("smaller one first"));
}

TEST(SizeList, BoundsTheNumberOfEntries) {
  std::string text = "1";
  for (size_t i = 2; i <= kMaxListEntries; ++i) text += fmt::format(",{}", i);
  EXPECT_EQ(sizes(text).size(), kMaxListEntries);
  EXPECT_THAT(refusal(parse_size_list(text + ",100000", kSizes)), HasSubstr("too many"));
}

TEST(Duration, TakesTimesWithUnits) {
  EXPECT_EQ(parse_duration_ns("1s").value(), 1'000'000'000u);
  EXPECT_EQ(parse_duration_ns("250 ms").value(), 250'000'000u);
  EXPECT_EQ(parse_duration_ns("1.5s").value(), 1'500'000'000u);
  EXPECT_EQ(parse_duration_ns("2min").value(), 120'000'000'000u);
  for (const char* text : {"", "1", "0s", "-1s", "s", "1h", "inf s", "nan s", "1e9s", "1000000s"}) {
    EXPECT_FALSE(parse_duration_ns(text).ok()) << text;
  }
}

TEST(SizeText, PicksTheUnit) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(4096), "4 KiB");
  EXPECT_EQ(size_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(size_text(uint64_t{1} << 29), "512 MiB");
}

}  // namespace
}  // namespace verbena::bench
