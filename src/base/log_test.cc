#include "src/base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"

namespace verbena {
namespace {

class LogTest : public testing::Test {
 protected:
  void SetUp() override { level_ = log_level(); }
  void TearDown() override { set_log_level(level_); }

  template <typename Body>
  static std::string captured(Body&& body) {
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
  }

 private:
  LogLevel level_ = LogLevel::kWarning;
};

TEST_F(LogTest, EachLevelIsOneLineWithItsName) {
  set_log_level(LogLevel::kDebug);
  EXPECT_EQ(captured([] { log_error("the {} is {}", "ring", 7); }),
            "verbena: error: the ring is 7\n");
  EXPECT_EQ(captured([] { log_warning("w"); }), "verbena: warning: w\n");
  EXPECT_EQ(captured([] { log_info("i"); }), "verbena: info: i\n");
  EXPECT_EQ(captured([] { log_debug("d"); }), "verbena: debug: d\n");
}

TEST_F(LogTest, ALevelShowsItselfAndWhatIsWorse) {
  const auto all = [] {
    log_error("e");
    log_warning("w");
    log_info("i");
    log_debug("d");
  };
  set_log_level(LogLevel::kOff);
  EXPECT_EQ(captured(all), "");
  set_log_level(LogLevel::kError);
  EXPECT_EQ(captured(all), "verbena: error: e\n");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(captured(all), "verbena: error: e\nverbena: warning: w\nverbena: info: i\n");
}

TEST_F(LogTest, NothingSplitsALineOrMovesTheCursor) {
  set_log_level(LogLevel::kWarning);
  EXPECT_EQ(captured([] { log_warning("a\nb\rc\x1b[2Jd\x7f{}", "%v {}"); }),
            "verbena: warning: a b c [2Jd %v {}\n");
  EXPECT_EQ(captured([] { log_line(LogLevel::kError, "{} %l"); }), "verbena: error: {} %l\n");
}

// Threads of the parent are not there to let go of a lock that they had.
TEST_F(LogTest, AChildLogsAlthoughAThreadOfItsParentDidWhenItWasMade) {
  set_log_level(LogLevel::kWarning);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
  const FileDescriptor reads(ends[0]);
  FileDescriptor writes(ends[1]);
  char some[4096] = {};
  while (write(writes.get(), some, sizeof(some)) > 0) {
  }
  while (write(writes.get(), some, 1) > 0) {
  }
  ASSERT_EQ(fcntl(writes.get(), F_SETFL, 0), 0);
  const FileDescriptor before(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  ASSERT_EQ(dup2(writes.get(), STDERR_FILENO), STDERR_FILENO);
  Thread thread = start_thread("logs", [] { log_warning("waits for the pipe's reader"); });
  sleep_ns(50'000'000);  // else the test finds nothing
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    log_warning("w");
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(dup2(before.get(), STDERR_FILENO), STDERR_FILENO);
  while (read(reads.get(), some, sizeof(some)) > 0) {
  }
  thread.join();
  EXPECT_EQ(status, 0);
}

TEST_F(LogTest, KnowsItsLevelsByName) {
  EXPECT_EQ(parse_log_level("off"), LogLevel::kOff);
  EXPECT_EQ(parse_log_level("error"), LogLevel::kError);
  EXPECT_EQ(parse_log_level("warn"), LogLevel::kWarning);
  EXPECT_EQ(parse_log_level("info"), LogLevel::kInfo);
  EXPECT_EQ(parse_log_level("debug"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("loud"), std::nullopt);
  EXPECT_EQ(parse_log_level(""), std::nullopt);
}

using LogDeathTest = LogTest;

TEST_F(LogDeathTest, TakesItsLevelFromTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto log_all_under = [](const char* level) {
    setenv("VERBENA_LOG", level, 1);
    read_log_level_again();
    log_warning("w");
    log_debug("d");
    std::fflush(stderr);
    std::_Exit(0);
  };
  EXPECT_EXIT(log_all_under("debug"), testing::ExitedWithCode(0), "warning: w\nverbena: debug: d");
  EXPECT_EXIT(log_all_under("off"), testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(log_all_under("loud"), testing::ExitedWithCode(0),
              "VERBENA_LOG is 'loud'.*using warn.*\nverbena: warning: w");
}

TEST(LogRateLimitTest, LetsSoManyThroughPerPeriodAndCountsTheRest) {
  LogRateLimit limit(2, 100);
  uint64_t suppressed = 99;
  EXPECT_TRUE(limit.allow(1000, &suppressed));
  EXPECT_EQ(suppressed, 0u);
  EXPECT_TRUE(limit.allow(1001, &suppressed));
  EXPECT_FALSE(limit.allow(1002, &suppressed));
  EXPECT_FALSE(limit.allow(1099, &suppressed));
  EXPECT_TRUE(limit.allow(1100, &suppressed));
  EXPECT_EQ(suppressed, 2u);
  EXPECT_TRUE(limit.allow(1101, &suppressed));
  EXPECT_EQ(suppressed, 0u);
  EXPECT_FALSE(limit.allow(1102, &suppressed));
}

}  // namespace
}  // namespace verbena
