// What a session makes of its runs: those that measured nothing, and those of an earlier session.
#include "src/bench/run/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/run/node_pool.h"

namespace verbena::bench {
namespace {

using testing::HasSubstr;

Plan small_plan(const std::string& protocols) {
  Plan plan;
  Sweep sweep = Sweep::in("one-to-one", request_response_workload()).value();
  EXPECT_TRUE(sweep.set("protocol", protocols).ok());
  plan.sweeps.push_back(sweep);
  plan.runs = 2;
  plan.run.messages = 400;
  return plan;
}

std::vector<PointResult> measure(const Plan& plan, const SessionHooks& hooks,
                                 const std::vector<PointResult>& before = {}) {
  const std::unique_ptr<NodePool> pool = NodePool::simulated("sim:connectx3-fdr");
  return measure_points(point_groups(plan).value(), plan.runs, plan.run, *pool, hooks, before);
}

// Else its latency would be 0 ns, and the best of all.
TEST(Session, ARunInWhichNothingWasAnsweredHasNoLatency) {
  Plan plan = small_plan("read,write/write");
  ASSERT_TRUE(plan.sweeps[0].set("arrival-rate", "1").ok());
  plan.run.messages = 0;
  plan.run.length.duration_ns = 100'000;
  const std::vector<PointResult> results = measure(plan, SessionHooks{});
  ASSERT_EQ(results.size(), 2u);
  for (const PointResult& result : results) {
    EXPECT_FALSE(result.measured());
    EXPECT_EQ(result.errors, 1u);
    EXPECT_THAT(result.error, HasSubstr("raise --duration or --arrival-rate"));
  }
}

// It was interrupted while the profile was made, after the last run.
TEST(Session, AProfileThatAnEarlierSessionDidNotMakeIsMade) {
  const Plan plan = small_plan("read,send/send,write/write");
  std::vector<PointResult> before = measure(plan, SessionHooks{});
  ASSERT_EQ(before.size(), 3u);
  before[0].profile = {{"event", "cycles"}};
  before[2].runs.pop_back();
  SessionHooks hooks;
  std::vector<uint64_t> finished;
  hooks.finishes = [&](PointResult& result) {
    finished.push_back(result.number);
    result.profile = {{"event", "new"}};
  };
  std::vector<PointResult> last;
  hooks.ended = [&](const std::vector<PointResult>& results) { last = results; };
  const std::vector<PointResult> results = measure(plan, hooks, before);
  EXPECT_THAT(finished, testing::ElementsAre(1, 2));
  ASSERT_EQ(results.size(), 3u);
  ASSERT_EQ(last.size(), 3u);
  EXPECT_EQ(results[0].profile["event"], "cycles");
  EXPECT_EQ(last[1].profile["event"], "new");
  EXPECT_EQ(last[2].profile["event"], "new");
}

}  // namespace
}  // namespace verbena::bench
