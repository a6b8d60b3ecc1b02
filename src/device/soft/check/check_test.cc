// The bookkeeping of the checks: sums of buffers, ranges in use, options, reports.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/check_options.h"
#include "src/device/soft/check/buffer_sum.h"
#include "src/device/soft/check/ranges.h"
#include "src/device/soft/check/report.h"

namespace verbena::soft::check {
namespace {

uint64_t address_of(const void* bytes) { return reinterpret_cast<uint64_t>(bytes); }

TEST(BufferSumTest, ChangesWithAnyByteOfAShortBuffer) {
  std::vector<unsigned char> bytes(kWholeSumBytes);
  for (const size_t size : {size_t{1}, size_t{7}, size_t{33}, size_t{4096}, kWholeSumBytes}) {
    const auto before = sum_buffer(address_of(bytes.data()), size);
    ASSERT_TRUE(before.has_value());
    for (const size_t at : {size_t{0}, size / 2, size - 1}) {
      bytes[at] ^= 1;
      EXPECT_NE(sum_buffer(address_of(bytes.data()), size), before) << size << " at " << at;
      bytes[at] ^= 1;
    }
    EXPECT_EQ(sum_buffer(address_of(bytes.data()), size), before);
  }
}

TEST(BufferSumTest, ChangesWithTheEndsOfALongBuffer) {
  std::vector<unsigned char> bytes(1 << 20);
  const auto before = sum_buffer(address_of(bytes.data()), bytes.size());
  for (const size_t at : {size_t{0}, bytes.size() - 1}) {
    bytes[at] ^= 1;
    EXPECT_NE(sum_buffer(address_of(bytes.data()), bytes.size()), before);
    bytes[at] ^= 1;
  }
}

TEST(BufferSumTest, FindsNothingInMemoryThatIsGone) {
  void* memory = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_TRUE(sum_buffer(address_of(memory), 8192).has_value());
  munmap(memory, 8192);
  EXPECT_FALSE(sum_buffer(address_of(memory), 8192).has_value());
}

// Against a list of all ranges.
TEST(RangesTest, FindsWhatAPlainListFinds) {
  std::mt19937_64 random(run_seed());
  Ranges ranges;
  std::vector<std::pair<uint64_t, uint64_t>> list;
  for (int step = 0; step < 3000; ++step) {
    const uint64_t begin = random() % 500;
    const uint64_t end = begin + 1 + random() % 40;
    if (random() % 3 != 0 || list.empty()) {
      ranges.add(begin, end, nullptr);
      list.emplace_back(begin, end);
    } else {
      const size_t at = random() % list.size();
      ranges.remove(list[at].first, list[at].second);
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
    }
    size_t expected = 0;
    for (const auto& [first, last] : list) {
      if (first < end && begin < last) ++expected;
    }
    size_t found = 0;
    ranges.for_overlaps(begin, end, [&found](uint64_t, uint64_t, RangeUse& use) {
      found += use.uses;
      return true;
    });
    ASSERT_EQ(found, expected) << "step " << step;
  }
}

TEST(CheckOptionsTest, AreRead) {
  CheckOptions options;
  EXPECT_EQ(parse_check_options(
                "on,buffers=all,exit-code=3,log=/tmp/x,suppress=leak:grh-room,pedantic", options),
            "");
  EXPECT_EQ(options.buffers, CheckedBuffers::kAll);
  EXPECT_EQ(options.exit_code, 3);
  EXPECT_EQ(options.log_path, "/tmp/x");
  EXPECT_FALSE(options.wants(CheckKind::kLeak));
  EXPECT_FALSE(options.wants(CheckKind::kGrhRoom));
  EXPECT_TRUE(options.wants(CheckKind::kReceiveSameBuffer));
}

TEST(CheckOptionsTest, AreRefusedWithWhatThereIs) {
  for (const char* wrong : {"x", "buffers", "buffers=1", "exit-code=", "exit-code=-1",
                            "exit-code=256", "exit-code=1x", "log=", "suppress=", "suppress=y"}) {
    CheckOptions options;
    EXPECT_NE(parse_check_options(wrong, options), "") << wrong;
  }
}

TEST(CheckOptionsTest, LeaveWhatProgramsMayDoToThePedantic) {
  const CheckOptions options;
  EXPECT_FALSE(options.wants(CheckKind::kReceiveSameBuffer));
  EXPECT_TRUE(options.wants(CheckKind::kBufferChanged));
}

// Places of one kind are printed once each, by whatever threads, and counted.
TEST(ReportsTest, PrintEachPlaceOnceAndCountTheRest) {
  const std::string path = fmt::format("/tmp/verbena-check-test-{}", getpid());
  CheckOptions options;
  options.log_path = path;
  Reports reports(options);
  static const int places[4] = {};
  constexpr int kRounds = 50;
  const auto report = [&reports] {
    for (int round = 0; round < kRounds; ++round) {
      for (const int& place : places) {
        reports.add({.kind = CheckKind::kGrhRoom, .place = &place, .what = "too short"});
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(report);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reports.count(), 4u * kRounds * std::size(places));
  reports.finish();
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  unlink(path.c_str());
  size_t blocks = 0;
  size_t more = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == "verbena check: grh-room: too short") ++blocks;
    if (line.find(fmt::format("{} more of it", 4 * kRounds - 1)) != std::string::npos) ++more;
  }
  EXPECT_EQ(blocks, std::size(places)) << text;
  EXPECT_EQ(more, std::size(places)) << text;
}

}  // namespace
}  // namespace verbena::soft::check
