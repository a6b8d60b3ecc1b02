#include "src/calibrate/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "src/calibrate/calibration_text.h"
#include "src/calibrate/observation.h"
#include "src/calibrate/point_runner.h"
#include "src/calibrate/prediction.h"
#include "src/calibrate/simulate.h"
#include "src/device/sim/profile_files.h"
#include "verbena/must.h"

namespace verbena::calibrate {
namespace {

using testing::HasSubstr;

using Values = std::map<std::string, double, std::less<>>;

std::vector<sim::ParameterText> template_with(const Values& values) {
  std::vector<sim::ParameterText> parameters = must(sim::template_parameters("software"));
  for (sim::ParameterText& one : parameters) {
    const auto found = values.find(one.name);
    if (found != values.end()) one.number = found->second;
  }
  return parameters;
}

double number_of(const std::vector<sim::ParameterText>& parameters, std::string_view name) {
  for (const sim::ParameterText& one : parameters) {
    if (one.name == name) return one.number;
  }
  ADD_FAILURE() << "no parameter " << name;
  return 0;
}

constexpr uint64_t kMessages = 4'000;

Result<double> simulate_quantity(const std::vector<sim::ParameterText>& parameters,
                                 const bench::Point& point, Quantity quantity) {
  return simulate(parameters, point, quantity, kMessages, 1);
}

Result<double> simulate_observation(const std::vector<sim::ParameterText>& parameters,
                                    const Observation& one) {
  return simulate_quantity(parameters, one.point, one.quantity);
}

std::vector<Measured> measured_of(const std::vector<sim::ParameterText>& truth) {
  std::vector<Measured> measured;
  for (Observation& one : must(software_observations())) {
    const double ns = must(simulate_observation(truth, one));
    measured.push_back(
        {std::move(one), {.median = ns, .min = 0.9 * ns, .max = 1.2 * ns, .count = 3}});
  }
  return measured;
}

// As where the machine gave one side no time in a short run.
TEST(PointRunnerTest, ARunThatTellsNothingIsRepeatedForLonger) {
  sim::provide_profile("fit-test", sim::profile_text("of a test", "of a test", template_with({})));
  PointRunner runner = PointRunner::simulated("sim:fit-test", 1'000);
  const std::vector<Observation> observations = must(software_observations());
  std::vector<uint64_t> requests;
  const auto at_third = [&](const bench::RunResult& result) -> Result<double> {
    requests.push_back(result.requests);
    if (requests.size() == 3) return 7.0;
    return Status(StatusCode::kUnavailable, "nothing completed");
  };
  EXPECT_EQ(must(runner.run_until(observations.front().point, 0, at_third)), 7.0);
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_GE(requests[2], 3 * requests[0]);

  const auto never = [&](const bench::RunResult&) -> Result<double> {
    requests.push_back(0);
    return Status(StatusCode::kUnavailable, "nothing completed");
  };
  EXPECT_EQ(runner.run_until(observations.front().point, 0, never).status().code(),
            StatusCode::kUnavailable);
  EXPECT_EQ(requests.size(), 3u + 10);
}

// A switch between threads that takes much longer than a run, as another program's slice makes it.
TEST(SimulateTest, WhatTakesLongerThanARunIsSimulatedForLonger) {
  const std::vector<sim::ParameterText> slow = template_with({{"cpu_switch", 7e6}});
  for (const Observation& one : must(software_observations())) {
    EXPECT_GT(must(simulate_observation(slow, one)), 0) << one.text;
  }
}

// Where a device is what the model says, its parameters are found, and what nobody fitted to is
// predicted.
TEST(FitTest, FindsTheParametersOfADeviceThatIsAsTheModel) {
  const Values truth = {
      {"post_wqe", 31},     {"poll_completion", 22},   {"post_64", 7.5},
      {"post_read", 24},    {"post_atomic", 17},       {"post_sge", 5},
      {"post_send", 61},    {"post_receive", 44},      {"cpu_poll", 4.2},
      {"post_visible", 83}, {"post_visible_send", 25}, {"post_shared_receive", 101},
      {"cpu_message", 66},  {"poll_empty", 19},        {"post_read_64", 1.5},
      {"post_lines", 33}};
  const std::vector<sim::ParameterText> device = template_with(truth);
  const Result<Fitted> fitted = fit(template_with({}), measured_of(device), simulate_observation);
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  for (const auto& [name, value] : truth) {
    EXPECT_NEAR(number_of(fitted->parameters, name), value, std::max(5.0, 0.1 * value)) << name;
  }
  for (const PredictedPoint& one : must(predicted_points())) {
    // Where threads share cores, rates hang on luck as well.
    if (!one.setting.starts_with("one-to-one")) continue;
    const double expected = must(simulate_quantity(device, one.point, Quantity::kOperation));
    const double found =
        must(simulate_quantity(fitted->parameters, one.point, Quantity::kOperation));
    EXPECT_NEAR(found / expected, 1, 0.12) << one.setting;
  }
}

TEST(FitTest, SaysWhereAParameterComesFrom) {
  const Result<Fitted> fitted =
      fit(template_with({}), measured_of(template_with({{"post_wqe", 31}})), simulate_observation);
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  for (const sim::ParameterText& one : fitted->parameters) {
    if (one.name == "post_wqe") {
      EXPECT_EQ(one.evidence, "calibrated");
      EXPECT_THAT(one.source, HasSubstr("64 pending"));
      ASSERT_TRUE(one.range.has_value());
      EXPECT_LT(one.range->least, one.number);
      EXPECT_GT(one.range->most, one.number);
    }
    if (one.name == "link_rate") {
      EXPECT_EQ(one.evidence, "documented");
    }
    if (one.name == "cpu_jitter") {
      EXPECT_EQ(one.evidence, "assumed");
    }
  }
}

// Variants then take what they take of any value whose range is not known.
TEST(FitTest, OneRoundGivesNoRange) {
  std::vector<Measured> measured = measured_of(template_with({}));
  for (Measured& one : measured) one.ns = bench::summarize(std::vector<double>{one.ns.median});
  const Result<Fitted> fitted = fit(template_with({}), measured, simulate_observation);
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  for (const sim::ParameterText& one : fitted->parameters) {
    if (one.evidence == "calibrated") {
      EXPECT_FALSE(one.range.has_value()) << one.name;
    }
  }
}

TEST(FitTest, LeavesWhatNoValueExplains) {
  std::vector<Measured> measured = measured_of(template_with({}));
  for (Measured& one : measured) {
    if (one.observation.parameters.front() != "post_atomic") continue;
    one.ns = {.median = 1, .min = 1, .max = 1};  // less than any post takes
  }
  const Result<Fitted> fitted = fit(template_with({}), measured, simulate_observation);
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  EXPECT_EQ(number_of(fitted->parameters, "post_atomic"), 0.1);
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i].observation.parameters.front() == "post_atomic") {
      EXPECT_GT(fitted->simulated_ns[i], 10);
    }
  }
}

