// Where output cannot be written: a full disk, closed descriptors, a reader that left. No command
// ends by a signal, a measurement goes on, and lost output is one line and an exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using testing::StartsWith;

constexpr int kExitClosedPipe = 141;

// `command` of the tool with the shell's redirections; $TOOL is the tool.
Outcome run_in_shell(const std::string& script, const ScratchDirectory& scratch) {
  ToolProcess process({"bash", "-c", script}, {{"TOOL", VERBENA_TOOL}, {"VERBENA_LOG", "debug"}},
                      scratch.path());
  return process.wait();
}

const char* const kShortBench =
    "\"$TOOL\" bench one-to-one --protocol write/write --requests 1000 --runs 1 --json "
    "results.json";

void expect_results(const ScratchDirectory& scratch) {
  const auto document = nlohmann::json::parse(read_file(scratch.file("results.json")));
  ASSERT_EQ(document["results"].size(), 1u);
  EXPECT_EQ(document["results"][0]["errors"], 0);
}

// Every command that prints, and what it exits with where it can.
struct Command {
  const char* text;
  int exit_code;
};

const std::vector<Command>& commands() {
  static const std::vector<Command> list = {
      {"--help", 0},
      {"--version", 0},
      {"devices", 0},
      {"devices --json", 0},
      {"bench --help", 0},
      {"bench one-to-one --protocol write/write --requests 100 --runs 1", 0},
      {"bench one-to-one --device sim:connectx3-fdr --protocol write/write --requests 100 --runs 1",
       0},
      {"verbs --operations 100 --runs 1", 0},
      {"completion bash", 0},
      {"completion zsh", 0},
      {"sim profiles", 0},
      {"sim explain --help", 0},
      {"reproduce --help", 0},
      {"run --help", 0},
      {"run", 2},
      {"bogus", 2},
  };
  return list;
}

int exit_code_of(const std::string& redirected) {
  const ScratchDirectory scratch;
  return run_in_shell("\"$TOOL\" " + redirected, scratch).exit_code;
}

TEST(Output, OfCommandsThatWorkIsThere) {
  for (const Command& command : commands()) {
    EXPECT_EQ(exit_code_of(command.text), command.exit_code) << command.text;
  }
}

TEST(Output, ThatIsLostIsAnErrorOfEveryCommand) {
  for (const Command& command : commands()) {
    const int expected = command.exit_code != 0 ? command.exit_code : 1;
    for (const char* where : {" >/dev/full", " >&-", " >/dev/full 2>/dev/full", " >&- 2>&-"}) {
      EXPECT_EQ(exit_code_of(command.text + std::string(where)), expected) << command.text << where;
    }
  }
}

TEST(Output, OfErrorsCanBeLost) {
  for (const Command& command : commands()) {
    for (const char* where : {" 2>/dev/full", " 2>&-", " <&- 2>&-"}) {
      EXPECT_EQ(exit_code_of(command.text + std::string(where)), command.exit_code)
          << command.text << where;
    }
  }
}

TEST(Output, EndsSilentlyWhereTheReaderLeft) {
  for (const Command& command : commands()) {
    if (command.exit_code != 0) continue;
    const ScratchDirectory scratch;
    // The reader is gone before the tool starts.
    const Outcome outcome =
        run_in_shell("{ sleep 0.3; VERBENA_LOG=error \"$TOOL\" " + std::string(command.text) +
                         "; echo $? >code; } | true",
                     scratch);
    EXPECT_EQ(read_file(scratch.file("code")), std::to_string(kExitClosedPipe) + "\n")
        << command.text;
    EXPECT_EQ(complaints(outcome), "") << command.text;
  }
}

TEST(Output, LostIsSaidInOneLine) {
  const ScratchDirectory scratch;
  const Outcome outcome =
      run_in_shell("VERBENA_LOG=error " + std::string(kShortBench) + " >/dev/full", scratch);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(complaints(outcome),
              StartsWith("verbena: error: cannot write to standard output: No space"));
  const std::string lines = complaints(outcome);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  expect_results(scratch);
}

TEST(Output, NoMeasurementEndsWithItsLog) {
  for (const char* where : {" 2>/dev/full", " 2>&-", " 2> >(true)", " <&- >out 2>&-"}) {
    const ScratchDirectory scratch;
    EXPECT_EQ(run_in_shell(kShortBench + std::string(where), scratch).exit_code, 0) << where;
    expect_results(scratch);
  }
}

// No socket may take the place of a descriptor that was closed: what is printed would go to the
// peer.
TEST(Output, NoMeasurementEndsWithoutAnyDescriptor) {
  const ScratchDirectory scratch;
  EXPECT_EQ(run_in_shell(kShortBench + std::string(" <&- >&- 2>&-"), scratch).exit_code, 1);
  expect_results(scratch);
}

// What the caller ignores is ignored in the program, as without the tool in front of it.
TEST(Output, ProgramsThatRunGetTheDescriptorsAndSignalsAsTheyWere) {
  const ScratchDirectory scratch;
  EXPECT_EQ(run_in_shell("\"$TOOL\" run -- bash -c '[ -e /proc/$$/fd/0 ] && echo open || echo "
                         "closed' <&-",
                         scratch)
                .out,
            "closed\n");
  const std::string ignored = "grep SigIgn /proc/self/status";
  for (const char* ignores : {"", "trap '' PIPE; ", "trap '' PIPE INT HUP; "}) {
    EXPECT_EQ(run_in_shell(ignores + ("\"$TOOL\" run -- " + ignored), scratch).out,
              run_in_shell(ignores + ignored, scratch).out)
        << ignores;
  }
}

}  // namespace
}  // namespace verbena::test
