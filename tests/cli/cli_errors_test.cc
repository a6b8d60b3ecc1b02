// Bad input: one line that names the cause, and an exit code that is not 0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using testing::HasSubstr;
using testing::Not;

void expect_one_line(const Outcome& outcome, const std::vector<std::string>& words) {
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, testing::StartsWith("verbena"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("terminate")));
  EXPECT_THAT(outcome.err, Not(HasSubstr("Traceback")));
  for (const std::string& word : words) EXPECT_THAT(outcome.err, HasSubstr(word));
}

struct BadInput {
  std::vector<std::string> arguments;
  int exit_code;
  std::vector<std::string> words;  // of the line: cause, limit, remedy
};

TEST(BadInput, GetsOneLineAndAnExitCode) {
  const std::vector<std::string> bench = {"bench", "one-to-one"};
  const auto of_bench = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), bench.begin(), bench.end());
    return arguments;
  };
  const std::vector<BadInput> inputs = {
      {{}, 2, {"needs a command: devices, ", "bench, ", "--help"}},
      {{"trace"}, 2, {"'verbena trace' needs a command: ", "--help"}},
      {{"bogus"}, 2, {"bogus", "bench", "--help"}},
      {{"bench"}, 2, {"--help"}},
      {{"bench", "many-to-many"}, 2, {"many-to-many", "one-to-one"}},
      {{"--bogus"}, 2, {"--bogus", "--help"}},
      {of_bench({"--device", "mlx5_9"}), 2, {"mlx5_9", "soft0"}},
      {of_bench({"--protocol", "smtp"}), 2, {"smtp", "write/write", "read", "all"}},
      {of_bench({"--protocol", "read,"}), 2, {"protocol", "write/write"}},
      {of_bench({"--mark", "x"}), 2, {"'x'", "last-bit", "head-tail"}},
      {of_bench({"--request", "1GiB"}), 2, {"1GiB", "512 MiB"}},
      {of_bench({"--response", "0"}), 2, {"1 B to 512 MiB"}},
      {of_bench({"--response", "64,…"}), 2, {"64,…", "list"}},
      {of_bench({"--request", "4KB"}), 2, {"4KB", "KiB"}},
      {of_bench({"--size", "5GiB"}), 2, {"--size cannot be '5GiB'", "a number", "without a unit"}},
      {of_bench({"--pending", "0"}), 2, {"1 to 4096"}},
      {of_bench({"--pending", "100000"}), 2, {"100000", "4096"}},
      {of_bench({"--pending", "4096", "--response", "512MiB"}),
       1,
       {"memory", "available", "lower"}},
      {of_bench({"--huge-pages", "1"}), 1, {"soft0", "changes nothing", "leave"}},
      {of_bench({"--runs", "0"}), 2, {"runs"}},
      {of_bench({"--runs", "x"}), 2, {"runs"}},
      {of_bench({"--duration", "5"}), 2, {"'5'", "500ms"}},
      {of_bench({"--requests", "5", "--duration", "1s"}), 2, {"--duration", "--requests"}},
      {of_bench({"--port", "70000"}), 2, {"70000", "65535"}},
      {of_bench({"--json", "/nonexistent/results.json"}), 1, {"/nonexistent/results.json"}},
      {of_bench({"--json", "/dev/null"}), 2, {"/dev/null", "regular file"}},
      {of_bench({"--json", ""}), 2, {"--json", "empty"}},
      {of_bench({"--runs", ""}), 2, {"--runs", "empty"}},
      {{"bench", ""}, 2, {"empty"}},
      {of_bench({"--listen"}), 2, {"--secret-file"}},
      {of_bench({"--listen", "--json", "x", "--secret-file", "y"}), 2, {"--json"}},
      {of_bench({"--connect", "localhost", "--secret-file", "/nonexistent"}), 2, {"/nonexistent"}},
      {{"bench-node"}, 2, {"verbena bench", "--listen"}},
      {{"bench", "one-to-one", "--nodes", "4"}, 2, {"one-to-one has one", "4"}},
      {{"bench", "M:M", "--nodes", "1"}, 2, {"M:M", "2 nodes"}},
      {{"bench", "M:1", "--nodes", "5000"}, 2, {"5000", "1024"}},
      {{"bench", "M:1", "--threads", "0"}, 2, {"1 to 256"}},
      {{"bench", "--experiment", "/nonexistent.toml"}, 2, {"/nonexistent.toml", "msgproto-fig10a"}},
      {{"bench", "M:1", "--experiment", "x.toml"}, 2, {"--experiment"}},
      {{"bench", "M:1", "--resume"}, 2, {"--resume", "--json"}},
      {{"bench", "M:1", "--limit-nodes", "0"}, 2, {"limit of nodes"}},
      {{"bench", "M:1", "--active", "2"}, 2, {"'2'", "up to 1"}},
      {{"bench", "M:1", "--arrival-rate", "fast"}, 2, {"'fast'", "arrival rate"}},
      {{"bench", "M:1", "--arrival-rate", "2000000000"}, 2, {"arrival rate", "1000000000"}},
      {{"bench", "M:1", "--arrival-rate", "5", "--arrivals", "odd"}, 2, {"odd", "poisson"}},
      {{"bench", "M:1", "--arrival-rate", "5", "--wait", "block"}, 2, {"--wait", "--arrival-rate"}},
      {{"bench", "M:1", "--model", "shared"}, 2, {"shared", "private"}},
      {{"bench", "--device", "sim:connectx3-fdr", "message", "--runs", "1"}, 2, {"--device"}},
      {{"bench", "one-to-one", "message", "--runs", "1"}, 2, {"TOPOLOGY"}},
      {{"sim", "explain", "--duration", "1us", "log", "--device", "sim:connectx3-fdr"},
       2,
       {"--duration"}},
      {{"report"}, 2, {"FILE"}},
      {{"report", "/nonexistent"}, 2, {"/nonexistent"}},
      {{"report", "/dev/null"}, 2, {"/dev/null"}},
      {{"report", VERBENA_SOURCE_DIR "/LICENSE"}, 2, {"LICENSE", "JSON"}},
      {{"demo", "--output", "/dev/null"}, 2, {"/dev/null", "--output"}},
      {{"demo", "--output", std::string(300, 'x')}, 2, {"xxx", "too long", "--output"}},
      {{"completion", "tcsh"}, 2, {"tcsh", "bash", "zsh"}},
      {{"run"}, 2, {"PROGRAM"}},
      {{"devices", "extra"}, 2, {"extra"}},
  };
  const ScratchDirectory scratch;
  for (const BadInput& input : inputs) {
    std::string line = "verbena";
    for (const std::string& argument : input.arguments) line += " " + argument;
    SCOPED_TRACE(line);
    const Outcome outcome = run_tool(input.arguments, scratch.path());
    EXPECT_EQ(outcome.exit_code, input.exit_code) << outcome.err;
    expect_one_line(outcome, input.words);
  }
}

