#include "src/bench/explain/message_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "src/bench/explain/explain_point.h"
#include "src/bench/explain/waterfall.h"

namespace verbena::bench {
namespace {

using sim::Recorder;
using sim::Step;
using sim::StepKind;
using sim::Time;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Step step(StepKind kind, Time begin, Time end) {
  return {.kind = kind, .begin = begin, .end = end};
}

std::vector<StepKind> kinds_of(const std::vector<Step>& steps) {
  std::vector<StepKind> kinds;
  for (const Step& one : steps) kinds.push_back(one.kind);
  return kinds;
}

void expect_no_gap(const std::vector<Step>& steps, Time from, Time to) {
  Time at = from;
  for (const Step& one : steps) {
    EXPECT_EQ(one.begin, at);
    EXPECT_GT(one.end, one.begin);
    at = one.end;
  }
  EXPECT_EQ(at, to);
}

TEST(Tile, NamesTheWaitBetweenTwoSteps) {
  const auto tiled = tile({step(StepKind::kDoorbell, 100, 200), step(StepKind::kSend, 250, 300),
                           step(StepKind::kCable, 300, 310), step(StepKind::kLink, 330, 350)},
                          100, 350);
  EXPECT_THAT(kinds_of(tiled),
              ElementsAre(StepKind::kDoorbell, StepKind::kTurn, StepKind::kSend, StepKind::kCable,
                          StepKind::kSwitchQueue, StepKind::kLink));
  expect_no_gap(tiled, 100, 350);
}

TEST(Tile, TakesWhatComesBehindABusForTheReason) {
  const auto tiled = tile({step(StepKind::kReceive, 0, 10), step(StepKind::kBusWait, 30, 40),
                           step(StepKind::kPlacement, 40, 50)},
                          0, 50);
  EXPECT_THAT(kinds_of(tiled), ElementsAre(StepKind::kReceive, StepKind::kReceiveEntry,
                                           StepKind::kBusWait, StepKind::kPlacement));
}

TEST(Tile, LeavesTheEarlierOfTwoThatOverlapWhole) {
  const auto tiled =
      tile({step(StepKind::kPacing, 110, 180), step(StepKind::kPayloadFetch, 100, 150),
            step(StepKind::kWqeFetch, 120, 130)},
           100, 180);
  EXPECT_THAT(kinds_of(tiled), ElementsAre(StepKind::kPayloadFetch, StepKind::kPacing));
  EXPECT_EQ(tiled[1].begin, 150u);
  expect_no_gap(tiled, 100, 180);
}

TEST(Tile, CutsWhatReachesBeyondAndExplainsNothingThatItDoesNotKnow) {
  const auto tiled =
      tile({step(StepKind::kPoll, 0, 120), step(StepKind::kHandle, 150, 500)}, 100, 200);
  EXPECT_THAT(kinds_of(tiled),
              ElementsAre(StepKind::kPoll, StepKind::kUnexplained, StepKind::kHandle));
  expect_no_gap(tiled, 100, 200);
  EXPECT_THAT(kinds_of(tile({}, 5, 9)), ElementsAre(StepKind::kUnexplained));
  EXPECT_TRUE(tile({step(StepKind::kPoll, 0, 100)}, 200, 200).empty());
}

TEST(Merged, JoinsOnlyWhatIsTheSameAtTheSamePlace) {
  std::vector<Step> steps = {step(StepKind::kPoll, 0, 5), step(StepKind::kPoll, 5, 9),
                             step(StepKind::kHandle, 9, 20), step(StepKind::kPoll, 20, 21)};
  steps.push_back(step(StepKind::kPoll, 21, 30));
  steps.back().node = 1;
  const auto result = merged(steps);
  EXPECT_THAT(kinds_of(result),
              ElementsAre(StepKind::kPoll, StepKind::kHandle, StepKind::kPoll, StepKind::kPoll));
  expect_no_gap(result, 0, 30);
}

TEST(MessagePath, AddsUpToTheNanosecondOfTheClock) {
  MessagePath path;
  path.steps = {step(StepKind::kBuild, 0, 1'500), step(StepKind::kDoorbell, 1'500, 4'200)};
  path.measured_ns = 4;
  EXPECT_TRUE(path.adds_up());
  path.measured_ns = 5;
  EXPECT_TRUE(path.adds_up());
  for (const uint64_t wrong : {3u, 6u}) {
    path.measured_ns = wrong;
    EXPECT_FALSE(path.adds_up()) << wrong;
  }
  path.measured_ns = 4;
  path.steps.back().kind = StepKind::kUnexplained;
  EXPECT_FALSE(path.adds_up());
  EXPECT_THAT(sum_text(path), HasSubstr("2.7 ns are not explained"));
}

TEST(Waterfall, TellsServiceFromWaitingAndSumsThemByUnit) {
  MessagePath path;
  path.steps = {step(StepKind::kBuild, 1'000'000, 1'100'000),
                step(StepKind::kTurn, 1'100'000, 1'400'000),
                step(StepKind::kSend, 1'400'000, 2'000'000)};
  path.measured_ns = 1000;
  const std::string text = waterfall_text(path, {});
  EXPECT_THAT(text, HasSubstr("(wait for arbitration on the sending side)"));
  EXPECT_THAT(text, HasSubstr("     400.0      600.0"));
  EXPECT_THAT(text, Not(HasSubstr("beside")));
  const std::string summary = summary_text(path);
  EXPECT_THAT(summary, testing::ContainsRegex("sending side +600.0 +60.0 % +300.0 +30.0 %"));
  EXPECT_THAT(summary, testing::ContainsRegex("all +700.0 +70.0 % +300.0 +30.0 %"));
}

std::vector<Recorder::Taken> with_latencies(const std::vector<uint64_t>& latencies) {
  std::vector<Recorder::Taken> taken;
  for (size_t i = 0; i < latencies.size(); ++i) {
    const uint64_t posted_ns = 1000 * i;
    taken.push_back({.posted_ns = posted_ns,
                     .taken_ns = posted_ns + latencies[i],
                     .taken = (posted_ns + latencies[i]) * sim::kPsPerNs});
  }
  return taken;
}

TEST(ChooseMessage, TakesOneOfTheQuantileFromTheSteadyPart) {
  std::vector<uint64_t> latencies(40, 500);
  latencies[1] = 900;  // while the queues fill
  latencies[30] = 900;
  EXPECT_EQ(choose_message(with_latencies(latencies), sim::kNever, 1.0).value(), 30u);
  EXPECT_EQ(choose_message(with_latencies(latencies), sim::kNever, 0.5).value(), 22u);
  // What was not recorded to its end is only counted.
  const Time half = 20'000 * sim::kPsPerNs;
  EXPECT_LT(choose_message(with_latencies(latencies), half, 1.0).value(), 20u);
  EXPECT_EQ(choose_message(with_latencies(latencies), 100, 0.5).status().code(),
            StatusCode::kNotFound);
}

}  // namespace
}  // namespace verbena::bench
