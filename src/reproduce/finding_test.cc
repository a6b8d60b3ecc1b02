#include "src/reproduce/finding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "src/bench/request_response/request_response_settings.h"
#include "src/reproduce/check_file.h"

namespace verbena::reproduce {
namespace {

using testing::HasSubstr;

// An experiment with two protocols, two sizes and four numbers of pending requests, whose bandwidth
// a function of the test says.
class Findings : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    folder_ = testing::TempDir() + "/findings-" + std::to_string(getpid()) + "-" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/e.toml")
        << "topology = \"one-to-one\"\n[axes]\nprotocol = [\"read\", \"send/send\"]\n"
           "response = [1024, 8192]\npending = [1, 2, 4, 8]\n";
  }

  using Gbps = std::function<double(const bench::Point&)>;

  Result<Finding> find_in(const std::string& check, const Gbps& gbps, const Claim& claim = {}) {
    std::ofstream(folder_ + "/checks.toml")
        << "paper = \"p\"\ndevice = \"d\"\nduration = \"1ms\"\n[[check]]\n"
        << "in = \"e\"\nid = \"c\"\n"
        << check;
    const auto checks = read_check_file(folder_ + "/checks.toml");
    EXPECT_TRUE(checks.ok()) << checks.status().message();
    if (!checks.ok()) return checks.status();
    Experiments experiments(folder_);
    Measurements measurements;
    const auto points = experiments.points("e");
    EXPECT_TRUE(points.ok()) << points.status().message();
    for (const bench::Point& point : *points) {
      const nlohmann::json row = {{"value_bandwidth_bytes_per_s", gbps(point) / 8e-9},
                                  {"latency_ns", {{"p50", 1500.0}}},
                                  {"empty_poll_share", gbps(point) / 100}};
      measurements.add(point, point.pending == broken_pending_ ? Measurement{.error = "no RNIC"}
                                                               : Measurement{.row = row});
    }
    return find(checks->checks.at(0).parts.at(0), claim, 0.25,
                {&experiments, &checks->uses, &measurements});
  }

  bool holds(const std::string& check, const Gbps& gbps, const Claim& claim = {}) {
    const auto finding = find_in(check, gbps, claim);
    EXPECT_TRUE(finding.ok()) << finding.status().message();
    return finding.ok() && finding->holds;
  }

  static Claim stating(double low, double high, const std::string& relation = "=",
                       const std::string& unit = "Gbps") {
    Claim claim;
    claim.relation = relation;
    claim.unit = unit;
    claim.number = Range{low, high};
    return claim;
  }

  uint32_t broken_pending_ = 0;

 private:
  std::string folder_;
};

bool is_read(const bench::Point& point) {
  return bench::request_response_settings(point).protocol == Protocol::kRead;
}

uint32_t response_bytes(const bench::Point& point) {
  return bench::request_response_settings(point).response_bytes;
}

constexpr const char* kOnePoint = "of = { protocol = \"read\", response = 1024, pending = 4 }\n";

TEST_F(Findings, ANumberMayBeOffByTheTolerance) {
  const auto ten = [](const bench::Point&) { return 10.0; };
  const auto finding = find_in(kOnePoint, ten, stating(9, 9));
  ASSERT_TRUE(finding.ok());
  EXPECT_TRUE(finding->holds);
  EXPECT_NEAR(*finding->number, 10, 1e-9);
  EXPECT_NEAR(*finding->error, 1.0 / 9, 1e-9);
  EXPECT_TRUE(holds(kOnePoint, ten, stating(13.3, 13.3)));
  EXPECT_FALSE(holds(kOnePoint, ten, stating(13.4, 13.4)));
  EXPECT_FALSE(holds(kOnePoint, ten, stating(7.9, 7.9)));
}

TEST_F(Findings, SharesOfAWholeMayBeOffByAShareOfWhatTheyLackToHundred) {
  const std::string check = std::string(kOnePoint) + "metric = \"empty-polls-percent\"\n";
  const auto percent = [](double value) { return [=](const bench::Point&) { return value; }; };
  const auto stated = [](double value) { return stating(value, value, "=", "percent"); };
  // As shares of what is stated, all of these would be within 25 %.
  EXPECT_FALSE(holds(check, percent(98.5), stated(83.3)));
  EXPECT_FALSE(holds(check, percent(99), stated(91.6)));
  EXPECT_FALSE(holds(check, percent(99), stated(94.4)));
  EXPECT_TRUE(holds(check, percent(95.7), stated(94.4)));
  EXPECT_FALSE(holds(check, percent(92.9), stated(94.4)));
  EXPECT_TRUE(holds(check, percent(12), stated(10)));
  EXPECT_FALSE(holds(check, percent(13), stated(10)));
  EXPECT_TRUE(holds(check, percent(100), stated(100)));
  EXPECT_FALSE(holds(check, percent(99), stated(100)));

  const auto finding = find_in(check, percent(98.5), stated(83.3));
  ASSERT_TRUE(finding.ok());
  EXPECT_FALSE(finding->error);
  EXPECT_NEAR(*finding->error_points, 15.2, 1e-9);
  EXPECT_NEAR(finding->tolerance_points, 16.7 / 4, 1e-9);
}

