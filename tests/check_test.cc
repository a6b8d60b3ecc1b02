// `verbena run --check`: each kind of misuse is told by its name, and what is right is not told of.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "src/device/check_options.h"
#include "src/device/soft/atomic_write.h"
#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena {
namespace {

constexpr const char* kMisuseProcess = VERBENA_TEST_PROCESSES "/check_misuse_process";

constexpr int kExitReported = 86;
constexpr const char* kInFront = VERBENA_TEST_PROCESSES "/../lib/verbena/libverbena-verbs.so";

struct Checked {
  test::Outcome outcome;
  std::string log;
  std::set<std::string> kinds;
};

std::set<std::string> kinds_in(const std::string& log) {
  const std::string prefix = "verbena check: ";
  std::set<std::string> kinds;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(prefix)) continue;
    line.erase(0, prefix.size());
    kinds.insert(line.substr(0, line.find(':')));
  }
  return kinds;
}

Checked run_checked(const std::string& way, const std::string& options = "") {
  const test::ScratchDirectory scratch;
  const std::string log = scratch.file("log");
  std::string check = "--check=log=" + log;
  if (!options.empty()) check += "," + options;
  Checked checked;
  checked.outcome = test::run_tool({"run", check, "--", kMisuseProcess, way, log});
  checked.log = test::read_file(log);
  checked.kinds = kinds_in(checked.log);
  return checked;
}

class CheckTest : public testing::Test {
 protected:
  void SetUp() override {
    if (access(kInFront, R_OK) != 0) {
      GTEST_SKIP() << "this build has no " << kInFront << " (builds with sanitizers have none)";
    }
  }
};

TEST_F(CheckTest, WhatIsRightIsSilent) {
  const Checked checked = run_checked("clean", "pedantic,suppress=receive-over-send");
  EXPECT_EQ(checked.outcome.exit_code, 0) << checked.outcome.out << checked.outcome.err;
  EXPECT_EQ(checked.log, "");
}

TEST_F(CheckTest, LeavesEachContextItsNetwork) {
  const Checked checked = run_checked("mixed-networks");
  EXPECT_EQ(checked.outcome.exit_code, 0) << checked.outcome.out << checked.outcome.err;
  EXPECT_EQ(checked.log, "");
}

struct Misuse {
  std::string way;
  std::string kind;
  std::string options;
};
std::ostream& operator<<(std::ostream& stream, const Misuse& misuse) {
  return stream << misuse.way;
}

class CheckKindTest : public testing::TestWithParam<Misuse> {
 protected:
  void SetUp() override {
    if (access(kInFront, R_OK) != 0) {
      GTEST_SKIP() << "this build has no " << kInFront << " (builds with sanitizers have none)";
    }
  }
};

TEST_P(CheckKindTest, IsToldByItsName) {
  const Misuse& misuse = GetParam();
  const Checked checked = run_checked(misuse.way, misuse.options);
  EXPECT_EQ(checked.outcome.exit_code, kExitReported)
      << checked.outcome.out << checked.outcome.err << checked.log;
  EXPECT_EQ(checked.kinds, std::set<std::string>{misuse.kind}) << checked.log;
}

