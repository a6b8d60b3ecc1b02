#include "src/bench/explain/point_usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/bench/workloads.h"

namespace verbena::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

sim::NodeUsage used(double cpu, double atomics) {
  sim::NodeUsage usage;
  usage.share[static_cast<size_t>(sim::NodeUnit::kProcessor)] = cpu;
  usage.share[static_cast<size_t>(sim::NodeUnit::kAtomics)] = atomics;
  return usage;
}

Point log_point(uint32_t writers) {
  const Workload& log = *find_workload("log");
  Point point = log.point();
  point.nodes = writers;
  return log.fit(point).value();
}

const UnitUsage& find(const std::vector<UnitUsage>& units, std::string_view role,
                      sim::NodeUnit unit) {
  for (const UnitUsage& one : units) {
    if (one.role == role && one.unit == unit) return one;
  }
  ADD_FAILURE() << role << " has no " << sim::text_of(unit);
  return units.front();
}

TEST(PointUsage, TakesTheNodesOfARoleTogether) {
  const std::vector<UnitUsage> units =
      usage_by_role(log_point(3), {used(0.2, 0), used(0.6, 0), used(0.1, 0), used(0, 0.5)});
  EXPECT_EQ(units.size(), 2 * sim::kNodeUnits);
  const UnitUsage& writers = find(units, "writer", sim::NodeUnit::kProcessor);
  EXPECT_EQ(writers.nodes, 3u);
  EXPECT_NEAR(writers.mean, 0.3, 1e-9);
  EXPECT_EQ(writers.most, 0.6);
  EXPECT_EQ(writers.busiest, 1u);
  const UnitUsage& replica = find(units, "replica", sim::NodeUnit::kAtomics);
  EXPECT_EQ(replica.nodes, 1u);
  EXPECT_EQ(replica.most, 0.5);
  EXPECT_EQ(replica.busiest, 3u);
  const std::vector<UnitUsage> sorted = by_load(units);
  EXPECT_EQ(load_text(sorted[0]), "writer CPU 60 %");
  EXPECT_EQ(load_text(sorted[1]), "replica atomic unit 50 %");
}

TEST(PointUsage, TheTableLeavesOutWhatWasNotUsed) {
  PointUsage usage;
  usage.units = usage_by_role(log_point(1), {used(0.25, 0), used(0, 0)});
  const std::string table = usage_table(usage);
  EXPECT_THAT(table, HasSubstr("25.0 %"));
  EXPECT_THAT(table, Not(HasSubstr("atomic unit")));
}

TEST(PointUsage, IsThatOfARun) {
  const auto usage = measure_usage("sim:connectx3-40g", log_point(8), 4000);
  ASSERT_TRUE(usage.ok()) << usage.status().message();
  EXPECT_GT(usage->run.rate_per_s, 0);
  const UnitUsage busiest = by_load(usage->units).front();
  EXPECT_EQ(load_text(busiest).substr(0, 19), "replica atomic unit");
  EXPECT_GT(busiest.most, 0.9);
  EXPECT_LT(find(usage->units, "replica", sim::NodeUnit::kProcessor).most, 0.01);
}

}  // namespace
}  // namespace verbena::bench
