// `verbena trace` and `bench message --test replay`: recordings and skeletons that are replayed,
// what is reported of them, and how what is none is refused. scripts/test-mpi records real
// programs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "src/trace/recordings_for_test.h"
#include "tests/support/measure.h"
#include "tests/support/run_tool.h"
#include "tests/support/tool_process.h"

namespace verbena::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kSimulated = "sim:infinihost-mt23108";

class Replay : public testing::TestWithParam<const char*> {};

// Every message has to be as long as its receive expects.
TEST_P(Replay, MakesTheCallsOfSkeletons) {
  for (const auto& [kernel, peers] :
       std::vector<std::pair<const char*, const char*>>{{"cg", "3"},
                                                        {"is", "1"},
                                                        {"mg", "3"},
                                                        {"lu", "3"},
                                                        {"ft", "1"},
                                                        {"ep", "2"},
                                                        {"bt", "3"}}) {
    SCOPED_TRACE(kernel);
    const json rows = measure_on(
        GetParam(),
        {"bench", "message", "--test", "replay", "--skeleton", kernel, "--iterations", "1",
         "--peers", peers, "--compute", "1", "--operations", "2", "--verify", "--channel", "both"},
        "replay");
    ASSERT_EQ(rows.size(), 1u);
    EXPECT_EQ(rows[0].at("errors"), 0);
    EXPECT_EQ(rows[0].at("requests_measured"), 2);
    EXPECT_GT(rows[0].at("messages_per_operation").get<double>(), 2);
  }
}

TEST_P(Replay, TellsOfEachRank) {
  const ScratchDirectory scratch;
  const std::vector<trace::RankRecording> ranks = trace::two_ranks(30'000);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    trace::write_rank_file(scratch.path(), rank, trace::encoded(ranks[rank]));
  }
  const Outcome shown = run_tool({"trace", "show", scratch.path()});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  // 30,000 bytes both ways and 8.
  EXPECT_THAT(shown.out, HasSubstr("3 messages of 58.6 KiB between two, 10 calls of collective"));
  EXPECT_THAT(shown.out, HasSubstr("not replayed: 4 calls of MPI_Put"));
  const Outcome replayed = run_tool({"trace", "replay", scratch.path(), "--device", GetParam()});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
  EXPECT_EQ(complaints(replayed), "");
  EXPECT_THAT(replayed.out, HasSubstr("predicted time: "));
  EXPECT_THAT(replayed.out, HasSubstr("not replayed: 4 calls of MPI_Put"));
}

INSTANTIATE_TEST_SUITE_P(Devices, Replay, testing::Values("soft0", kSimulated),
                         [](const testing::TestParamInfo<const char*>& one) {
                           return std::string(one.param).starts_with("sim:") ? "sim" : "soft";
                         });

// More receives than a messenger of a replay has room for otherwise, and a blocking one behind them
// that all of them wait for.
TEST_P(Replay, HasRoomForWhatIsPending) {
  constexpr uint32_t kPending = 5000;
  const ScratchDirectory scratch;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    trace::RankBuilder builder(rank, 2);
    std::vector<uint32_t> requests;
    if (rank == 0) {
      for (uint32_t i = 0; i < kPending; ++i) {
        requests.push_back(builder.start_receive(1, 1, 8, 4096 + 8 * i));
      }
      builder.receive(1, 2, 8, 0);
      builder.send(1, 3, 8, 0);
      builder.wait(requests);
    } else {
      builder.send(0, 2, 8, 0);
      builder.receive(0, 3, 8, 0);
      for (uint32_t i = 0; i < kPending; ++i) builder.send(0, 1, 8, 0);
    }
    trace::write_rank_file(scratch.path(), rank, trace::encoded(builder.take()));
  }
  const Outcome replayed = run_tool({"trace", "replay", scratch.path(), "--device", GetParam()});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
  EXPECT_THAT(replayed.out, HasSubstr("predicted time: "));
}

