#include "src/device/sim/recorder.h"

#include <gtest/gtest.h>

namespace verbena::sim {
namespace {

const StepOf kMessage{.message = {.node = 1, .queue_pair = 2, .number = 3}};

TEST(Recorder, SplitsWhatAServerDoesIntoWaitAndService) {
  Recorder recorder(10);
  recorder.served(StepKind::kBusWait, StepKind::kPlacement, 4, kMessage, 100, 130, 150);
  recorder.served(StepKind::kBusWait, StepKind::kPlacement, 4, kMessage, 200, 150, 230);
  ASSERT_EQ(recorder.steps().size(), 3u);
  EXPECT_EQ(recorder.steps()[0].kind, StepKind::kBusWait);
  EXPECT_EQ(recorder.steps()[0].end, 130u);
  EXPECT_EQ(recorder.steps()[1].begin, 130u);
  EXPECT_EQ(recorder.steps()[1].message, kMessage.message);
  EXPECT_EQ(recorder.steps()[2].kind, StepKind::kPlacement);
  EXPECT_EQ(recorder.steps()[2].begin, 200u);
}

TEST(Recorder, ChargesAMissToTheNextPacketOnly) {
  Recorder recorder(10);
  recorder.missed(30);
  recorder.handled(StepKind::kSend, StepKind::kSendMiss, 0, kMessage, 100, 180);
  recorder.handled(StepKind::kSend, StepKind::kSendMiss, 0, kMessage, 200, 280);
  ASSERT_EQ(recorder.steps().size(), 3u);
  EXPECT_EQ(recorder.steps()[0].kind, StepKind::kSendMiss);
  EXPECT_EQ(recorder.steps()[0].end, 130u);
  EXPECT_EQ(recorder.steps()[1].begin, 130u);
  EXPECT_EQ(recorder.steps()[1].end, 180u);
  EXPECT_EQ(recorder.steps()[2].kind, StepKind::kSend);
}

TEST(Recorder, SaysUntilWhenItHasAll) {
  Recorder recorder(1);
  recorder.step(StepKind::kSend, 0, kMessage, 10, 20);
  EXPECT_EQ(recorder.complete_until(), kNever);
  recorder.step(StepKind::kSend, 0, kMessage, 30, 30);  // no time, no step
  EXPECT_EQ(recorder.complete_until(), kNever);
  recorder.step(StepKind::kSend, 0, kMessage, 40, 50);
  recorder.step(StepKind::kSend, 0, kMessage, 35, 50);
  EXPECT_EQ(recorder.complete_until(), 35u);
  EXPECT_EQ(recorder.steps().size(), 1u);
}

}  // namespace
}  // namespace verbena::sim
