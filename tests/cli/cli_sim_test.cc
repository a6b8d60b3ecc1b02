// `verbena sim`: that the steps of a message are all of its latency, and what traces and lists of
// profiles have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> simulated_devices() {
  std::vector<std::string> names;
  for (const json& one : json::parse(run_tool({"sim", "profiles", "--json"}).out)) {
    names.push_back(one.at("device"));
  }
  return names;
}

struct Row {
  double at_ns;
  double takes_ns;
};

// The waterfall's rows, up to what nobody waits for.
std::vector<Row> rows_of(const std::string& text) {
  static const std::regex row(R"(^ +([0-9]+\.[0-9]) +([0-9]+\.[0-9]) .*)");
  std::vector<Row> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && !line.starts_with("beside it");) {
    std::smatch parts;
    if (std::regex_match(line, parts, row))
      rows.push_back({std::stod(parts[1]), std::stod(parts[2])});
  }
  return rows;
}

double measured_ns(const std::string& text) {
  std::smatch parts;
  if (!std::regex_search(text, parts, std::regex(R"(thread measured ([0-9]+) ns)"))) return -1;
  return std::stod(parts[1]);
}

// A profile with the parameters of its chip, so that these may have other values.
std::string without_chip(const std::filesystem::path& folder, const std::string& name) {
  std::string profile = read_file(folder / name);
  std::smatch chip;
  EXPECT_TRUE(std::regex_search(profile, chip, std::regex("chip = \"(.*)\"\n"))) << name;
  const std::string entries = read_file(folder / "chips" / (chip.str(1) + ".toml"));
  profile.erase(static_cast<size_t>(chip.position()), static_cast<size_t>(chip.length()));
  return profile + entries.substr(entries.find("\n["));
}

// `profile`, with other values of some parameters.
std::string with_values(std::string profile,
                        const std::vector<std::pair<const char*, const char*>>& values) {
  for (const auto& [name, value] : values) {
    const std::regex entry("(\\[" + std::string(name) + "\\]\nvalue = )[^\n]*");
    EXPECT_TRUE(std::regex_search(profile, entry)) << name;
    profile = std::regex_replace(profile, entry, "$01" + std::string(value));
  }
  return profile;
}

using ExplainedRun = std::tuple<const char*, std::vector<std::string>>;
class Explain : public testing::TestWithParam<ExplainedRun> {
 protected:
  // Besides those that there are one in which nothing fits on chip and buses and cores are shared,
  // and one that never waits for a lock or for its turn at the switch.
  Explain() {
    const std::filesystem::path folder =
        std::filesystem::path(VERBENA_TOOL).parent_path().parent_path() / "share/verbena/profiles";
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::filesystem::copy(entry.path(), scratch_.file(entry.path().filename()));
    }
    const std::string usual = without_chip(folder, "connectx3-fdr.toml");
    write_file(scratch_.file("small.toml"), with_values(usual, {{"pcie_shared", "1"},
                                                                {"context_cache", "300"},
                                                                {"translation_cache", "2"},
                                                                {"read_state_queue_pairs", "1"},
                                                                {"cores", "1"},
                                                                {"sockets", "1"}}));
    write_file(scratch_.file("free.toml"), with_values(usual, {{"blueflame_lock_alone", "0"},
                                                               {"switch_input_queues", "0"},
                                                               {"queue_pair_write_gap", "0"},
                                                               {"max_inline", "0"}}));
    setenv("VERBENA_PROFILES", scratch_.path().c_str(), 1);
  }
  ~Explain() override { unsetenv("VERBENA_PROFILES"); }

 private:
  const ScratchDirectory scratch_;
};

