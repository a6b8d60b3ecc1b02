// `verbena app`: the applications between processes and in a simulation, what their results have,
// what --verify finds, several hosts, and how they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/measure.h"
#include "tests/support/own_port.h"
#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using Arguments = std::vector<std::string>;

Arguments app(Arguments arguments) {
  arguments.insert(arguments.begin(), "app");
  return arguments;
}

// Every point was measured and checked.
void expect_verified(const json& rows, size_t count, uint64_t operations) {
  ASSERT_EQ(rows.size(), count);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_EQ(row.at("requests_measured"), operations);
    EXPECT_GT(row.at("rate_per_s").get<double>(), 0);
  }
}

class ApplicationOn : public testing::TestWithParam<const char*> {
 protected:
  json measure(Arguments arguments) const {
    return measure_on(GetParam(), app(std::move(arguments)), "median");
  }
};

TEST_P(ApplicationOn, TheHashtableDoesEveryMix) {
  const json rows =
      measure({"hashtable", "--mix", "all", "--threads", "2", "--pending", "1,5", "--keys", "2000",
               "--new-keys", "2000", "--operations", "400", "--verify"});
  expect_verified(rows, 7 * 2, 800);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    const std::string mix = row.at("mix");
    const json& kinds = row.at("kinds");
    uint64_t operations = 0;
    for (const auto& [name, kind] : kinds.items()) {
      operations += kind.at("requests").get<uint64_t>();
      EXPECT_GE(kind.at("p99_ns").get<double>(), kind.at("p50_ns").get<double>());
    }
    EXPECT_EQ(operations, 800u);
    EXPECT_EQ(kinds.contains("search"), mix != "E");
    EXPECT_EQ(kinds.contains("scan"), mix == "E");
    EXPECT_EQ(kinds.contains("update"), mix == "A" || mix == "B" || mix == "custom");
    EXPECT_EQ(kinds.contains("insert"), mix == "D" || mix == "E");
    EXPECT_EQ(kinds.contains("read-modify-write"), mix == "F");
    EXPECT_EQ(row.at("distribution"), mix == "D" ? "latest" : "zipfian");
    EXPECT_EQ(row.at("cpu").at("responder").at("cycles_per_message"), 0);
    // Two round trips and more of an update; a scan has 50 searches in the mean.
    const double work_requests = row.at("work_requests_per_operation").get<double>();
    EXPECT_GE(work_requests, mix == "E" ? 80 : 2);
    EXPECT_LT(work_requests, mix == "E" ? 140 : 8);
  }
}

TEST_P(ApplicationOn, TheHashtableHasItsKeysOnSeveralBackEnds) {
  const json rows =
      measure({"hashtable", "--mix",        "A,D",     "--nodes",    "2",    "--back-ends",
               "3",         "--keys",       "1000",    "--new-keys", "1000", "--pending",
               "4",         "--value-size", "16,6000", "--key-size", "40",   "--operations",
               "300",       "--verify"});
  expect_verified(rows, 2 * 2, 600);
  for (const json& row : rows) EXPECT_EQ(row.at("nodes"), 5);
}

TEST_P(ApplicationOn, TheHashtableUsesKeysAsTheyAreDistributed) {
  const json rows = measure({"hashtable", "--mix", "custom", "--reads", "0,100", "--distribution",
                             "all", "--keys", "1000", "--operations", "300", "--verify"});
  expect_verified(rows, 2 * 3, 300);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("kinds").contains("search"), row.at("reads_percent") == 100);
    EXPECT_EQ(row.at("kinds").contains("update"), row.at("reads_percent") == 0);
  }
}

