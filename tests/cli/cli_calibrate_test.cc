// `verbena calibrate`: a profile of soft0 as it is here, by which it can be simulated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// `verbena` with its user's own profiles in this folder.
Outcome run_in(const std::string& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), VERBENA_TOOL);
  return ToolProcess(arguments, {{"XDG_DATA_HOME", folder}}).wait();
}

// What soft0 takes is not judged here: it hangs on what else the machine does.
TEST(Calibrate, WritesAProfileThatSimulatesTheDevice) {
  const ScratchDirectory scratch;
  const Outcome outcome =
      run_in(scratch.path(), {"calibrate", "--rounds", "2", "--duration", "2ms", "--name", "here",
                              "--json", scratch.file("all.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("post_wqe"), HasSubstr("--device sim:here")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("median error"))) << "nothing was checked";
  EXPECT_TRUE(std::filesystem::exists(scratch.file("verbena/profiles/here.toml")));

  const json all = json::parse(read_file(scratch.file("all.json")));
  EXPECT_EQ(all.at("parameters").at("post_wqe").at("evidence"), "calibrated");
  EXPECT_EQ(all.at("parameters").at("cpu_jitter").at("evidence"), "assumed");
  for (const json& one : all.at("observations")) {
    EXPECT_LE(one.at("ns").at("least"), one.at("ns").at("median"));
    // One side's time is counted in whole cycles: where the measurements of a busy machine left its
    // parameters at next to nothing there are none.
    if (one.at("measured").get<std::string>().find("thread's time") == std::string::npos) {
      EXPECT_GT(one.at("simulated_ns"), 0) << one;
    }
  }

  // It is one of the profiles now, for its owner.
  const Outcome listed = run_in(scratch.path(), {"sim", "profiles", "here"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("calibrated"));
  const Outcome simulated =
      run_in(scratch.path(), {"bench", "N-to-1", "--nodes", "3", "--device", "sim:here",
                              "--protocol", "write/write", "--runs", "1", "--duration", "1ms"});
  EXPECT_EQ(simulated.exit_code, 0) << simulated.err;
  EXPECT_THAT(simulated.out, HasSubstr("is modelled, not measured"));
}

TEST(Calibrate, ComparesPredictionsWithWhatIsMeasured) {
  const ScratchDirectory scratch;
  const Outcome outcome =
      run_tool({"calibrate", "--rounds", "1", "--duration", "1ms", "--check", "--out",
                scratch.file("here.toml"), "--json", scratch.file("all.json"), "--report",
                scratch.file("page.html")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("M:M, nodes 3, pending 16"), HasSubstr("median error")));
  EXPECT_THAT(read_file(scratch.file("page.html")),
              AllOf(HasSubstr("What the profile predicts"), HasSubstr("M:M, nodes 3, pending 16")));
  const json all = json::parse(read_file(scratch.file("all.json")));
  EXPECT_EQ(all.at("summary").at("points"), all.at("predictions").size());
  for (const json& one : all.at("predictions")) {
    EXPECT_GT(one.at("predicted_per_s"), 0) << one;
    EXPECT_GT(one.at("measured_per_s").at("least"), 0) << one;
  }
}

TEST(Calibrate, WhatCannotBeCalibratedIsOneLine) {
  const ScratchDirectory scratch;
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "calibrate");
    const Outcome outcome = run_in(scratch.path(), std::move(arguments));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(refused({"--device", "sim:connectx3-fdr"}), HasSubstr("has a profile already"));
  EXPECT_THAT(refused({"--name", "connectx3-fdr"}), HasSubstr("choose another --name"));
  EXPECT_THAT(refused({"--name", "a/b"}), HasSubstr("no name of a profile"));
  EXPECT_THAT(refused({"--rounds", "0"}), HasSubstr("number of rounds"));
  EXPECT_THAT(refused({"--duration", "soon"}), HasSubstr("soon"));
  EXPECT_THAT(refused({"--out", "/proc/none/x.toml"}), HasSubstr("/proc/none"));
  EXPECT_THAT(refused({"--report", "/proc/none/x.html"}), HasSubstr("/proc/none"));
  EXPECT_FALSE(std::filesystem::exists(scratch.file("verbena/profiles/soft0.toml")));
}

}  // namespace
}  // namespace verbena::test