TEST_P(Explain, StepsFollowEachOtherAndAreAllOfTheLatency) {
  const auto& [protocol, options] = GetParam();
  const std::vector<std::string> devices = simulated_devices();
  ASSERT_GE(devices.size(), 3u);
  for (const std::string& device : devices) {
    SCOPED_TRACE(device);
    std::vector<std::string> arguments = {"sim", "explain"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(),
                     {"--protocol", protocol, "--device", device, "--duration", "100us"});
    const Outcome outcome = run_tool(arguments);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr("nothing is missing"), Not(HasSubstr("(not explained)"))));
    const std::vector<Row> rows = rows_of(outcome.out);
    ASSERT_GT(rows.size(), 8u) << outcome.out;
    double at = 0;
    for (const Row& row : rows) {
      // Each number has been rounded by itself.
      EXPECT_NEAR(row.at_ns, at, 0.11) << outcome.out;
      at = row.at_ns + row.takes_ns;
    }
    EXPECT_NEAR(at, measured_ns(outcome.out), 1.2) << outcome.out;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, Explain,
    testing::Combine(
        testing::Values("write/write", "send/send", "read"),
        testing::Values(
            std::vector<std::string>{"one-to-one"},
            std::vector<std::string>{"one-to-one", "--mark", "dense", "--pending", "4"},
            std::vector<std::string>{"one-to-one", "--request", "9000", "--response", "20000",
                                     "--pending", "3"},
            std::vector<std::string>{"M:1", "--nodes", "4", "--pending", "4", "--quantile", "0.99"},
            std::vector<std::string>{"M:1", "--nodes", "2", "--threads", "2", "--model",
                                     "dispatcher"},
            std::vector<std::string>{"M:1", "--nodes", "4", "--pending", "4", "--quantile", "0.99",
                                     "--arrival-rate", "400000"})),
    [](const testing::TestParamInfo<ExplainedRun>& one) {
      return "case_" + std::to_string(one.index);
    });

INSTANTIATE_TEST_SUITE_P(
    Unreliable, Explain,
    testing::Combine(
        testing::Values("send/send"),
        testing::Values(std::vector<std::string>{"one-to-one", "--transport", "ud"},
                        std::vector<std::string>{"one-to-one", "--transport", "uc", "--request",
                                                 "9000", "--response", "20000", "--pending", "3"},
                        std::vector<std::string>{"M:1", "--nodes", "4", "--pending", "4",
                                                 "--quantile", "0.99", "--transport", "uc"},
                        std::vector<std::string>{"M:1", "--nodes", "2", "--threads", "2", "--model",
                                                 "dispatcher", "--transport", "ud"})),
    [](const testing::TestParamInfo<ExplainedRun>& one) {
      return "case_" + std::to_string(one.index);
    });

TEST(ExplainWaits, TailsWaitMoreThanMedians) {
  const auto measured = [](const char* quantile) {
    return measured_ns(run_tool({"sim", "explain", "M:1", "--nodes", "6", "--pending", "4",
                                 "--device", "sim:connectx3-fdr", "--quantile", quantile})
                           .out);
  };
  EXPECT_GT(measured("0"), 0);
  EXPECT_LT(measured("0"), measured("1"));
}

json usage_of(const std::vector<std::string>& arguments) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("usage.json");
  std::vector<std::string> all = {"sim", "explain"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), {"--device", "sim:connectx3-40g", "--json", file});
  const Outcome outcome = run_tool(all);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("busiest"));
  json usages = json::array();
  const json document = json::parse(read_file(file));
  for (const json& row : document.at("results")) {
    EXPECT_GT(row.at("rate_per_s"), 0);
    usages.push_back(row.at("usage"));
  }
  return usages;
}

TEST(ExplainWorkload, ALogOfManyWritersIsLimitedByItsSequencer) {
  const json usages = usage_of({"log", "--nodes", "1,16", "--operations", "4000"});
  ASSERT_EQ(usages.size(), 2u);
  EXPECT_LT(usages[0].at("replica").at("atomics").at("most"), 0.5);
  EXPECT_GT(usages[1].at("replica").at("atomics").at("most"), 0.95);
  EXPECT_EQ(usages[1].at("writer").at("nodes"), 16);
  EXPECT_EQ(usages[1].at("replica").at("nodes"), 1);
}