TEST_P(ApplicationOn, TheHashtableAnswersBeforeItPublishes) {
  const json rows = measure({"hashtable",  "--mix",
                             "A,F,custom", "--reads",
                             "0",          "--threads",
                             "2",          "--pending",
                             "1,5",        "--keys",
                             "2000",       "--hot",
                             "4",          "--acknowledgement",
                             "all",        "--loss-window",
                             "2000000",    "--operations",
                             "400",        "--verify"});
  expect_verified(rows, 3 * 2 * 2, 800);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    const bool buffered = row.at("acknowledgement") == "buffered";
    EXPECT_EQ(row.at("buffered_per_operation").get<double>() > 0.1, buffered);
    // All of it was written within the run.
    EXPECT_GT(row.at("modifications_per_flush").get<double>(), 0);
  }
}

TEST_P(ApplicationOn, TheLogIsReadByItsReaders) {
  const json rows = measure({"log", "--nodes", "2", "--threads", "3", "--readers", "1,2", "--batch",
                             "1,8", "--pending", "1,4", "--operations", "200", "--verify"});
  ASSERT_EQ(rows.size(), 2u * 2u * 2u);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    const uint64_t readers = row.at("readers");
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_EQ(row.at("requests_measured"), 2 * (3 - readers) * 200);
    // Each of all readers has read each entry.
    EXPECT_DOUBLE_EQ(row.at("read_per_entry"), static_cast<double>(2 * readers));
  }
}

TEST_P(ApplicationOn, TheLogIsReplicatedByEveryMethod) {
  const json rows =
      measure({"log", "--replicas", "1,3", "--method", "all", "--batch", "6", "--entry-size",
               "32,1000", "--threads", "2", "--pending", "3", "--operations", "200", "--verify"});
  expect_verified(rows, 2 * 4 * 2, 400);
  // The first writer reads it, as nobody else does.
  for (const json& row : rows) EXPECT_DOUBLE_EQ(row.at("read_per_entry"), 1);
}

// Many times its capacity goes through the log.
TEST_P(ApplicationOn, TheLogIsNotFullForLong) {
  for (const char* readers : {"0", "1"}) {
    for (const bool verify : {false, true}) {
      Arguments arguments = {"log",   "--threads",    "3",   "--readers", readers, "--capacity",
                             "64KiB", "--entry-size", "256", "--batch",   "8",     "--pending",
                             "4",     "--operations", "500"};
      if (verify) arguments.emplace_back("--verify");
      const json rows = measure(arguments);
      ASSERT_EQ(rows.size(), 1u);
      EXPECT_EQ(rows[0].at("errors"), 0);
      EXPECT_EQ(rows[0].at("requests_measured"), 500 * (readers[0] == '0' ? 3 : 2));
    }
  }
}

TEST_P(ApplicationOn, TheShuffleHasEachRecordOnce) {
  const json rows =
      measure({"shuffle", "--nodes", "2", "--threads", "2", "--receivers", "1,3", "--batch", "1,7",
               "--record-size", "40,500", "--method", "all", "--operations", "60", "--verify"});
  // With single records, basic is what it is with batches.
  expect_verified(rows, 2 * 2 * (4 + 3), 4 * 60);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("nodes"), 2);
    EXPECT_DOUBLE_EQ(row.at("received_per_record"), 1);
    const double writes = row.at("writes_per_record");
    EXPECT_GE(writes, 1.0 / row.at("batch").get<double>());
    EXPECT_LT(writes, row.at("batch") == 7 ? 0.5 : 1.5);
    EXPECT_GT(row.at("sender_cycles_per_record"), 0);
    EXPECT_GT(row.at("receiver_cycles_per_record"), 0);
  }
}

// Little memory, and most records for a few receivers: senders have to wait.
TEST_P(ApplicationOn, TheShuffleWaitsForItsReceivers) {
  const json rows = measure({"shuffle",
                             "--nodes",
                             "1",
                             "--threads",
                             "2",
                             "--receiver-nodes",
                             "2",
                             "--receivers",
                             "2",
                             "--buffer",
                             "4KiB",
                             "--writes",
                             "1",
                             "--batch",
                             "4",
                             "--record-size",
                             "128",
                             "--distribution",
                             "all",
                             "--method",
                             "basic,sp,sgl",
                             "--operations",
                             "200",
                             "--verify"});
  expect_verified(rows, 2 * 3, 2 * 200);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("nodes"), 3);
    EXPECT_DOUBLE_EQ(row.at("received_per_record"), 1);
    EXPECT_GT(row.at("credit_reads_per_record"), 0);
  }
}

