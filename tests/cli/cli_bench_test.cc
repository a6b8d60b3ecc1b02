// `verbena bench`: real processes, result files, and what remains when something ends early.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "tests/support/parameter_names.h"
#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"
#include "verbena/rpc.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::vector<std::string> bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"bench", "one-to-one", "--device", "soft0"});
  return arguments;
}

// The keys that others read, and their types.
void check_schema(const json& document, const std::string& topology = "one-to-one") {
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document.at("device"), "soft0");
  EXPECT_TRUE(document.at("machine").at("cpu").is_string());
  EXPECT_FALSE(document.at("commit").get<std::string>().empty());
  EXPECT_THAT(document.at("command").get<std::string>(), testing::StartsWith("verbena bench"));
  for (const json& row : document.at("results")) {
    EXPECT_EQ(row.at("topology"), topology);
    EXPECT_EQ(row.at("device"), "soft0");
    EXPECT_TRUE(parse_protocol(row.at("protocol").get<std::string>()).ok());
    for (const char* key :
         {"request_bytes", "response_bytes", "pending", "nodes", "threads", "errors", "runs"}) {
      EXPECT_TRUE(row.at(key).is_number_unsigned()) << key;
    }
    EXPECT_TRUE(row.at("verified").is_boolean());
    EXPECT_TRUE(row.at("mark_layout").is_string());
    if (row.at("errors") != 0) continue;
    EXPECT_GT(row.at("rate_per_s").get<double>(), 0);
    EXPECT_GT(row.at("total_bandwidth_bytes_per_s").get<double>(), 0);
    const json& latency = row.at("latency_ns");
    EXPECT_GT(latency.at("p50").get<double>(), 0);
    EXPECT_LE(latency.at("p50"), latency.at("p99"));
    EXPECT_LE(latency.at("p99"), latency.at("p999"));
    EXPECT_EQ(row.contains("spread"), row.at("runs") > 1);
    if (row.at("runs") > 1) {
      EXPECT_LE(row.at("spread").at("rate_min"), row.at("rate_per_s"));
      EXPECT_GE(row.at("spread").at("rate_max"), row.at("rate_per_s"));
      EXPECT_LE(row.at("spread").at("p50_min_ns"), latency.at("p50"));
      EXPECT_GE(row.at("spread").at("p50_max_ns"), latency.at("p50"));
    }
    for (const char* side : {"requester", "responder"}) {
      const json& cost = row.at("cpu").at(side);
      EXPECT_TRUE(cost.contains("cycles_per_message") && cost.contains("cycles_per_byte"))
          << side << " " << row;
    }
  }
}

// Each message is lost with a probability of 2 %: no request is, in any topology.
TEST(BenchOfTransport, LosesNoRequestWhereMessagesAreLost) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  for (const char* topology : {"one-to-one", "M:1"}) {
    std::vector<std::string> command = {VERBENA_TOOL, "bench", topology, "--device", "soft0"};
    for (const char* more :
         {"--protocol", "send/send", "--transport", "uc,ud", "--request", "64,4096", "--response",
          "7,4096", "--pending", "1,5", "--requests", "300", "--runs", "1", "--verify", "--json"}) {
      command.emplace_back(more);
    }
    command.push_back(file);
    if (topology == std::string("M:1")) {
      command.insert(command.end(), {"--nodes", "2", "--threads", "2"});
    }
    const Outcome outcome = ToolProcess(command, {{"VERBENA_FAULT", "drop=0.02,seed=15"}}).wait();
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const json document = json::parse(read_file(file));
    check_schema(document, topology);
    ASSERT_EQ(document["results"].size(), 2u * 2u * 2u * 2u);
    for (const json& row : document["results"]) {
      EXPECT_EQ(row.at("errors"), 0u) << row;
      EXPECT_EQ(row.at("verified"), true) << row;
      EXPECT_THAT(row.at("transport").get<std::string>(), testing::AnyOf("uc", "ud"));
      // Of UC each has its own, whatever is asked for.
      EXPECT_EQ(row.at("receive_queues"),
                row.at("transport") == "uc" ? "per-connection" : "shared");
      // 300 requests and as many responses, of which 2 % are lost.
      EXPECT_GT(row.at("resent_per_request"), 0) << row;
    }
    std::filesystem::remove(file);
  }
}

