#include "src/job/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace verbena::job {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Variables = std::map<std::string, std::string>;

Result<Placement> placement_in(const Variables& variables) {
  return find_placement([&variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

void expect_seat(const Result<Placement>& placement, int rank, int size) {
  ASSERT_TRUE(placement.ok()) << placement.status().message();
  EXPECT_EQ(placement->rank, rank);
  EXPECT_EQ(placement->size, size);
}

TEST(LauncherTest, WithoutALauncherNothingIsKnown) { expect_seat(placement_in({}), -1, -1); }

TEST(LauncherTest, PmiBringsASocket) {
  const auto placement = placement_in({{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"PMI_FD", "12"}});
  expect_seat(placement, 3, 8);
  EXPECT_EQ(placement->pmi_descriptor, 12);
}

TEST(LauncherTest, OpenMpiOnOneHostNeedsNoAddress) {
  const Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"PMIX_RANK", "1"},
                               {"PMIX_NAMESPACE", "job-77"}};
  const auto placement = placement_in(variables);
  expect_seat(placement, 1, 2);
  EXPECT_THAT(placement->coordinator, StartsWith("127.0.0.1:"));
}

TEST(LauncherTest, OpenMpiOnSeveralHostsDoesNotSayWhereRankZeroIs) {
  Variables variables = {{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(placement_in(variables)->coordinator, "");
  variables["VERBENA_COORDINATOR"] = "node-a:7000";
  EXPECT_EQ(placement_in(variables)->coordinator, "node-a:7000");
}

TEST(LauncherTest, SlurmNamesTheFirstHostOfTheStep) {
  Variables variables = {{"SLURM_PROCID", "5"},
                         {"SLURM_STEP_NUM_TASKS", "6"},
                         {"SLURM_NTASKS", "12"},
                         {"SLURM_STEP_NODELIST", "node[08-10]"},
                         {"SLURM_JOB_NODELIST", "node[01-10]"},
                         {"SLURM_JOB_ID", "4711"},
                         {"SLURM_STEP_ID", "0"}};
  const auto placement = placement_in(variables);
  expect_seat(placement, 5, 6);
  EXPECT_THAT(placement->coordinator, StartsWith("node08:"));
  // All ranks come to the same port; the next step has another one.
  variables["SLURM_PROCID"] = "0";
  EXPECT_EQ(placement_in(variables)->coordinator, placement->coordinator);
  variables["SLURM_STEP_ID"] = "1";
  EXPECT_NE(placement_in(variables)->coordinator, placement->coordinator);
}

TEST(LauncherTest, PmixUnderSlurmCountsForItself) {
  const auto placement = placement_in({{"PMIX_RANK", "2"},
                                       {"SLURM_PROCID", "0"},
                                       {"SLURM_STEP_NUM_TASKS", "4"},
                                       {"SLURM_STEP_NODELIST", "a,b"}});
  expect_seat(placement, 2, 4);
  EXPECT_EQ(placement->launcher, "PMIx under Slurm");
}

TEST(LauncherTest, LaunchersOnTopOfSlurmComeFirst) {
  const Variables slurm = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}};
  Variables variables = slurm;
  variables.insert({{"PMI_RANK", "7"}, {"PMI_SIZE", "16"}});
  expect_seat(placement_in(variables), 7, 16);
  variables.insert({{"VERBENA_RANK", "1"}, {"VERBENA_SIZE", "3"}});
  expect_seat(placement_in(variables), 1, 3);
}

TEST(LauncherTest, ContradictionsAreNamed) {
  for (const Variables& variables :
       {Variables{{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}},
        Variables{{"PMI_RANK", "-1"}, {"PMI_SIZE", "2"}},
        Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1000000"}}, Variables{{"PMI_RANK", "0"}}}) {
    const auto placement = placement_in(variables);
    ASSERT_FALSE(placement.ok());
    EXPECT_EQ(placement.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(placement.status().message(), HasSubstr("PMI_RANK, PMI_SIZE"));
  }
  EXPECT_THAT(placement_in({{"SLURM_PROCID", "two"}}).status().message(),
              HasSubstr("SLURM_PROCID is 'two'"));
}

}  // namespace
}  // namespace verbena::job
