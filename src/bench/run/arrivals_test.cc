// Requests that arrive at a rate, in virtual time: below and above what the design bears.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/load/open_loop.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/knee.h"
#include "src/bench/result/result_file.h"
#include "src/bench/run/session.h"

namespace verbena::bench {
namespace {

using testing::HasSubstr;

Plan open_plan(const std::string& topology, const std::string& rates,
               const std::string& arrivals = "poisson") {
  Plan plan;
  Sweep sweep = Sweep::in(topology, request_response_workload()).value();
  EXPECT_TRUE(sweep.set("protocol", "write/write").ok());
  EXPECT_TRUE(sweep.set("pending", "4").ok());
  EXPECT_TRUE(sweep.set("arrival-rate", rates).ok());
  EXPECT_TRUE(sweep.set("arrivals", arrivals).ok());
  plan.sweeps.push_back(sweep);
  plan.runs = 1;
  plan.run.messages = 4000;
  return plan;
}

std::vector<PointResult> measured(const Plan& plan) {
  const std::unique_ptr<NodePool> pool = NodePool::simulated("sim:connectx3-fdr");
  std::vector<PointResult> results =
      measure_points(point_groups(plan).value(), plan.runs, plan.run, *pool, SessionHooks{});
  for (const PointResult& result : results) EXPECT_EQ(result.errors, 0u) << result.error;
  return results;
}

double closed_rate_per_s(const std::string& topology) {
  return measured(open_plan(topology, "0")).at(0).rate_per_s().median;
}
std::string rate_at(double share, double capacity) {
  return std::to_string(static_cast<uint64_t>(share * capacity));
}

class OpenLoopRun : public testing::TestWithParam<const char*> {};

TEST_P(OpenLoopRun, ReachesWhatIsOfferedBelowCapacityAndSaturatesAboveIt) {
  const double capacity = closed_rate_per_s(GetParam());
  const std::vector<PointResult> results =
      measured(open_plan(GetParam(), rate_at(0.1, capacity) + "," + rate_at(0.3, capacity) + "," +
                                         rate_at(2, capacity)));
  ASSERT_EQ(results.size(), 3u);
  for (int i = 0; i < 2; ++i) {
    const auto asked = static_cast<double>(results[i].point.arrival_rate_per_s);
    EXPECT_NEAR(*results[i].offered_rate_per_s(), asked, asked * 0.15);
    EXPECT_NEAR(results[i].rate_per_s().median, *results[i].offered_rate_per_s(), asked * 0.05);
    EXPECT_FALSE(results[i].saturated());
  }
  EXPECT_LT(results[1].p50_ns().median, 1.5 * results[0].p50_ns().median);
  EXPECT_TRUE(results[2].saturated());
  EXPECT_LT(results[2].rate_per_s().median, 1.3 * capacity);
  EXPECT_GT(results[2].p50_ns().median, 5 * results[0].p50_ns().median);

  const std::vector<Knee> knees = find_knees(results);
  ASSERT_EQ(knees.size(), 1u);
  EXPECT_EQ(knees[0].lowest, &results[0]);
  EXPECT_EQ(knees[0].knee, &results[1]);
  EXPECT_EQ(knees[0].next, &results[2]);
  EXPECT_THAT(request_response_workload().table(results),
              testing::AllOf(HasSubstr("offered"), HasSubstr("knee of"), HasSubstr("saturated")));

  const nlohmann::json row = to_json(results[2]);
  EXPECT_EQ(row.at("arrivals"), "poisson");
  EXPECT_EQ(row.at("arrival_rate_per_s"), results[2].point.arrival_rate_per_s);
  EXPECT_EQ(row.at("offered_rate_per_s"), *results[2].offered_rate_per_s());
  EXPECT_EQ(row.at("saturated"), true);
}

// N-to-M: each request draws its target.
INSTANTIATE_TEST_SUITE_P(Topologies, OpenLoopRun,
                         testing::Values("one-to-one", "N-to-1", "1:M", "N-to-M"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) { return !isalnum(c); });
                           return name;
                         });