TEST(ExplainWorkload, NamesTheNodesOfEachApplication) {
  for (const auto& [application, roles] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"hashtable", {"back-end", "front-end"}},
           {"log", {"replica", "writer"}},
           {"shuffle", {"executor"}},
           {"join", {"executor"}}}) {
    SCOPED_TRACE(application);
    std::vector<std::string> arguments = {application, "--operations", "2000"};
    if (application == "join")
      arguments.insert(arguments.end(), {"--nodes", "2", "--tuples", "4000"});
    const json usages = usage_of(arguments);
    ASSERT_EQ(usages.size(), 1u);
    std::vector<std::string> named;
    for (const auto& [role, units] : usages[0].items()) {
      named.push_back(role);
      for (const char* unit :
           {"cpu", "bus_down", "bus_up", "sending_side", "receiving_side", "link_out", "link_in"}) {
        EXPECT_GE(units.at(unit).at("most"), units.at(unit).at("mean")) << unit;
        EXPECT_LE(units.at(unit).at("most"), 1.0) << unit;
      }
      EXPECT_GT(units.at("link_in").at("mean"), 0) << role;
    }
    EXPECT_EQ(named, roles);
  }
}

TEST(ExplainWorkload, RefusesDevicesThatAreNotSimulated) {
  const Outcome outcome = run_tool({"sim", "explain", "log", "--device", "soft0"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'soft0' is not simulated; give one of sim:"));
}

TEST(ExplainTrace, HasTracksOfNodesAndFlowsOfMessages) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("trace.json");
  const Outcome outcome = run_tool({"sim", "explain", "M:1", "--nodes", "2", "--pending", "2",
                                    "--device", "sim:connectx3-fdr", "--trace", file});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json trace = json::parse(read_file(file));
  using Track = std::pair<int, int>;
  struct Slice {
    double begin;
    double end;
  };
  std::map<Track, std::vector<Slice>> slices;
  std::map<Track, std::string> names;
  std::set<int> nodes;
  for (const json& event : trace.at("traceEvents")) {
    nodes.insert(event.at("pid").get<int>());
    if (event.at("ph") == "M" && event.at("name") == "thread_name") {
      names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    }
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    slices[{event.at("pid"), event.at("tid")}].push_back(
        {begin, begin + event.at("dur").get<double>()});
  }
  EXPECT_EQ(nodes, (std::set<int>{0, 1, 2}));
  std::set<std::string> kinds;
  constexpr double kRoundingUs = 1e-6;
  for (auto& [track, list] : slices) {
    ASSERT_TRUE(names.contains(track));
    kinds.insert(names[track]);
    std::sort(list.begin(), list.end(),
              [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < list.size(); ++i) {
      EXPECT_LE(list[i - 1].end, list[i].begin + kRoundingUs) << names[track];
    }
  }
  for (const char* kind : {"host bus", "sending side", "receiving side", "network"}) {
    EXPECT_TRUE(kinds.contains(kind)) << kind;
  }
  std::map<int, std::string> flows;  // by message, the phases in order
  for (const json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase != "s" && phase != "t" && phase != "f") continue;
    flows[event.at("id")] += phase;
    const auto& list = slices[{event.at("pid"), event.at("tid")}];
    const double at = event.at("ts");
    EXPECT_TRUE(std::any_of(list.begin(), list.end(), [at](const Slice& slice) {
      return slice.begin <= at && at <= slice.end;
    })) << event;
  }
  EXPECT_GT(flows.size(), 10u);
  for (const auto& [message, phases] : flows) {
    EXPECT_TRUE(std::regex_match(phases, std::regex("st{8,}f"))) << message << " " << phases;
  }
}

TEST(Simulated, TablesAndFilesSayThatTheyAreModelled) {
  const ScratchDirectory scratch;
  const std::string device = "sim:connectx3-fdr";
  json counts = {{"documented", 0}, {"calibrated", 0}, {"assumed", 0}};
  for (const json& profile : json::parse(run_tool({"sim", "profiles", "--json"}).out)) {
    if (profile.at("device") != device) continue;
    for (const json& parameter : profile.at("parameters")) {
      json& count = counts.at(parameter.at("evidence").get<std::string>());
      count = count.get<int>() + 1;
    }
  }
  const std::string assumed = std::to_string(counts.at("assumed").get<int>()) + " assumed (";
  const std::vector<std::vector<std::string>> commands = {
      {"bench", "one-to-one", "--protocol", "read", "--requests", "100", "--json",
       scratch.file("out.json")},
      {"verbs", "--operations", "100"},
      {"sim", "explain", "one-to-one"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--device", device});
    const Outcome outcome = run_tool(command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out,
                AllOf(HasSubstr(device + " is modelled, not measured"), HasSubstr(assumed)));
  }
  const json file = json::parse(read_file(scratch.file("out.json")));
  EXPECT_EQ(file.at("models").at(device).at("parameters"), counts);
  EXPECT_THAT(run_tool({"bench", "one-to-one", "--protocol", "read", "--requests", "100"}).out,
              Not(HasSubstr("modelled")));
}

// A run of a variant is the same wherever it stands, so the single commands that --variants is made
// of can be run again one by one.
TEST(Variants, HaveABandAndRunAgainAlone) {
  const ScratchDirectory scratch;
  const std::vector<std::string> point = {
      "bench", "one-to-one", "--protocol", "write/write", "--runs",
      "2",     "--requests", "300",        "--device",    "sim:connectx3-fdr"};
  std::vector<std::string> command = point;
  command.insert(command.end(), {"--variants", "3", "--json", scratch.file("all.json")});
  const Outcome outcome = run_tool(command);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("over 3 variants of the profile"),
                                 Not(HasSubstr("no band measured"))));
  const json row = json::parse(read_file(scratch.file("all.json"))).at("results").at(0);
  EXPECT_EQ(row.at("variants"), 3);
  EXPECT_EQ(row.at("runs"), 6);
  EXPECT_LT(row.at("rate_band").at(0), row.at("rate_per_s"));
  EXPECT_GT(row.at("rate_band").at(1), row.at("rate_per_s"));
  EXPECT_LT(row.at("p50_band").at(0), row.at("p50_band").at(1));
  const json& fourth = row.at("run_results").at(4);  // the second run of variant 1
  EXPECT_EQ(fourth.at("variant"), 1);
  command = point;
  command[5] = "1";
  command.back() = "sim:connectx3-fdr#1";
  command.insert(command.end(), {"--json", scratch.file("one.json")});
  setenv("VERBENA_SEED", "5", 1);
  const Outcome alone = run_tool(command);
  unsetenv("VERBENA_SEED");
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("sim:connectx3-fdr#1 is modelled, not measured"));
  const json again = json::parse(read_file(scratch.file("one.json"))).at("results").at(0);
  EXPECT_EQ(again.at("run_results").at(0).at("simulation"), fourth.at("simulation"));
}