// Of both relations each tuple counts; one executor has fewer than the others.
TEST_P(ApplicationOn, TheJoinFindsEachTupleOnce) {
  const json rows =
      measure({"join", "--nodes", "1,2", "--threads", "1,3", "--tuples", "1999", "--tuple-size",
               "16,200", "--batch", "5", "--method", "all", "--verify"});
  expect_verified(rows, 2 * 2 * 2 * 4, 2 * 1999);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_DOUBLE_EQ(row.at("result_per_outer_tuple"), 1);
    EXPECT_GT(row.at("shuffle_ns_per_tuple"), 0);
    EXPECT_GT(row.at("cycles_per_tuple"), 0);
  }
}

TEST_P(ApplicationOn, TheJoinNeedsNoShuffle) {
  const json rows =
      measure({"join", "--exchange", "none", "--tuples", "1,5000", "--method", "all", "--verify"});
  // Methods mean nothing to it.
  ASSERT_EQ(rows.size(), 2u);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_EQ(row.at("requests_measured"), 2 * row.at("tuples").get<uint64_t>());
    EXPECT_DOUBLE_EQ(row.at("result_per_outer_tuple"), 1);
    EXPECT_EQ(row.at("shuffle_ns_per_tuple"), 0);
    EXPECT_GT(row.at("probe_ns_per_tuple"), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, ApplicationOn, testing::Values("soft0", "sim:connectx3-40g"),
                         [](const testing::TestParamInfo<const char*>& one) {
                           return std::string(one.param).starts_with("sim:") ? "sim" : "soft";
                         });

TEST(App, ASimulationIsTheSameEveryTime) {
  const std::vector<Arguments> commands = {
      {"hashtable", "--threads", "2", "--keys", "1000"},
      {"log", "--threads", "2", "--readers", "1", "--batch", "4"},
      {"shuffle", "--threads", "2", "--method", "sgl", "--distribution", "zipfian"},
      {"join", "--nodes", "2", "--tuples", "2000"}};
  for (const Arguments& command : commands) {
    const auto table = [&command] {
      Arguments arguments = command;
      arguments.insert(arguments.end(),
                       {"--device", "sim:connectx3-40g", "--operations", "300", "--runs", "1"});
      const Outcome outcome = run_tool(app(arguments));
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      // The last line tells how long the simulation took.
      return outcome.out.substr(0, outcome.out.find("simulated:"));
    };
    EXPECT_EQ(table(), table());
  }
}

// What is far from the RNIC is slower.
TEST(App, ExecutorsRunOnTheSocketThatIsNamed) {
  for (const Arguments& command : {Arguments{"shuffle", "--operations", "500"},
                                   Arguments{"join", "--nodes", "2", "--tuples", "10000"}}) {
    Arguments arguments = app(command);
    arguments.insert(arguments.end(), {"--method", "sp", "--socket", "all", "--verify"});
    const json rows = measure_on("sim:connectx3-40g", arguments, "runs");
    ASSERT_EQ(rows.size(), 3u);
    std::map<std::string, double> rates;
    for (const json& row : rows) {
      EXPECT_EQ(row.at("verified"), true);
      rates[row.at("socket")] = row.at("rate_per_s");
    }
    EXPECT_GT(rates["rnic"], 1.02 * rates["other"]) << command.front();
  }
}

// Cycles and time are of the same joins, so their ratio says how many threads were counted.
TEST(App, AJoinWithoutAShuffleCountsTheCyclesOfAllItsThreads) {
  std::map<uint64_t, double> cycles_per_ns;
  for (const json& row : measure_on(
           "soft0", app({"join", "--exchange", "none", "--threads", "1,4", "--tuples", "100000"}),
           "median")) {
    const double cycles =
        row.at("cycles_per_tuple").get<double>() * row.at("requests_measured").get<double>();
    cycles_per_ns[row.at("threads")] = cycles / row.at("latency_ns").at("p50").get<double>();
  }
  EXPECT_NEAR(cycles_per_ns[4] / cycles_per_ns[1], 4, 1);
}

// A result file has what a later session needs to go on.
TEST(App, GoesOnAfterAnInterruption) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("app.json");
  const Arguments command =
      app({"hashtable", "--mix", "A,C", "--keys", "1000", "--operations", "200", "--device",
           "sim:connectx3-40g", "--runs", "1", "--json", file});
  ASSERT_EQ(run_tool(command).exit_code, 0);
  const json before = results_of(file);
  Arguments again = command;
  again.emplace_back("--resume");
  const Outcome outcome = run_tool(again);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(results_of(file), before);
}