INSTANTIATE_TEST_SUITE_P(All, CheckKindTest,
                         testing::ValuesIn(std::vector<Misuse>{
                             {"buffer-changed", "buffer-changed", ""},
                             {"buffer-changed-unsignaled", "buffer-changed", ""},
                             {"buffer-changed-extended", "buffer-changed", ""},
                             {"buffer-changed-shared", "buffer-changed", "buffers=all"},
                             {"receive-overlap", "receive-overlap", ""},
                             {"receive-overlap-of-regions", "receive-overlap", ""},
                             {"receive-same-buffer", "receive-same-buffer", "pedantic"},
                             {"receive-over-send", "receive-over-send", "pedantic"},
                             {"unmapped-in-use", "unmapped-in-use", ""},
                             {"unmapped-used", "unmapped-in-use", ""},
                             {"unmapped-registered", "unmapped-registered", "pedantic"},
                             {"deregistered-in-use", "deregistered-in-use", ""},
                             {"remote-access", "remote-access", ""},
                             {"remote-range", "remote-access", ""},
                             {"local-access", "local-access", ""},
                             {"receive-access", "receive-access", ""},
                             {"send-queue-stuck", "send-queue-stuck", ""},
                             {"cq-overrun", "cq-overrun", ""},
                             {"grh-room", "grh-room", ""},
                             {"queue-key", "queue-key", ""},
                             {"inline-size", "inline-size", ""},
                             {"too-many-sges", "too-many-sges", ""},
                             {"wrong-state", "wrong-state", ""},
                             {"atomic-form", "atomic-form", ""},
                             {"read-depth", "read-depth", ""},
                             {"ignored-error", "ignored-error", "suppress=remote-access"},
                             {"unacknowledged-events", "unacknowledged-events", ""},
                             {"lost-wakeup", "lost-wakeup", ""},
                             {"unarmed-sleep", "lost-wakeup", ""},
                             {"leak", "leak", ""},
                             {"destroy-order", "destroy-order", ""},
                             {"deregistered-twice", "use-after-destroy", ""},
                             {"use-after-destroy", "use-after-destroy", ""},
                         }),
                         [](const testing::TestParamInfo<Misuse>& info) {
                           std::string name = info.param.way;
                           for (char& letter : name) letter = letter == '-' ? '_' : letter;
                           return name;
                         });

TEST_F(CheckTest, TheParentOfAChildThatUsesItsObjectsEndsAsItWould) {
  const Checked checked = run_checked("after-fork");
  EXPECT_EQ(checked.outcome.exit_code, 0) << checked.log;
  EXPECT_EQ(checked.kinds, std::set<std::string>{"after-fork"}) << checked.log;
}

TEST_F(CheckTest, KnowsAtomicWrites) {
  if (soft::kAtomicWriteOperation == 0) {
    GTEST_SKIP() << "these headers of libibverbs do not have them";
  }
  const std::string log = run_checked("remote-access-atomic-write").log;
  EXPECT_NE(log.find("ATOMIC_WRITE, wr_id 0x6, 8 bytes at remote address"), std::string::npos)
      << log;
  EXPECT_NE(log.find("without IBV_ACCESS_REMOTE_WRITE"), std::string::npos) << log;
  const Checked unaligned = run_checked("unaligned-atomic-write");
  EXPECT_EQ(unaligned.kinds, std::set<std::string>{"atomic-form"}) << unaligned.log;
}

TEST_F(CheckTest, NamesTheMissingFlag) {
  EXPECT_NE(run_checked("remote-access").log.find("without IBV_ACCESS_REMOTE_WRITE"),
            std::string::npos);
  EXPECT_NE(run_checked("local-access").log.find("without IBV_ACCESS_LOCAL_WRITE"),
            std::string::npos);
}

TEST_F(CheckTest, SaysByHowMuchARegionIsMissed) {
  EXPECT_NE(run_checked("remote-range").log.find("the access ends 48 bytes behind its end"),
            std::string::npos);
}

// So that the file's name can be told from the line's, and copied.
TEST_F(CheckTest, SetsPlacesApart) {
  EXPECT_THAT(run_checked("receive-overlap").log, testing::HasSubstr("\n  other one: /"));
  EXPECT_THAT(run_checked("destroy-order").log, testing::HasSubstr("\n  user made: /"));
}

TEST_F(CheckTest, CountsWhatIsLeftOfOnePlace) {
  const Checked checked = run_checked("leak");
  EXPECT_NE(checked.log.find("2 completion channels left"), std::string::npos) << checked.log;
}

TEST_F(CheckTest, LeavesOutWhatIsSuppressed) {
  const Checked checked = run_checked("grh-room", "suppress=grh-room:leak");
  EXPECT_EQ(checked.log, "");
  EXPECT_EQ(checked.outcome.exit_code, 0);
}

