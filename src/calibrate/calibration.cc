#include "src/calibrate/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "src/bench/experiment/workload.h"
#include "src/bench/run/interrupt.h"
#include "src/calibrate/observation.h"
#include "src/calibrate/parameter_probe.h"
#include "src/calibrate/point_runner.h"
#include "src/calibrate/simulate.h"
#include "src/device/sim/profile_files.h"
#include "src/device/sim/rnic_profile.h"
#include "verbena/device.h"

namespace verbena::calibrate {

namespace {

constexpr const char* kTemplate = "software";
constexpr uint64_t kFitMessages = 10'000;
// Where threads share cores, rates hang on which of them do.
constexpr uint64_t kPredictedMessages = 20'000;
constexpr uint32_t kPredictedRuns = 3;

Status check_device(const std::string& name) {
  if (name.starts_with(sim::kDevicePrefix)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{} has a profile already; 'verbena sim profiles {}' lists it", name,
                        name.substr(sim::kDevicePrefix.size()))};
  }
  VERBENA_ASSIGN_OR_RETURN(const Device device, Device::open(name));
  if (device.info().kind == DeviceKind::kSoft) return {};
  return {StatusCode::kUnsupported,
          fmt::format("{} is not a software RNIC of verbena, and only those are calibrated so far; "
                      "'verbena devices' lists them",
                      name)};
}

// What is to be measured, and what was, round by round.
class Measurements {
 public:
  static Result<Measurements> of(const CalibrationOptions& options) {
    Measurements measurements;
    VERBENA_ASSIGN_OR_RETURN(measurements.observations_, software_observations());
    if (options.check) {
      VERBENA_ASSIGN_OR_RETURN(measurements.predicted_, predicted_points());
    }
    measurements.observed_ns_.resize(measurements.observations_.size());
    measurements.rates_per_s_.resize(measurements.predicted_.size());
    return measurements;
  }

  double cpu_share() const { return cpu_share_; }
  uint64_t predictions_count() const { return predicted_.size(); }
  uint64_t steps_of_round() const { return 1 + observations_.size() + predicted_.size(); }

  Status measure(const std::string& device, PointRunner& runner, uint32_t round,
                 const BeginStep& step) {
    step("memory, processor and calls of the device");
    HostProbes of_host = probe_host();
    cpu_share_ = std::min(cpu_share_, of_host.cpu_share);
    std::vector<Probe> probes = std::move(of_host.probes);
    const double cycles_per_ns = probes.front().value;
    VERBENA_ASSIGN_OR_RETURN(const std::vector<Probe> of_device, probe_device(device));
    probes.insert(probes.end(), of_device.begin(), of_device.end());
    for (const Probe& one : probes) {
      probes_[one.parameter].values.push_back(one.value);
      probes_[one.parameter].what = one.what;
    }
    for (size_t i = 0; i < observations_.size(); ++i) {
      const Observation& one = observations_[i];
      step(one.text);
      VERBENA_ASSIGN_OR_RETURN(
          const double ns, runner.run_until(one.point, round, [&](const bench::RunResult& result) {
            return quantity_ns(one.quantity, result, cycles_per_ns);
          }));
      observed_ns_[i].push_back(ns);
    }
    for (size_t i = 0; i < predicted_.size(); ++i) {
      const bench::Point& point = predicted_[i].point;
      step(point.workload->text(point));
      VERBENA_ASSIGN_OR_RETURN(const double ns,
                               runner.run_until(point, round, [&](const bench::RunResult& result) {
                                 return quantity_ns(Quantity::kOperation, result, cycles_per_ns);
                               }));
      rates_per_s_[i].push_back(1e9 / ns);
    }
    return {};
  }

  std::vector<Measured> measured() const {
    std::vector<Measured> all;
    for (size_t i = 0; i < observations_.size(); ++i) {
      all.push_back({observations_[i], bench::summarize(observed_ns_[i])});
    }
    return all;
  }

  // The template with what the probes measured.
  Result<std::vector<sim::ParameterText>> start() const {
    VERBENA_ASSIGN_OR_RETURN(std::vector<sim::ParameterText> parameters,
                             sim::template_parameters(kTemplate));
    for (sim::ParameterText& one : parameters) {
      const auto found = probes_.find(one.name);
      if (found == probes_.end()) continue;
      const bench::Summary spread = bench::summarize(found->second.values);
      one.number = spread.median;
      one.evidence = "calibrated";
      one.source = found->second.what;
      one.range.reset();
      if (spread.has_spread()) one.range = sim::ValueRange{spread.min, spread.max};
    }
    return parameters;
  }

  // Without what is predicted.
  std::vector<Prediction> predictions() const {
    std::vector<Prediction> predictions;
    for (size_t i = 0; i < predicted_.size(); ++i) {
      const auto& [setting, point] = predicted_[i];
      predictions.push_back({.setting = setting,
                             .protocol = point.workload->line_text(point),
                             .point = point,
                             .measured_per_s = bench::summarize(rates_per_s_[i]),
                             .predicted_per_s = 0});
    }
    return predictions;
  }

 private:
  struct Probed {
    std::vector<double> values;
    std::string what;
  };

  std::vector<Observation> observations_;
  std::vector<PredictedPoint> predicted_;
  std::map<std::string, Probed> probes_;  // by parameter
  double cpu_share_ = 1;                  // the least
  std::vector<std::vector<double>> observed_ns_;
  std::vector<std::vector<double>> rates_per_s_;
};

}  // namespace

Result<uint64_t> calibration_steps(const CalibrationOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const Measurements measurements, Measurements::of(options));
  return options.rounds * measurements.steps_of_round() + measurements.predictions_count();
}

Result<Calibration> calibrate(const CalibrationOptions& options, const BeginStep& step) {
  VERBENA_RETURN_IF_ERROR(check_device(options.device));
  VERBENA_ASSIGN_OR_RETURN(Measurements measurements, Measurements::of(options));
  {
    VERBENA_ASSIGN_OR_RETURN(PointRunner runner,
                             PointRunner::on_this_host(options.device, options.duration_ns));
    for (uint32_t round = 0; round < options.rounds; ++round) {
      VERBENA_RETURN_IF_ERROR(measurements.measure(options.device, runner, round, step));
      if (bench::interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
    }
  }
  Calibration calibration{.measured = measurements.measured(),
                          .fitted = {},
                          .predictions = measurements.predictions(),
                          .cpu_share = measurements.cpu_share()};
  VERBENA_ASSIGN_OR_RETURN(std::vector<sim::ParameterText> start, measurements.start());
  VERBENA_ASSIGN_OR_RETURN(
      calibration.fitted,
      fit(std::move(start), calibration.measured,
          [](const std::vector<sim::ParameterText>& parameters, const Observation& observation) {
            return simulate(parameters, observation.point, observation.quantity, kFitMessages, 1);
          }));
  return calibration;
}

Status predict(const BeginStep& step, Calibration* calibration) {
  for (Prediction& one : calibration->predictions) {
    step(fmt::format("simulation of {}", one.point.workload->text(one.point)));
    VERBENA_ASSIGN_OR_RETURN(
        const double ns, simulate(calibration->fitted.parameters, one.point, Quantity::kOperation,
                                  kPredictedMessages, kPredictedRuns));
    one.predicted_per_s = 1e9 / ns;
    if (bench::interrupted()) return {StatusCode::kUnavailable, "interrupted"};
  }
  return {};
}

}  // namespace verbena::calibrate
