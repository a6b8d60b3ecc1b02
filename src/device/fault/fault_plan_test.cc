#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "verbena/device.h"
#include "verbena/fault.h"

namespace verbena {
namespace {

using testing::HasSubstr;

TEST(FaultPlanTest, ReadsEveryPart) {
  const auto plan = FaultPlan::parse(
      "seed=7,delay=0.01:50us,rnr=0.001:1ms,completion_delay=1:2s,queue_pair_error=1e-6");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->seed, 7u);
  EXPECT_EQ(plan->delay.probability, 0.01);
  EXPECT_EQ(plan->delay.duration_ns, 50'000u);
  EXPECT_EQ(plan->rnr.probability, 0.001);
  EXPECT_EQ(plan->rnr.duration_ns, 1'000'000u);
  EXPECT_EQ(plan->completion_delay.probability, 1);
  EXPECT_EQ(plan->completion_delay.duration_ns, 2'000'000'000u);
  EXPECT_EQ(plan->queue_pair_error, 1e-6);
}

TEST(FaultPlanTest, WhatIsNotNamedIsOff) {
  const auto plan = FaultPlan::parse("delay=0.5:1.5us");
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->delay.duration_ns, 1'500u);
  EXPECT_EQ(plan->rnr.probability, 0);
  EXPECT_EQ(plan->queue_pair_error, 0);
}

TEST(FaultPlanTest, TextReadsBack) {
  for (const char* text :
       {"seed=18446744073709551615", "seed=3,delay=0.25:20us,queue_pair_error=0.5",
        "seed=1,rnr=1:1500ns,completion_delay=0.125:3ms"}) {
    const auto plan = FaultPlan::parse(text);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->text(), text);
  }
}

TEST(FaultPlanTest, OneLineNamesWhatIsWrong) {
  struct Wrong {
    const char* text;
    const char* part;
    const char* why;
  };
  for (const Wrong& wrong : {
           Wrong{"seed=7,drop=1:1us", "'drop=1:1us'", "the faults are seed, delay"},
           Wrong{"nonsense", "'nonsense'", "the faults are seed, delay"},
           Wrong{"seed=-1", "'seed=-1'", "decimal number"},
           Wrong{"seed=1x", "'seed=1x'", "decimal number"},
           Wrong{"delay=2:1us", "'delay=2:1us'", "from 0 to 1"},
           Wrong{"delay=nan:1us", "'delay=nan:1us'", "from 0 to 1"},
           Wrong{"delay=-0.1:1us", "'delay=-0.1:1us'", "from 0 to 1"},
           Wrong{"delay=0.1", "'delay=0.1'", "a colon and a duration"},
           Wrong{"rnr=0.1:", "'rnr=0.1:'", "ns, us, ms or s"},
           Wrong{"rnr=0.1:5", "'rnr=0.1:5'", "ns, us, ms or s"},
           Wrong{"rnr=0.1:5min", "'rnr=0.1:5min'", "ns, us, ms or s"},
           Wrong{"rnr=0.1:-5us", "'rnr=0.1:-5us'", "ns, us, ms or s"},
           Wrong{"rnr=0.1:1e9s", "'rnr=0.1:1e9s'", "an hour"},
           Wrong{"queue_pair_error=0.1:5us", "'queue_pair_error=0.1:5us'",
                 "takes a probability and nothing else"},
           Wrong{"seed=1,,delay=0.1:1us", "''", "the faults are seed"},
       }) {
    const auto plan = FaultPlan::parse(wrong.text);
    ASSERT_FALSE(plan.ok()) << wrong.text;
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(plan.status().message(), HasSubstr(wrong.part));
    EXPECT_THAT(plan.status().message(), HasSubstr(wrong.why));
    EXPECT_EQ(plan.status().message().find('\n'), std::string::npos);
  }
}

class FaultEnvironmentTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv("VERBENA_FAULTS"); }
};

TEST_F(FaultEnvironmentTest, NoVariableNoFaults) {
  unsetenv("VERBENA_FAULTS");
  const auto unset = FaultPlan::from_environment();
  ASSERT_TRUE(unset.ok());
  EXPECT_FALSE(unset->has_value());
  setenv("VERBENA_FAULTS", "", 1);
  const auto empty = FaultPlan::from_environment();
  ASSERT_TRUE(empty.ok());
  EXPECT_FALSE(empty->has_value());
}

TEST_F(FaultEnvironmentTest, OpenTakesThePlanFromTheVariable) {
  const auto plain = Device::open("soft0");
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  setenv("VERBENA_FAULTS", "seed=7,delay=0.01:50us", 1);
  const auto faulty = Device::open("soft0");
  ASSERT_TRUE(faulty.ok()) << faulty.status().message();
  EXPECT_NE(faulty->get()->ops.post_send, plain->get()->ops.post_send);
  EXPECT_EQ(faulty->info().max_inline_bytes, plain->info().max_inline_bytes);
}

TEST_F(FaultEnvironmentTest, OpenRefusesNonsenseAndNamesTheVariable) {
  setenv("VERBENA_FAULTS", "delay=often", 1);
  const auto device = Device::open("soft0");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(device.status().message(), HasSubstr("VERBENA_FAULTS: 'delay=often'"));
  EXPECT_TRUE(Device::list().back().unavailable.empty()) << "a list needs no faults";
}

}  // namespace
}  // namespace verbena