TEST_F(CheckTest, LeavesSharedBuffersOutUnlessAsked) {
  EXPECT_EQ(run_checked("buffer-changed-shared").log, "");
  EXPECT_EQ(run_checked("buffer-changed", "buffers=off").log, "");
}

TEST_F(CheckTest, ReportsOnlyAndKeepsTheExitCodeIfAsked) {
  const Checked kept = run_checked("grh-room", "exit-code=0");
  EXPECT_EQ(kept.outcome.exit_code, 0);
  EXPECT_NE(kept.log, "");
  EXPECT_EQ(run_checked("grh-room", "exit-code=9").outcome.exit_code, 9);
}

TEST_F(CheckTest, WritesToStandardErrorByDefault) {
  const test::Outcome outcome =
      test::run_tool({"run", "--check", "--", kMisuseProcess, "grh-room", "-"});
  EXPECT_EQ(outcome.exit_code, kExitReported);
  EXPECT_EQ(kinds_in(outcome.err), std::set<std::string>{"grh-room"}) << outcome.err;
}

TEST_F(CheckTest, AReportThatFindsNoRoomStopsNobodyElse) {
  const test::Outcome outcome =
      test::run_tool({"run", "--check", "--", kMisuseProcess, "full-pipe", "-"});
  EXPECT_EQ(outcome.exit_code, kExitReported) << outcome.out;
  EXPECT_EQ(outcome.out, "done\n");
}

TEST_F(CheckTest, EndsAProgramThatStillReads) {
  const Checked checked = run_checked("grh-room-beside-reader");
  EXPECT_EQ(checked.outcome.exit_code, kExitReported) << checked.outcome.err << checked.log;
  EXPECT_EQ(checked.outcome.out, "done\n");
}

TEST_F(CheckTest, IsOffUnlessAskedFor) {
  const test::Outcome outcome = test::run_tool({"run", "--", kMisuseProcess, "grh-room", "-"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(CheckOptionTest, WrongOnesEndBeforeTheProgramStarts) {
  for (const char* wrong : {"--check=nothing", "--check=suppress=x", "--check=exit-code=256",
                            "--check=buffers=some", "--check=log=/proc/none/log"}) {
    const test::Outcome outcome = test::run_tool({"run", wrong, "--", "echo", "started"});
    EXPECT_EQ(outcome.exit_code, 2) << wrong;
    EXPECT_EQ(outcome.out, "") << wrong;
    EXPECT_NE(outcome.err.find("--check"), std::string::npos) << outcome.err;
  }
}

// Nothing is written to what somebody else has put there.
TEST(CheckOptionTest, TheLogIsAFileOfOnesOwn) {
  const test::ScratchDirectory scratch;
  const std::string other = scratch.file("other");
  std::ofstream(other) << "mine";
  ASSERT_EQ(symlink(other.c_str(), scratch.file("link").c_str()), 0);
  ASSERT_EQ(mkfifo(scratch.file("fifo").c_str(), 0600), 0);
  for (const char* name : {"link", "fifo"}) {
    const test::Outcome outcome =
        test::run_tool({"run", "--check=log=" + scratch.file(name), "--", "echo", "started"});
    EXPECT_EQ(outcome.exit_code, 2) << name;
    EXPECT_EQ(outcome.out, "") << name;
  }
  EXPECT_EQ(test::read_file(other), "mine");
  const std::string log = scratch.file("log");
  test::run_tool({"run", "--check=log=" + log, "--", "true"});
  struct stat status {};
  ASSERT_EQ(stat(log.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 077, 0u);
}

TEST(CheckOptionTest, ALogInAFolderWithACommaIsRefused) {
  const test::ScratchDirectory scratch;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::create_directory(scratch.file("a,b"));
  std::filesystem::current_path(scratch.file("a,b"));
  const test::Outcome outcome = test::run_tool({"run", "--check=log=x", "--", "echo", "started"});
  std::filesystem::current_path(before);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("comma"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace verbena
