#include "src/reproduce/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "src/bench/experiment/workload.h"
#include "src/device/sim/profile_files.h"
#include "src/device/sim/rnic_profile.h"
#include "src/reproduce/finding.h"

namespace verbena::reproduce {
namespace {

using testing::HasSubstr;

const std::string kRepository = VERBENA_SOURCE_DIR;

// A folder like reproduce/ with one paper.
class SmallCatalog : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void SetUp() override {
    folder_ = testing::TempDir() + "/catalog-" + std::to_string(getpid()) + "-" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_ + "/checks");
    write("claims.csv",
          "id,paper,section,figure_or_table,experiment,setup,metric,subject,value,unit,relation,"
          "kind\np.one,p,1,Fig. 1,e,s,m,x,5,Gbps,=,result\np.two,p,1,,e,s,m,x,,,ordering,setup\n");
    write("spent.toml", "");
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }
  Result<Catalog> read_with(const std::string& checks) {
    write("checks/p.toml", "paper = \"p\"\ndevice = \"d\"\nduration = \"1ms\"\n" + checks);
    return read_catalog(folder_);
  }
  std::string folder_;
};

constexpr const char* kTwo = R"(
[[unchecked]]
reason = "set"
ids = ["p.two"]
)";
constexpr const char* kOne = R"(
[[check]]
id = "p.one"
in = "e"
of = { pending = 4 }
)";

TEST_F(SmallCatalog, BringsClaimsAndChecksTogether) {
  const auto catalog = read_with(std::string(kOne) + kTwo);
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  ASSERT_EQ(catalog->claims.size(), 2U);
  EXPECT_EQ(catalog->check_of(catalog->claims[0]).parts.size(), 1U);
  EXPECT_EQ(catalog->check_of(catalog->claims[1]).unchecked, "set");
  EXPECT_EQ(catalog->paper_of(catalog->claims[1]).device, "d");
  EXPECT_THAT(select_claims(*catalog, "e").value(), testing::ElementsAre("p.one"));
  EXPECT_THAT(select_claims(*catalog, "p").value(), testing::ElementsAre("p.one", "p.two"));
  EXPECT_EQ(select_claims(*catalog, "q").status().code(), StatusCode::kNotFound);
}

TEST_F(SmallCatalog, RefusesAClaimWithoutACheck) {
  EXPECT_THAT(read_with(kTwo).status().message(), HasSubstr("'p.one' has no check"));
}

TEST_F(SmallCatalog, RefusesASecondCheck) {
  EXPECT_THAT(read_with(std::string(kOne) + kOne + kTwo).status().message(),
              HasSubstr("a second check of 'p.one'"));
}

TEST_F(SmallCatalog, RefusesACheckOfNothing) {
  EXPECT_THAT(read_with("[[unchecked]]\nreason = \"r\"\nids = [\"p.none\"]\n").status().message(),
              HasSubstr("there is no claim 'p.none'"));
}

TEST_F(SmallCatalog, SaysWhatIsWrongInACheck) {
  const auto error_of = [&](const std::string& line) {
    return read_with(kOne + line + "\n" + kTwo).status().message();
  };
  EXPECT_THAT(error_of("seems = 3"), HasSubstr("there is no key 'seems'"));
  EXPECT_THAT(error_of("metric = \"luck\""), HasSubstr("there is no metric 'luck'"));
  EXPECT_THAT(error_of("is = \"rises\""), HasSubstr("no 'along'"));
  EXPECT_THAT(error_of("is = \"ordered\""), HasSubstr("two 'groups' or more"));
  EXPECT_THAT(error_of("over = { pendant = 3 }"), HasSubstr("there is no axis 'pendant'"));
  EXPECT_THAT(error_of("than = { pending = 3 }"), HasSubstr("'overtakes' has 'than'"));
}