TEST_F(Findings, ReductionsAreSharesOfAWhole) {
  const std::string check =
      "of = { protocol = \"read\" }\nover = { protocol = \"send/send\" }\nas = \"reduction\"\n";
  const auto left = [](double value) {
    return [=](const bench::Point& point) { return is_read(point) ? value : 1.0; };
  };
  const Claim claim = stating(90, 90, "~", "percent");
  EXPECT_TRUE(holds(check, left(0.1), claim));
  EXPECT_TRUE(holds(check, left(0.12), claim));
  EXPECT_FALSE(holds(check, left(0.2), claim));
  EXPECT_FALSE(holds(check, left(0.01), claim));
}

TEST_F(Findings, ARangeHasTheToleranceAtItsEnds) {
  const auto ten = [](const bench::Point&) { return 10.0; };
  EXPECT_TRUE(holds(kOnePoint, ten, stating(12, 20)));
  EXPECT_TRUE(holds(kOnePoint, ten, stating(2, 8)));
  EXPECT_FALSE(holds(kOnePoint, ten, stating(14, 20)));
}

TEST_F(Findings, BoundsHaveNoTolerance) {
  const auto ten = [](const bench::Point&) { return 10.0; };
  EXPECT_FALSE(holds(kOnePoint, ten, stating(9.9, 9.9, "<")));
  EXPECT_TRUE(holds(kOnePoint, ten, stating(9.9, 9.9, "> (well over)")));
}

TEST_F(Findings, UpToMeansTheHighest) {
  const auto by_pending = [](const bench::Point& point) { return 1.0 * point.pending; };
  const std::string all = "of = { protocol = \"read\", response = 1024 }\n";
  EXPECT_TRUE(holds(all, by_pending, stating(8, 8, "<=")));
  EXPECT_FALSE(holds(all, by_pending, stating(8, 8, "=")));
  EXPECT_FALSE(holds(all, by_pending, stating(12, 12, "<=")));
}

TEST_F(Findings, EveryValueHasToBeStated) {
  const auto gbps = [](const bench::Point& point) { return is_read(point) ? 10.0 : 20.0; };
  const auto finding = find_in("of = { response = 1024, pending = 4 }\n", gbps, stating(10, 10));
  ASSERT_TRUE(finding.ok());
  EXPECT_FALSE(finding->holds);
  EXPECT_EQ(finding->text, "read 10, send/send 20 Gbps");
  EXPECT_DOUBLE_EQ(*finding->error, 1);
}

TEST_F(Findings, QuotientsAreOfPointsThatAgreeOtherwise) {
  const auto gbps = [](const bench::Point& point) {
    return (is_read(point) ? 3.0 : 1.0) * point.pending * response_bytes(point);
  };
  // Other pending requests or sizes would give other quotients.
  const std::string check = "of = { protocol = \"read\" }\nover = { protocol = \"send/send\" }\n";
  EXPECT_TRUE(holds(check, gbps, stating(3, 3, "=", "ratio")));
  EXPECT_FALSE(holds(check, gbps, stating(4.1, 4.1, "=", "ratio")));
  EXPECT_TRUE(holds(check + "as = \"change\"\n", gbps, stating(200, 200, "=", "percent")));
  EXPECT_TRUE(holds(check + "as = \"percent\"\n", gbps, stating(300, 300, "=", "percent")));
}

TEST_F(Findings, DifferencesAreInTheClaimsUnit) {
  const auto gbps = [](const bench::Point& point) { return is_read(point) ? 3.0 : 1.0; };
  const std::string check =
      "where = { response = 1024, pending = 1 }\nof = { protocol = \"read\" }\n"
      "minus = { protocol = \"send/send\" }\n";
  const auto finding = find_in(check, gbps, stating(250, 250, "=", "MB/s"));
  ASSERT_TRUE(finding.ok());
  EXPECT_NEAR(*finding->number, 250, 1e-6);
}

