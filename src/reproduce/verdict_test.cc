#include "src/reproduce/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "src/reproduce/figures.h"
#include "src/reproduce/summary.h"

namespace verbena::reproduce {
namespace {

using testing::HasSubstr;

// Four claims about one point: 10 Gbps, 8 Gbps (20 % beside it), one of hardware at 8, one that
// cannot be checked.
class Verdicts : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    folder_ = testing::TempDir() + "/verdicts-" + std::to_string(getpid()) + "-" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_ + "/checks");
    std::ofstream(folder_ + "/e.toml")
        << "topology = \"one-to-one\"\n[axes]\nprotocol = \"read\"\n";
    std::ofstream(folder_ + "/claims.csv")
        << "id,paper,section,figure_or_table,experiment,setup,metric,subject,value,unit,relation,"
           "kind\np.ten,p,1,,e,s,m,x,10,Gbps,=,result\np.eight,p,1,,e,s,m,x,8,Gbps,~,result\n"
           "p.link,p,1,,e,s,m,x,8,Gbps,=,calibration\np.app,p,1,,e,s,m,x,,,ordering a>b,result\n";
    std::ofstream(folder_ + "/spent.toml").flush();
    std::ofstream checks(folder_ + "/checks/p.toml");
    checks << "paper = \"p\"\ndevice = \"d\"\nduration = \"1ms\"\n"
              "[[unchecked]]\nreason = \"not built\"\nids = [\"p.app\"]\n";
    for (const char* id : {"p.ten", "p.eight", "p.link"}) {
      checks << "[[check]]\n in = \"e\"\nlacks = \"a cache\"\nid = \"" << id << "\"\n";
    }
  }

  std::vector<Verdict> judge_ten(const std::set<std::string>& chosen,
                                 const std::map<std::string, std::string>& spent = {}) {
    catalog_ = read_catalog(folder_);
    EXPECT_TRUE(catalog_->ok()) << catalog_->status().message();
    Experiments experiments(folder_);
    papers_["p"].spent = spent;
    const auto points = experiments.points("e");
    EXPECT_TRUE(points.ok());
    papers_["p"].measurements.add(points->at(0),
                                  {.row = {{"value_bandwidth_bytes_per_s", 10 / 8e-9}}});
    return judge(**catalog_, chosen, papers_, experiments);
  }

  std::string folder_;
  std::optional<Result<Catalog>> catalog_;
  std::map<std::string, PaperData> papers_;
};

const std::set<std::string> kAll = {"p.ten", "p.eight", "p.link", "p.app"};

TEST_F(Verdicts, HardwareHasTheNarrowerTolerance) {
  const auto verdicts = judge_ten(kAll);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kPass);
  EXPECT_EQ(verdicts[1].outcome, Outcome::kPass);
  EXPECT_EQ(verdicts[2].outcome, Outcome::kFail);
  EXPECT_EQ(verdicts[2].reason, "a cache");
  EXPECT_EQ(verdicts[3].outcome, Outcome::kUnchecked);
  EXPECT_EQ(verdicts[3].reason, "not built");
}

TEST_F(Verdicts, WhatTheProfileWasCalibratedWithDoesNotCount) {
  const auto verdicts = judge_ten(kAll, {{"p.ten", "tx_base"}});
  EXPECT_EQ(verdicts[0].outcome, Outcome::kPass);
  EXPECT_THAT(verdicts[0].reason, HasSubstr("spent on calibration (tx_base)"));
  const Tally count = tally(verdicts, "p");
  EXPECT_EQ(count.spent, 1U);
  EXPECT_EQ(count.spent_held, 1U);
  EXPECT_EQ(count.checked, 1U);
  EXPECT_EQ(count.passed, 1U);
  EXPECT_EQ(count.unchecked, 1U);
  EXPECT_EQ(count.calibration_rows, 1U);
  EXPECT_EQ(count.calibration_held, 0U);
  EXPECT_THAT(summary_line("p", count), HasSubstr("100 % of those checked"));
}

TEST_F(Verdicts, WhatIsNotSelectedIsNotSpentEither) {
  const Tally count = tally(judge_ten({"p.eight"}, {{"p.ten", "tx_base"}}), "p");
  EXPECT_EQ(count.spent, 0U);
  EXPECT_EQ(count.checked, 1U);
  EXPECT_EQ(count.unchecked, 2U);
}

