// `verbena bench message`: tagged messages between processes and in a simulation, what is checked
// of them, what their results have, and how wrong options are refused.
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

using Arguments = std::vector<std::string>;

Arguments message(Arguments arguments) {
  arguments.insert(arguments.begin(), {"bench", "message"});
  return arguments;
}

// Every point was measured, and every byte of it checked.
void expect_checked(const json& rows, size_t count, uint64_t operations) {
  ASSERT_EQ(rows.size(), count);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_EQ(row.at("errors"), 0);
    EXPECT_EQ(row.at("verified"), true);
    EXPECT_EQ(row.at("requests_measured"), operations);
    EXPECT_GT(row.at("rate_per_s").get<double>(), 0);
  }
}

class MessageOn : public testing::TestWithParam<const char*> {
 protected:
  json measure(Arguments arguments) const {
    return measure_on(GetParam(), message(std::move(arguments)), "by ring");
  }
};

TEST_P(MessageOn, PairsExchangeShortAndLongOnes) {
  const json rows =
      measure({"--test", "latency,bandwidth,bidirectional", "--size", "0,2000,9000", "--window",
               "5", "--channel", "ring,send", "--buffers", "3", "--operations", "20", "--verify"});
  expect_checked(rows, 3 * 3 * 2, 20);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    const bool by_ring = row.at("channel") == "ring";
    // Confirmations of long messages, and what returns a ring's credits, go by SEND.
    const double share = row.at("ring_share");
    if (!by_ring) {
      EXPECT_EQ(share, 0);
    } else {
      EXPECT_GT(share, row.at("size_bytes") <= 2000 ? 0.9 : 0.4);
    }
    const std::string test = row.at("test");
    EXPECT_GE(row.at("messages_per_operation").get<double>(),
              test == "latency" ? 2 : (test == "bandwidth" ? 6 : 10));
    EXPECT_GT(row.at("pinned_bytes").get<double>(), 0);
  }
}

TEST_P(MessageOn, CollectivesDoWhatTheySay) {
  const json rows =
      measure({"--test", "barrier,broadcast,allreduce,scatter", "--peers", "2", "--peer-threads",
               "1,3", "--size", "64,6400", "--operations", "30", "--verify"});
  // A barrier has no size.
  expect_checked(rows, 2 * (1 + 3 * 2), 30);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_GT(row.at("collective_ns").get<double>(), 0);
    EXPECT_GE(row.at("messages_per_operation").get<double>(),
              row.at("responder_threads") == 1 ? 2 : 6);
  }
}

TEST_P(MessageOn, LongMessagesTravelAsAskedFor) {
  const json rows = measure({"--test", "allreduce,scatter", "--peers", "3", "--size", "6400",
                             "--long-messages", "all", "--operations", "15", "--verify"});
  expect_checked(rows, 2 * 4, 15);
  // What is READ needs a request and a word that it is over; chunks go by SEND, each by itself.
  const auto messages = [&rows](const char* way) {
    for (const json& row : rows) {
      if (row.at("long_messages") == way && row.at("test") == "allreduce") {
        return row.at("messages_per_operation").get<double>();
      }
    }
    return 0.0;
  };
  EXPECT_GT(messages("write"), messages("read"));
  EXPECT_GT(messages("chunks"), messages("write") + 4);
}

TEST_P(MessageOn, RankZeroPollsWhomItsSetSays) {
  const json rows = measure({"--peers", "1", "--peer-threads", "6", "--active-peers", "2,6",
                             "--channel", "both", "--polling-set", "2", "--policy", "all",
                             "--order", "all", "--operations", "300", "--verify"});
  expect_checked(rows, 2 * 4 * 3, 300);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    // It has rings to and from two; that is half of the messages at most, where more are active,
    // and none where those two are silent.
    const double share = row.at("ring_share");
    if (row.at("active_peers") == 2) continue;
    EXPECT_LT(share, 0.6);
    EXPECT_GT(share, 0.1);
  }
}

TEST_P(MessageOn, BuffersAreUsedAsTheySay) {
  const json rows = measure({"--buffers", "1,7", "--use", "all", "--placement", "all", "--size",
                             "300", "--operations", "60", "--verify"});
  // A single buffer has no order, and no neighbours.
  ASSERT_GE(rows.size(), 4u);
  for (const json& row : rows) EXPECT_EQ(row.at("errors"), 0);
}

TEST_P(MessageOn, MemoryMayBeOfOneMessage) {
  const json rows =
      measure({"--memory", "all", "--size", "300,100KiB", "--operations", "60", "--verify"});
  expect_checked(rows, 4, 60);
}

