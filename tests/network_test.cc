// Programs in a network with faults, by `verbena run --fault --link` and by its variables: those of
// ibverbs-utils and perftest, and this library's own protocols.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "tests/support/own_port.h"
#include "tests/support/perftest.h"
#include "tests/support/tool_process.h"

namespace verbena {
namespace {

using test::Outcome;
using test::ToolProcess;

constexpr uint64_t kPatienceNs = 600'000'000'000;
constexpr int kKilled = 128 + 9;

std::vector<std::string> lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> all;
  for (std::string line; std::getline(stream, line);) all.push_back(line);
  return all;
}

std::string describe(const Outcome& outcome) { return outcome.out + outcome.err; }

class NetworkTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string library = VERBENA_TEST_PROCESSES "/../lib/verbena/libverbena-verbs.so";
    if (access(library.c_str(), R_OK) != 0) {
      GTEST_SKIP() << "this build has no " << library << " (builds with sanitizers have none)";
    }
    if (access("/usr/bin/ibv_rc_pingpong", X_OK) != 0 || access("/usr/bin/ib_write_lat", X_OK) != 0)
      GTEST_SKIP() << "install ibverbs-utils and perftest";
  }

  // Runs a server and its client with these options; the client's outcome, and the server's.
  struct Outcomes {
    Outcome client;
    Outcome server;
  };
  static Outcomes run(const std::string& options, const std::string& command) {
    const uint16_t port = test::own_port();
    std::vector<std::string> arguments = {VERBENA_TOOL, "run"};
    for (const std::string& option : test::words(options)) arguments.push_back(option);
    arguments.emplace_back("--");
    for (const std::string& word : test::words(command)) arguments.push_back(word);
    arguments.insert(arguments.end(), {"-d", "soft0", "-p", std::to_string(port)});
    const std::map<std::string, std::string> environment = {{"VERBENA_LOG", "info"}};
    ToolProcess server(arguments, environment);
    const uint64_t start_ns = now_ns();
    while (!test::listening(port)) {
      EXPECT_TRUE(server.is_running() && now_ns() - start_ns < kPatienceNs) << server.err();
      if (testing::Test::HasFailure()) return {};
      sleep_ns(2'000'000);
    }
    arguments.emplace_back("127.0.0.1");
    Outcomes outcomes;
    outcomes.client = ToolProcess(arguments, environment).wait();
    // Some servers wait for ever for a client that has failed.
    if (outcomes.client.exit_code != 0) server.signal(SIGTERM);
    outcomes.server = server.wait();
    return outcomes;
  }

  // The faults that were told, without the queue pairs' numbers, which the registry hands out.
  static std::vector<std::string> faults_of(const Outcome& outcome) {
    std::vector<std::string> faults;
    for (std::string& line : lines(outcome.err)) {
      if (line.find("soft0: fault ") == std::string::npos) continue;
      line.erase(line.find('('), line.find(')') - line.find('('));
      faults.push_back(line);
    }
    return faults;
  }
};

TEST_F(NetworkTest, EachPacketLostEndsTheQueuePair) {
  const Outcomes outcomes = run("--fault drop=1", "ibv_rc_pingpong -n 10");
  EXPECT_EQ(outcomes.client.exit_code, 1) << describe(outcomes.client);
  EXPECT_NE(describe(outcomes.client).find("transport retry counter exceeded"), std::string::npos)
      << describe(outcomes.client);
}

TEST_F(NetworkTest, TheSameSeedGivesTheSameFaults) {
  std::vector<std::string> first;
  for (const char* seed : {"7", "7", "8"}) {
    const Outcomes outcomes = run("--fault rnr=0.1,delay=0.1:10us,seed=" + std::string(seed),
                                  "ibv_rc_pingpong -c -n 100 -s 64");
    ASSERT_EQ(outcomes.client.exit_code, 0) << describe(outcomes.client);
    ASSERT_EQ(outcomes.server.exit_code, 0) << describe(outcomes.server);
    const std::vector<std::string> faults = faults_of(outcomes.client);
    EXPECT_GT(faults.size(), 5u) << describe(outcomes.client);
    if (first.empty()) {
      first = faults;
    } else if (seed == std::string("7")) {
      EXPECT_EQ(faults, first);
    } else {
      EXPECT_NE(faults, first);
    }
  }
}