// A launcher starts one process per host: the ranks are the nodes. What the first one says.
Outcome run_on_ranks(int size, const Arguments& words) {
  const ScratchDirectory scratch;
  const std::string secret = scratch.file("job.secret");
  std::ofstream(secret) << "0123456789abcdef0123456789abcdef";
  EXPECT_EQ(chmod(secret.c_str(), 0600), 0);
  // Another address than that of the loopback interface, at which rank 0 is reached then.
  const std::string coordinator = "127.0.0.2:" + std::to_string(own_port());
  const auto rank = [&](int number) {
    Arguments command = app(words);
    command.insert(command.begin(), VERBENA_TOOL);
    command.insert(command.end(), {"--operations", "200", "--runs", "1", "--verify", "--rank",
                                   std::to_string(number), "--size", std::to_string(size),
                                   "--coordinator", coordinator, "--secret-file", secret});
    return command;
  };
  ToolProcess first(rank(0));
  std::vector<std::unique_ptr<ToolProcess>> others;
  for (int number = 1; number < size; ++number) {
    others.push_back(std::make_unique<ToolProcess>(rank(number)));
  }
  const Outcome outcome = first.wait();
  for (const auto& other : others) EXPECT_EQ(other->wait().exit_code, outcome.exit_code);
  return outcome;
}

TEST(App, RunsOnTheHostsOfALauncher) {
  for (const auto& [ranks, command] : std::vector<std::pair<int, Arguments>>{
           {2, {"log", "--batch", "4"}},
           {2, {"shuffle", "--nodes", "1", "--threads", "2", "--receiver-nodes", "1"}},
           // Those that send receive, too, rank 0 among them.
           {3, {"shuffle", "--nodes", "3"}},
           {2, {"shuffle", "--nodes", "2", "--threads", "2", "--receivers", "2"}},
           {4, {"join", "--nodes", "4", "--tuples", "4000"}},
           {2,
            {"join", "--nodes", "2", "--threads", "2", "--tuples", "4000", "--method", "sgl"}}}) {
    SCOPED_TRACE(command.front());
    const Outcome outcome = run_on_ranks(ranks, command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr(command.front() == "join" ? "16 B" : "64 B"));
    EXPECT_EQ(outcome.out.find("FAILED"), std::string::npos) << outcome.out;
  }
}

TEST(App, SaysHowManyRanksItNeeds) {
  for (const auto& [command, needed] : std::vector<std::pair<Arguments, const char*>>{
           {{"join", "--nodes", "3", "--tuples", "4000"}, "needs 3 ranks"},
           {{"shuffle", "--nodes", "2", "--receiver-nodes", "2"}, "needs 4 ranks"}}) {
    const Outcome outcome = run_on_ranks(2, command);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(needed));
    EXPECT_THAT(outcome.err, HasSubstr("the job has 2; start more, or lower --nodes"));
  }
}