TEST(BenchOfTransport, EachIsARowOfTheTable) {
  for (const char* device : {"soft0", "sim:connectx3-fdr", "sim:connectx5-edr"}) {
    const Outcome outcome =
        run_tool({"bench", "one-to-one", "--device", device, "--protocol", "send/send",
                  "--transport", "all", "--requests", "300", "--runs", "1", "--verify"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(complaints(outcome), "");
    for (const char* transport : {"rc", "uc", "ud"}) {
      const char* resent = transport == std::string("rc") ? " .* - +yes" : " .* % +yes";
      EXPECT_THAT(outcome.out, testing::ContainsRegex(std::string(" ") + transport + resent));
    }
  }
}

// Whatever layout of marks is asked for.
TEST(BenchOfTransport, WritesOverUcAreToldByTheirImmediates) {
  const Outcome outcome =
      run_tool(bench({"--protocol", "write/write", "--transport", "uc", "--mark",
                      "last-bit,immediate", "--requests", "300", "--runs", "1", "--verify"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(complaints(outcome), "");
  EXPECT_THAT(outcome.out, testing::ContainsRegex("write/write  immediate .* uc .* yes"));
  EXPECT_EQ(outcome.out.find("last-bit"), std::string::npos) << outcome.out;
}

TEST(BenchOfTransport, WhatDoesNotGoIsRefusedInOneLine) {
  struct Refusal {
    std::vector<std::string> arguments;
    int exit_code;
    const char* line;
  };
  const std::vector<Refusal> refusals = {
      {{"one-to-one", "--transport", "ud", "--protocol", "write/write"},
       2,
       "write/write over ud: what ud loses is sent again by send/send only"},
      {{"one-to-one", "--transport", "uc", "--protocol", "send/write"},
       2,
       "send/write over uc: what uc loses is sent again by send/send and write/write only"},
      {{"one-to-one", "--transport", "ud", "--protocol", "send/send", "--response", "8KiB"},
       1,
       "a datagram of soft0 carries 4 KiB"},
      {{"one-to-one", "--transport", "ud", "--protocol", "send/send", "--response", "8KiB",
        "--device", "sim:connectx3-fdr"},
       1,
       "a datagram of sim:connectx3-fdr carries 2 KiB"},
      {{"one-to-one", "--transport", "tcp"},
       2,
       "no transport 'tcp'; there are rc, uc, ud and all"}};
  for (const Refusal& refusal : refusals) {
    std::vector<std::string> command = {"bench"};
    command.insert(command.end(), refusal.arguments.begin(), refusal.arguments.end());
    const Outcome outcome = run_tool(command);
    EXPECT_EQ(outcome.exit_code, refusal.exit_code) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(refusal.line));
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

class BenchOfMark : public testing::TestWithParam<MarkLayout> {};

TEST_P(BenchOfMark, MovesEveryByteInEveryProtocol) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  const Outcome outcome =
      run_tool(bench({"--protocol", "all", "--mark", mark_layout_name(GetParam()), "--request",
                      "1,64,5000", "--response", "7,64,9000", "--pending", "1,5", "--requests",
                      "300", "--runs", "1", "--verify", "--json", file}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(complaints(outcome), "");
  const json document = json::parse(read_file(file));
  check_schema(document);
  EXPECT_EQ(document["results"].size(), 5u * 3u * 3u * 2u);
  for (const json& row : document["results"]) {
    EXPECT_EQ(row["verified"], true) << row;
    EXPECT_EQ(row["errors"], 0) << row;
    EXPECT_EQ(row["requests_measured"], 300) << row;
    const Protocol protocol = parse_protocol(row["protocol"].get<std::string>()).value();
    EXPECT_EQ(row["mark_layout"],
              uses_mark_layout(protocol) ? mark_layout_name(GetParam()) : "none");
  }
  // Nothing is left beside the file.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

INSTANTIATE_TEST_SUITE_P(Marks, BenchOfMark,
                         testing::Values(MarkLayout::kLastBit, MarkLayout::kLengthMarkers,
                                         MarkLayout::kHeadTail, MarkLayout::kImmediate,
                                         MarkLayout::kDense),
                         printed_name<MarkLayout>);

TEST(Bench, LargeMessagesAndRepeatedRuns) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  const Outcome outcome =
      run_tool(bench({"--protocol", "all", "--response", "4MiB", "--pending", "3", "--requests",
                      "9", "--runs", "3", "--verify", "--json", file}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(read_file(file));
  check_schema(document);
  ASSERT_EQ(document["results"].size(), 5u);
  for (const json& row : document["results"]) {
    EXPECT_EQ(row["runs"], 3);
    EXPECT_EQ(row["verified"], true);
    EXPECT_EQ(row["requests_measured"], 27);
  }
  EXPECT_EQ(document["settings"]["verify"], true);
}

TEST(Bench, SaysOnlyWhatWasVerified) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  const Outcome outcome = run_tool(bench(
      {"--protocol", "write/write,read", "--requests", "100", "--runs", "1", "--json", file}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(read_file(file));
  for (const json& row : document["results"]) EXPECT_EQ(row["verified"], false);
  EXPECT_THAT(outcome.out, HasSubstr("write/write"));
  EXPECT_THAT(outcome.out, HasSubstr("read"));
}

TEST(Bench, ReplacesAnOldFileWholeAndThroughALink) {
  const ScratchDirectory scratch;
  write_file(scratch.file("old.json"), "old");
  chmod(scratch.file("old.json").c_str(), 0600);
  std::filesystem::create_symlink("old.json", scratch.file("link.json"));
  const Outcome outcome = run_tool(bench({"--protocol", "read", "--requests", "10", "--runs", "1",
                                          "--json", scratch.file("link.json")}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_symlink(scratch.file("link.json")));
  check_schema(json::parse(read_file(scratch.file("old.json"))));
}

// A bench that will not end by itself, caught after its first result.
class LongBench : public testing::Test {
 protected:
  void start() {
    process_ = std::make_unique<ToolProcess>(std::vector<std::string>{
        VERBENA_TOOL, "bench", "one-to-one", "--protocol", "write/write,send/send,read",
        "--duration", "200ms", "--runs", "1000", "--json", file()});
    ASSERT_TRUE(eventually(
        [this] { return std::filesystem::exists(file()) || !is_alive(process_->pid()); }));
    ASSERT_TRUE(std::filesystem::exists(file())) << process_->err();
    nodes_ = process_->children();
    ASSERT_EQ(nodes_.size(), 2u);
  }
  std::string file() const { return scratch_.file("results.json"); }
  json kept() const { return json::parse(read_file(file())); }

  ScratchDirectory scratch_;
  std::unique_ptr<ToolProcess> process_;
  std::vector<pid_t> nodes_;
};

TEST_F(LongBench, CtrlCKeepsWhatWasMeasured) {
  start();
  process_->signal(SIGINT);
  const Outcome outcome = process_->wait();
  EXPECT_EQ(outcome.exit_code, 130);
  // None of them has had its 1000 runs.
  EXPECT_THAT(outcome.err, HasSubstr("interrupted; 0 points were finished"));
  EXPECT_THAT(outcome.err, HasSubstr(file()));
  EXPECT_THAT(outcome.out, HasSubstr("write/write"));
  check_schema(kept());
  EXPECT_GE(kept()["results"].size(), 1u);
  const json document = kept();
  for (const json& row : document["results"]) EXPECT_EQ(row["errors"], 0);
  for (const pid_t node : nodes_) EXPECT_FALSE(is_alive(node));
}

TEST_F(LongBench, AKilledNodeIsNamedAndTheOthersEnd) {
  for (const size_t victim : {0u, 1u}) {
    start();
    kill(nodes_[victim], SIGKILL);
    const Outcome outcome = process_->wait();
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("killed by signal 9"));
    EXPECT_THAT(outcome.err, HasSubstr("process " + std::to_string(nodes_[victim])));
    EXPECT_FALSE(is_alive(nodes_[1 - victim]));
    check_schema(kept());
    const json results = kept()["results"];
    EXPECT_TRUE(std::any_of(results.begin(), results.end(), [](const json& row) {
      return row["errors"] > 0 && !row["error"].get<std::string>().empty();
    }));
    std::filesystem::remove(file());
  }
}

TEST_F(LongBench, TheNodesReportAKilledCoordinator) {
  start();
  process_->signal(SIGKILL);
  EXPECT_EQ(process_->wait().exit_code, 128 + SIGKILL);
  for (const pid_t node : nodes_) EXPECT_TRUE(eventually([&] { return !is_alive(node); }));
  EXPECT_THAT(process_->err(), HasSubstr("is gone"));
  check_schema(kept());
}

TEST_F(LongBench, TheSecretIsOnNoCommandLineAndInNoEnvironment) {
  start();
  // The secret is 64 hexadecimal digits in a row.
  for (const pid_t node : nodes_) {
    for (const char* place : {"/cmdline", "/environ"}) {
      size_t digits = 0;
      for (const char letter : read_file("/proc/" + std::to_string(node) + place)) {
        digits = std::isxdigit(static_cast<unsigned char>(letter)) != 0 ? digits + 1 : 0;
        EXPECT_LT(digits, 64u) << place;
      }
    }
  }
}

// --- topologies ---

struct Shape {
  const char* topology;  // as typed
  const char* name;      // as written in results
  std::vector<std::string> options;
  unsigned nodes;
  unsigned threads;
  unsigned queue_pairs;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << shape.topology;
  for (const std::string& option : shape.options) out << ' ' << option;
  return out;
}

class BenchOfTopology : public testing::TestWithParam<Shape> {};

TEST_P(BenchOfTopology, MovesEveryByteInEveryProtocol) {
  const Shape& shape = GetParam();
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  std::vector<std::string> arguments = {"bench", shape.topology};
  arguments.insert(arguments.end(), shape.options.begin(), shape.options.end());
  for (const char* argument :
       {"--protocol", "all", "--request", "36", "--value", "365", "--pending", "1,5", "--requests",
        "100", "--runs", "1", "--verify", "--json"}) {
    arguments.emplace_back(argument);
  }
  arguments.push_back(file);
  const Outcome outcome = run_tool(arguments);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(complaints(outcome), "");
  const json document = json::parse(read_file(file));
  check_schema(document, shape.name);
  ASSERT_EQ(document["results"].size(), 10u);
  for (const json& row : document["results"]) {
    EXPECT_EQ(row["verified"], true) << row;
    EXPECT_EQ(row["nodes"], shape.nodes);
    EXPECT_EQ(row["threads"], shape.threads);
    EXPECT_EQ(row["queue_pairs"]["all"], shape.queue_pairs);
    EXPECT_EQ(row["request_bytes"], 36);
    EXPECT_EQ(row["response_bytes"], 365);
    const unsigned requesters =
        row["requester_nodes"].get<unsigned>() * row["threads"].get<unsigned>();
    EXPECT_EQ(row["requests_measured"], 100 * requesters) << row;
    EXPECT_EQ(row.contains("empty_poll_share"), row["protocol"] != "read");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, BenchOfTopology,
    testing::Values(
        Shape{"M:1", "M:1", {"--nodes", "3", "--threads", "2"}, 4, 2, 6},
        Shape{"n-to-1", "M:1", {"--nodes", "2", "--threads", "2"}, 3, 2, 4},
        Shape{"1:M", "1:M", {"--responders", "3", "--threads", "2"}, 4, 2, 6},
        Shape{"N-to-M",
              "N-to-M",
              {"--nodes", "2", "--threads", "2", "--responders", "2", "--responder-threads", "2"},
              4,
              2,
              16},
        Shape{"M:M", "M:M", {"--nodes", "3", "--threads", "2"}, 3, 2, 12},
        Shape{"M:1", "M:1", {"--nodes", "3", "--active", "0.3", "--think", "20us"}, 4, 1, 3}),
    printed_name<Shape>);

// What is in `path` stands before the programs of the system, or instead of them.
class BenchWithPath : public testing::Test {
 protected:
  void TearDown() override { setenv("PATH", before_.c_str(), 1); }
  void set_path(const std::string& path) { setenv("PATH", path.c_str(), 1); }
  void put_before(const std::string& path) { set_path(path + ":" + before_); }

 private:
  const std::string before_ = getenv("PATH");
};

TEST_F(BenchWithPath, SaysWhatToInstallWhereThereIsNoProfiler) {
  const ScratchDirectory scratch;
  set_path(scratch.file("nothing"));
  const Outcome outcome = run_tool(bench({"--profile", "--json", scratch.file("results.json")}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("package linux-perf"), HasSubstr("package valgrind")));
  EXPECT_FALSE(std::filesystem::exists(scratch.file("results.json")));
}

TEST_F(BenchWithPath, CountsInstructionsWithValgrindWherePerfDoesNot) {
  const ScratchDirectory scratch;
  write_file(scratch.file("perf"), "#!/bin/sh\nexit 1\n");
  chmod(scratch.file("perf").c_str(), 0755);
  put_before(scratch.file("."));
  const std::string file = scratch.file("results.json");
  const Outcome outcome =
      run_tool(bench({"--protocol", "send/send,write/write,read", "--response", "64,4096",
                      "--requests", "100", "--runs", "1", "--profile", "--json", file}));
  if (outcome.exit_code != 0) {
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("install it (package valgrind)"));
    GTEST_SKIP() << outcome.err;
  }
  EXPECT_EQ(complaints(outcome), "");
  EXPECT_THAT(outcome.out, HasSubstr("where the instructions go"));
  const json document = json::parse(read_file(file));
  ASSERT_EQ(document["results"].size(), 6u);
  for (const json& row : document["results"]) {
    EXPECT_FALSE(row["profile"].contains("event"));
    for (const char* side : {"requester", "responder"}) {
      const json& cost = row["profile"]["instructions"][side];
      ASSERT_TRUE(cost.is_object()) << row;
      const double count = cost["per_message"];
      EXPECT_DOUBLE_EQ(cost["per_byte"], count / row["response_bytes"].get<double>());
      if (row["protocol"] == "read" && side == std::string("responder")) {
        EXPECT_EQ(count, 0);
        continue;
      }
      // Some hundred, but no bytes one by one and no waiting.
      EXPECT_GT(count, 100) << row["profile"];
      EXPECT_LT(count, 4096) << row["profile"];
      EXPECT_GE(cost["messages_per_poll"], 1);
      double sum = 0;
      for (const json& one : cost["functions"]) sum += one["share"].get<double>();
      EXPECT_GT(sum, 0.5) << row["profile"];
      EXPECT_LT(sum, 1.0001);
    }
  }
}

TEST(BenchProfile, SaysWhereTheTimeGoesOrWhyNot) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  // Longer where perf came too late to sample anything, as on a machine that is busy.
  for (const char* duration : {"300ms", "3s", "20s"}) {
    const Outcome outcome =
        run_tool({"bench", "M:1", "--nodes", "2", "--protocol", "send/send", "--duration", duration,
                  "--runs", "1", "--profile", "--json", file});
    if (outcome.exit_code != 0) {
      // No perf, or not allowed: one line, before anything was measured.
      EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr("perf"));
      EXPECT_FALSE(std::filesystem::exists(file));
      GTEST_SKIP() << outcome.err;
    }
    const json profile = json::parse(read_file(file))["results"][0]["profile"];
    if (!profile.contains("event")) GTEST_SKIP() << "perf does not work here";
    EXPECT_THAT(outcome.out, HasSubstr("where the time goes"));
    const bool sampled = !profile["requester"].empty() && !profile["responder"].empty();
    if (!sampled && std::string(duration) != "20s") continue;
    for (const char* side : {"requester", "responder"}) {
      double sum = 0;
      for (const json& one : profile[side]) {
        EXPECT_FALSE(one["function"].get<std::string>().empty());
        sum += one["share"].get<double>();
      }
      EXPECT_GT(sum, 0.5) << profile;
      EXPECT_LT(sum, 1.0001);
    }
    return;
  }
}

// --- experiments ---

TEST(Experiment, EveryFileOfThePapersIsAPlan) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(VERBENA_SOURCE_DIR "/experiments")) {
    SCOPED_TRACE(entry.path().string());
    ++files;
    std::vector<std::string> command = {"bench"};
    const std::string text = read_file(entry.path());
    const auto has_kind = [&text](const std::string& kind) {
      return text.find("kind = \"" + kind + "\"") != std::string::npos;
    };
    for (const char* kind : {"verbs", "remote"}) {
      if (has_kind(kind)) command = {kind};
    }
    for (const char* kind : {"hashtable", "log", "shuffle", "join"}) {
      if (has_kind(kind)) command = {"app", kind};
    }
    if (has_kind("message")) command = {"bench", "message"};
    const std::string measured_by = command.back();
    // A file that cannot be written ends it after everything was read and checked.
    command.insert(command.end(),
                   {"--experiment", entry.path(), "--json", "/nonexistent/results.json"});
    if (measured_by != "bench") {
      command.insert(command.end(), {"--device", "sim:connectx3-40g"});
      const Outcome refused = run_tool({"bench", "--experiment", entry.path()});
      EXPECT_EQ(refused.exit_code, 2);
      EXPECT_THAT(refused.err, HasSubstr(measured_by + " --experiment"));
    } else {
      command.insert(command.end(), {"--limit-nodes", "2", "--limit-threads", "2"});
    }
    const Outcome outcome = run_tool(command);
    EXPECT_EQ(outcome.exit_code, 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("cannot write"));
  }
  EXPECT_GE(files, 52u);
}

TEST(Experiment, IsFoundByNameFromEverywhere) {
  const ScratchDirectory scratch;
  const auto measure = [&](std::vector<std::string> command) {
    command.insert(command.end(), {"--runs", "1", "--json", "out.json"});
    const Outcome outcome = run_tool(command, scratch.path());
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(read_file(scratch.file("out.json")));
  };
  const json bench =
      measure({"bench", "--experiment", "patterns-fig3b", "--device", "sim:connectx5-edr",
               "--protocol", "read", "--response", "64", "--requests", "100"});
  EXPECT_EQ(bench.at("experiment").at("figure"), "3b");
  const json verbs =
      measure({"verbs", "--experiment", "memsem-fig5", "--device", "sim:connectx3-40g", "--threads",
               "1", "--method", "sgl", "--operations", "100"});
  EXPECT_EQ(verbs.at("experiment").at("paper"), "memsem");

  const Outcome unknown = run_tool({"bench", "--experiment", "msgproto-fig99"}, scratch.path());
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("such as msgproto-fig10a"));
}

TEST(Bench, HasColumnsForTheValueAndForTheTotal) {
  const ScratchDirectory scratch;
  const Outcome outcome =
      run_tool({"bench", "one-to-one", "--device", "sim:connectx3-fdr", "--protocol",
                "send/send,read", "--request", "64", "--response", "128", "--requests", "100",
                "--runs", "1", "--json", scratch.file("out.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("value bandwidth  total bandwidth"));
  for (const json& row : json::parse(read_file(scratch.file("out.json"))).at("results")) {
    const double rate = row.at("rate_per_s");
    const double travels = row.at("protocol") == "read" ? 128 : 192;
    EXPECT_DOUBLE_EQ(row.at("value_bandwidth_bytes_per_s").get<double>(), rate * 128);
    EXPECT_DOUBLE_EQ(row.at("total_bandwidth_bytes_per_s").get<double>(), rate * travels);
  }
}

TEST(Experiment, GoesOnWhereItWasInterrupted) {
  const ScratchDirectory scratch;
  write_file(scratch.file("x.toml"),
             "title = \"two sizes\"\ntopology = \"N-to-1\"\nruns = 3\nduration = \"100ms\"\n"
             "[axes]\nprotocol = [\"write/write\", \"read\"]\nnodes = [1, 2]\n"
             "response = [64, 256]\n");
  const std::vector<std::string> arguments = {
      "bench",   "--experiment", scratch.file("x.toml"), "--json", scratch.file("results.json"),
      "--resume"};
  std::vector<std::string> command = arguments;
  command.insert(command.begin(), VERBENA_TOOL);
  const auto results = [&] {
    return std::filesystem::exists(scratch.file("results.json"))
               ? json::parse(read_file(scratch.file("results.json")))["results"]
               : json::array();
  };
  const auto finished = [&] {
    size_t count = 0;
    for (const json& row : results()) count += row["runs"] == 3 ? 1 : 0;
    return count;
  };
  // Again where it was done before it could be interrupted.
  Outcome interrupted;
  do {
    std::filesystem::remove(scratch.file("results.json"));
    ToolProcess first(command);
    ASSERT_TRUE(eventually([&] { return finished() >= 2 || !is_alive(first.pid()); }));
    first.signal(SIGINT);
    interrupted = first.wait();
  } while (interrupted.exit_code == 0);
  ASSERT_EQ(interrupted.exit_code, 130) << interrupted.err;
  EXPECT_THAT(interrupted.err, HasSubstr("--resume"));
  EXPECT_THAT(interrupted.err, HasSubstr(fmt::format(" {} points were finished", finished())));
  const json before = results();
  ASSERT_LT(finished(), 8u);

  const Outcome second = run_tool(arguments);
  ASSERT_EQ(second.exit_code, 0) << second.err;
  const json after = results();
  ASSERT_EQ(after.size(), 8u);
  EXPECT_EQ(finished(), 8u);
  for (size_t i = 0; i < before.size(); ++i) {
    // Runs that were there are there still, unrepeated.
    for (size_t run = 0; run < before[i]["run_results"].size(); ++run) {
      EXPECT_EQ(before[i]["run_results"][run], after[i]["run_results"][run]);
    }
  }
  const json document = json::parse(read_file(scratch.file("results.json")));
  check_schema(document, "M:1");
  EXPECT_EQ(document["experiment"]["title"], "two sizes");

  std::vector<std::string> other = arguments;
  other.insert(other.end(), {"--runs", "4"});
  const Outcome refused = run_tool(other);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, testing::AllOf(HasSubstr("another plan"), HasSubstr("--resume")));
}

// It must not send anybody to a file that could not be written.
TEST(Experiment, WhatIsInterruptedSaysWhetherItsResultsAreKept) {
  const ScratchDirectory scratch;
  const std::filesystem::path folder = scratch.file("results");
  std::filesystem::create_directory(folder);
  ToolProcess process({VERBENA_TOOL, "bench", "one-to-one", "--protocol", "read", "--duration",
                       "1ms", "--runs", "1000", "--device", "sim:connectx3-fdr", "--json",
                       folder / "x.json"});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(folder / "x.json"); }));
  // The run under way ends, and after it nothing can be written.
  std::filesystem::rename(folder, scratch.file("elsewhere"));
  process.signal(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, testing::Not(HasSubstr("--resume")));
  EXPECT_THAT(outcome.err, HasSubstr("cannot write"));
}

TEST(BenchTopology, AKilledNodeOfManyIsNamedAndTheOthersEnd) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("results.json");
  ToolProcess process({VERBENA_TOOL, "bench", "M:M", "--nodes", "4", "--protocol",
                       "write/write,send/send", "--duration", "100ms", "--runs", "1000", "--json",
                       file});
  ASSERT_TRUE(
      eventually([&] { return std::filesystem::exists(file) || !is_alive(process.pid()); }));
  const std::vector<pid_t> nodes = process.children();
  ASSERT_EQ(nodes.size(), 4u) << process.err();
  kill(nodes[2], SIGKILL);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("(process " + std::to_string(nodes[2]) + ") was killed"));
  for (const pid_t node : nodes) EXPECT_FALSE(is_alive(node));
  check_schema(json::parse(read_file(file)), "M:M");
}

// --- two hosts, played by one ---

class TwoHosts : public testing::Test {
 protected:
  void SetUp() override {
    write_secret("secret", "0123456789abcdef0123456789abcdef");
    listener_ = std::make_unique<ToolProcess>(
        std::vector<std::string>{VERBENA_TOOL, "bench", "one-to-one", "--listen", "127.0.0.1",
                                 "--port", "0", "--secret-file", scratch_.file("secret")});
    const std::string marker = "--port ";
    ASSERT_TRUE(eventually([&] {
      const std::string err = listener_->err();
      return err.find(marker) != std::string::npos && err.back() == '\n';
    })) << listener_->err();
    const std::string err = listener_->err();
    port_ = err.substr(err.find(marker) + marker.size());
    port_.pop_back();
  }
  void write_secret(const std::string& name, const std::string& text) {
    write_file(scratch_.file(name), text + "\n");
    chmod(scratch_.file(name).c_str(), 0600);
  }
  Outcome connect(const std::string& secret) {
    return run_tool(bench({"--protocol", "all", "--connect", "127.0.0.1", "--port", port_,
                           "--secret-file", scratch_.file(secret), "--requests", "100", "--runs",
                           "1", "--verify", "--json", scratch_.file("results.json")}));
  }

  ScratchDirectory scratch_;
  std::unique_ptr<ToolProcess> listener_;
  std::string port_;
};

TEST_F(TwoHosts, ListenerServesOneRequesterAndEnds) {
  const Outcome outcome = connect("secret");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(listener_->wait().exit_code, 0);
  const json document = json::parse(read_file(scratch_.file("results.json")));
  check_schema(document);
  EXPECT_EQ(document["results"].size(), 5u);
  for (const json& row : document["results"]) EXPECT_EQ(row["verified"], true);
}

TEST_F(TwoHosts, AWrongSecretIsRefusedAndTheListenerWaitsOn) {
  write_secret("other", "fedcba9876543210fedcba9876543210");
  const Outcome refused = connect("other");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("secret"));
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  EXPECT_EQ(connect("secret").exit_code, 0);
  EXPECT_EQ(listener_->wait().exit_code, 0);
}

TEST_F(TwoHosts, CtrlCEndsAListener) {
  listener_->signal(SIGINT);
  EXPECT_EQ(listener_->wait().exit_code, 130);
}

TEST_F(TwoHosts, APortInUseIsNamed) {
  const Outcome outcome = run_tool(bench({"--protocol", "read", "--port", port_}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, testing::AllOf(HasSubstr("in use"), HasSubstr(port_)));
  EXPECT_EQ(outcome.out, "");
}

}  // namespace
}  // namespace verbena::test
