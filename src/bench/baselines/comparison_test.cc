#include "src/bench/baselines/comparison.h"

#include <gtest/gtest.h>

namespace verbena::bench::baselines {
namespace {

Result<double> always_near() { return 35.0; }

TEST(Comparison, RatiosAreThoseOfRoundsNotOfMedians) {
  // The machine is three times slower in one round, and disturbed in another one.
  std::vector<double> ours = {10, 30, 11, 500, 10};
  std::vector<double> theirs = {10, 30, 10, 10, 9};
  size_t our_round = 0;
  size_t their_round = 0;
  std::vector<std::string> order;
  Comparison comparison(
      {
          {.name = "ours", .unit = "ns", .measure = [&] { return ours[our_round++]; }},
          {.name = "theirs", .unit = "ns", .measure = [&] { return theirs[their_round++]; }},
      },
      always_near);
  for (uint64_t round = 0; round < ours.size(); ++round) {
    ASSERT_TRUE(
        comparison.run_round(round, [&](const std::string& name) { order.push_back(name); }).ok());
  }
  EXPECT_EQ(order[0], "ours");
  EXPECT_EQ(order[1], "theirs");
  EXPECT_EQ(order[2], "theirs");  // backwards
  EXPECT_EQ(order[3], "ours");

  const Verdict verdict =
      comparison.judge({.name = "x", .ours = "ours", .peer = "theirs", .limit = 1.2});
  EXPECT_DOUBLE_EQ(verdict.ratio, 1.1);
  EXPECT_TRUE(verdict.holds);
  EXPECT_EQ(verdict.ours, 11);
  EXPECT_EQ(verdict.peer, 10);
  EXPECT_FALSE(
      comparison.judge({.name = "x", .ours = "ours", .peer = "theirs", .limit = 1.0}).holds);
  EXPECT_TRUE(
      comparison
          .judge({.name = "x", .ours = "ours", .peer = "theirs", .limit = 1.0, .at_least = true})
          .holds);
  const Verdict faster = comparison.judge({.name = "x",
                                           .ours = "ours",
                                           .peer = "theirs",
                                           .limit = 0.9,
                                           .at_least = true,
                                           .times_faster = true});
  EXPECT_NEAR(faster.ratio, 1 / 1.1, 1e-3) << "the peer's time to ours";
  EXPECT_TRUE(faster.holds);
}

TEST(Comparison, RoundsInWhichTheCpusMovedApartDoNotCount) {
  // Each is as fast as the hand-off, which changes between the two of the second round.
  double hand_off_ns = 35;
  int measured = 0;
  const auto measure = [&] {
    const double value = hand_off_ns;
    if (++measured == 3) hand_off_ns = 200;
    return value;
  };
  Comparison comparison({{.name = "ours", .unit = "ns", .measure = measure},
                         {.name = "theirs", .unit = "ns", .measure = measure}},
                        [&]() -> Result<double> { return hand_off_ns; });
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(comparison.run_round(round, [](const std::string&) {}).ok());
  }
  const Verdict verdict =
      comparison.judge({.name = "x", .ours = "ours", .peer = "theirs", .limit = 1});
  EXPECT_EQ(measured, 7) << "the one in which it changed was repeated";
  EXPECT_EQ(verdict.rounds, 3u);
  EXPECT_EQ(verdict.ratio, 1);

  // Now it changes when one of a round has just been measured.
  int asked = 0;
  Comparison apart(
      {{.name = "ours", .unit = "ns", .measure = [&] { return asked <= 2 ? 35. : 200.; }},
       {.name = "theirs", .unit = "ns", .measure = [] { return 200.; }}},
      [&]() -> Result<double> { return ++asked <= 2 ? 35. : 200.; });
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(apart.run_round(round, [](const std::string&) {}).ok());
  }
  const Verdict later = apart.judge({.name = "x", .ours = "ours", .peer = "theirs", .limit = 1});
  EXPECT_EQ(later.rounds, 2u);
  EXPECT_EQ(later.ratio, 1);
}

TEST(Comparison, LimitsOfOneNumberAndJson) {
  Comparison comparison({{.name = "registration", .unit = "us", .measure = [] { return 7.0; }}},
                        always_near);
  ASSERT_TRUE(comparison.run_round(0, [](const std::string&) {}).ok());
  const Verdict verdict =
      comparison.judge({.name = "registration", .ours = "registration", .peer = "", .limit = 20});
  EXPECT_EQ(verdict.ratio, 7);
  EXPECT_TRUE(verdict.holds);
  const nlohmann::json list = to_json({verdict}, comparison);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["name"], "registration");
  EXPECT_EQ(list[0]["target"], 20);
  EXPECT_EQ(list[0]["unit"], "us");
  EXPECT_EQ(list[0]["holds"], true);
}

TEST(Comparison, FailuresNameTheContender) {
  Comparison comparison(
      {{.name = "put_lat",
        .unit = "ns",
        .measure =
            [] { return Result<double>(Status(StatusCode::kNotFound, "no such program")); }}},
      always_near);
  const Status status = comparison.run_round(0, [](const std::string&) {});
  EXPECT_EQ(status.message(), "put_lat: no such program");
}

}  // namespace
}  // namespace verbena::bench::baselines
