// `verbena verbs`: every operation and method between two processes and in a simulation, what its
// results have, and how it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<std::string> verbs(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "verbs");
  return arguments;
}

class VerbsOn : public testing::TestWithParam<const char*> {
 protected:
  json measure(std::vector<std::string> arguments) const {
    const ScratchDirectory scratch;
    const std::string file = scratch.file("verbs.json");
    arguments.insert(arguments.end(), {"--device", GetParam(), "--operations", "300", "--runs", "1",
                                       "--json", file});
    const Outcome outcome = run_tool(verbs(arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(complaints(outcome), "");
    EXPECT_THAT(outcome.out, HasSubstr("operation"));
    const json document = json::parse(read_file(file), nullptr, false);
    EXPECT_TRUE(document.is_object());
    return document.is_object() ? document["results"] : json::array();
  }
};

TEST_P(VerbsOn, EveryOperationIsMeasured) {
  const json rows = measure({"--operation", "all", "--size", "8,5000", "--pending", "1,5",
                             "--local", "all", "--remote", "rand", "--region", "64KiB"});
  // Atomics have no size but one.
  EXPECT_EQ(rows.size(), 4u * 2u * 2u * 2u + 2u * 2u * 2u);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("device"), GetParam());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("requests_measured"), 300);
    EXPECT_EQ(row.at("remote_pattern"), "rand");
    EXPECT_EQ(row.at("region_bytes"), 65536);
    EXPECT_FALSE(row.contains("protocol"));
    EXPECT_GT(row.at("latency_ns").at("p50").get<double>(), 0);
    const double rate = row.at("rate_per_s");
    EXPECT_GT(rate, 0);
    EXPECT_DOUBLE_EQ(row.at("total_bandwidth_bytes_per_s").get<double>(),
                     rate * row.at("size_bytes").get<double>());
    EXPECT_GT(row.at("cpu").at("requester").at("cycles_per_message").get<double>(), 0);
    const double other = row.at("cpu").at("responder").at("cycles_per_message");
    EXPECT_EQ(other > 0, row.at("operation") == "send");
  }
}

TEST_P(VerbsOn, EveryMethodOfVectorIoIsMeasured) {
  const json rows = measure({"--operation", "write,read,send", "--method", "all", "--entries",
                             "1,8", "--size", "32", "--pending", "4", "--signal-interval", "0,3",
                             "--post-batch", "1,4", "--inline", "0,4096", "--threads", "2"});
  EXPECT_EQ(rows.size(), 3u * 3u * 2u * 2u * 2u * 2u);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("requests_measured"), 600);
    EXPECT_EQ(row.at("queue_pairs").at("all"), 2);
    EXPECT_DOUBLE_EQ(row.at("total_bandwidth_bytes_per_s").get<double>(),
                     row.at("rate_per_s").get<double>() * row.at("entries").get<double>() * 32);
  }
}

TEST_P(VerbsOn, RoundsOfPollsTakeLongerWithMoreChannels) {
  const json rows = measure({"--operation", "poll", "--entries", "1,256"});
  ASSERT_EQ(rows.size(), 2u);
  const auto per_round = [&](size_t row) { return 1 / rows[row].at("rate_per_s").get<double>(); };
  EXPECT_GT(per_round(0), 0);
  // Which of two measurements is longer depends on what else the machine does, unless it is
  // simulated.
  if (std::string(GetParam()) == "soft0") return;
  EXPECT_GT(per_round(1), per_round(0));
}

TEST_P(VerbsOn, EveryTransportIsMeasuredToOneAndToSeveralPeers) {
  const json rows = measure({"--operation", "send", "--transport", "all", "--peers", "1,2",
                             "--pending", "4", "--threads", "2", "--size", "8,2048"});
  ASSERT_EQ(rows.size(), 3u * 2u * 2u);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("queue_pairs").at("all"), 2 * row.at("peers").get<int>());
    const bool lossy = row.at("transport") != "rc";
    ASSERT_EQ(row.contains("arrived_share") && !row.at("arrived_share").is_null(), lossy);
    if (!lossy) continue;
    EXPECT_LE(row.at("arrived_share").get<double>(), 1.0);
    // What is under way at the end of a phase is all that does not arrive.
    if (std::string(GetParam()) != "soft0") {
      EXPECT_GT(row.at("arrived_share").get<double>(), 0.9);
    }
  }
  const json writes = measure({"--operation", "write", "--transport", "rc,uc", "--peers", "2"});
  EXPECT_EQ(writes.size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Devices, VerbsOn, testing::Values("soft0", "sim:connectx3-40g"),
                         [](const testing::TestParamInfo<const char*>& one) {
                           return std::string(one.param).starts_with("sim:") ? "sim" : "soft";
                         });