// An earlier recording stays where no new one can be made.
TEST(Trace, KeepsWhatItCannotReplace) {
  const ScratchDirectory scratch;
  const std::string file = scratch.file("rank-00000.trace");
  trace::write_rank_file(scratch.path(), 0, trace::encoded(trace::two_ranks()[0]));
  EXPECT_NE(run_tool({"trace", "-o", scratch.path(), "--", "no-such-mpiexec"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(file));
  std::filesystem::create_directory(scratch.file("other"));
  EXPECT_NE(run_tool({"trace", "-o", scratch.path(), "--", "true"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(file));
}

// Else the launcher and its ranks would run on without anybody.
TEST(Trace, PassesOnSignalsThatEndIt) {
  for (const auto& [name, number] : {std::pair{"TERM", SIGTERM}, std::pair{"HUP", SIGHUP}}) {
    SCOPED_TRACE(name);
    const ScratchDirectory scratch;
    const std::string ready = scratch.file("ready");
    const std::string ended = scratch.file("ended");
    // Without the signal it ends with the test.
    const std::string script = fmt::format(
        "trap 'echo > {1}; exit 7' {2}; echo > {0}; while [ -e {0} ]; do sleep 0.05; done", ready,
        ended, name);
    ToolProcess tool(
        {VERBENA_TOOL, "trace", "-o", scratch.file("recording"), "--", "sh", "-c", script});
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(ready) || !tool.is_running(); }));
    tool.signal(number);
    const Outcome outcome = tool.wait();
    EXPECT_EQ(outcome.exit_code, 128 + number) << outcome.err;
    EXPECT_TRUE(std::filesystem::exists(ended)) << "it waits for the program's end";
  }
}

// As shells do before they start a command in the background.
TEST(Trace, LeavesSignalsIgnoredForTheProgram) {
  for (const char* name : {"INT", "TERM", "HUP"}) {
    SCOPED_TRACE(name);
    const ScratchDirectory scratch;
    const std::string survived = scratch.file("survived");
    const std::string script =
        fmt::format("trap '' {0}; exec {1} trace -o {2} -- sh -c 'kill -{0} $$; echo > {3}'", name,
                    VERBENA_TOOL, scratch.file("recording"), survived);
    ToolProcess tool({"/bin/sh", "-c", script});
    tool.wait();
    EXPECT_TRUE(std::filesystem::exists(survived));
  }
}

TEST(Trace, WithBuffersThatNoProcessCanHaveIsRefused) {
  const ScratchDirectory scratch;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    trace::RankBuilder builder(rank, 2);
    for (uint64_t i = 0; i < 200; ++i) {
      const uint64_t address = i << 42;
      rank == 0 ? builder.send(1, 1, trace::kMostMessageBytes, address)
                : builder.receive(0, 1, trace::kMostMessageBytes, address);
    }
    trace::write_rank_file(scratch.path(), rank, trace::encoded(builder.take()));
  }
  const Outcome replayed = run_tool({"trace", "replay", scratch.path()});
  EXPECT_NE(replayed.exit_code, 0);
  // Sums stop there, before they could wrap.
  EXPECT_THAT(complaints(replayed), HasSubstr("need 256 TiB of memory"));
}

// Their calls are in any order, so a summary is all that there is.
TEST(Trace, OfSeveralThreadsIsShownAndNotReplayed) {
  const ScratchDirectory scratch;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    trace::RankBuilder builder(rank, 2);
    for (const uint64_t bytes : {uint64_t{100}, uint64_t{200}}) {
      rank == 0 ? builder.send(1, 5, bytes, 0) : builder.receive(0, 5, 300 - bytes, 0);
    }
    trace::RankRecording recording = builder.take();
    recording.threads = rank + 1;
    trace::write_rank_file(scratch.path(), rank, trace::encoded(recording));
  }
  const Outcome shown = run_tool({"trace", "show", scratch.path()});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("2 messages of 300 B between two"));
  EXPECT_THAT(shown.out, HasSubstr("cannot be replayed: rank 1 calls MPI from 2 threads"));
  const Outcome replayed = run_tool({"trace", "replay", scratch.path(), "--device", kSimulated});
  EXPECT_NE(replayed.exit_code, 0);
  EXPECT_THAT(complaints(replayed), HasSubstr("2 threads of rank 1 of"));
}

