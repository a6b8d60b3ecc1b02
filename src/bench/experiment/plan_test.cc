#include "src/bench/experiment/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/verbs/verbs_settings.h"
#include "src/bench/verbs/verbs_workload.h"
#include "src/bench/workloads.h"

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
  Sweep sweep = Sweep::in(topology, request_response_workload()).value();
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
      EXPECT_EQ(request_response_settings(point).response_bytes,
                request_response_settings(group.front()).response_bytes);
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
  plan.sweeps[0].limit("nodes", 4);
  const std::vector<Point> points = points_of(plan);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[2].nodes, 4u);
}

TEST(Plan, ALimitHoldsWhereTheTopologyDecides) {
  const auto limited = [](const char* topology) {
    Plan plan = plan_of(topology, {{"protocol", "read"}});
    for (const char* axis : {"nodes", "responders"}) plan.sweeps[0].limit(axis, 1);
    return plan;
  };
  for (const char* topology : {"one-to-one", "N-to-1", "M:1", "1:M", "N-to-M"}) {
    const std::vector<Point> points = points_of(limited(topology));
    ASSERT_EQ(points.size(), 1u) << topology;
    EXPECT_EQ(points[0].nodes, 1u) << topology;
    EXPECT_EQ(points[0].responder_nodes, 1u) << topology;
  }
  EXPECT_THAT(refusal_of(limited("M:M")).message(), HasSubstr("2 nodes"));
  Plan plan = plan_of("M:M", {{"protocol", "read"}});
  plan.sweeps[0].limit("responders", 1);
  EXPECT_EQ(points_of(plan)[0].responder_nodes, 2u);
}