TEST(BadInput, NobodyListens) {
  const ScratchDirectory scratch;
  write_file(scratch.file("secret"), "0123456789abcdef0123456789abcdef\n");
  ASSERT_EQ(chmod(scratch.file("secret").c_str(), 0600), 0);
  // Port 1 is nobody's.
  const Outcome outcome = run_tool({"bench", "one-to-one", "--connect", "127.0.0.1", "--port", "1",
                                    "--secret-file", scratch.file("secret")});
  EXPECT_EQ(outcome.exit_code, 1);
  expect_one_line(outcome, {"127.0.0.1:1"});
}

TEST(BadInput, ASecretThatOthersCanReadIsRefused) {
  const ScratchDirectory scratch;
  write_file(scratch.file("secret"), "0123456789abcdef0123456789abcdef\n");
  ASSERT_EQ(chmod(scratch.file("secret").c_str(), 0644), 0);
  const Outcome outcome = run_tool(
      {"bench", "one-to-one", "--connect", "127.0.0.1", "--secret-file", scratch.file("secret")});
  EXPECT_NE(outcome.exit_code, 0);
  expect_one_line(outcome, {"secret", "600"});
}

TEST(BadInput, AFullDiskIsNoticed) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full";
  const Outcome outcome =
      ToolProcess({"bash", "-c", "exec " VERBENA_TOOL " devices > /dev/full"}).wait();
  EXPECT_EQ(outcome.exit_code, 1);
  expect_one_line(outcome, {"standard output"});
}

// Much less in /dev/shm than the software RNIC needs, in a mount namespace of the process's own.
TEST(BadInput, ATinySharedMemoryIsNamed) {
  const std::string script =
      "mount -t tmpfs -o size=4k tmpfs /dev/shm || exit 99\n"
      "exec " VERBENA_TOOL " bench one-to-one --protocol read --requests 10 --runs 1";
  const Outcome outcome = ToolProcess({"unshare", "-m", "bash", "-c", script}).wait();
  if (outcome.exit_code == 99 || outcome.err.find("unshare") != std::string::npos) {
    GTEST_SKIP() << "mount namespaces are not allowed here";
  }
  EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
  expect_one_line(outcome, {"/dev/shm"});
}

}  // namespace
}  // namespace verbena::test