TEST(Variants, ResultsWithoutThemSayThatThereIsNoBand) {
  const Outcome outcome =
      run_tool({"verbs", "--operations", "100", "--device", "sim:connectx3-fdr"});
  EXPECT_THAT(outcome.out, HasSubstr("no band measured: --variants"));
  EXPECT_THAT(run_tool({"verbs", "--operations", "100"}).out, Not(HasSubstr("band measured")));
}

TEST(Variants, ListTheirValues) {
  const auto value_in = [](const std::string& profile) {
    const Outcome outcome = run_tool({"sim", "profiles", profile, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const json profiles = json::parse(outcome.out);
    for (const json& one : profiles.at(0).at("parameters")) {
      if (one.at("name") == "tx_message") return one.at("value").get<double>();
    }
    return 0.0;
  };
  const double given = value_in("connectx3-fdr");
  EXPECT_GT(given, 0);
  EXPECT_NE(value_in("connectx3-fdr#4"), given);
  EXPECT_NEAR(value_in("connectx3-fdr#4"), given, 0.2 * given);
}

TEST(Variants, WhatCannotVaryIsRefusedInOneLine) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"--device", "sim:connectx3-fdr", "--variants", "0"}, "number of variants 0"},
      {{"--device", "sim:connectx3-fdr", "--variants", "101"}, "number of variants 101"},
      {{"--device", "sim:connectx3-fdr", "--variants", "1,2"}, "variants"},
      {{"--device", "sim:connectx3-fdr#2", "--variants", "2"}, "a single variant"},
      {{"--device", "soft0", "--variants", "2"}, "a real device"},
      {{"--device", "sim:connectx3-fdr#100"}, "there are #1 to #99"},
      {{"--device", "sim:connectx3-fdr#x"}, "there are #1 to #99"},
  };
  for (const auto& [options, cause] : cases) {
    std::vector<std::string> arguments = {"bench", "one-to-one"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_tool(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << cause;
    EXPECT_EQ(outcome.out, "") << cause;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(cause));
  }
}

