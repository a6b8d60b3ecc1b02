#include "src/bench/experiment/experiment_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "src/bench/verbs/verbs_workload.h"

namespace verbena::bench {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ExperimentFile : public testing::Test {
 protected:
  ExperimentFile() {
    std::string name = (std::filesystem::temp_directory_path() / "experiment-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ExperimentFile() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return folder_ / "x.toml"; }
  Result<Plan> read(const std::string& text) const {
    std::ofstream(path()) << text;
    return read_experiment_file(path());
  }
  std::string refusal_of(const std::string& text) const {
    const Status status = read(text).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path()), HasSubstr("line ")));
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    return status.message();
  }
  std::filesystem::path folder_;
};

TEST_F(ExperimentFile, IsAPlan) {
  const Result<Plan> plan = read(R"(
title = "a title"
figure = 3
topology = "N-to-1"
runs = 10
duration = "2s"
verify = true
[axes]
protocol = ["read", "write/write"]
nodes = [1, 2]
value = "64,...,256"
active = [0.5, 1]
[machine]
link_gbps = 56
)");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->runs, 10u);
  EXPECT_EQ(plan->run.length.duration_ns, 2'000'000'000u);
  EXPECT_TRUE(plan->run.verify);
  EXPECT_EQ(plan->about["title"], "a title");
  EXPECT_EQ(plan->about["figure"], "3");
  EXPECT_EQ(plan->about["machine"]["link_gbps"], "56");
  const std::vector<PointGroup> groups = point_groups(*plan).value();
  EXPECT_EQ(groups.size(), 2u * 3u * 2u);
  for (const PointGroup& group : groups) EXPECT_EQ(group.size(), 2u);
  EXPECT_EQ(groups[0][0].responder_threads, 1u);
}

TEST_F(ExperimentFile, SweepsReplaceAxesAndTopology) {
  const Result<Plan> plan = read(R"(
topology = "M:1"
requests = 1000
[axes]
protocol = "read"
nodes = 28
[[sweep]]
threads = 1
responder-threads = 14
[[sweep]]
topology = "M:M"
threads = [2, 4]
)");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->run.length.requests, 1000u);
  const std::vector<PointGroup> groups = point_groups(*plan).value();
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0][0].responder_threads, 14u);
  EXPECT_EQ(groups[1][0].topology, Topology::kAllToAll);
  EXPECT_EQ(groups[2][0].threads, 4u);
}

TEST_F(ExperimentFile, ErrorsNameLineCauseAndRemedy) {
  EXPECT_THAT(refusal_of("topology = \"M:1\"\nthread = 2\n"),
              AllOf(HasSubstr("line 2"), HasSubstr("'thread'"), HasSubstr("topology")));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\nnodes = 2\n"), HasSubstr("below [axes]"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\n[axes]\n\nthread = 2\n"),
              AllOf(HasSubstr("line 4"), HasSubstr("'thread'"), HasSubstr("threads")));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\n[axes]\nnodes = 0\n"),
              AllOf(HasSubstr("line 3"), HasSubstr("1 to 1024")));
  EXPECT_THAT(refusal_of("topology = \"star\"\n"), AllOf(HasSubstr("line 1"), HasSubstr("N-to-M")));
  EXPECT_THAT(refusal_of("runs = 3\n"), HasSubstr("topology"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\nruns = 0\n"), HasSubstr("1 to 1000"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\nduration = \"5\"\n"), HasSubstr("500ms"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\nduration = \"5s\"\nrequests = 1\n"),
              HasSubstr("leave one out"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\nverify = 1\n"), HasSubstr("true or false"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\n[axes]\nnodes = [[1]]\n"),
              HasSubstr("list in a list"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\n[axes]\nnodes = true\n"), HasSubstr("'nodes'"));
  EXPECT_THAT(refusal_of("topology = \"M:1\"\n[sweep]\nnodes = 1\n"), HasSubstr("[[sweep]]"));
  EXPECT_THAT(refusal_of("topology = \n"), HasSubstr("line 1"));
  EXPECT_EQ(read_experiment_file(folder_ / "none.toml").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(read_experiment_file(folder_).ok());
}

TEST_F(ExperimentFile, OfVerbsHasTheirAxesAndNoTopology) {
  const Result<Plan> plan = read(R"(
kind = "verbs"
[axes]
operation = ["write", "read"]
size = "8,...,64"
[[sweep]]
pending = 1
[[sweep]]
entries = 4
)");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  ASSERT_EQ(plan->sweeps.size(), 2u);
  for (const Sweep& sweep : plan->sweeps) {
    EXPECT_EQ(&sweep.workload(), &verbs_workload());
    EXPECT_EQ(sweep.values(*verbs_workload().find_axis("size")).size(), 4u);
  }
  EXPECT_THAT(refusal_of("kind = 'verbs'\ntopology = 'M:1'\n"), HasSubstr("no topology"));
  EXPECT_THAT(refusal_of("kind = 'verbs'\n[[sweep]]\ntopology = 'M:1'\n"),
              HasSubstr("no topology"));
  EXPECT_THAT(refusal_of("kind = 'verbs'\nverify = true\n"), HasSubstr("not verified"));
  EXPECT_THAT(refusal_of("kind = 'messages'\n"), HasSubstr("'kind' is"));
  EXPECT_THAT(refusal_of("kind = 'verbs'\n[axes]\nprotocol = 'read'\n"),
              HasSubstr("raw verbs have no axis 'protocol'"));
  EXPECT_THAT(refusal_of("topology = 'M:1'\n[axes]\nentries = 2\n"),
              HasSubstr("no axis 'entries'"));
}

}  // namespace
}  // namespace verbena::bench
