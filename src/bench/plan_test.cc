#include "src/bench/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

using testing::HasSubstr;

DeviceInfo device() {
  DeviceInfo info;
  info.name = "toy0";
  info.max_queue_pair_wrs = 1024;
  return info;
}

// One sweep; each entry is an axis and its values.
Plan plan_of(std::string_view topology,
             const std::vector<std::pair<std::string_view, std::string_view>>& axes) {
  Sweep sweep = Sweep::in(topology).value();
  for (const auto& [name, text] : axes) {
    const Status status = sweep.set(name, text);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Plan plan;
  plan.sweeps.push_back(std::move(sweep));
  return plan;
}

std::vector<Point> points_of(const Plan& plan) {
  const Result<std::vector<PointGroup>> groups = point_groups(plan);
  EXPECT_TRUE(groups.ok()) << groups.status().message();
  std::vector<Point> points;
  for (const PointGroup& group : *groups) points.insert(points.end(), group.begin(), group.end());
  return points;
}

Status refusal_of(const Plan& plan) { return point_groups(plan).status(); }

TEST(Plan, GroupsHoldWhatIsCompared) {
  const Plan plan = plan_of("one-to-one", {{"protocol", "all"},
                                           {"mark", "last-bit,head-tail"},
                                           {"response", "64,4KiB"},
                                           {"pending", "1,16"}});
  const std::vector<PointGroup> groups = point_groups(plan).value();
  ASSERT_EQ(groups.size(), 4u);
  for (const PointGroup& group : groups) {
    // send/send and read have no mark, the three others come with each layout.
    EXPECT_EQ(group.size(), 2u + 3u * 2u);
    for (const Point& point : group) {
      EXPECT_EQ(point.response_bytes, group.front().response_bytes);
      EXPECT_EQ(point.pending, group.front().pending);
    }
  }
}

TEST(Plan, TheTopologyDecidesWhatNobodySays) {
  const auto first = [](std::string_view topology,
                        const std::vector<std::pair<std::string_view, std::string_view>>& axes) {
    return points_of(plan_of(topology, axes)).front();
  };
  EXPECT_EQ(first("one-to-one", {}).nodes, 1u);
  const Point many_to_one = first("M:1", {{"nodes", "4"}, {"threads", "3"}});
  EXPECT_EQ(many_to_one.nodes, 4u);
  EXPECT_EQ(many_to_one.responder_threads, 3u);
  EXPECT_EQ(first("N-to-1", {{"threads", "3"}}).responder_threads, 1u);
  EXPECT_EQ(first("n-to-1", {{"threads", "3"}, {"responder-threads", "2"}}).responder_threads, 2u);
  const Point all = first("M:M", {{"nodes", "3"}, {"threads", "2"}});
  EXPECT_EQ(all.responder_nodes, 3u);
  EXPECT_EQ(all.responder_threads, 2u);
  EXPECT_EQ(first("1:M", {{"responders", "5"}, {"threads", "2"}}).responder_threads, 2u);
}

TEST(Plan, EachPointIsMeasuredOnce) {
  // More responding threads than queue pairs are the same as that many.
  EXPECT_EQ(points_of(plan_of("M:1", {{"nodes", "2"},
                                      {"responder-threads", "1,2,14,16"},
                                      {"protocol", "read"},
                                      {"mark", "all"}}))
                .size(),
            2u);
}

TEST(Plan, ALimitReplacesWhatIsAbove) {
  Plan plan = plan_of("M:1", {{"nodes", "1,2,28"}, {"protocol", "read"}});
  plan.sweeps[0].limit(*find_axis("nodes"), 4);
  const std::vector<Point> points = points_of(plan);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[2].nodes, 4u);
}

TEST(Plan, RefusesWhatTheTopologyHasNot) {
  EXPECT_THAT(refusal_of(plan_of("one-to-one", {{"nodes", "2"}})).message(),
              HasSubstr("one-to-one has one requesting node"));
  EXPECT_THAT(refusal_of(plan_of("1:M", {{"threads", "2"}, {"responder-threads", "3"}})).message(),
              HasSubstr("leave"));
  EXPECT_THAT(refusal_of(plan_of("M:M", {{"nodes", "1"}})).message(), HasSubstr("2 nodes"));
  EXPECT_EQ(Sweep::in("ring").status().code(), StatusCode::kInvalidArgument);
}

TEST(Plan, ItsTextTellsPlansApart) {
  const Plan plan = plan_of("M:1", {{"nodes", "1,2"}, {"active", "0.1,1"}});
  EXPECT_EQ(plan_json(plan), plan_json(plan));
  EXPECT_NE(plan_json(plan), plan_json(plan_of("M:1", {{"nodes", "1"}, {"active", "0.1,1"}})));
  EXPECT_EQ(plan_json(plan)["sweeps"][0]["active"], nlohmann::json({"0.1", "1"}));
}

TEST(Plan, RefusesWhatCannotBeDone) {
  const auto check = [](const Plan& plan) {
    return check_points(point_groups(plan).value(), device());
  };
  EXPECT_TRUE(check(plan_of("one-to-one", {})).ok());

  Status status = check(plan_of("one-to-one", {{"pending", "1,1024"}}));
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("1024"), HasSubstr("--pending")));

  status = check(plan_of("one-to-one", {{"pending", "1000"}, {"response", "512MiB"}}));
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("512 MiB"), HasSubstr("available")));
}

TEST(Axes, ValuesAreReadAsTheyAreWritten) {
  const Point point;
  for (const Axis& axis : axes()) {
    SCOPED_TRACE(std::string(axis.name));
    EXPECT_EQ(find_axis(axis.name), &axis);
    const uint64_t value = axis.get(point);
    EXPECT_TRUE(axis.possible(value));
    Result<std::vector<uint64_t>> parsed = axis.parse(axis.text(value));
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    EXPECT_THAT(*parsed, testing::ElementsAre(value));
    Point other;
    axis.set(other, value);
    EXPECT_EQ(axis.to_json(other), axis.to_json(point));
    for (const std::string& choice : axis.choices()) EXPECT_TRUE(axis.parse(choice).ok()) << choice;
    EXPECT_FALSE(axis.parse("nonsense").ok());
  }
  EXPECT_EQ(find_axis("value"), find_axis("response"));
  EXPECT_EQ(find_axis("colour"), nullptr);
}

TEST(Axes, SharesOfActiveRequesters) {
  const Axis& active = *find_axis("active");
  EXPECT_THAT(active.parse("0.1,0.5,1").value(),
              testing::ElementsAre(100'000u, 500'000u, 1'000'000u));
  for (const char* text : {"0", "-1", "1.1", "nan", "0.5,", "50%"}) {
    EXPECT_FALSE(active.parse(text).ok()) << text;
  }
}

TEST(Plan, CountsTheMemoryOfBothSides) {
  EXPECT_EQ(memory_bytes({.request_bytes = 64, .response_bytes = 4032, .pending = 16}),
            2u * 65536u);
  EXPECT_GT(available_memory_bytes(), 0u);
}

}  // namespace
}  // namespace verbena::bench
