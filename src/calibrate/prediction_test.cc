#include "src/calibrate/prediction.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/bench/run/interrupt.h"
#include "src/calibrate/calibration.h"
#include "src/calibrate/observation.h"
#include "src/device/sim/profile_files.h"
#include "verbena/must.h"

namespace verbena::calibrate {
namespace {

Prediction prediction(std::string setting, double least, double median, double most,
                      double predicted) {
  return {.setting = std::move(setting),
          .protocol = {},
          .point = {},
          .measured_per_s = {.median = median, .min = least, .max = most, .count = 3},
          .predicted_per_s = predicted};
}

TEST(PredictionTest, TheMedianErrorIsThatOfAmounts) {
  const std::vector<Prediction> all = {prediction("a", 100, 100, 100, 110),
                                       prediction("b", 100, 100, 100, 70),
                                       prediction("c", 100, 100, 100, 98)};
  EXPECT_NEAR(summarize(all).median_error, 0.10, 1e-9);
  EXPECT_EQ(summarize(all).points, 3u);
  EXPECT_EQ(summarize(all).pairs, 0u) << "different settings";
}

TEST(PredictionTest, PairsThatDifferByMoreThanTheirSpreadHaveAnOrder) {
  const std::vector<Prediction> all = {
      prediction("a", 90, 100, 110, 130),   // predicted above the next one
      prediction("a", 115, 120, 125, 120),  //
      prediction("a", 120, 124, 130, 90),   // overlaps with the one before
      prediction("b", 10, 11, 12, 1000)};
  const PredictionSummary summary = summarize(all);
  EXPECT_EQ(summary.pairs, 2u);
  EXPECT_EQ(summary.pairs_in_order, 0u);
  const std::vector<Prediction> right = {prediction("a", 90, 100, 110, 101),
                                         prediction("a", 115, 120, 125, 102)};
  EXPECT_EQ(summarize(right).pairs_in_order, 1u);
}

TEST(PredictionTest, OneRoundTellsNoPairApart) {
  std::vector<Prediction> all = {prediction("a", 100, 100, 100, 130),
                                 prediction("a", 102, 102, 102, 120)};
  EXPECT_EQ(summarize(all).pairs, 1u);
  EXPECT_TRUE(summarize(all).has_spread);
  for (Prediction& one : all) one.measured_per_s.count = 1;
  EXPECT_EQ(summarize(all).pairs, 0u);
  EXPECT_FALSE(summarize(all).has_spread);
}

// In a process of its own, since an interruption is for all that a process does.
TEST(PredictionTest, CtrlCEndsThePrediction) {
  EXPECT_EXIT(
      {
        bench::catch_interrupts();
        Calibration calibration;
        calibration.fitted.parameters = must(sim::template_parameters("software"));
        const std::vector<PredictedPoint> points = must(predicted_points());
        for (size_t i = 0; i < 3; ++i) {
          calibration.predictions.push_back(prediction(points[i].setting, 1, 1, 1, 0));
          calibration.predictions.back().point = points[i].point;
        }
        size_t begun = 0;
        const auto interrupt = [&](const std::string&) {
          if (++begun == 2) raise(SIGINT);
        };
        const Status status = predict(interrupt, &calibration);
        std::_Exit(status.ok() || begun != 2 ? 1 : bench::interrupt_exit_code());
      },
      testing::ExitedWithCode(130), "");
}

TEST(PredictionTest, NothingIsPredictedThatIsObserved) {
  for (const PredictedPoint& predicted : must(predicted_points())) {
    for (const Observation& observed : must(software_observations())) {
      EXPECT_FALSE(predicted.point == observed.point) << predicted.setting;
    }
  }
}

}  // namespace
}  // namespace verbena::calibrate
