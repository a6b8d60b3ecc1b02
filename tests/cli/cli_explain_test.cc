// `verbena explain`: what it prints, and that the order of its estimates is that of simulated runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(CliExplain, ListsEveryDesignWithItsReason) {
  const Outcome outcome = run_tool({"explain", "--requesters", "40", "--workers", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(complaints(outcome), "");
  EXPECT_THAT(outcome.out, HasSubstr("x1.00"));
  EXPECT_THAT(outcome.out, HasSubstr("not measured"));
  EXPECT_THAT(outcome.out, HasSubstr("dispatcher"));
  EXPECT_THAT(outcome.out, HasSubstr("limited by"));
}

TEST(CliExplain, JsonHasTheCountsOfEachStep) {
  const Outcome outcome = run_tool({"explain", "--device", "sim:connectx3-fdr", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json designs = json::parse(outcome.out);
  ASSERT_EQ(designs.size(), 29u);
  double last_ns = 0;
  for (const json& design : designs) {
    SCOPED_TRACE(design.dump());
    ASSERT_EQ(design.at("usable"), true);
    EXPECT_EQ(design.at("times"), "modelled");
    EXPECT_GT(design.at("interval_ns"), last_ns * 0.98);
    last_ns = design.at("interval_ns");
    EXPECT_GT(design.at("requester").at("thread_ns"), 0);
    EXPECT_EQ(design.at("requester").at("work_requests"),
              design.at("mark") == "dense" && design.at("protocol") != "send/write" ? 2 : 1);
  }
}

TEST(CliExplain, ShowsHowAMessageTravels) {
  const Outcome outcome = run_tool({"explain", "--message", "64KiB"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(complaints(outcome), "");
  EXPECT_THAT(outcome.out, HasSubstr("rendezvous by READ"));
  EXPECT_THAT(outcome.out, HasSubstr("cannot be used: a slot has room"));
  const Outcome data =
      run_tool({"explain", "--device", "sim:connectx3-fdr", "--message", "8", "--json"});
  ASSERT_EQ(data.exit_code, 0) << data.err;
  const json estimates = json::parse(data.out);
  ASSERT_EQ(estimates.size(), 5u);
  EXPECT_EQ(estimates[0].at("protocol"), "eager");
  EXPECT_EQ(estimates[0].at("channel"), "ring");
  EXPECT_EQ(estimates[0].at("times"), "modelled");
}

TEST(CliExplain, WhatCannotBeUsedComesLastWithItsReason) {
  // More receives than a shared receive queue has.
  const Outcome outcome = run_tool({"explain", "--requesters", "4000", "--pending", "16"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const size_t first = outcome.out.find("cannot be used");
  ASSERT_NE(first, std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("limited by", first), std::string::npos) << outcome.out;
  EXPECT_THAT(outcome.out.substr(first), HasSubstr("shared receive queue"));
}

TEST(CliExplain, BadOptionsAreRefused) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--request", "64,128"},
                                             {"--response", "1GiB"},
                                             {"--pending", "0"},
                                             {"--requesters", "many"},
                                             {"--device", "sim:none"},
                                             {"--device", "none"}}) {
    std::vector<std::string> command = {"explain"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run_tool(command);
    EXPECT_EQ(outcome.exit_code, 2) << arguments[0] << ' ' << arguments[1];
    EXPECT_THAT(outcome.err, HasSubstr("verbena: error: "));
  }
}

// --- against the simulation ---

struct Case {
  const char* name;
  std::vector<std::string> explained;
  std::vector<std::string> measured;
};

std::ostream& operator<<(std::ostream& to, const Case& one) { return to << one.name; }

class EstimatedOrder : public testing::TestWithParam<Case> {};

std::map<std::string, double> estimated_ns(const Case& one) {
  std::vector<std::string> arguments = {"explain", "--json"};
  arguments.insert(arguments.end(), one.explained.begin(), one.explained.end());
  const Outcome outcome = run_tool(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, double> intervals_ns;
  for (const json& design : json::parse(outcome.out)) {
    if (design.at("receive_queues") == "per-connection" || design.at("model") != "private" ||
        design.at("transport") != "rc") {
      continue;
    }
    intervals_ns[std::string(design.at("protocol")) + " " + std::string(design.at("mark"))] =
        design.at("interval_ns");
  }
  return intervals_ns;
}

std::map<std::string, double> simulated_ns(const Case& one) {
  const ScratchDirectory scratch;
  const std::string file = scratch.path() + "/results.json";
  std::vector<std::string> arguments = {"bench"};
  arguments.insert(arguments.end(), one.measured.begin(), one.measured.end());
  for (const char* more : {"--protocol", "all", "--mark", "last-bit,length-markers,dense,immediate",
                           "--runs", "1", "--json"}) {
    arguments.emplace_back(more);
  }
  arguments.push_back(file);
  const Outcome outcome = run_tool(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, double> intervals_ns;
  const json results = json::parse(read_file(file));
  for (const json& point : results.at("results")) {
    const std::string mark = point.at("mark_layout");
    intervals_ns[std::string(point.at("protocol")) + " " + (mark == "none" ? "-" : mark)] =
        1e9 / double{point.at("rate_per_s")};
  }
  return intervals_ns;
}

// Where the estimate sees a fifth between two designs, the simulation sees the same order.
TEST_P(EstimatedOrder, IsThatOfTheSimulation) {
  constexpr double kClear = 1.2;
  const auto estimated = estimated_ns(GetParam());
  const auto simulated = simulated_ns(GetParam());
  ASSERT_EQ(simulated.size(), 2u + 3 * 4);
  int compared = 0;
  for (const auto& [faster, faster_ns] : simulated) {
    ASSERT_TRUE(estimated.contains(faster)) << faster;
    for (const auto& [slower, slower_ns] : simulated) {
      if (estimated.at(slower) < estimated.at(faster) * kClear) continue;
      ++compared;
      EXPECT_GT(slower_ns, faster_ns) << slower << " is estimated at " << estimated.at(slower)
                                      << " ns, " << faster << " at " << estimated.at(faster);
    }
  }
  EXPECT_GE(compared, 10) << "too few designs differ to say anything";
  for (const auto& [design, ns] : simulated) {
    RecordProperty(design, std::to_string(estimated.at(design) / ns));
  }
}

// What limits is another part in each: the round trip, threads, the RNIC of the one side.
INSTANTIATE_TEST_SUITE_P(
    Loads, EstimatedOrder,
    testing::Values(Case{"OneRequest",
                         {"--device", "sim:connectx5-edr"},
                         {"one-to-one", "--device", "sim:connectx5-edr"}},
                    Case{"ManyRequests",
                         {"--device", "sim:connectx5-edr", "--pending", "16"},
                         {"one-to-one", "--device", "sim:connectx5-edr", "--pending", "16"}},
                    Case{"ManyRequesters",
                         {"--device", "sim:connectx5-edr", "--requesters", "8", "--workers", "4",
                          "--pending", "4"},
                         {"M:1", "--nodes", "8", "--threads", "4", "--responder-threads", "1",
                          "--device", "sim:connectx5-edr", "--pending", "4"}},
                    Case{"ManyResponders",
                         {"--device", "sim:connectx5-edr", "--responders", "8", "--pending", "4"},
                         {"1:M", "--responders", "8", "--device", "sim:connectx5-edr", "--pending",
                          "4"}},
                    Case{"OlderRnic",
                         {"--device", "sim:connectx3-fdr", "--requesters", "8", "--pending", "8"},
                         {"M:1", "--nodes", "8", "--responder-threads", "1", "--device",
                          "sim:connectx3-fdr", "--pending", "8"}}),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace verbena::test
