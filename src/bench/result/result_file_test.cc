#include "src/bench/result/result_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/base/build_info.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/run/session.h"

namespace verbena::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ResultFile : public testing::Test {
 protected:
  ResultFile() {
    std::string name = (std::filesystem::temp_directory_path() / "result-file-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ResultFile() override { std::filesystem::remove_all(folder_); }
  std::string text(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  std::filesystem::path folder_;
};

Point point_of(Protocol protocol) {
  Point point = request_response_workload().point();
  request_response_settings(point).protocol = protocol;
  return point;
}

PointResult measured() {
  PointResult result{.point = point_of(Protocol::kWriteSend), .verify = true};
  result.point.pending = 4;
  RequestResponseSettings& settings = request_response_settings(result.point);
  settings.layout = MarkLayout::kLengthMarkers;
  settings.response_bytes = 936;
  for (double rate : {1e6, 2e6, 4e6}) {
    result.runs.push_back(
        {.requests = 1000,
         .rate_per_s = rate,
         .p50_ns = 4e9 / rate,
         .p99_ns = 5e9 / rate,
         .p999_ns = 6e9 / rate,
         .requester_cost = CpuCost{.cycles = rate / 1e4, .instructions = rate / 1e3},
         .responder_cost = std::nullopt});
  }
  return result;
}

TEST_F(ResultFile, HasTheKeysThatOthersRead) {
  const json document = result_document(
      {.device = "soft0", .command = "verbena bench", .settings = nullptr}, {measured()});
  EXPECT_EQ(document["device"], "soft0");
  EXPECT_EQ(document["command"], "verbena bench");
  EXPECT_EQ(document["commit"], build_commit());
  EXPECT_TRUE(document["machine"]["hostname"].is_string());
  ASSERT_EQ(document["results"].size(), 1u);
  const json& row = document["results"][0];
  EXPECT_EQ(row["topology"], "one-to-one");
  EXPECT_EQ(row["protocol"], "write/send");
  EXPECT_EQ(row["mark_layout"], "length-markers");
  EXPECT_EQ(row["device"], "soft0");
  EXPECT_EQ(row["request_bytes"], 64);
  EXPECT_EQ(row["response_bytes"], 936);
  EXPECT_EQ(row["pending"], 4);
  EXPECT_EQ(row["nodes"], 2);
  EXPECT_EQ(row["threads"], 1);
  EXPECT_EQ(row["requester_nodes"], 1);
  EXPECT_EQ(row["responder_nodes"], 1);
  EXPECT_EQ(row["queue_pairs"], json({{"all", 1}, {"most_per_node", 1}}));
  EXPECT_EQ(row["value_bandwidth_bytes_per_s"], 936 * 2e6);
  EXPECT_DOUBLE_EQ(row["mean"]["rate_per_s"].get<double>(), 7e6 / 3);
  EXPECT_EQ(row["run_results"].size(), 3u);
  EXPECT_EQ(row["rate_per_s"], 2e6);
  EXPECT_EQ(row["total_bandwidth_bytes_per_s"], 2e9);
  EXPECT_EQ(row["latency_ns"], json({{"p50", 2000.0}, {"p99", 2500.0}, {"p999", 3000.0}}));
  EXPECT_EQ(row["verified"], true);
  EXPECT_EQ(row["errors"], 0);
  EXPECT_EQ(row["runs"], 3);
  EXPECT_EQ(row["requests_measured"], 3000);
  EXPECT_EQ(
      row["spread"],
      json({{"rate_min", 1e6}, {"rate_max", 4e6}, {"p50_min_ns", 1000.0}, {"p50_max_ns", 4000.0}}));
  EXPECT_EQ(row["cpu"]["requester"], json({{"cycles_per_message", 200.0},
                                           {"cycles_per_byte", 200.0 / 936},
                                           {"instructions_per_message", 2000.0},
                                           {"instructions_per_byte", 2000.0 / 936}}));
  EXPECT_TRUE(row["cpu"]["responder"].is_null());
  EXPECT_FALSE(row.contains("error"));
}

TEST_F(ResultFile, ASingleRunHasNoSpread) {
  PointResult result = measured();
  result.runs.resize(1);
  const json row = to_json(result);
  EXPECT_EQ(row["rate_per_s"], 1e6);
  EXPECT_FALSE(row.contains("spread"));
}

TEST_F(ResultFile, WhereEveryNodeRequestsEachHasItsShare) {
  PointResult result = measured();
  EXPECT_FALSE(to_json(result).contains("value_bandwidth_per_node_bytes_per_s"));
  result.point.topology = Topology::kAllToAll;
  result.point.nodes = 4;
  EXPECT_EQ(to_json(result)["value_bandwidth_per_node_bytes_per_s"], 936 * 2e6 / 4);
}

TEST_F(ResultFile, AFailedPointHasNoNumbersAndIsNotVerified) {
  PointResult result{.point = point_of(Protocol::kRead), .verify = true, .errors = 3};
  result.error = "the responder is gone";
  json row = to_json(result);
  EXPECT_EQ(row["errors"], 3);
  EXPECT_EQ(row["error"], "the responder is gone");
  EXPECT_EQ(row["verified"], false);
  EXPECT_TRUE(row["rate_per_s"].is_null());
  EXPECT_TRUE(row["latency_ns"]["p50"].is_null());
  EXPECT_EQ(row["mark_layout"], "none");

  result = measured();
  result.errors = 1;
  row = to_json(result);
  EXPECT_EQ(row["verified"], false);
  EXPECT_EQ(row["rate_per_s"], 2e6);
}

TEST_F(ResultFile, OnlyResponsesCountForTheBandwidthOfReads) {
  PointResult result = measured();
  request_response_settings(result.point).protocol = Protocol::kRead;
  EXPECT_EQ(to_json(result)["value_bandwidth_bytes_per_s"], 936 * 2e6);
  EXPECT_EQ(to_json(result)["total_bandwidth_bytes_per_s"], 936 * 2e6);
}

TEST_F(ResultFile, CanBeGoneOnFrom) {
  Plan plan;
  plan.sweeps.push_back(Sweep::in("M:1", request_response_workload()).value());
  ASSERT_TRUE(plan.sweeps[0].set("protocol", "write/send,read").ok());
  const std::vector<PointGroup> groups = point_groups(plan).value();
  ResultOrigin origin{.device = "soft0", .command = "x", .plan = plan_json(plan)};
  const std::string path = folder_ / "x.json";
  EXPECT_TRUE(read_results(path, origin, groups)->empty());

  PointResult first = measured();
  first.point = groups[0][0];
  first.runs[0].metrics = {0.25};
  PointResult failed{.point = groups[0][1], .number = 1, .errors = 1};
  ASSERT_TRUE(write_json_file(path, result_document(origin, {first, failed})).ok());
  const Result<std::vector<PointResult>> results = read_results(path, origin, groups);
  ASSERT_TRUE(results.ok()) << results.status().message();
  ASSERT_EQ(results->size(), 1u);
  first.verify = false;  // the plan does not ask for it
  EXPECT_EQ(to_json((*results)[0]), to_json(first));
  EXPECT_EQ(count_runs(groups, 3, *results), 3u);
  EXPECT_EQ(count_runs(groups, 5, *results), 7u);

  // As an earlier version wrote it.
  json earlier = result_document(origin, {first});
  json& run = earlier["results"][0]["run_results"][0];
  run["empty_look_share"] = run["empty_poll_share"];
  run.erase("empty_poll_share");
  ASSERT_TRUE(write_json_file(path, earlier).ok());
  EXPECT_EQ(to_json(read_results(path, origin, groups).value()[0]), to_json(first));

  run["requests"] = 0;
  ASSERT_TRUE(write_json_file(path, earlier).ok());
  EXPECT_TRUE(read_results(path, origin, groups)->empty());

  const auto refusal = [&] { return read_results(path, origin, groups).status().message(); };
  origin.plan["runs"] = 4;
  EXPECT_THAT(refusal(), testing::AllOf(testing::HasSubstr(path), testing::HasSubstr("plan")));
  origin.plan["runs"] = 3;
  origin.device = "mlx5_0";
  EXPECT_THAT(refusal(), testing::HasSubstr("another device"));
  std::ofstream(path) << "{";
  EXPECT_THAT(refusal(), testing::HasSubstr("not a result file"));
  json damaged =
      result_document({.device = "mlx5_0", .command = "x", .plan = origin.plan}, {first});
  damaged["results"][0]["plan_number"] = 99;
  ASSERT_TRUE(write_json_file(path, damaged).ok());
  EXPECT_THAT(refusal(), testing::HasSubstr("damaged"));
  damaged["results"][0]["plan_number"] = 0;
  damaged["results"][0]["run_results"][0]["mark_layout"] = "lost-bit";
  ASSERT_TRUE(write_json_file(path, damaged).ok());
  EXPECT_THAT(refusal(),
              testing::AllOf(testing::HasSubstr("damaged"), testing::HasSubstr("lost-bit")));
  damaged["results"][0]["run_results"][0]["mark_layout"] = "last-bit";
  damaged["results"][0]["profile"] = {{"instructions", {{"requester", nullptr}}}};
  ASSERT_TRUE(write_json_file(path, damaged).ok());
  EXPECT_THAT(refusal(), testing::HasSubstr("damaged"));
  damaged["device"] = 5;
  ASSERT_TRUE(write_json_file(path, damaged).ok());
  EXPECT_THAT(refusal(), testing::HasSubstr("another device"));
}

TEST_F(ResultFile, OneThatCannotBeReadIsNotReplaced) {
  const ResultOrigin origin{.device = "soft0", .command = "x"};
  const std::string path = folder_ / "x.json";
  std::filesystem::create_symlink(path, path);
  const auto read = read_results(path, origin, {});
  EXPECT_FALSE(read.ok());
  EXPECT_THAT(read.status().message(), testing::AllOf(HasSubstr(path), HasSubstr("cannot read")));
}

TEST_F(ResultFile, OneOfAnotherSeedIsNotGoneOnFrom) {
  Plan plan;
  plan.sweeps.push_back(Sweep::in("one-to-one", request_response_workload()).value());
  const std::vector<PointGroup> groups = point_groups(plan).value();
  ResultOrigin origin{.device = "sim:x", .command = "x", .plan = plan_json(plan)};
  const std::string path = folder_ / "x.json";
  PointResult result = measured();
  result.point = groups[0][0];
  // As an earlier version wrote it.
  ASSERT_TRUE(write_json_file(path, result_document(origin, {result})).ok());
  origin.settings = {{"seed", 2}};
  EXPECT_TRUE(read_results(path, origin, groups).ok());
  ASSERT_TRUE(write_json_file(path, result_document(origin, {result})).ok());
  EXPECT_TRUE(read_results(path, origin, groups).ok());
  origin.settings["seed"] = 3;
  EXPECT_THAT(read_results(path, origin, groups).status().message(), HasSubstr("VERBENA_SEED=2"));

  // Sessions on other devices have each their own.
  origin.device = "soft0";
  ASSERT_TRUE(write_json_file(path, result_document(origin, {result})).ok());
  origin.settings["seed"] = 4;
  EXPECT_TRUE(read_results(path, origin, groups).ok());
}

TEST_F(ResultFile, IsReplacedWhole) {
  const std::string path = folder_ / "x.json";
  ASSERT_TRUE(write_json_file(path, {{"a", 1}}).ok());
  EXPECT_EQ(json::parse(text("x.json")), json({{"a", 1}}));
  ASSERT_TRUE(check_writable(path).ok());
  EXPECT_EQ(json::parse(text("x.json")), json({{"a", 1}}));
  ASSERT_TRUE(write_json_file(path, {{"b", "\xff no UTF-8"}}).ok());
  EXPECT_TRUE(json::parse(text("x.json")).contains("b"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  const mode_t mask = umask(0);
  umask(mask);
  EXPECT_EQ(status.st_mode & 0777, 0666 & ~mask);
}

TEST_F(ResultFile, NamesThePlaceThatCannotBeWritten) {
  for (const std::string& path : {(folder_ / "no" / "x.json").string(), folder_.string(),
                                  std::string("/dev/null"), std::string("/proc/x.json")}) {
    const Status status = check_writable(path);
    EXPECT_FALSE(status.ok()) << path;
    EXPECT_THAT(status.message(), testing::HasSubstr(path));
    EXPECT_FALSE(write_json_file(path, {}).ok());
  }
}

TEST(CommandText, CanBePastedIntoAShell) {
  const char* argv[] = {"/usr/bin/verbena", "bench",     "--response", "64,…,4MiB",
                        "--json",           "it's.json", "a b",        ""};
  EXPECT_EQ(command_text(8, argv),
            "verbena bench --response 64,…,4MiB --json 'it'\\''s.json' 'a b' ''");
}

// Runs of three variants take turns; each counts by its median: 1, 8 and 5 M/s.
PointResult with_variants() {
  PointResult result = measured();
  const RunResult one = result.runs.front();
  result.variants = 3;
  result.runs.clear();
  for (const double rate : {1.0, 8.0, 3.0, 1.0, 8.0, 7.0}) {
    result.runs.push_back(one);
    result.runs.back().rate_per_s = rate * 1e6;
    result.runs.back().p50_ns = 1e3 / rate;
    result.runs.back().simulated = SimulationCounts{.events = 1};
  }
  return result;
}

TEST_F(ResultFile, VariantsHaveABand) {
  const PointResult result = with_variants();
  const json row = to_json(result);
  EXPECT_EQ(row["variants"], 3);
  EXPECT_EQ(row["rate_band"], json({1e6, 8e6}));
  EXPECT_EQ(row["p50_band"][0], 125.0);
  EXPECT_EQ(row["p50_band"][1], 1000.0);
  EXPECT_EQ(row["rate_per_s"], 5e6);
  EXPECT_EQ(row["run_results"][4]["variant"], 1);
  const std::string text = bands_text({result});
  EXPECT_THAT(text, HasSubstr("over 3 variants of the profile"));
  EXPECT_THAT(text, HasSubstr("5.00 M/s  1.00 M/s to 8.00 M/s  -80 %/+60 %"));
}

TEST_F(ResultFile, ThereIsNoBandBeforeEachVariantHasARun) {
  PointResult result = with_variants();
  result.runs.resize(2);
  EXPECT_FALSE(result.rate_band());
  EXPECT_FALSE(to_json(result).contains("rate_band"));
  result = with_variants();
  result.variants = 1;
  EXPECT_FALSE(to_json(result).contains("variants"));
  EXPECT_FALSE(to_json(result)["run_results"][0].contains("variant"));
  EXPECT_THAT(bands_text({result}), HasSubstr("no band measured: --variants"));
  EXPECT_EQ(bands_text({measured()}), "");
}

TEST_F(ResultFile, VariantsAreGoneOnFrom) {
  Plan plan;
  plan.sweeps.push_back(*Sweep::in("one-to-one", request_response_workload()));
  plan.run.variants = 3;
  EXPECT_EQ(plan.runs_of_point(), 9U);
  const ResultOrigin origin{.device = "sim:x", .command = "verbena", .plan = plan_json(plan)};
  PointResult result = with_variants();
  result.point = point_groups(plan)->front().front();
  const std::string path = (folder_ / "results.json").string();
  ASSERT_TRUE(write_json_file(path, result_document(origin, {result})).ok());
  const auto read = read_results(path, origin, *point_groups(plan));
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), 1U);
  EXPECT_EQ(read->front().variants, 3U);
  EXPECT_EQ(to_json(read->front())["rate_band"], json({1e6, 8e6}));
  plan.run.variants = 2;
  const ResultOrigin other{.device = "sim:x", .command = "verbena", .plan = plan_json(plan)};
  EXPECT_FALSE(read_results(path, other, *point_groups(plan)).ok());
}

}  // namespace
}  // namespace verbena::bench
