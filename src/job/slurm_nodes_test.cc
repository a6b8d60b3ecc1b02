#include "src/job/slurm_nodes.h"

#include <gtest/gtest.h>

namespace verbena::job {
namespace {

TEST(SlurmNodesTest, TheFirstNameIsWrittenOut) {
  EXPECT_EQ(first_slurm_node("login1"), "login1");
  EXPECT_EQ(first_slurm_node("a,b,c"), "a");
  EXPECT_EQ(first_slurm_node("node[03-05,7],login1"), "node03");
  EXPECT_EQ(first_slurm_node("node[7,03-05]"), "node7");
  EXPECT_EQ(first_slurm_node("rack[1-2]-node[08-09]"), "rack1-node08");
  EXPECT_EQ(first_slurm_node("node[001-128].cluster.example"), "node001.cluster.example");
}

TEST(SlurmNodesTest, WhatIsWrittenOtherwiseHasNone) {
  for (const char* text : {"", ",a", "node[", "node[]", "node[-3]"}) {
    EXPECT_EQ(first_slurm_node(text), "") << text;
  }
}

}  // namespace
}  // namespace verbena::job