TEST_F(SmallCatalog, ReadsHowLongAnExperimentIsMeasured) {
  const auto use_of = [&](const std::string& lines) {
    return read_with("[experiment.e]\n" + lines + kOne + kTwo);
  };
  EXPECT_EQ(use_of("duration = \"2ms\"\n")->papers[0].uses["e"].duration_ns, 2'000'000U);
  EXPECT_EQ(use_of("operations = 500500\n")->papers[0].uses["e"].operations, 500'500U);
  for (const char* lines :
       {"operations = 0\n", "operations = \"many\"\n", "operations = 5\nduration = \"2ms\"\n"}) {
    EXPECT_THAT(use_of(lines).status().message(), HasSubstr("'operations' is a number")) << lines;
  }
}

TEST_F(SmallCatalog, ReadsWhichClaimsAreSpentAndOnWhat) {
  write("spent.toml",
        "[[spent]]\nby = \"rx_receive\"\nclaims = [\"p.one\"]\n"
        "[[spent]]\nby = \"pending of e\"\nclaims = [\"p.one\"]\n");
  const auto catalog = read_with(std::string(kOne) + kTwo);
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  EXPECT_THAT(catalog->spent,
              testing::ElementsAre(testing::Pair("p.one", "rx_receive, pending of e")));
}

TEST_F(SmallCatalog, SaysWhatIsWrongInTheListOfSpentClaims) {
  const auto error_of = [&](const std::string& list) {
    write("spent.toml", list);
    return read_with(std::string(kOne) + kTwo).status().message();
  };
  EXPECT_THAT(error_of("[[spent]]\nby = \"x\"\nclaims = [\"p.none\"]\n"),
              HasSubstr("spent.toml: there is no claim 'p.none'"));
  EXPECT_THAT(error_of("[[spent]]\nclaims = [\"p.one\"]\n"), HasSubstr("line 1: no text 'by'"));
  EXPECT_THAT(error_of("[[spent]]\nby = \"x\"\n"), HasSubstr("line 1: no list 'claims'"));
  EXPECT_THAT(error_of("spend = 1\n"), HasSubstr("only entries [[spent]]"));
  EXPECT_THAT(error_of("[[spent]\n"), HasSubstr("spent.toml line 1"));
  std::filesystem::remove(folder_ + "/spent.toml");
  EXPECT_THAT(read_with(std::string(kOne) + kTwo).status().message(),
              HasSubstr("there is no list"));
}

TEST(Metrics, OneWayIsHalfOfAPingPongAndTheMeanOfACollective) {
  const auto one_way = [](const nlohmann::json& row) { return find_metric("one-way")->read(row); };
  EXPECT_EQ(one_way({{"test", "latency"}, {"rate_per_s", 1e6}, {"collective_ns", 0}}), 500);
  EXPECT_EQ(one_way({{"test", "broadcast"}, {"rate_per_s", 1e6}, {"collective_ns", 700}}), 700);
  EXPECT_EQ(one_way({{"test", "latency"}}), std::nullopt);
}

// A row that has every metric.
nlohmann::json full_row(const bench::Point& point) {
  const nlohmann::json cost = {
      {"cycles_per_message", 1000}, {"instructions_per_byte", 10}, {"cycles_per_byte", 15}};
  const bench::Axis* entries = point.workload->find_axis("entries");
  return {{"topology", bench::topology_name(point.topology)},
          {"requester_nodes", point.nodes},
          {"responder_nodes", point.responder_nodes},
          {"responder_threads", point.responder_threads},
          {"threads", point.threads},
          {"entries", entries == nullptr ? 1 : entries->get(point)},
          {"value_bandwidth_bytes_per_s", 1e9},
          {"rate_per_s", 1e6},
          {"latency_ns", {{"p50", 1000}, {"p99", 2000}}},
          {"cpu", {{"requester", cost}, {"responder", cost}}},
          {"queue_pairs", {{"most_per_node", 4}}},
          {"queue_pairs_to_back_end", 4},
          {"empty_poll_share", 0.5},
          {"round_trips_per_operation", 1},
          {"sender_cycles_per_record", 100},
          {"collective_ns", 1000},
          {"ring_share", 0.5}};
}

// The files of the project: each claim has one check, and each check finds what it speaks of.
TEST(Catalog, TheProjectsChecksAreWhole) {
  const auto catalog = read_catalog(kRepository + "/reproduce");
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  EXPECT_EQ(catalog->claims.size(), 589U);
  const std::set<std::string> all = select_claims(*catalog, "all").value();
  EXPECT_EQ(all.size(), 589U);
  Experiments experiments(kRepository + "/experiments");
  Measurements measurements;
  for (const PaperChecks& paper : catalog->papers) {
    const auto wanted = wanted_points(*catalog, paper, all, experiments);
    ASSERT_TRUE(wanted.ok()) << wanted.status().message();
    for (const WantedPoint& one : *wanted) {
      measurements.add(one.point, {.row = full_row(one.point)});
    }
  }
  for (const Claim& claim : catalog->claims) {
    const Check& check = catalog->check_of(claim);
    EXPECT_EQ(check.parts.empty(), !check.unchecked.empty()) << claim.id;
    for (const Part& part : check.parts) {
      const Source source{&experiments, &catalog->paper_of(claim).uses, &measurements};
      const auto finding = find(part, claim, 0.25, source);
      EXPECT_TRUE(finding.ok()) << claim.id << ": " << finding.status().message();
    }
  }
}

// A value may be set by another claim one day; the claims that it was set by stay spent.
TEST(Catalog, WhatAProfileWasCalibratedByIsListed) {
  const auto catalog = read_catalog(kRepository + "/reproduce");
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  size_t cited = 0;
  for (const std::string& name : sim::installed_profile_names()) {
    const auto parameters = sim::profile_parameters(name);
    ASSERT_TRUE(parameters.ok()) << parameters.status().message();
    for (const sim::ParameterText& one : *parameters) {
      for (const std::string& claim : one.claims) {
        ++cited;
        EXPECT_TRUE(catalog->spent.contains(claim)) << name << ": " << one.name << ": " << claim;
      }
    }
  }
  EXPECT_GT(cited, 20U);
}

// The points whose own values a check compares with a number, with the metric.
std::set<std::pair<const Metric*, PointKey>> stated_points(const Check& check,
                                                           const PaperChecks& paper,
                                                           Experiments& experiments) {
  std::set<std::pair<const Metric*, PointKey>> stated;
  for (const Part& part : check.parts) {
    if (part.shape != Shape::kStated || part.over || part.minus) continue;
    const auto points = experiments.points(part.of, paper.uses);
    EXPECT_TRUE(points.ok()) << check.id;
    if (!points.ok()) continue;
    for (const bench::Point& point : *points) stated.emplace(part.metric, bench::key_of(point));
  }
  return stated;
}

// Whoever sets a value by what is measured at a point has seen what other claims state of it.
TEST(Catalog, ClaimsAboutAPointOfASpentClaimAreSpent) {
  const auto catalog = read_catalog(kRepository + "/reproduce");
  ASSERT_TRUE(catalog.ok()) << catalog.status().message();
  Experiments experiments(kRepository + "/experiments");
  std::map<std::pair<const Metric*, PointKey>, std::string> spent;
  for (const bool listed : {true, false}) {
    for (const Claim& claim : catalog->claims) {
      if (catalog->spent.contains(claim.id) != listed) continue;
      for (const auto& point :
           stated_points(catalog->check_of(claim), catalog->paper_of(claim), experiments)) {
        if (listed) {
          spent.emplace(point, claim.id);
        } else if (spent.contains(point)) {
          ADD_FAILURE() << claim.id << " is about a point of " << spent[point];
          break;
        }
      }
    }
  }
  EXPECT_GT(spent.size(), 20U);
}

}  // namespace
}  // namespace verbena::reproduce