// Beside other work, more may be measured of a part than of the whole, of which nothing is left.
TEST(FitTest, WhatWouldTakeNoTimeEndsWithValuesThatCanBeSimulated) {
  std::vector<Measured> measured = measured_of(template_with({}));
  for (Measured& one : measured) one.ns = {.median = 1e-3, .min = 1e-3, .max = 1e-3};
  const Result<Fitted> fitted = fit(template_with({}), measured, simulate_observation);
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i].observation.quantity != Quantity::kOperation) continue;
    EXPECT_GT(fitted->simulated_ns[i], 0) << measured[i].observation.text;
  }
}

// A machine that gives a run hardly any time makes all of it take as long as it was away.
TEST(FitTest, WhatTookSecondsEndsWithValuesThatCanBeSimulated) {
  for (const char* const slow : {"", "poll_empty", "post_send", "post_receive"}) {
    std::vector<Measured> measured = measured_of(template_with({}));
    for (Measured& one : measured) {
      if (*slow != '\0' && one.observation.parameters.front() != slow) continue;
      one.ns = {.median = 1e9, .min = 1e9, .max = 1e9};
    }
    const Result<Fitted> fitted = fit(template_with({}), measured, simulate_observation);
    ASSERT_TRUE(fitted.ok()) << slow << ": " << fitted.status().message();
  }
  // And polls take none, of which most are simulated then.
  std::vector<Measured> measured = measured_of(template_with({}));
  for (Measured& one : measured) {
    const double ns = one.observation.parameters.front() == "poll_empty" ? 1e-3 : 1e9;
    one.ns = {.median = ns, .min = ns, .max = ns};
  }
  const Result<Fitted> fitted = fit(template_with({}), measured, simulate_observation);
  ASSERT_TRUE(fitted.ok()) << fitted.status().message();
}

TEST(CalibrationTextTest, WarnsWhereOtherProgramsHadTheCpu) {
  Calibration calibration;
  EXPECT_EQ(calibration_text(calibration).find("warning"), std::string::npos);
  nlohmann::json quiet = nlohmann::json::object();
  add_to_json(calibration, &quiet);
  EXPECT_FALSE(quiet.contains("warning"));
  calibration.cpu_share = 0.25;
  EXPECT_THAT(calibration_text(calibration),
              HasSubstr("warning: other programs had 75 % of a CPU"));
  nlohmann::json busy = nlohmann::json::object();
  add_to_json(calibration, &busy);
  EXPECT_THAT(busy.at("warning"), HasSubstr("when it is idle"));
}

}  // namespace
}  // namespace verbena::calibrate