TEST_F(Verdicts, AShareOfNothingIsNoShare) {
  const std::string line = summary_line("p", tally(judge_ten({"p.app"}), "p"));
  EXPECT_THAT(line, HasSubstr("nothing of it could be checked"));
  EXPECT_THAT(line, HasSubstr("no calibration row checked"));
  EXPECT_THAT(line, testing::Not(HasSubstr("0 % ")));
}

// 10, 12 and 20 Gbps: the median is within a quarter of 10, and so are two of the three.
TEST_F(Verdicts, TheMedianOfSeveralSeedsDecides) {
  const Result<Catalog> catalog = read_catalog(folder_);
  ASSERT_TRUE(catalog.ok());
  Experiments experiments(folder_);
  const auto points = experiments.points("e");
  ASSERT_TRUE(points.ok());
  PaperData& data = papers_["p"];
  data.runs = 3;
  const auto gbps = [](double rate) {
    return Measurement{.row = {{"value_bandwidth_bytes_per_s", rate / 8e-9}}};
  };
  data.measurements.add(points->at(0), gbps(20), 1);
  data.measurements.add(points->at(0), gbps(10), 2);
  EXPECT_EQ(judge(*catalog, {"p.ten"}, papers_, experiments)[0].outcome, Outcome::kUnchecked);
  data.measurements.add(points->at(0), gbps(12), 0);
  auto verdicts = judge(*catalog, {"p.ten"}, papers_, experiments);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kPass);
  EXPECT_NEAR(*verdicts[0].number, 12, 1e-9);
  EXPECT_EQ(verdicts[0].runs, 3U);
  EXPECT_EQ(verdicts[0].runs_held, 2U);
  EXPECT_THAT(verdicts_text(verdicts, "p"), HasSubstr("of 3 seeds"));
  EXPECT_EQ(to_json(verdicts)[0]["seeds_held"], 2);
  // One that holds by luck does not hold.
  data.measurements.add(points->at(0), gbps(14), 0);
  verdicts = judge(*catalog, {"p.ten"}, papers_, experiments);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kFail);
  EXPECT_EQ(verdicts[0].runs_held, 1U);
  data.measurements.add(points->at(0), {.error = "no RNIC"}, 1);
  verdicts = judge(*catalog, {"p.ten"}, papers_, experiments);
  EXPECT_EQ(verdicts[0].outcome, Outcome::kUnchecked);
  EXPECT_THAT(verdicts[0].reason, HasSubstr("no RNIC"));
}

// Of one seed and five variants, the first of which is the seed's run: what the profile as given
// finds is the verdict, and how many variants agree says what that is worth.
TEST_F(Verdicts, VariantsTellWhatHoldsByLuck) {
  const Result<Catalog> catalog = read_catalog(folder_);
  ASSERT_TRUE(catalog.ok());
  Experiments experiments(folder_);
  const auto points = experiments.points("e");
  ASSERT_TRUE(points.ok());
  PaperData& data = papers_["p"];
  data.variants = 5;
  const auto judged = [&](const std::vector<double>& rates_gbps) {
    for (size_t run = 0; run < rates_gbps.size(); ++run) {
      data.measurements.add(
          points->at(0), {.row = {{"value_bandwidth_bytes_per_s", rates_gbps[run] / 8e-9}}}, run);
    }
    return judge(*catalog, {"p.ten"}, papers_, experiments);
  };
  struct Case {
    std::vector<double> rates_gbps;
    Outcome outcome;
    size_t held;
    const char* name;
  };
  for (const Case& one : {Case{{10, 9, 11, 12, 8}, Outcome::kPass, 5, "always"},
                          Case{{10, 9, 11, 12, 20}, Outcome::kPass, 4, "mostly"},
                          Case{{10, 9, 11, 20, 20}, Outcome::kPass, 3, "by luck"},
                          Case{{20, 9, 11, 12, 8}, Outcome::kFail, 4, "mostly"},
                          Case{{20, 20, 20, 20, 20}, Outcome::kFail, 0, "never"}}) {
    const auto verdicts = judged(one.rates_gbps);
    EXPECT_EQ(verdicts[0].outcome, one.outcome) << one.name;
    EXPECT_NEAR(*verdicts[0].number, one.rates_gbps[0], 1e-9);
    EXPECT_EQ(verdicts[0].runs, 1U);
    EXPECT_EQ(verdicts[0].variants_held, one.held);
    EXPECT_STREQ(robustness_name(verdicts[0].robustness()), one.name);
    const nlohmann::json row = to_json(verdicts)[0];
    EXPECT_EQ(row["variants"], 5);
    EXPECT_EQ(row["variants_held"], one.held);
    EXPECT_EQ(row["holds"], one.name);
    EXPECT_THAT(verdicts_text(verdicts, "p"),
                AllOf(HasSubstr("of 5 variants"),
                      HasSubstr(std::string(one.name) + " (" + std::to_string(one.held) + ")"),
                      testing::Not(HasSubstr("seeds"))));
    EXPECT_THAT(summary_line("p", tally(verdicts, "p")),
                HasSubstr("over 5 variants they hold: " +
                          std::string(one.name == std::string("always") ? "1" : "0") + " always"));
  }
  // With three seeds the median of these decides, and the variants follow behind them.
  data.runs = 3;
  const auto verdicts = judged({20, 10, 11, 10, 10, 10, 20});
  EXPECT_EQ(verdicts[0].outcome, Outcome::kPass);
  EXPECT_NEAR(*verdicts[0].number, 11, 1e-9);
  EXPECT_EQ(verdicts[0].runs_held, 2U);
  EXPECT_EQ(verdicts[0].variants_held, 3U);
}

