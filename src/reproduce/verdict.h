// What became of each claim.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "src/reproduce/catalog.h"
#include "src/reproduce/measurements.h"

namespace verbena::reproduce {

enum class Outcome { kPass, kFail, kUnchecked };
const char* outcome_name(Outcome outcome);

// Whether a claim holds where the profile's parameters are a little other than given.
enum class Robustness {
  kAlways,  // with each variant
  kMostly,  // with four in five of them
  kByLuck,  // with fewer
  kNever,
};
const char* robustness_name(Robustness robustness);  // "by luck"

struct Verdict {
  const Claim* claim = nullptr;
  Outcome outcome = Outcome::kUnchecked;
  std::string simulated{};  // empty where nothing was
  std::optional<double> number{};
  std::optional<double> error{};  // a share of what is stated
  double tolerance = 0;
  std::optional<double> error_points{};  // in its place, of a share of a whole
  double tolerance_points = 0;
  std::string reason{};
  std::string spent_on{};  // what the claim was used for: parameters, settings of the experiment
  // The outcome is that of the medians of all runs; in so many of them it holds by itself.
  size_t runs = 1;
  size_t runs_held = 0;
  // Variants of the profile, each by one run with a seed of its own; the first is that as given.
  size_t variants = 1;
  size_t variants_held = 0;

  // Of a claim that was checked with more than one variant.
  Robustness robustness() const;
};

// Numbers may be off by this share; those of calibration rows, and of rows that a profile was
// calibrated with, by less.
inline constexpr double kTolerance = 0.25;
inline constexpr double kCalibrationTolerance = 0.15;

// What was measured for one paper.
struct PaperData {
  Measurements measurements{};
  size_t runs = 1;      // of each point, each with a seed of its own
  size_t variants = 1;  // of the profile; that as given is the first run, those behind it follow
  SpentClaims spent{};  // that they hold shows nothing
};

// One per claim, in their order. What is not chosen is unchecked.
std::vector<Verdict> judge(const Catalog& catalog, const std::set<std::string>& chosen,
                           const std::map<std::string, PaperData>& papers,
                           Experiments& experiments);

// A list with an object per claim: id, stated, simulated, verdict, reason, and what they rest on.
nlohmann::json to_json(const std::vector<Verdict>& verdicts);

}  // namespace verbena::reproduce
