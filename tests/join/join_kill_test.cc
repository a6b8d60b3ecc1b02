// Executors of a distributed join that die at random instructions, in the set-up or in the join.
// Who is left has its rows or an error, nobody hangs, and nothing stays behind in the registry.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/join/join_peer.h"
#include "tests/rpc_peer.h"
#include "tests/support/tool_process.h"
#include "tests/test_seed.h"

namespace verbena::join_test {
namespace {

using rpc_test::PeerProcess;
using test::must;

constexpr uint32_t kTables = 2;
constexpr uint32_t kRoundsOfTables = 10;
// Whom the dead one has not reached yet waits for it in vain.
constexpr int64_t kSetupTimeoutNs = 2'000'000'000;

class JoinKillTest : public testing::Test {
 protected:
  struct Executor {
    std::unique_ptr<PeerProcess> process;
    std::unique_ptr<ControlConnection> control;
  };
  using Outcomes = std::array<std::optional<Outcome>, kExecutors>;

  // None of those that died.
  Outcomes run(const std::array<Task, kExecutors>& tasks) {
    std::vector<Executor> executors;
    for (const Task& task : tasks) {
      Executor executor;
      executor.process =
          std::make_unique<PeerProcess>("join_peer_process", listener_.port(), secret_);
      executor.control = std::make_unique<ControlConnection>(must(listener_.accept(kTimeoutNs)));
      must(executor.control->send_value(kTaskTag, task));
      executors.push_back(std::move(executor));
    }
    Ports ports;
    for (uint32_t i = 0; i < kExecutors; ++i) {
      // Port 1 of one that is dead already: nobody listens there.
      const auto port = executors[i].control->receive_value<uint16_t>(kPortTag, kTimeoutNs);
      EXPECT_TRUE(port.ok() || tasks[i].moment != Moment::kNever) << port.status().message();
      ports.of[i] = port.ok() ? *port : 1;
    }
    for (const Executor& executor : executors) {
      static_cast<void>(executor.control->send_value(kPortsTag, ports));
    }
    Outcomes outcomes;
    for (uint32_t i = 0; i < kExecutors; ++i) {
      const auto outcome = executors[i].control->receive_value<Outcome>(kOutcomeTag, kTimeoutNs);
      if (outcome.ok()) outcomes[i] = *outcome;
      EXPECT_TRUE(outcome.ok() || tasks[i].moment != Moment::kNever)
          << "executor " << i << " hangs: " << outcome.status().message();
      EXPECT_EQ(executors[i].process->wait(), outcome.ok() ? 0 : 128 + SIGALRM);
    }
    return outcomes;
  }
  // The files of processes in the registry.
  size_t registered() const {
    size_t files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(registry_.path())) {
      files += entry.path().filename().string().starts_with("soft0.") ? 1 : 0;
    }
    return files;
  }

  test::ScratchDirectory registry_;
  const bool own_registry_ = setenv("VERBENA_RUNTIME_DIR", registry_.path().c_str(), 1) == 0;
  JobSecret secret_ = JobSecret::random();
  ControlListener listener_ = must(ControlListener::listen("127.0.0.1", 0, secret_));
};

TEST_F(JoinKillTest, WhoIsLeftHasItsRowsOrAnError) {
  ASSERT_TRUE(own_registry_);
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  uint64_t kills = 0;
  uint64_t longest_ns = 0;
  for (uint32_t table = 0; table < kTables && !HasFailure(); ++table) {
    std::array<Task, kExecutors> tasks;
    const uint64_t tables_seed = random.next();
    for (uint32_t i = 0; i < kExecutors; ++i) tasks[i] = {.number = i, .seed = tables_seed};
    // First without a death.
    const Outcomes whole = run(tasks);
    RowSum all;
    for (const auto& outcome : whole) {
      ASSERT_TRUE(outcome.has_value());
      ASSERT_EQ(outcome->code, StatusCode::kOk) << outcome->message;
      all.add(outcome->joined);
    }
    const Tables tables(tables_seed);
    ASSERT_EQ(all, sum_of(expected_rows(tables.left, tables.right, tables.options)));
    EXPECT_EQ(registered(), 0u);

    for (uint32_t round = 0; round < kRoundsOfTables && !HasFailure(); ++round) {
      SCOPED_TRACE(round);
      std::array<Task, kExecutors> with_death = tasks;
      Task& victim = with_death[random.below(kExecutors)];
      const bool in_setup = random.below(4) == 0;
      victim.moment = in_setup ? Moment::kFromItsStart : Moment::kFromTheJoin;
      victim.dies_after_us = 1 + static_cast<uint32_t>(random.below(in_setup ? 20'000 : 6'000));
      if (in_setup) {
        for (Task& task : with_death) task.setup_timeout_ns = kSetupTimeoutNs;
      }
      const uint64_t begun_ns = now_ns();
      const Outcomes outcomes = run(with_death);
      const bool died = !outcomes[victim.number].has_value();
      kills += died ? 1 : 0;
      if (died) longest_ns = std::max(longest_ns, now_ns() - begun_ns);
      for (uint32_t i = 0; i < kExecutors; ++i) {
        if (!outcomes[i].has_value()) continue;
        const Outcome& outcome = *outcomes[i];
        if (outcome.code == StatusCode::kOk) {
          EXPECT_EQ(outcome.joined, whole[i]->joined) << i;
        } else {
          EXPECT_TRUE(died || in_setup) << i << ": " << outcome.message;
          EXPECT_TRUE(outcome.code == StatusCode::kUnavailable ||
                      (in_setup && outcome.code == StatusCode::kTimeout))
              << i << ": " << outcome.message;
        }
      }
    }
  }
  report_count("kills", kills);
  report_count("longest_ms", longest_ns / 1'000'000);
  // Whoever comes next removes what the dead have left.
  run({Task{.number = 0}, Task{.number = 1}, Task{.number = 2}});
  EXPECT_EQ(registered(), 0u);
  EXPECT_GT(kills, kTables);
}

}  // namespace
}  // namespace verbena::join_test