// By virtual time: more contexts than the chip has room for, of which datagrams need one a thread.
TEST(Verbs, DatagramsReachManyPeersAtTheRateOfFew) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("verbs.json");
  const Outcome outcome = run_tool(verbs({"--device",     "sim:connectx3-fdr",
                                          "--operation",  "send",
                                          "--transport",  "rc,ud",
                                          "--peers",      "16,96",
                                          "--threads",    "4",
                                          "--pending",    "16",
                                          "--inline",     "0",
                                          "--region",     "4KiB",
                                          "--operations", "2000",
                                          "--runs",       "1",
                                          "--json",       file}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, std::vector<double>> rates;
  const json document = json::parse(read_file(file));
  for (const json& row : document.at("results")) {
    rates[row.at("transport")].push_back(row.at("rate_per_s"));
  }
  ASSERT_EQ(rates["rc"].size(), 2u);
  EXPECT_LT(rates["rc"][1], 0.5 * rates["rc"][0]);
  EXPECT_GT(rates["ud"][1], 0.98 * rates["ud"][0]);
  EXPECT_GT(rates["ud"][1], 2 * rates["rc"][1]);
}

TEST(Verbs, WhatATransportDoesNotCarryIsRefusedInOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refusals = {
      {{"--operation", "write", "--transport", "ud"}, "write over ud"},
      {{"--operation", "read", "--transport", "uc"}, "read over uc"},
      {{"--operation", "fetch-add", "--peers", "2"}, "fetch-add over rc to several peers"},
      {{"--operation", "send", "--transport", "uc", "--entries", "2"}, "one work request"},
      {{"--operation", "send", "--transport", "ud", "--size", "4KiB", "--device",
        "sim:connectx3-fdr"},
       "carries 2 KiB"}};
  for (const auto& [arguments, line] : refusals) {
    const Outcome outcome = run_tool(verbs(arguments));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_THAT(outcome.err, HasSubstr(line));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST(Verbs, ASimulationIsTheSameEveryTime) {
  const auto table = [] {
    const Outcome outcome =
        run_tool(verbs({"--device", "sim:connectx3-40g", "--remote", "rand", "--region", "64MiB",
                        "--pending", "8", "--operations", "2000", "--runs", "1"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    // The last line tells how long the simulation took.
    return outcome.out.substr(0, outcome.out.find("simulated:"));
  };
  EXPECT_EQ(table(), table());
}

TEST(Verbs, SocketsOfThreadsAndMemoryAreAxes) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("verbs.json");
  const Outcome outcome = run_tool(verbs(
      {"--device", "sim:connectx3-40g", "--operation", "read,send", "--core-socket", "rnic,other",
       "--memory-socket", "rnic,other", "--remote-core-socket", "rnic,other",
       "--remote-memory-socket", "all", "--operations", "300", "--runs", "1", "--json", file}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(read_file(file))["results"];
  // READs need no thread on the other side.
  ASSERT_EQ(rows.size(), 2u * 2u * 3u + 2u * 2u * 2u * 3u);
  std::map<std::string, double> latency_ns;
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    if (row.at("operation") != "read") continue;
    latency_ns[row.at("core_socket").get<std::string>() + " " +
               row.at("memory_socket").get<std::string>() + " " +
               row.at("remote_memory_socket").get<std::string>()] = row.at("latency_ns").at("p50");
  }
  EXPECT_EQ(latency_ns.at("rnic rnic any"), latency_ns.at("rnic rnic rnic"));
  EXPECT_LT(latency_ns.at("rnic rnic rnic"), latency_ns.at("rnic rnic other"));
  EXPECT_LT(latency_ns.at("rnic rnic other"), latency_ns.at("other rnic other"));
  EXPECT_LT(latency_ns.at("other rnic other"), latency_ns.at("other other other"));
}

TEST(Verbs, DeclaredSocketsAreUsed) {
  const auto measure = [](const std::string& sockets) {
    return ToolProcess({VERBENA_TOOL, "verbs", "--device", "soft0", "--core-socket", "other",
                        "--remote-memory-socket", "other", "--operations", "300", "--runs", "1"},
                       {{"VERBENA_SOCKETS", sockets}})
        .wait();
  };
  EXPECT_EQ(measure("2").exit_code, 0);
  const Outcome refused = measure("1");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err + refused.out, HasSubstr("this machine has one socket"));
}

TEST(Verbs, AnExperimentIsAFileOrRefused) {
  const ScratchDirectory scratch;
  write_file(
      scratch.file("x.toml"),
      "kind = \"verbs\"\nduration = \"2ms\"\n[axes]\nsize = [8, 16]\noperation = \"read\"\n");
  const Outcome measured = run_tool(verbs({"--experiment", scratch.file("x.toml"), "--runs", "1",
                                           "--pending", "2", "--json", scratch.file("x.json")}));
  EXPECT_EQ(measured.exit_code, 0) << measured.err;
  const json rows = json::parse(read_file(scratch.file("x.json"))).at("results");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].at("size_bytes"), 16);
  EXPECT_EQ(rows[1].at("pending"), 2);

  write_file(scratch.file("y.toml"), "topology = \"one-to-one\"\n");
  const Outcome refused = run_tool(verbs({"--experiment", scratch.file("y.toml")}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("verbena bench --experiment"));
}

// The thread that receives reads no message, so it takes and posts receives faster than the other
// one sends.
TEST(Verbs, SendsAreNotHeldUpByTheirReceiver) {
  for (const char* device : {"sim:connectx3-40g", "sim:connectx5-edr", "sim:connectx6-hdr"}) {
    const ScratchDirectory scratch;
    const Outcome measured = run_tool(
        verbs({"--device", device, "--operation", "write,send", "--size", "8", "--pending", "16",
               "--operations", "3000", "--runs", "1", "--json", scratch.file("x.json")}));
    ASSERT_EQ(measured.exit_code, 0) << measured.err;
    const json rows = json::parse(read_file(scratch.file("x.json"))).at("results");
    ASSERT_EQ(rows.size(), 2u);
    const double write = rows[0].at("rate_per_s");
    const double send = rows[1].at("rate_per_s");
    EXPECT_NEAR(send, write, 0.2 * write) << device;
    // A refused SEND would wait for 640 us.
    EXPECT_LT(rows[1].at("latency_ns").at("p99").get<double>(), 20'000) << device;
  }
}

TEST(Verbs, GoesOnFromItsResults) {
  const ScratchDirectory scratch;
  const std::vector<std::string> command = verbs(
      {"--size", "8,64", "--operations", "50", "--runs", "1", "--json", scratch.file("x.json")});
  ASSERT_EQ(run_tool(command).exit_code, 0);
  const json before = json::parse(read_file(scratch.file("x.json"))).at("results");
  std::vector<std::string> again = command;
  again.emplace_back("--resume");
  const Outcome outcome = run_tool(again);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const json& row : before) {
    EXPECT_THAT(outcome.out, HasSubstr(std::to_string(row.at("size_bytes").get<int>()) + " B"));
  }
}

TEST(VerbsErrors, AreOneLineAndNameTheCause) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--operation", "ping"},
       "there are write, read, send, fetch-add, compare-swap, poll and all"},
      {{"--method", "list"}, "there are sp, sgl, doorbell and all"},
      {{"--local", "zipf"}, "there are seq, rand and all"},
      {{"--size", "0"}, "size 0"},
      {{"--entries", "257"}, "number of entries 257"},
      {{"--entries", "17"}, "a gather list of 17 SGEs is too long: a work request of soft0 takes"},
      {{"--region", "64", "--size", "65"}, "does not fit a region of 64 B; raise --region"},
      {{"--operation", "fetch-add", "--entries", "2"}, "--method doorbell"},
      {{"--signal-interval", "2"}, "lower --signal-interval to at most 1"},
      {{"--pending", "4096", "--entries", "200", "--method", "doorbell"}, "--pending or --entries"},
      {{"--device", "nosuch0"}, "nosuch0"},
      {{"--device", "sim:none"}, "none"},
      {{"--experiment", "/nowhere.toml"}, "/nowhere.toml"},
      {{"--json", "/nowhere/x.json"}, "/nowhere"},
      {{"--duration", "soon"}, "soon"},
      {{"--protocol", "read"}, "--protocol"},
      {{"one-to-one"}, "one-to-one"},
  };
  for (const auto& [options, cause] : cases) {
    const Outcome outcome = run_tool(verbs(options));
    EXPECT_NE(outcome.exit_code, 0) << cause;
    EXPECT_EQ(outcome.out, "") << cause;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(cause));
  }
}

}  // namespace
}  // namespace verbena::test