TEST_P(MessageOn, UsedBuffersAreNotCopied) {
  const json rows =
      measure({"--test", "latency,bandwidth,put,get,broadcast", "--peers", "2", "--window", "10",
               "--eager", "9KiB", "--size", "8000", "--reuse", "copied,paper", "--channel",
               "ring,send", "--operations", "100", "--verify"});
  expect_checked(rows, 5 * 2 * 2, 100);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    const double uncopied = row.at("uncopied_per_operation");
    if (row.at("buffer_reuse") == "copied") {
      EXPECT_EQ(uncopied, 0);
    } else {
      // After a quarter of 49 uses at most.
      EXPECT_GT(uncopied, 0.5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, MessageOn, testing::Values("soft0", "sim:infinihost-mt23108"),
                         [](const testing::TestParamInfo<const char*>& one) {
                           return std::string(one.param).starts_with("sim:") ? "sim" : "soft";
                         });

TEST(Message, ASimulationIsTheSameEveryTime) {
  const auto table = [] {
    const Outcome outcome =
        run_tool(message({"--test", "latency,allreduce", "--peers", "3", "--channel", "ring,send",
                          "--device", "sim:connectx-ddr", "--operations", "200", "--runs", "1"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out.substr(0, outcome.out.find("simulated"));
  };
  const std::string first = table();
  EXPECT_THAT(first, HasSubstr("allreduce"));
  EXPECT_EQ(first, table());
}

// A long message that is not READ arrives only as long as its sender makes progress, also where a
// phase ends in the middle of an operation.
TEST(Message, LongMessagesEndWithTheirPhase) {
  const json rows = measure_on(
      "sim:connectx3-40g",
      message({"--test", "broadcast,allreduce,scatter", "--peers", "3,5", "--size", "6400,40000",
               "--long-messages", "write,chunks", "--operations", "30", "--verify"}),
      "median");
  expect_checked(rows, 3 * 2 * 2 * 2, 30);
}

// A broadcast whose sends are acknowledged takes a way to the peer and back longer.
TEST(Message, AnAcknowledgedSendEndsWithTheAcknowledgement) {
  const json rows = measure_on("sim:connectx-ddr",
                               message({"--test", "broadcast", "--peers", "1", "--size", "1024",
                                        "--sends", "all", "--operations", "100", "--verify"}),
                               "median");
  ASSERT_EQ(rows.size(), 2u);
  const auto collective_ns = [&rows](const char* end) {
    for (const json& row : rows) {
      if (row.at("send_end") == end) return row.at("collective_ns").get<double>();
    }
    return 0.0;
  };
  // The mean of both ranks, of which one waits for a link of 2 us there and back at least.
  EXPECT_GT(collective_ns("acknowledged"), collective_ns("copied") + 500);
}

// A call of progress() polls each ring once; with SEND/RECV alone it polls one queue.
TEST(Message, ACallOfProgressTakesWhatItPolls) {
  const json rows = measure_on("sim:infinihost-mt23108",
                               message({"--test", "progress", "--peers", "16,128", "--channel",
                                        "ring,send", "--operations", "3000"}),
                               "median");
  ASSERT_EQ(rows.size(), 4u);
  const auto median_ns = [&rows](int peers, const char* channel) {
    for (const json& row : rows) {
      if (row.at("responder_nodes") == peers && row.at("channel") == channel) {
        return row.at("latency_ns").at("p50").get<double>();
      }
    }
    return 0.0;
  };
  EXPECT_GT(median_ns(128, "ring"), 5 * median_ns(16, "ring"));
  EXPECT_LT(median_ns(128, "ring"), 1300);
  EXPECT_NEAR(median_ns(128, "send"), median_ns(16, "send"), 5);
}

// Rings take the memory of those that are polled, whoever else is connected.
TEST(Message, RingsTakeMemoryByTheSizeOfThePollingSet) {
  const json rows =
      measure_on("sim:infinihost-mt23108",
                 message({"--peers", "8,64", "--channel", "both,send", "--polling-set", "4",
                          "--policy", "first", "--operations", "100"}),
                 "pinned");
  ASSERT_EQ(rows.size(), 4u);
  const auto pinned = [&rows](int peers, const char* channel) {
    for (const json& row : rows) {
      if (row.at("responder_nodes") == peers && row.at("channel") == channel) {
        return row.at("pinned_bytes").get<double>();
      }
    }
    return 0.0;
  };
  const double of_rings = pinned(8, "both") - pinned(8, "send");
  EXPECT_NEAR(of_rings, 2.0 * 4 * 32 * 2112, 8192);
  EXPECT_DOUBLE_EQ(pinned(64, "both") - pinned(64, "send"), of_rings);
}

TEST(Message, OneIsFollowedThroughTheSimulation) {
  for (const char* channel : {"ring", "send"}) {
    const Outcome outcome =
        run_tool({"sim", "explain", "message", "--channel", channel, "--size", "64", "--operations",
                  "400", "--device", "sim:infinihost-mt23108"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("busiest"));
    EXPECT_THAT(outcome.out, HasSubstr("The median of"));
    EXPECT_THAT(outcome.out, HasSubstr("doorbell"));
  }
}

TEST(Message, WrongOptionsAreRefusedInALine) {
  const std::vector<std::pair<Arguments, const char*>> wrong = {
      {{"--active-peers", "3", "--peers", "2"}, "lower --active-peers"},
      {{"--test", "allreduce", "--size", "12"}, "--size 16"},
      {{"--eager", "100"}, "eager limit"},
      {{"--test", "gather"}, "there are latency"},
      {{"--channel", "ring", "--peers", "1024", "--peer-threads", "2", "--device",
        "sim:connectx-ddr"},
       "--channel both"},
      {{"--peers", "1024", "--peer-threads", "64", "--device", "sim:connectx-ddr"},
       "lower --peers"},
      {{"one-to-one"}, "one-to-one"}};
  for (const auto& [arguments, remedy] : wrong) {
    const Outcome outcome = run_tool(message(arguments));
    const std::string text = complaints(outcome);
    EXPECT_NE(outcome.exit_code, 0) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_THAT(text, HasSubstr(remedy));
  }
}

}  // namespace
}  // namespace verbena::test