// The wait of a request that found no slot is part of its latency, so it grows with the run.
TEST(OpenLoop, LatencyCountsFromTheArrival) {
  const double capacity = closed_rate_per_s("one-to-one");
  Plan plan = open_plan("one-to-one", rate_at(2, capacity), "even");
  const double shorter_ns = measured(plan).at(0).p50_ns().median;
  plan.run.messages *= 4;
  const double longer_ns = measured(plan).at(0).p50_ns().median;
  EXPECT_GT(longer_ns, 3 * shorter_ns);
  EXPECT_LT(longer_ns, 5 * shorter_ns);
}

TEST(OpenLoop, EvenArrivalsOfSeveralNodesAreOfferedExactly) {
  const double capacity = closed_rate_per_s("N-to-1");
  const PointResult result = measured(open_plan("N-to-1", rate_at(0.4, capacity), "even")).at(0);
  const auto asked = static_cast<double>(result.point.arrival_rate_per_s);
  EXPECT_NEAR(*result.offered_rate_per_s(), asked, asked * 0.01);
}

// Threads that have as many requests are done at different times, whatever the system does; all of
// them are offered and answered until the last one is.
TEST(OpenLoop, ThreadsThatAreDoneEarlierSaturateNothing) {
  Plan plan = open_plan("N-to-1", "10000");
  ASSERT_TRUE(plan.sweeps[0].set("threads", "4").ok());
  plan.run.messages = 0;
  plan.run.length = {.requests = 40, .duration_ns = kUnlimitedRunNs};
  const PointResult result = measured(plan).at(0);
  EXPECT_EQ(result.requests(), 2u * 4 * 40);
  EXPECT_FALSE(result.saturated());
  EXPECT_LE(*result.offered_rate_per_s(), result.rate_per_s().median);
  EXPECT_GE(*result.offered_rate_per_s(), 0.9 * result.rate_per_s().median);
}

// Its runs before the one that failed say nothing about how much the design bears.
TEST(OpenLoop, APointThatFailedIsNoKnee) {
  std::vector<PointResult> results = measured(open_plan("one-to-one", "10000,20000,30000"));
  ASSERT_EQ(results.size(), 3u);
  results[2].errors = 1;
  const std::vector<Knee> knees = find_knees(results);
  ASSERT_EQ(knees.size(), 1u);
  EXPECT_EQ(knees[0].knee, &results[1]);
  EXPECT_EQ(knees[0].next, nullptr);
}

TEST(OpenLoop, KneesOfOneNameSayByWhatTheyDiffer) {
  const std::string alone = knees_text(measured(open_plan("one-to-one", "10000,20000")));
  EXPECT_THAT(alone, testing::StartsWith("knee of write/write, 64 B request, 64 B "
                                         "response, 4 pending: "));
  const std::string both = knees_text(measured(open_plan("one-to-one", "10000,20000", "all")));
  EXPECT_THAT(both, testing::AllOf(HasSubstr("4 pending, arrivals poisson: "),
                                   HasSubstr("4 pending, arrivals even: ")));
}

TEST(OpenLoop, EqualSeedsGiveEqualRuns) {
  const Plan plan = open_plan("one-to-one", "300000");
  const PointResult first = measured(plan).at(0);
  const PointResult second = measured(plan).at(0);
  EXPECT_EQ(first.runs[0].simulated->digest, second.runs[0].simulated->digest);
  EXPECT_EQ(first.runs[0].p99_ns, second.runs[0].p99_ns);
}

TEST(OpenLoop, RefusesWhatContradictsIt) {
  const auto refusal = [](const char* axis, const char* value) {
    Plan plan = open_plan("one-to-one", "1000");
    EXPECT_TRUE(plan.sweeps[0].set(axis, value).ok());
    return point_groups(plan).status().message();
  };
  EXPECT_THAT(refusal("wait", "block"), HasSubstr("leave out --wait block or --arrival-rate"));
  EXPECT_THAT(refusal("active", "0.5"), HasSubstr("leave out one of them"));
}

// A closed loop has no arrivals, so its points do not differ in them.
TEST(OpenLoop, ArrivalsMeanNothingWithoutARate) {
  Plan plan = open_plan("one-to-one", "0", "poisson,even");
  size_t points = 0;
  const std::vector<PointGroup> groups = point_groups(plan).value();
  for (const PointGroup& group : groups) points += group.size();
  EXPECT_EQ(points, 1u);
  EXPECT_EQ(to_json(measured(plan).at(0)).at("arrivals"), "none");
}

}  // namespace
}  // namespace verbena::bench
