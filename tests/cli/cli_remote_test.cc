// `verbena remote`: every operation and version between processes and in a simulation, what its
// results have, what --verify finds, and how it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/measure.h"
#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<std::string> remote(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "remote");
  return arguments;
}

json measure_remote_on(const std::string& device, std::vector<std::string> arguments) {
  return measure_on(device, remote(std::move(arguments)), "round trips");
}

class RemoteOn : public testing::TestWithParam<const char*> {
 protected:
  json measure(std::vector<std::string> arguments) const {
    return measure_remote_on(GetParam(), std::move(arguments));
  }
};

TEST_P(RemoteOn, LocksOfEveryVersionAreMeasuredAndVerified) {
  const json rows = measure({"--operation", "lock", "--version", "all", "--backoff", "all",
                             "--threads", "3", "--operations", "100", "--verify"});
  ASSERT_EQ(rows.size(), 3u * 2u);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("requests_measured"), 300);
    EXPECT_GT(row.at("rate_per_s").get<double>(), 0);
    const double attempts = row.at("attempts_per_acquisition");
    EXPECT_GE(attempts, 1);
    const bool local = row.at("version") == "local";
    EXPECT_DOUBLE_EQ(row.at("round_trips_per_operation"), local ? 0 : attempts + 1);
    EXPECT_EQ(row.at("cpu").at("responder").at("cycles_per_message").get<double>() > 0,
              row.at("version") == "rpc");
  }
}

TEST_P(RemoteOn, SequencersOfEveryVersionAreMeasuredAndVerified) {
  const json rows =
      measure({"--operation", "sequencer", "--version", "all", "--pending", "1,5", "--range",
               "1,10", "--threads", "2", "--operations", "300", "--verify"});
  // What is local needs not wait.
  ASSERT_EQ(rows.size(), 2u * (2u * 2u + 1u));
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("requests_measured"), 600);
    EXPECT_FALSE(row.contains("attempts_per_acquisition"));
    EXPECT_DOUBLE_EQ(row.at("round_trips_per_operation"), row.at("version") == "local" ? 0 : 1);
  }
}

TEST_P(RemoteOn, WritesOnSeveralSocketsAreMeasuredAndVerified) {
  const json rows =
      measure({"--sockets", "2", "--links", "all", "--threads", "1,3", "--nodes", "2", "--pending",
               "1,4", "--operations", "300", "--region", "8KiB", "--verify"});
  ASSERT_EQ(rows.size(), 4u * 2u * 2u);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("verified"), true);
    const unsigned threads = row.at("threads");
    EXPECT_EQ(row.at("requests_measured"), 2 * threads * 300);
    const std::string links = row.at("links");
    const unsigned of_proxies = links == "matched" || links == "proxied" ? 2 : 0;
    const unsigned of_threads = links == "proxied" ? 0 : threads * (links == "matched" ? 1 : 2);
    EXPECT_EQ(row.at("queue_pairs_to_back_end"), 2 * (of_proxies + of_threads));
  }
}

TEST_P(RemoteOn, WritesAreMeasuredAndVerified) {
  const json rows = measure({"--consolidation", "all", "--pattern", "all", "--size", "32,200",
                             "--block", "256", "--theta", "1,4", "--pending", "1,3", "--threads",
                             "2", "--operations", "500", "--region", "8KiB", "--verify"});
  ASSERT_EQ(rows.size(), 3u * 2u * 2u * (1u + 2u * 2u));
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("requests_measured"), 1000);
    const double round_trips = row.at("round_trips_per_operation");
    if (row.at("consolidation") == "none") {
      EXPECT_DOUBLE_EQ(round_trips, 1);
    } else {
      EXPECT_GT(round_trips, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, RemoteOn, testing::Values("soft0", "sim:connectx3-40g"),
                         [](const testing::TestParamInfo<const char*>& one) {
                           return std::string(one.param).starts_with("sim:") ? "sim" : "soft";
                         });

TEST(Remote, SeveralNodesShareTheWord) {
  for (const char* device : {"soft0", "sim:connectx3-40g"}) {
    const json rows = measure_remote_on(
        device, {"--operation", "lock,sequencer", "--version", "remote,rpc", "--nodes", "3",
                 "--threads", "2", "--operations", "50", "--verify"});
    ASSERT_EQ(rows.size(), 4u);
    for (const json& row : rows) {
      EXPECT_EQ(row.at("errors"), 0);
      EXPECT_EQ(row.at("requester_nodes"), 3);
      EXPECT_EQ(row.at("requests_measured"), 300);
    }
  }
}

// theta writes to a block are one round trip ("memsem" III-C).
TEST(Remote, ConsolidationSavesRoundTrips) {
  const json rows = measure_remote_on(
      "sim:connectx3-40g",
      {"--consolidation", "exclusive", "--pattern", "seq", "--theta", "1,16", "--region", "64KiB"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NEAR(rows[0].at("round_trips_per_operation").get<double>(), 1, 0.01);
  EXPECT_NEAR(rows[1].at("round_trips_per_operation").get<double>(), 1.0 / 16, 0.01);
  EXPECT_GT(rows[1].at("rate_per_s").get<double>(), 3 * rows[0].at("rate_per_s").get<double>());
}

TEST(Remote, ASimulationIsTheSameEveryTime) {
  const auto table = [] {
    const Outcome outcome =
        run_tool(remote({"--operation", "sequencer", "--version", "remote,rpc", "--nodes", "2",
                         "--device", "sim:connectx3-40g", "--operations", "500", "--runs", "1"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    // The last line tells how long the simulation took.
    return outcome.out.substr(0, outcome.out.find("simulated:"));
  };
  EXPECT_EQ(table(), table());
}

TEST(RemoteErrors, AreOneLineAndNameTheCause) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--operation", "read"}, "there are write, lock, sequencer and all"},
      {{"--version", "far"}, "there are local, remote, rpc and all"},
      {{"--consolidation", "yes"}, "there are none, shared, exclusive and all"},
      {{"--backoff", "1"}, "there are off, on and all"},
      {{"--pattern", "best"}, "there are seq, rand, zipf and all"},
      {{"--theta", "0"}, "theta 0"},
      {{"--range", "0"}, "range 0"},
      {{"--kept", "3"}, "number of blocks 3"},
      {{"--size", "128", "--region", "64"}, "does not fit a region of 64 B; raise --region"},
      {{"--consolidation", "shared", "--block", "1000"}, "choose --block 512"},
      {{"--operation", "lock", "--version", "local", "--nodes", "2"}, "share no local memory"},
      {{"--region", "64GiB", "--threads", "200"}, "lower --region, --nodes or --threads"},
      {{"--consolidation", "shared", "--kept", "1048576", "--block", "1MiB", "--threads", "200"},
       "and 1048576 blocks of 1 MiB for 200 threads"},
      {{"--device", "nosuch0"}, "nosuch0"},
      {{"--method", "sp"}, "--method"},
      {{"--experiment", "memsem-fig5"}, "verbena verbs --experiment"},
  };
  for (const auto& [options, cause] : cases) {
    const Outcome outcome = run_tool(remote(options));
    EXPECT_NE(outcome.exit_code, 0) << cause;
    EXPECT_EQ(outcome.out, "") << cause;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(cause));
  }
}

}  // namespace
}  // namespace verbena::test