TEST(Plan, RefusesWhatTheTopologyHasNot) {
  EXPECT_THAT(refusal_of(plan_of("one-to-one", {{"nodes", "2"}})).message(),
              HasSubstr("one-to-one has one requesting node"));
  EXPECT_THAT(refusal_of(plan_of("1:M", {{"threads", "2"}, {"responder-threads", "3"}})).message(),
              HasSubstr("leave"));
  EXPECT_THAT(refusal_of(plan_of("M:M", {{"nodes", "1"}})).message(), HasSubstr("2 nodes"));
  EXPECT_EQ(Sweep::in("ring", request_response_workload()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(Plan, ItsTextTellsPlansApart) {
  const Plan plan = plan_of("M:1", {{"nodes", "1,2"}, {"active", "0.1,1"}});
  EXPECT_EQ(plan_json(plan), plan_json(plan));
  EXPECT_NE(plan_json(plan), plan_json(plan_of("M:1", {{"nodes", "1"}, {"active", "0.1,1"}})));
  EXPECT_EQ(plan_json(plan)["sweeps"][0]["active"], nlohmann::json({"0.1", "1"}));
  // A simulation whose length nobody chose has a number of messages, whatever the duration is.
  Plan simulated = plan;
  simulated.run.messages = 40'000;
  EXPECT_NE(plan_json(simulated), plan_json(plan));
}

TEST(Plan, RefusesHugePagesThatWouldNotBeUsed) {
  DeviceInfo info = device();
  Point point = request_response_workload().point();
  EXPECT_TRUE(check_huge_pages(point, info, 0).ok());
  point.huge_pages = 1;
  EXPECT_TRUE(check_huge_pages(point, info, 8).ok());
  EXPECT_THAT(check_huge_pages(point, info, 0).message(), HasSubstr("vm.nr_hugepages"));
  for (const DeviceKind kind : {DeviceKind::kSoft, DeviceKind::kSimulated}) {
    info.kind = kind;
    EXPECT_THAT(check_huge_pages(point, info, 8).message(), HasSubstr("changes nothing on toy0"));
    EXPECT_FALSE(
        check_points(point_groups(plan_of("one-to-one", {{"huge-pages", "1"}})).value(), info)
            .ok());
  }
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
  for (const Workload* workload : workloads()) {
    for (const Axis& axis : workload->traits().axes) {
      SCOPED_TRACE(std::string(axis.name));
      const Point point = workload->point();
      EXPECT_EQ(workload->find_axis(axis.name), &axis);
      const uint64_t value = axis.get(point);
      EXPECT_TRUE(axis.possible(value));
      Result<std::vector<uint64_t>> parsed = axis.parse(axis.text(value));
      ASSERT_TRUE(parsed.ok()) << parsed.status().message();
      EXPECT_THAT(*parsed, testing::ElementsAre(value));
      Point other = point;
      axis.set(other, value);
      EXPECT_EQ(axis.to_json(other), axis.to_json(point));
      for (const std::string& choice : axis.choices()) {
        EXPECT_TRUE(axis.parse(choice).ok()) << choice;
      }
      EXPECT_FALSE(axis.parse("nonsense").ok());
    }
  }
  const Workload& workload = request_response_workload();
  EXPECT_EQ(workload.find_axis("value"), workload.find_axis("response"));
  EXPECT_EQ(workload.find_axis("colour"), nullptr);
}

TEST(Axes, SharesOfActiveRequesters) {
  const Axis& active = *request_response_workload().find_axis("active");
  EXPECT_THAT(active.parse("0.1,0.5,1").value(),
              testing::ElementsAre(100'000u, 500'000u, 1'000'000u));
  for (const char* text : {"0", "-1", "1.1", "nan", "0.5,", "50%"}) {
    EXPECT_FALSE(active.parse(text).ok()) << text;
  }
}

TEST(Plan, CountsTheMemoryOfBothSides) {
  const std::vector<Point> points = points_of(
      plan_of("one-to-one",
              {{"request", "64"}, {"response", "4032"}, {"pending", "16"}, {"protocol", "read"}}));
  EXPECT_EQ(points[0].workload->memory_bytes(points[0]), 2u * 65536u);
  EXPECT_GT(available_memory_bytes(), 0u);
}

// --- raw verbs ---

Plan verbs_plan_of(const std::vector<std::pair<std::string_view, std::string_view>>& axes) {
  Sweep sweep = Sweep::of(verbs_workload());
  for (const auto& [name, text] : axes) {
    const Status status = sweep.set(name, text);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Plan plan;
  plan.sweeps.push_back(std::move(sweep));
  return plan;
}

TEST(VerbsPlan, IsAPlainWriteWhereNobodySaysMore) {
  const std::vector<Point> points = points_of(verbs_plan_of({}));
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].workload, &verbs_workload());
  const VerbsSettings& settings = verbs_settings(points[0]);
  EXPECT_EQ(settings.operation, Operation::kWrite);
  EXPECT_EQ(settings.size_bytes, 64u);
  EXPECT_EQ(settings.operation_bytes(), 64u);
  EXPECT_EQ(settings.requests_per_operation(), 1u);
  EXPECT_EQ(settings.region_bytes, 1u << 20);
  EXPECT_EQ(points_of(plan_of("one-to-one", {}))[0].workload, &request_response_workload());
}

TEST(VerbsPlan, SweepsItsAxesAndKnowsNoOther) {
  const Plan plan = verbs_plan_of({{"operation", "write,read"},
                                   {"method", "all"},
                                   {"entries", "1,4"},
                                   {"size", "8,...,32"},
                                   {"local", "all"},
                                   {"remote", "rand"},
                                   {"region", "4KiB"},
                                   {"threads", "3"}});
  const std::vector<Point> points = points_of(plan);
  EXPECT_EQ(points.size(), 2u * 3u * 2u * 3u * 2u);
  for (const Point& point : points) {
    const VerbsSettings& settings = verbs_settings(point);
    EXPECT_EQ(settings.remote, AccessPattern::kRandom);
    EXPECT_EQ(settings.region_bytes, 4096u);
    // Each thread has one of its own on the other side.
    EXPECT_EQ(wire_connections(point).value().queue_pairs(), 3u);
    EXPECT_EQ(settings.requests_per_operation(),
              settings.method == VectorMethod::kDoorbell ? settings.entries : 1u);
    EXPECT_EQ(verbs_workload().memory_bytes(point), 3u * (2 * 4096 + settings.operation_bytes()));
  }
  EXPECT_THAT(Sweep::of(verbs_workload()).set("protocol", "read").message(),
              testing::AllOf(HasSubstr("raw verbs have no axis 'protocol'"), HasSubstr("entries")));
  EXPECT_THAT(
      Sweep::in("one-to-one", request_response_workload()).value().set("entries", "4").message(),
      testing::AllOf(HasSubstr("no axis 'entries'"), HasSubstr("protocol")));
}

TEST(VerbsPlan, AtomicsHaveEightBytes) {
  const std::vector<Point> points =
      points_of(verbs_plan_of({{"operation", "fetch-add,compare-swap"}, {"size", "8,64,4KiB"}}));
  ASSERT_EQ(points.size(), 2u);
  for (const Point& point : points) EXPECT_EQ(verbs_settings(point).size_bytes, 8u);
}

TEST(VerbsPlan, RefusalsNameTheCauseAndTheRemedy) {
  EXPECT_THAT(
      refusal_of(verbs_plan_of({{"size", "1MiB"}, {"entries", "4"}, {"region", "1MiB"}})).message(),
      testing::AllOf(HasSubstr("4 MiB"), HasSubstr("region of 1 MiB"), HasSubstr("--region")));
  EXPECT_THAT(refusal_of(verbs_plan_of({{"operation", "fetch-add"}, {"entries", "4"}})).message(),
              testing::AllOf(HasSubstr("8 bytes"), HasSubstr("doorbell")));
  EXPECT_THAT(refusal_of(verbs_plan_of({{"signal-interval", "9"}, {"pending", "8"}})).message(),
              HasSubstr("lower --signal-interval to at most 8"));

  DeviceInfo info = device();
  info.max_sges = 16;
  const auto refused = [&](const Plan& plan) {
    return check_points(point_groups(plan).value(), info).message();
  };
  EXPECT_THAT(refused(verbs_plan_of({{"entries", "17"}})),
              testing::AllOf(HasSubstr("17 SGEs"), HasSubstr("toy0 takes 16")));
  EXPECT_EQ(refused(verbs_plan_of({{"entries", "17"}, {"method", "sp"}})), "");
  EXPECT_EQ(refused(verbs_plan_of({{"entries", "17"}, {"operation", "poll"}})), "");
  EXPECT_THAT(refused(verbs_plan_of({{"operation", "fetch-add"}})), HasSubstr("no atomics"));
  EXPECT_THAT(
      refused(verbs_plan_of({{"entries", "32"}, {"method", "doorbell"}, {"pending", "32"}})),
      testing::AllOf(HasSubstr("1024 pending requests"), HasSubstr("--entries")));
  EXPECT_THAT(refused(verbs_plan_of({{"region", "64GiB"}, {"threads", "256"}})),
              HasSubstr("lower --region or --threads"));
}

}  // namespace
}  // namespace verbena::bench