TEST_F(Findings, OnlyTheBestCounts) {
  const auto by_pending = [](const bench::Point& point) { return 1.0 * point.pending; };
  const std::string best = "of = { protocol = \"read\", response = 1024 }\nbest = [\"pending\"]\n";
  EXPECT_TRUE(holds(best, by_pending, stating(8, 8)));
}

// Of quotients: not the quotient of what is highest on each side.
TEST_F(Findings, OnlyTheMostOfAQuotientCounts) {
  const auto by_pending = [](const bench::Point& point) {
    return is_read(point) ? 10.0 + point.pending : 10.0 * point.pending;
  };
  const std::string check =
      "where = { response = 1024 }\nof = { protocol = \"read\" }\n"
      "over = { protocol = \"send/send\" }\n";
  EXPECT_TRUE(holds(check + "most = [\"pending\"]\n", by_pending, stating(1.1, 1.1, "=", "ratio")));
  EXPECT_TRUE(
      holds(check + "best = [\"pending\"]\n", by_pending, stating(0.225, 0.225, "=", "ratio")));
}

TEST_F(Findings, TrendsTakeASmallStepBack) {
  const std::string rises = "of = { response = 1024 }\nis = \"rises\"\nalong = \"pending\"\n";
  const std::string falls = "of = { response = 1024 }\nis = \"falls\"\nalong = \"pending\"\n";
  const auto line = [](double a, double b, double c, double d) {
    return [=](const bench::Point& point) {
      return point.pending == 1 ? a : point.pending == 2 ? b : point.pending == 4 ? c : d;
    };
  };
  EXPECT_TRUE(holds(rises, line(1, 2, 1.95, 3)));
  EXPECT_FALSE(holds(rises, line(1, 2, 1.5, 3)));
  EXPECT_TRUE(holds(rises + "mostly = true\n", line(1, 2, 1.5, 3)));
  EXPECT_FALSE(holds(rises, line(1, 1.02, 1.03, 1.04)));
  EXPECT_TRUE(holds(falls, line(3, 2, 2, 1)));
  EXPECT_FALSE(holds(falls, line(1, 2, 2, 3)));
  // Each line for itself: one that does not rise is enough.
  EXPECT_FALSE(holds(
      rises, [](const bench::Point& point) { return is_read(point) ? 1.0 : 1.0 * point.pending; }));
}

TEST_F(Findings, FlatAndSimilar) {
  const std::string flat = "of = { response = 1024 }\nis = \"flat\"\nalong = \"pending\"\n";
  // The lines are far apart, but each is flat.
  const auto lines = [](const bench::Point& point) {
    return (is_read(point) ? 1.0 : 9.0) * (1 + 0.01 * point.pending);
  };
  EXPECT_TRUE(holds(flat, lines));
  EXPECT_FALSE(holds(flat + "within = 0.05\n", lines));
  EXPECT_FALSE(holds("of = { response = 1024 }\nis = \"similar\"\nat = [\"pending\"]\n", lines));
  EXPECT_TRUE(holds("of = { protocol = \"read\" }\nis = \"similar\"\nat = [\"pending\"]\n", lines));
}

TEST_F(Findings, OrdersHoldAtEveryPlace) {
  const std::string order =
      "is = \"ordered\"\nat = [\"pending\"]\n"
      "groups = [{ protocol = \"read\" }, { protocol = \"send/send\" }]\n";
  const auto above = [](const bench::Point& point) {
    return point.pending + (is_read(point) ? .5 : 0);
  };
  EXPECT_TRUE(holds(order, above));
  EXPECT_FALSE(holds(order + "ascending = true\n", above));
  const auto crossing = [](const bench::Point& point) {
    return is_read(point) ? 5. : point.pending;
  };
  const auto finding = find_in(order, crossing);
  ASSERT_TRUE(finding.ok());
  EXPECT_FALSE(finding->holds);
  EXPECT_THAT(finding->text, HasSubstr("pending 8"));
}

TEST_F(Findings, OrdersOfQuotients) {
  const std::string order =
      "where = { pending = 8 }\nover = { pending = 1 }\nis = \"ordered\"\n"
      "groups = [{ protocol = \"read\" }, { protocol = \"send/send\" }]\n";
  // READ gains more, though SEND/SEND is faster.
  const auto gbps = [](const bench::Point& point) { return is_read(point) ? point.pending : 100.; };
  EXPECT_TRUE(holds(order, gbps));
}

