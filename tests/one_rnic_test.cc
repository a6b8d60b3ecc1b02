// A process has one software RNIC, however its parts come to it; what keeps them from it is said in
// one line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "src/device/soft/soft_rnic.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kProgram = VERBENA_TEST_PROCESSES "/one_rnic_process";

class OneRnicTest : public testing::Test {
 protected:
  // With a registry of its own.
  Outcome run(const std::vector<std::string>& arguments, const std::string& library_path = "") {
    return ToolProcess(arguments, {{"VERBENA_RUNTIME_DIR", scratch_.path()},
                                   {"LD_LIBRARY_PATH", library_path}})
        .wait();
  }
  // Runs the program in a tree of its own, with this file as the library that it finds there.
  Outcome run_with_library(const std::string& file) {
    namespace fs = std::filesystem;
    const std::string program = scratch_.file("bin/program");
    fs::create_directories(scratch_.file("bin"));
    fs::create_directories(scratch_.file("lib/verbena"));
    fs::copy_file(kProgram, program);
    if (!file.empty()) fs::copy_file(file, scratch_.file("lib/verbena/libverbena.so"));
    return run({program, "open"});
  }
  static bool has_interposer() {
    return access(VERBENA_TEST_PROCESSES "/../lib/verbena/libverbena-verbs.so", R_OK) == 0;
  }
  // What is not this line would be a line of a failed check.
  static void expect_one_line(const std::string& text) {
    EXPECT_THAT(text, StartsWith("soft0: "));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }

  ScratchDirectory scratch_;
};

#define SKIP_WITHOUT_INTERPOSER() \
  if (!has_interposer()) GTEST_SKIP() << "builds with sanitizers have no libverbena-verbs.so"

TEST_F(OneRnicTest, IsLoadedWhenItIsNeeded) {
  const Outcome outcome = run({kProgram, "open"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST_F(OneRnicTest, IsThatOfLibibverbsUnderRun) {
  SKIP_WITHOUT_INTERPOSER();
  const Outcome outcome = run({VERBENA_TOOL, "run", "--", kProgram, "plain"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST_F(OneRnicTest, IsThatOfAllModules) {
  const std::vector<std::string> command = {kProgram, "modules",
                                            VERBENA_TEST_PROCESSES "/one_rnic_module_1.so",
                                            VERBENA_TEST_PROCESSES "/one_rnic_module_2.so"};
  const Outcome outcome = run(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  if (!has_interposer()) return;
  std::vector<std::string> under_run = {VERBENA_TOOL, "run", "--"};
  under_run.insert(under_run.end(), command.begin(), command.end());
  const Outcome preloaded = run(under_run);
  EXPECT_EQ(preloaded.exit_code, 0) << preloaded.out << preloaded.err;
}

TEST_F(OneRnicTest, RefusesToBeTheSecondOne) {
  const std::string copy = scratch_.file(soft::kLibraryName);
  std::filesystem::copy_file(VERBENA_LIBRARY, copy);
  const Outcome outcome = run({kProgram, "copy", copy});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  expect_one_line(outcome.out);
  EXPECT_THAT(outcome.out, HasSubstr("/lib/verbena/libverbena.so is loaded beside " + copy));
}

// The loader's list of one namespace does not show what is in another.
TEST_F(OneRnicTest, RefusesToBeTheSecondOneInAnotherNamespace) {
  const Outcome outcome = run({kProgram, "namespace", VERBENA_LIBRARY});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  expect_one_line(outcome.out);
  EXPECT_THAT(outcome.out, HasSubstr("/lib/verbena/libverbena.so is loaded twice"));
}

TEST_F(OneRnicTest, RefusesToBeTheSecondOneUnderAnotherName) {
  const std::string first = scratch_.file("libone.so");
  const std::string second = scratch_.file("another.so");
  for (const std::string& copy : {first, second}) {
    std::filesystem::copy_file(VERBENA_LIBRARY, copy);
  }
  const Outcome outcome = run({kProgram, "renamed", first, second});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  expect_one_line(outcome.out);
  EXPECT_THAT(outcome.out, HasSubstr(first + " is loaded beside " + second));
  EXPECT_THAT(outcome.out, HasSubstr("load libverbena.so by its name"));
  const Outcome beside = run({kProgram, "copy", second});
  EXPECT_EQ(beside.exit_code, 0) << beside.out << beside.err;
  EXPECT_THAT(beside.out, HasSubstr("/lib/verbena/libverbena.so is loaded beside " + second));
}

TEST_F(OneRnicTest, OfAnotherVersionIsRefused) {
  const Outcome outcome = run_with_library(VERBENA_OTHER_VERSION "/libverbena.so");
  EXPECT_EQ(outcome.exit_code, 1);
  expect_one_line(outcome.out);
  EXPECT_THAT(outcome.out,
              HasSubstr("/lib/verbena/libverbena.so is of Verbena 9.9.9 (interface 99)"));
}

TEST_F(OneRnicTest, OfAnotherVersionIsLeftOutUnderRun) {
  SKIP_WITHOUT_INTERPOSER();
  const Outcome outcome = run({VERBENA_TOOL, "run", "--", kProgram, "list"}, VERBENA_OTHER_VERSION);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, StartsWith("verbena: error: soft0: " VERBENA_OTHER_VERSION));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

TEST_F(OneRnicTest, ThatCannotBeFoundIsNamed) {
  const Outcome outcome = run_with_library("");
  EXPECT_EQ(outcome.exit_code, 1);
  expect_one_line(outcome.out);
  EXPECT_THAT(outcome.out, HasSubstr("libverbena.so: cannot open shared object file"));
}

TEST_F(OneRnicTest, IsNotAnyLibraryOfThatName) {
  const Outcome outcome = run_with_library(VERBENA_TEST_PROCESSES "/one_rnic_module_1.so");
  EXPECT_EQ(outcome.exit_code, 1);
  expect_one_line(outcome.out);
  EXPECT_THAT(outcome.out, HasSubstr("another library than Verbena's"));
}

}  // namespace
}  // namespace verbena::test
