#include "src/calibrate/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "src/base/assert.h"

namespace verbena::calibrate {

namespace {

// Each pass corrects what those before left, as far as one parameter takes part in what tells
// another one.
constexpr int kPasses = 8;
constexpr double kCloseEnough = 0.002;
// Less than anything takes. Measurements that something else disturbed may ask for less, but in a
// simulation whose polls take no time, time does not pass.
constexpr double kLeast = 0.1;
// More than anything takes. A machine that was away during a measurement asks for more, but of
// operations that take seconds no simulation ends.
constexpr double kMost = 5e3;

sim::ParameterText& parameter_of(std::vector<sim::ParameterText>& parameters,
                                 std::string_view name) {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [name](const auto& one) { return one.name == name; });
  VERBENA_ASSERT(found != parameters.end());
  return *found;
}

// Of what was measured, in the parameter's unit around its value.
std::optional<sim::ValueRange> range_of(double value, const Measured& one) {
  if (!one.ns.has_spread()) return std::nullopt;
  const double below = (one.ns.median - one.ns.min) / one.observation.per_unit;
  const double above = (one.ns.max - one.ns.median) / one.observation.per_unit;
  return sim::ValueRange{.least = std::max(0.0, value - below), .most = value + above};
}

}  // namespace

Result<Fitted> fit(std::vector<sim::ParameterText> start, const std::vector<Measured>& measured,
                   const Simulate& simulate) {
  Fitted fitted{.parameters = std::move(start), .simulated_ns = {}};
  for (int pass = 0; pass < kPasses; ++pass) {
    bool changed = false;
    for (const Measured& one : measured) {
      VERBENA_ASSIGN_OR_RETURN(const double ns, simulate(fitted.parameters, one.observation));
      if (std::abs(ns - one.ns.median) <= kCloseEnough * one.ns.median) continue;
      const double change = (one.ns.median - ns) / one.observation.per_unit;
      for (const std::string_view name : one.observation.parameters) {
        sim::ParameterText& parameter = parameter_of(fitted.parameters, name);
        const double before = parameter.number;
        parameter.number = std::clamp(before + change, kLeast, kMost);
        changed = changed || parameter.number != before;
      }
    }
    if (!changed) break;
  }
  for (const Measured& one : measured) {
    VERBENA_ASSIGN_OR_RETURN(const double ns, simulate(fitted.parameters, one.observation));
    fitted.simulated_ns.push_back(ns);
    for (const std::string_view name : one.observation.parameters) {
      sim::ParameterText& parameter = parameter_of(fitted.parameters, name);
      parameter.evidence = "calibrated";
      parameter.range = range_of(parameter.number, one);
      parameter.source = fmt::format("{}: {:.4g} ns, {:.4g} to {:.4g} ns", one.observation.text,
                                     one.ns.median, one.ns.min, one.ns.max);
    }
  }
  return fitted;
}

}  // namespace verbena::calibrate
