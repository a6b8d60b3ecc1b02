// Nodes that are stopped: a bench ends with one line that names them, and leaves no process behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using testing::HasSubstr;

class Stall : public testing::Test {
 protected:
  // A run without end by itself.
  void start(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {VERBENA_TOOL, "bench"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    for (const char* argument :
         {"--protocol", "write/write", "--requests", "1000000000", "--runs", "1"}) {
      command.emplace_back(argument);
    }
    process_.emplace(command);
  }
  // Once they exchange messages: they have used so much CPU time.
  std::vector<pid_t> nodes(size_t count) {
    EXPECT_TRUE(eventually([&] { return process_->children().size() == count; }));
    const std::vector<pid_t> found = process_->children();
    EXPECT_TRUE(eventually([&] { return std::all_of(found.begin(), found.end(), works); }));
    return found;
  }
  // Once each runs its own program: who starts it waits for that, for ever if it is stopped then.
  std::vector<pid_t> just_started(size_t count) {
    EXPECT_TRUE(eventually([&] { return process_->children().size() == count; }));
    const std::vector<pid_t> found = process_->children();
    const std::string own = command_line(process_->pid());
    EXPECT_TRUE(eventually([&] {
      return std::none_of(found.begin(), found.end(),
                          [&](pid_t node) { return command_line(node) == own; });
    }));
    return found;
  }
  Outcome end(const std::vector<pid_t>& nodes) {
    const Outcome outcome = process_->wait();
    const std::string text = complaints(outcome);
    EXPECT_EQ(outcome.exit_code, 1);
    // A node that was stopped in the middle of an access is warned of, too.
    EXPECT_EQ(text.find("error:"), text.rfind("error:")) << text;
    EXPECT_NE(text.find("error:"), std::string::npos) << text;
    for (const pid_t node : nodes) EXPECT_FALSE(is_alive(node));
    return outcome;
  }
  static std::string named(pid_t node) { return "(process " + std::to_string(node) + ")"; }

 private:
  static std::string command_line(pid_t process) {
    return read_file("/proc/" + std::to_string(process) + "/cmdline");
  }
  static bool works(pid_t node) {
    constexpr int kTicks = 30;
    const std::string status = read_file("/proc/" + std::to_string(node) + "/stat");
    const size_t name_end = status.rfind(')');
    if (name_end == std::string::npos) return false;
    long user_ticks = 0;
    long system_ticks = 0;
    const int read =
        sscanf(status.c_str() + name_end + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user_ticks, &system_ticks);
    return read == 2 && user_ticks + system_ticks > kTicks;
  }

  std::optional<ToolProcess> process_;
};

TEST_F(Stall, AStoppedRequesterIsNamed) {
  start({"one-to-one", "--stall-timeout", "5s"});
  const std::vector<pid_t> both = nodes(2);
  kill(both[0], SIGSTOP);
  const Outcome outcome = end(both);
  EXPECT_THAT(outcome.err,
              HasSubstr("the requester " + named(both[0]) + ": no sign of life for 5."));
  EXPECT_THAT(outcome.err, HasSubstr("the requester " + named(both[0]) + " is stopped"));
}

TEST_F(Stall, AStoppedResponderIsNamed) {
  start({"one-to-one", "--stall-timeout", "5s"});
  const std::vector<pid_t> both = nodes(2);
  kill(both[1], SIGSTOP);
  EXPECT_THAT(end(both).err, HasSubstr("the responder " + named(both[1]) + " is stopped"));
}

TEST_F(Stall, OneStoppedAndAnotherKilledAreBothNamed) {
  start({"M:1", "--nodes", "2"});
  const std::vector<pid_t> all = nodes(3);
  kill(all[0], SIGSTOP);
  kill(all[1], SIGKILL);
  const Outcome outcome = end(all);
  EXPECT_THAT(outcome.err,
              HasSubstr("requester 2 of 2 " + named(all[1]) + " was killed by signal 9"));
  EXPECT_THAT(outcome.err, HasSubstr("requester 1 of 2 " + named(all[0]) + " is stopped"));
}

// Wherever in its start or in the set-up of the point that is.
TEST_F(Stall, AStoppedNodeIsNamedBeforeTheRunBegins) {
  constexpr int kLooksLater[] = {0, 2, 8};
  for (const int looks : kLooksLater) {
    SCOPED_TRACE(looks);
    start({"one-to-one", "--stall-timeout", "2s"});
    const std::vector<pid_t> both = just_started(2);
    for (int look = 0; look < looks; ++look) pause_between_looks();
    kill(both[1], SIGSTOP);
    const Outcome outcome = end(both);
    EXPECT_THAT(outcome.err, HasSubstr(named(both[1])));
    EXPECT_THAT(outcome.err, HasSubstr("is stopped, as by SIGSTOP"));
  }
}

TEST_F(Stall, AMachineThatWasStoppedGoesOn) {
  ToolProcess process({VERBENA_TOOL, "bench", "one-to-one", "--protocol", "write/write",
                       "--duration", "4s", "--runs", "1", "--stall-timeout", "5s"});
  EXPECT_TRUE(eventually([&] { return process.children().size() == 2; }));
  std::vector<pid_t> all = process.children();
  all.push_back(process.pid());
  for (const pid_t one : all) kill(one, SIGSTOP);
  for (int look = 0; look < 1600; ++look)
    pause_between_looks();  // longer than may pass without progress
  for (const pid_t one : all) kill(one, SIGCONT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

}  // namespace
}  // namespace verbena::test