// Two seeds differ by as much.
TEST_F(Findings, OrdersHaveAMargin) {
  const std::string order =
      "where = { pending = 8 }\nis = \"ordered\"\n"
      "groups = [{ protocol = \"read\" }, { protocol = \"send/send\" }]\n";
  const auto ahead_by = [](double gbps) {
    return [gbps](const bench::Point& point) { return is_read(point) ? 100 + gbps : 100.; };
  };
  EXPECT_FALSE(holds(order, ahead_by(1)));
  EXPECT_TRUE(holds(order, ahead_by(3)));
  EXPECT_FALSE(holds(order + "ascending = true\n", ahead_by(-1)));
  EXPECT_TRUE(holds(order + "ascending = true\n", ahead_by(-3)));
}

TEST_F(Findings, ThresholdsAreThoseStated) {
  const std::string reaches =
      "of = { protocol = \"read\", response = 1024 }\nis = \"reaches\"\nalong = \"pending\"\n";
  const auto from_four = [](const bench::Point& point) { return point.pending >= 4 ? 10.0 : 5.0; };
  EXPECT_TRUE(holds(reaches, from_four, stating(4, 4, ">=", "count")));
  EXPECT_TRUE(holds(reaches, from_four, stating(3, 3, ">=", "count")));
  EXPECT_TRUE(holds(reaches, from_four, stating(2, 2, ">", "count")));
  EXPECT_FALSE(holds(reaches, from_four, stating(2, 2, ">=", "count")));
  EXPECT_FALSE(holds(reaches, from_four, stating(8, 8, ">=", "count")));

  const std::string keeps =
      "of = { protocol = \"read\", response = 1024 }\nis = \"holds\"\nalong = \"pending\"\n";
  const auto until_two = [](const bench::Point& point) { return point.pending <= 2 ? 10.0 : 5.0; };
  EXPECT_TRUE(holds(keeps, until_two, stating(2, 2, "<=", "count")));
  EXPECT_TRUE(holds(keeps, until_two, stating(3, 3, "<=", "count")));
  EXPECT_FALSE(holds(keeps, until_two, stating(4, 4, "<=", "count")));
}

TEST_F(Findings, CrossoversAreFromWhereOnItStays) {
  const std::string overtakes =
      "where = { response = 1024 }\nof = { protocol = \"send/send\" }\n"
      "than = { protocol = \"read\" }\nis = \"overtakes\"\nshare = 1\nalong = \"pending\"\n";
  const auto gbps = [](const bench::Point& point) {
    if (is_read(point)) return 3.0;
    return point.pending == 2 ? 2.0 : 4.0;  // above at 1, below at 2, above again
  };
  EXPECT_TRUE(holds(overtakes, gbps, stating(4, 4, "crossover at", "count")));
  EXPECT_FALSE(holds(overtakes, gbps, stating(1, 1, "crossover at", "count")));
  const auto never = [](const bench::Point& point) { return is_read(point) ? 3.0 : 1.0; };
  const auto finding = find_in(overtakes, never, stating(4, 4, "crossover at", "count"));
  ASSERT_TRUE(finding.ok());
  EXPECT_FALSE(finding->holds);
  EXPECT_EQ(finding->text, "nowhere");
}

TEST_F(Findings, SizesAreStatedInKilobytes) {
  const std::string converges =
      "where = { pending = 1 }\nis = \"converges\"\nalong = \"response\"\n";
  const auto gbps = [](const bench::Point& point) {
    return is_read(point) || response_bytes(point) == 8192 ? 10.0 : 5.0;
  };
  const auto finding = find_in(converges, gbps, stating(8, 8, ">=", "KB"));
  ASSERT_TRUE(finding.ok());
  EXPECT_TRUE(finding->holds);
  EXPECT_DOUBLE_EQ(*finding->number, 8);
}

TEST_F(Findings, WhatIsNotThereIsNoFinding) {
  const auto ten = [](const bench::Point&) { return 10.0; };
  broken_pending_ = 4;
  const auto failed = find_in(kOnePoint, ten, stating(9, 9));
  EXPECT_EQ(failed.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(failed.status().message(), HasSubstr("no RNIC"));
  const auto unmeasured =
      find_in("of = { pending = 1 }\nmetric = \"responder-cycles\"\n", ten, stating(9, 9, "=", ""));
  EXPECT_EQ(unmeasured.status().code(), StatusCode::kUnsupported);
}

TEST_F(Findings, OtherMetricsHaveTheirUnits) {
  const auto ten = [](const bench::Point&) { return 10.0; };
  const std::string latency = std::string(kOnePoint) + "metric = \"latency\"\n";
  const auto finding = find_in(latency, ten, stating(1.5, 1.5, "=", "us"));
  ASSERT_TRUE(finding.ok());
  EXPECT_DOUBLE_EQ(*finding->number, 1.5);
  EXPECT_EQ(find_in(latency, ten, stating(1.5, 1.5)).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::reproduce