// Virtual time has no chance in it: what is computed takes as long as it says.
TEST(ReplayInSimulation, ComputesAsLongAsItSays) {
  const auto median_ns = [](const char* percent) {
    const json rows =
        measure_on(kSimulated,
                   {"bench", "message", "--test", "replay", "--skeleton", "ep", "--class", "S",
                    "--mops", "1000", "--peers", "1", "--compute", percent, "--operations", "1"},
                   "replay");
    return rows.at(0).at("latency_ns").at("p50").get<double>();
  };
  // 2^25 operations of two ranks.
  const double computed_ns = 33'554'432 / 2.0;
  EXPECT_NEAR(median_ns("100") - median_ns("0"), computed_ns, computed_ns / 100);
  EXPECT_LT(median_ns("0"), 1e6);
}

// However long a program is, its replay is one operation, in the warm-up and in what is timed.
TEST(ReplayInSimulation, MayTakeMinutes) {
  const json rows = measure_on(kSimulated,
                               {"bench", "message", "--test", "replay", "--skeleton", "ep",
                                "--class", "A", "--mops", "1", "--peers", "1", "--operations", "1"},
                               "replay");
  ASSERT_EQ(rows.size(), 1u);
  // 2^29 operations of two ranks.
  EXPECT_NEAR(rows[0].at("latency_ns").at("p50").get<double>(), 268.4e9, 1e9);

  const ScratchDirectory scratch;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    trace::RankBuilder builder(rank, 2);
    // Rank 0 waits for all that the other one computes.
    if (rank == 1) builder.compute(100e9);
    rank == 1 ? builder.send(0, 1, 8, 0) : builder.receive(1, 1, 8, 0);
    trace::write_rank_file(scratch.path(), rank, trace::encoded(builder.take()));
  }
  const Outcome replayed = run_tool({"trace", "replay", scratch.path(), "--device", kSimulated});
  EXPECT_EQ(replayed.exit_code, 0) << replayed.err;
  EXPECT_THAT(replayed.out, HasSubstr("predicted time: 100 s"));
}

TEST(Trace, WhatIsNoneIsRefusedInALine) {
  const ScratchDirectory scratch;
  const std::string half = scratch.file("half");
  const std::string none = scratch.file("none");
  const std::string other = scratch.file("other");
  for (const std::string& folder : {half, none, other}) std::filesystem::create_directory(folder);
  const std::vector<std::byte> right = trace::encoded(trace::two_ranks()[0]);
  trace::write_rank_file(half, 0, right);
  std::vector<std::byte> version = right;
  version[8] = std::byte{9};
  trace::write_rank_file(other, 0, version);
  const std::vector<std::pair<std::vector<std::string>, const char*>> wrong = {
      {{"trace", "show", scratch.file("nowhere")}, "is no folder"},
      {{"trace", "show", none}, "has no recording"},
      {{"trace", "show", half}, "has 1 of 2 ranks"},
      {{"trace", "replay", half}, "has 1 of 2 ranks"},
      {{"trace", "show", other}, "has version 9 of recordings"},
      {{"trace", "--nonsense"}, "no option '--nonsense'"},
      {{"trace", "-o", none, "--"}, "no program given"},
      {{"trace", "-o", scratch.file("new"), "--", "no-such-mpiexec"}, "no-such-mpiexec"},
      // Runs, and is no MPI program.
      {{"trace", "-o", scratch.file("new"), "--", "true"}, "did the program call MPI_Init?"},
      {{"trace", "-o", scratch.path(), "--", "true"}, "has other files than a recording"},
      {{"bench", "message", "--test", "replay"}, "VERBENA_RECORDING"},
      {{"bench", "message", "--test", "replay", "--skeleton", "bt", "--peers", "4"},
       "bt.S does not run with 5 ranks"}};
  for (const auto& [arguments, cause] : wrong) {
    const Outcome outcome = run_tool(arguments);
    const std::string text = complaints(outcome);
    EXPECT_NE(outcome.exit_code, 0) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_THAT(text, HasSubstr(cause));
  }
}

}  // namespace
}  // namespace verbena::test