TEST_F(Verdicts, WithoutVariantsNothingIsSaidOfThem) {
  const auto verdicts = judge_ten(kAll);
  EXPECT_FALSE(to_json(verdicts)[0].contains("holds"));
  EXPECT_THAT(verdicts_text(verdicts, "p") + summary_line("p", tally(verdicts, "p")),
              testing::Not(HasSubstr("variant")));
}

TEST_F(Verdicts, SpentRowsHaveTheNarrowerTolerance) {
  EXPECT_EQ(judge_ten(kAll, {{"p.eight", "tx_base"}})[1].outcome, Outcome::kFail);
}

TEST_F(Verdicts, EveryClaimHasAnObject) {
  const nlohmann::json list = to_json(judge_ten({"p.ten"}, {{"p.eight", "tx_base"}}));
  ASSERT_EQ(list.size(), 4U);
  EXPECT_EQ(list[0]["id"], "p.ten");
  EXPECT_EQ(list[0]["stated"], 10.0);
  EXPECT_NEAR(list[0]["simulated"].get<double>(), 10, 1e-9);
  EXPECT_EQ(list[0]["verdict"], "pass");
  EXPECT_EQ(list[1]["verdict"], "unchecked");
  EXPECT_EQ(list[1]["reason"], "not selected");
  EXPECT_TRUE(list[1]["simulated"].is_null());
  EXPECT_EQ(list[3]["stated"], "ordering a>b");
}

TEST_F(Verdicts, NothingIsHidden) {
  const auto verdicts = judge_ten(kAll);
  const std::string text = verdicts_text(verdicts, "p");
  for (const char* part : {"p.ten", "p.eight", "p.link: a cache", "not built (1): app"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(Verdicts, FiguresHaveWhatIsStated) {
  const auto verdicts = judge_ten(kAll);
  Experiments experiments(folder_);
  const nlohmann::json figures = figures_json(**catalog_, verdicts, papers_, experiments);
  ASSERT_EQ(figures.size(), 1U);
  EXPECT_EQ(figures[0]["experiment"], "e");
  EXPECT_EQ(figures[0]["unit"], "Gbps");
  ASSERT_EQ(figures[0]["lines"].size(), 1U);
  EXPECT_EQ(figures[0]["lines"][0]["protocol"], "read");
  EXPECT_NEAR(figures[0]["lines"][0]["y"][0].get<double>(), 10, 1e-9);
  ASSERT_EQ(figures[0]["stated"].size(), 3U);
  EXPECT_EQ(figures[0]["stated"][1]["claim"], "p.eight");
  EXPECT_EQ(figures[0]["stated"][1]["low"], 8.0);
  EXPECT_EQ(figures[0]["stated"][1]["verdict"], "pass");
}

}  // namespace
}  // namespace verbena::reproduce
