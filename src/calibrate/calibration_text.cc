#include "src/calibrate/calibration_text.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "src/bench/result/text_table.h"

namespace verbena::calibrate {

namespace {

constexpr double kExplained = 0.03;  // what a simulation may differ from its measurement
constexpr double kQuiet = 0.9;       // what a machine without other programs leaves of a CPU

std::string value_text(const Fitted& fitted, std::string_view name) {
  for (const sim::ParameterText& one : fitted.parameters) {
    if (one.name == name) return fmt::format("{:.3g} {}", one.number, one.unit);
  }
  return "-";
}

std::string fit_text(const Calibration& calibration) {
  std::vector<std::vector<std::string>> rows = {
      {"measured", "parameter", "value", "median", "least", "most", "simulated"}};
  std::string unexplained;
  for (size_t i = 0; i < calibration.measured.size(); ++i) {
    const auto& [observation, ns] = calibration.measured[i];
    const double simulated_ns = calibration.fitted.simulated_ns[i];
    rows.push_back({observation.text, observation.parameters_text(),
                    value_text(calibration.fitted, observation.parameters.front()),
                    bench::time_text(ns.median), bench::time_text(ns.min), bench::time_text(ns.max),
                    bench::time_text(simulated_ns)});
    const double error = simulated_ns / ns.median - 1;
    if (std::abs(error) <= kExplained) continue;
    unexplained += fmt::format(
        "not explained: {} differs by {:+.0f} % in the simulation, whatever "
        "{} is\n",
        observation.text, 100 * error, observation.parameters_text());
  }
  return bench::text_table(rows, 2) + unexplained;
}

std::string predictions_text(const std::vector<Prediction>& predictions) {
  std::vector<std::vector<std::string>> rows = {
      {"setting", "protocol", "measured", "least", "most", "predicted", "error"}};
  for (const Prediction& one : predictions) {
    rows.push_back({one.setting, one.protocol, bench::rate_text(one.measured_per_s.median),
                    bench::rate_text(one.measured_per_s.min),
                    bench::rate_text(one.measured_per_s.max), bench::rate_text(one.predicted_per_s),
                    fmt::format("{:+.0f} %", 100 * one.error())});
  }
  const PredictionSummary summary = summarize(predictions);
  std::string order = summary.has_spread
                          ? "no two protocols differ by more than their spread"
                          : "which protocol is faster takes --rounds 2 at least to tell";
  if (summary.pairs > 0) {
    order = fmt::format(
        "of {} pairs of protocols that differ by more than their spread, {} ({} %) are predicted "
        "in the right order",
        summary.pairs, summary.pairs_in_order, 100 * summary.pairs_in_order / summary.pairs);
  }
  return fmt::format("\n{}{} points that nothing was calibrated by: median error {:.1f} %; {}\n",
                     bench::text_table(rows, 2), summary.points, 100 * summary.median_error, order);
}

nlohmann::json spread_json(const bench::Summary& spread) {
  return {{"median", spread.median}, {"least", spread.min}, {"most", spread.max}};
}

}  // namespace

std::string busy_text(const Calibration& calibration) {
  if (calibration.cpu_share >= kQuiet) return "";
  return fmt::format(
      "other programs had {:.0f} % of a CPU meanwhile, so this is a busy machine's profile; "
      "calibrate again when it is idle",
      100 * (1 - calibration.cpu_share));
}

std::string calibration_text(const Calibration& calibration) {
  const std::string busy = busy_text(calibration);
  return fit_text(calibration) +
         (calibration.predictions.empty() ? "" : predictions_text(calibration.predictions)) +
         (busy.empty() ? "" : fmt::format("warning: {}\n", busy));
}

void add_to_json(const Calibration& calibration, nlohmann::json* document) {
  (*document)["cpu_share"] = calibration.cpu_share;
  if (const std::string busy = busy_text(calibration); !busy.empty()) {
    (*document)["warning"] = busy;
  }
  for (size_t i = 0; i < calibration.measured.size(); ++i) {
    const auto& [observation, ns] = calibration.measured[i];
    (*document)["observations"].push_back({{"measured", observation.text},
                                           {"parameters", observation.parameters},
                                           {"ns", spread_json(ns)},
                                           {"simulated_ns", calibration.fitted.simulated_ns[i]}});
  }
  for (const sim::ParameterText& one : calibration.fitted.parameters) {
    (*document)["parameters"][one.name] = {{"value", one.number},
                                           {"unit", one.unit},
                                           {"evidence", one.evidence},
                                           {"source", one.source}};
  }
  if (calibration.predictions.empty()) return;
  for (const Prediction& one : calibration.predictions) {
    (*document)["predictions"].push_back({{"setting", one.setting},
                                          {"protocol", one.protocol},
                                          {"measured_per_s", spread_json(one.measured_per_s)},
                                          {"predicted_per_s", one.predicted_per_s}});
  }
  const PredictionSummary summary = summarize(calibration.predictions);
  (*document)["summary"] = {{"points", summary.points},
                            {"median_error", summary.median_error},
                            {"has_spread", summary.has_spread},
                            {"pairs", summary.pairs},
                            {"pairs_in_order", summary.pairs_in_order}};
}

}  // namespace verbena::calibrate
