#include "src/base/spawn.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "src/base/runtime.h"

namespace verbena {
namespace {

// The exit code of a shell's `script`.
int shell(const std::string& script, const SpawnOptions& options = {}) {
  return run_and_wait({"sh", "-c", script}, options).value();
}

TEST(SpawnTest, TellsHowTheProgramEnded) {
  EXPECT_EQ(shell("exit 42"), 42);
  EXPECT_EQ(shell("kill -9 $$"), 128 + SIGKILL);
}

TEST(SpawnTest, NamesAProgramThatIsNotThere) {
  const Result<int> outcome = run_and_wait({"no-such-program-anywhere"});
  EXPECT_EQ(outcome.status().code(), StatusCode::kNotFound);
  EXPECT_NE(outcome.status().message().find("'no-such-program-anywhere'"), std::string::npos);
}

TEST(SpawnTest, RunsAFileUnderAnotherName) {
  EXPECT_EQ(run_and_wait({"called", "-c", "test $0 = called"}, {.file = "sh"}).value(), 0);
}

TEST(SpawnTest, AddsAndReplacesVariables) {
  setenv("VERBENA_SPAWN_KEPT", "kept", 1);
  setenv("VERBENA_SPAWN_REPLACED", "old", 1);
  EXPECT_EQ(shell("test $VERBENA_SPAWN_KEPT$VERBENA_SPAWN_REPLACED = keptnew",
                  {.environment = {{"VERBENA_SPAWN_REPLACED", "new"}}}),
            0);
}

TEST(SpawnTest, StartsInADirectory) {
  const std::string here = std::filesystem::temp_directory_path().string();
  EXPECT_EQ(shell("test \"$(pwd -P)\" = \"$(cd '" + here + "' && pwd -P)\"", {.directory = here}),
            0);
}

TEST(SpawnTest, PassesDescriptorsOnThatOthersDoNotInherit) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  // The number may be the same as here.
  for (const int number : {9, ends[1]}) {
    EXPECT_EQ(shell("printf x >/proc/self/fd/" + std::to_string(number),
                    {.descriptors = {{ends[1], number}}}),
              0);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'x');
  }
  EXPECT_NE(shell("{ printf x >/proc/self/fd/" + std::to_string(ends[1]) + "; } 2>/dev/null"), 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(SpawnTest, OpensFiles) {
  EXPECT_EQ(
      shell("read line", {.files = {{.descriptor = 0, .path = "/dev/null", .flags = O_RDONLY}}}),
      1);
}

// Such as the one that stops it.
TEST(SpawnTest, StartsProgramsThatSignalsReachFromAThreadThatBlocksThem) {
  std::string blocked;
  std::ifstream status("/proc/self/status");
  while (std::getline(status, blocked) && !blocked.starts_with("SigBlk:")) {
  }
  int exit_code = -1;
  Thread thread = start_thread("spawns", [&] {
    exit_code = run_and_wait({"grep", "-qx", blocked, "/proc/self/status"}).value();
  });
  thread.join();
  EXPECT_EQ(exit_code, 0) << blocked << " was expected";
}

}  // namespace
}  // namespace verbena
