// Many clusters in virtual time, each from a seed, with faults: what is promised holds in all of
// them.
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "tests/simulation/scenario.h"

namespace verbena::simulation_test {
namespace {

constexpr bool kSanitized = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER;
constexpr uint64_t kShards = 16;
constexpr uint64_t kSeedsPerShard = kSanitized ? 40 : 640;

constexpr uint64_t kUnreliableSeedsPerShard = kSanitized ? 8 : 128;

void expect_promises_hold(const Scenario& scenario, const char* test) {
  const Outcome outcome = carry_out(scenario);
  EXPECT_TRUE(outcome.broken.ok())
      << outcome.broken.message() << "\n"
      << describe(scenario) << "\nagain: VERBENA_SEED=" << scenario.seed
      << " build/release/bin/simulation_test --gtest_filter=SimulationTest." << test;
}

void print_and_expect(const Scenario& scenario) {
  const Outcome outcome = carry_out(scenario);
  std::cout << "seed " << scenario.seed << ": " << describe(scenario) << "\n"
            << outcome.requests << " requests, " << outcome.virtual_ns << " ns, digest "
            << outcome.digest << "; " << (outcome.run.ok() ? "finished" : outcome.run.message())
            << "\n";
  EXPECT_TRUE(outcome.broken.ok()) << outcome.broken.message();
}

class SimulationShardTest : public testing::TestWithParam<uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Shards, SimulationShardTest, testing::Range<uint64_t>(0, kShards));

TEST_P(SimulationShardTest, PromisesHold) {
  const uint64_t first = run_seed() + GetParam() * kSeedsPerShard;
  for (uint64_t seed = first; seed < first + kSeedsPerShard && !HasFailure(); ++seed) {
    expect_promises_hold(draw(seed), "OneSeed");
  }
}

// Requests are answered once each, with the right bytes, however many messages are lost: the
// library sends them again.
TEST_P(SimulationShardTest, PromisesHoldOverUnreliableQueuePairs) {
  const uint64_t first = run_seed() + GetParam() * kUnreliableSeedsPerShard;
  for (uint64_t seed = first; seed < first + kUnreliableSeedsPerShard && !HasFailure(); ++seed) {
    expect_promises_hold(draw_unreliable(seed), "OneUnreliableSeed");
  }
}

// VERBENA_SEED's, to see what another test has found.
TEST(SimulationTest, OneSeed) { print_and_expect(draw(run_seed())); }
TEST(SimulationTest, OneUnreliableSeed) { print_and_expect(draw_unreliable(run_seed())); }

TEST(SimulationTest, TheSameSeedGivesTheSameCompletionsAtTheSameTimes) {
  uint64_t different = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const Outcome first = carry_out(draw(seed));
    const Outcome second = carry_out(draw(seed));
    ASSERT_EQ(first.digest, second.digest) << "seed " << seed;
    ASSERT_EQ(first.virtual_ns, second.virtual_ns) << "seed " << seed;
    ASSERT_EQ(first.requests, second.requests) << "seed " << seed;
    Scenario other = draw(seed);
    other.seed += 1'000'000;  // the same cluster and other chances
    if (carry_out(other).digest != first.digest) ++different;
  }
  EXPECT_GT(different, 15u);
}

TEST(SimulationTest, UnreliableQueuePairsAreDeterministicToo) {
  for (uint64_t seed = 1; seed <= 15; ++seed) {
    const Outcome first = carry_out(draw_unreliable(seed));
    const Outcome second = carry_out(draw_unreliable(seed));
    ASSERT_EQ(first.digest, second.digest) << "seed " << seed;
    ASSERT_EQ(first.virtual_ns, second.virtual_ns) << "seed " << seed;
  }
}

// Every build and machine finds the same. Whoever changes the model changes this number, too: the
// test prints the new one.
TEST(SimulationTest, EveryBuildFindsTheSame) {
  constexpr uint64_t kFound = 16801328877934568604u;
  uint64_t all = 0;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    const Outcome outcome = carry_out(draw(seed));
    all = (all ^ outcome.digest ^ outcome.virtual_ns) * 0x100000001b3;
  }
  EXPECT_EQ(all, kFound);
}

}  // namespace
}  // namespace verbena::simulation_test