TEST_F(NetworkTest, AProgramGetsOverLosses) {
  const Outcomes outcomes = run("--fault drop=0.02,seed=7", "ibv_rc_pingpong -c -n 200 -s 64");
  EXPECT_EQ(outcomes.client.exit_code, 0) << describe(outcomes.client);
  EXPECT_EQ(outcomes.server.exit_code, 0) << describe(outcomes.server);
  EXPECT_FALSE(faults_of(outcomes.client).empty()) << describe(outcomes.client);
}

TEST_F(NetworkTest, AProgramIsKilledAtARequest) {
  const Outcomes outcomes = run("--fault kill-after=50", "ibv_rc_pingpong -n 200");
  EXPECT_TRUE(outcomes.client.exit_code == kKilled || outcomes.server.exit_code == kKilled)
      << describe(outcomes.client) << describe(outcomes.server);
  EXPECT_NE(outcomes.client.exit_code, 0) << describe(outcomes.client);
}

// The least of the times that perftest reports, in its table's third column.
double least_us(const Outcome& outcome) {
  const std::vector<std::string> table = lines(outcome.out);
  for (size_t i = 0; i + 1 < table.size(); ++i) {
    if (table[i].find("t_min[usec]") == std::string::npos) continue;
    const std::vector<std::string> row = test::words(table[i + 1]);
    return row.size() > 2 ? std::atof(row[2].c_str()) : 0;
  }
  return 0;
}

TEST_F(NetworkTest, LatencyIsFelt) {
  // perftest takes the cycle counter's frequency from a measurement of its own, hence the margin.
  for (const char* command : {"ib_write_lat", "ib_send_lat", "ib_read_lat", "ib_send_lat -c UD"}) {
    SCOPED_TRACE(command);
    Outcomes outcomes;
    for (int attempt = 0; attempt < test::kPerftestAttempts; ++attempt) {
      outcomes = run("--link latency=50us", std::string(command) + " -n 100");
      const Outcome& client = outcomes.client;
      if (!test::perftest_gave_up(client.exit_code, describe(client))) break;
    }
    ASSERT_EQ(outcomes.client.exit_code, 0) << describe(outcomes.client);
    const bool both_ways = std::string(command) == "ib_read_lat";
    EXPECT_GE(least_us(outcomes.client), both_ways ? 90 : 45) << describe(outcomes.client);
  }
}

TEST_F(NetworkTest, AWrongValueIsRefusedBeforeTheProgramStarts) {
  const Outcome outcome =
      ToolProcess({VERBENA_TOOL, "run", "--fault", "drop=2", "--", "echo", "started"}).wait();
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(lines(outcome.err).size(), 1u) << outcome.err;
  EXPECT_NE(outcome.err.find("'drop=2'"), std::string::npos) << outcome.err;
}

TEST(NetworkOfTheLibraryTest, ItsProtocolsGetOverLosses) {
  const Outcome outcome =
      ToolProcess({VERBENA_TOOL, "bench", "one-to-one", "--protocol", "all", "--response", "64",
                   "--requests", "100", "--runs", "1"},
                  {{"VERBENA_FAULT", "drop=5e-3,delay=0.01:50us,rnr=1e-3,seed=7"},
                   {"VERBENA_LINK", "latency=5us,rate=10Gbps"},
                   {"VERBENA_LOG", "info"}})
          .wait();
  EXPECT_EQ(outcome.exit_code, 0) << describe(outcome);
  EXPECT_NE(outcome.err.find("soft0: fault "), std::string::npos) << describe(outcome);
  EXPECT_NE(outcome.err.find(" packets lost"), std::string::npos) << describe(outcome);
}

}  // namespace
}  // namespace verbena