TEST(Simulated, RunsDoNotWarnAboutTheCpusOfThisMachine) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const Outcome outcome = run_tool({"bench", "one-to-one", "--device", "sim:connectx3-fdr",
                                    "--protocol", "read", "--requests", "100"});
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(complaints(outcome), "");
}

TEST(ExplainHelp, OffersNoLists) {
  const std::string help = run_tool({"sim", "explain", "--help"}).out;
  for (const char* refused : {"LIST", "COUNTS", "SIZES", "SHARES", "or all"}) {
    EXPECT_THAT(help, Not(HasSubstr(refused)));
  }
  EXPECT_THAT(help, AllOf(HasSubstr("COUNT (1)"), HasSubstr("or per-connection")));
}

TEST(ExplainErrors, AreOneLineAndNameTheCause) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> cases = {
      {{"one-to-one"}, "--device"},
      {{"one-to-one", "--device", "soft0"}, "not simulated"},
      {{"one-to-one", "--device", "sim:none"}, "none"},
      {{"--device", "sim:connectx3-fdr"}, "which topology"},
      {{"ring", "--device", "sim:connectx3-fdr"}, "ring"},
      {{"one-to-one", "--device", "sim:connectx3-fdr", "--protocol", "all"}, "one value"},
      {{"one-to-one", "--device", "sim:connectx3-fdr", "--pending", "1,2"}, "one value"},
      {{"one-to-one", "--device", "sim:connectx3-fdr", "--quantile", "99"}, "0.99"},
      {{"one-to-one", "--device", "sim:connectx3-fdr", "--quantile", "0.5x"}, "0.5x"},
      {{"one-to-one", "--device", "sim:connectx3-fdr", "--duration", "soon"}, "soon"},
      {{"one-to-one", "--device", "sim:connectx3-fdr", "--trace", "/nowhere/trace.json"},
       "/nowhere"},
      {{"one-to-one", "--device", "sim:connectx3-fdr", "--nonsense"}, "nonsense"},
  };
  for (const auto& [options, cause] : cases) {
    std::vector<std::string> arguments = {"sim", "explain"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_tool(arguments);
    EXPECT_NE(outcome.exit_code, 0) << cause;
    EXPECT_EQ(outcome.out, "") << cause;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(cause));
  }
}

TEST(Profiles, HaveEveryParameterWithUnitEvidenceAndSource) {
  const Outcome outcome = run_tool({"sim", "profiles", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json profiles = json::parse(outcome.out);
  const std::string overview = run_tool({"sim", "profiles"}).out;
  for (const json& profile : profiles) {
    const std::string device = profile.at("device");
    EXPECT_THAT(overview, AllOf(HasSubstr(device), HasSubstr(profile.at("title"))));
    const std::string text = run_tool({"sim", "profiles", device}).out;
    EXPECT_GT(profile.at("parameters").size(), 50u);
    for (const json& one : profile.at("parameters")) {
      EXPECT_TRUE(one.at("value").is_number());
      for (const char* key : {"unit", "evidence", "source", "meaning"}) {
        EXPECT_THAT(text, HasSubstr(one.at(key).get<std::string>())) << one;
      }
      EXPECT_EQ(one.at("evidence") == "calibrated", !one.at("claims").empty()) << one;
    }
  }
  const Outcome unknown = run_tool({"sim", "profiles", "none"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(std::count(unknown.err.begin(), unknown.err.end(), '\n'), 1) << unknown.err;
}

}  // namespace
}  // namespace verbena::test