TEST(AppErrors, AreOneLineAndNameTheCause) {
  const std::vector<std::pair<Arguments, const char*>> cases = {
      {{}, "needs a command: hashtable, log, shuffle, join"},
      {{"tree"}, "there are hashtable, log, shuffle, join"},
      {{"hashtable", "--mix", "a"}, "there are A, B, C, D, E, F, custom and all"},
      {{"hashtable", "--distribution", "normal"}, "there are zipfian, uniform, latest and all"},
      {{"hashtable", "--reads", "101"}, "share of searches in percent 101"},
      {{"hashtable", "--key-size", "10"}, "key size 10"},
      {{"hashtable", "--value-size", "8"}, "value size 8"},
      {{"hashtable", "--keys", "2", "--back-ends", "3"}, "raise --keys, or lower --back-ends"},
      {{"hashtable", "--pending", "257"}, "at most 256 operations pending, not 257"},
      {{"hashtable", "--keys", "100000000", "--value-size", "1000000"}, "lower --keys"},
      {{"hashtable", "--size", "64"}, "--size"},
      {{"hashtable", "--hot", "4", "--acknowledgement", "never"},
       "there are published, buffered and all"},
      {{"hashtable", "--acknowledgement", "buffered"}, "or a --hot above 0"},
      {{"hashtable", "--hot", "4", "--acknowledgement", "buffered", "--loss-window", "1999999"},
       "loss window in ns 1999999"},
      {{"hashtable", "--experiment", "memsem-fig5"}, "verbena verbs --experiment"},
      {{"hashtable", "--device", "nosuch0"}, "nosuch0"},
      {{"log", "--readers", "1"}, "leave no writer; raise --threads, or lower --readers"},
      {{"log", "--capacity", "100000"}, "choose --capacity 131072"},
      {{"log", "--batch", "1000", "--entry-size", "64KiB"}, "raise --capacity, or lower --batch"},
      {{"log", "--entry-size", "16"}, "entry size 16"},
      {{"log", "--replicas", "17"}, "lower --replicas"},
      {{"log", "--method", "readv"}, "there are sp, sgl, doorbell, automatic and all"},
      {{"log", "--method", "sgl", "--batch", "32"}, "lower --batch, or choose another --method"},
      {{"log", "--pending", "257"}, "at most 256 batches pending, not 257"},
      {{"log", "--pending", "256", "--batch", "1000"}, "lower --pending or --batch"},
      {{"log", "--method", "sp", "--entry-size", "1MiB"}, "or choose another --method"},
      {{"log", "--capacity", "64GiB", "--replicas", "16"}, "lower --capacity, --replicas"},
      {{"shuffle", "--record-size", "32"}, "record size 32"},
      {{"shuffle", "--method", "doorbell"}, "there are basic, sp, sgl, automatic and all"},
      {{"shuffle", "--method", "sgl", "--batch", "33", "--device", "sim:connectx3-40g"},
       "lower --batch, or choose another --method"},
      {{"shuffle", "--buffer", "1GiB", "--nodes", "64"}, "lower --buffer"},
      {{"shuffle", "--nodes", "64", "--threads", "65"}, "lower --nodes, --threads or --receivers"},
      {{"join", "--exchange", "none", "--nodes", "2"}, "leave --nodes at 1"},
      {{"join", "--exchange", "none", "--threads", "2", "--device", "sim:connectx3-40g"},
       "choose --threads 1"},
      {{"join", "--tuple-size", "8"}, "tuple size 8"},
      {{"join", "--tuples", "1000000000", "--tuple-size", "4096"}, "lower --tuples"},
  };
  for (const auto& [options, cause] : cases) {
    const Outcome outcome = run_tool(app(options));
    EXPECT_NE(outcome.exit_code, 0) << cause;
    EXPECT_EQ(outcome.out, "") << cause;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(cause));
  }
}

// Of a table that has no room for more, the run ends and says what to do.
TEST(AppErrors, ATableWithoutRoomIsNamed) {
  const Outcome outcome =
      run_tool(app({"hashtable", "--mix", "D", "--keys", "100", "--new-keys", "10", "--operations",
                    "1000", "--device", "sim:connectx3-40g", "--runs", "1"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no room for more than 10 new keys; raise --new-keys"));
}

}  // namespace
}  // namespace verbena::test
