// Runs under limits of resources that are too low: each works or names the limit in one line, at
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kBench = "bench one-to-one --protocol write/write --requests 100 --runs 1";

Outcome run_limited(const std::string& limit, const std::string& command) {
  return ToolProcess({"bash", "-c", limit + " && exec \"$TOOL\" " + command},
                     {{"TOOL", VERBENA_TOOL}})
      .wait();
}

void expect_one_line_with(const Outcome& outcome, const std::string& remedy) {
  const std::string text = complaints(outcome);
  EXPECT_EQ(outcome.exit_code, 1) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_THAT(text, StartsWith("verbena: error: "));
  EXPECT_THAT(text, HasSubstr(remedy));
}

class Limits : public testing::Test {
 protected:
  void SetUp() override {
#if VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER
    GTEST_SKIP() << "sanitizers need descriptors and addresses of their own";
#endif
  }
};

// The dynamic linker found no descriptor for the tool's libraries: there is no tool that could say
// more.
constexpr int kExitNotLoaded = 127;
constexpr int kFewest = 3;
constexpr int kMost = 64;

TEST_F(Limits, OfDescriptorsAreNamed) {
  int works = 0;
  for (int limit = kFewest; limit <= kMost; ++limit) {
    SCOPED_TRACE(limit);
    // Nothing is waited for, such as a time-out of 20 s. What a busy machine delays, it does not
    // delay each time.
    constexpr int kTries = 3;
    bool at_once = false;
    for (int i = 0; i < kTries && !at_once; ++i) {
      const uint64_t start_ns = now_ns();
      const Outcome outcome = run_limited("ulimit -n " + std::to_string(limit), kBench);
      at_once = now_ns() - start_ns < 15'000'000'000u;
      if (outcome.exit_code == kExitNotLoaded) {
        EXPECT_THAT(outcome.err, HasSubstr("error while loading shared libraries"));
      } else if (outcome.exit_code == 0) {
        ++works;
        EXPECT_EQ(complaints(outcome), "");
      } else {
        expect_one_line_with(outcome, "ulimit -n");
        EXPECT_EQ(works, 0) << "fewer descriptors were enough";
      }
    }
    EXPECT_TRUE(at_once);
  }
  EXPECT_GT(works, 0);
}

TEST_F(Limits, OfDescriptorsAreNamedByDevices) {
  for (int limit = kFewest; limit <= 32; ++limit) {
    SCOPED_TRACE(limit);
    const Outcome outcome = run_limited("ulimit -n " + std::to_string(limit), "devices");
    if (outcome.exit_code == kExitNotLoaded) continue;
    EXPECT_EQ(outcome.exit_code, 0);
    if (outcome.out.find("cannot be used") != std::string::npos) {
      EXPECT_THAT(outcome.out, HasSubstr("ulimit -n"));
    }
  }
}

TEST_F(Limits, OfAddressSpaceAreNamed) {
  for (const int mebibytes : {256, 512, 1024, 2048, 4096, 65536}) {
    SCOPED_TRACE(mebibytes);
    const Outcome outcome = run_limited("ulimit -v " + std::to_string(mebibytes * 1024), kBench);
    if (outcome.exit_code != 0) expect_one_line_with(outcome, "ulimit -v");
  }
}

}  // namespace
}  // namespace verbena::test
