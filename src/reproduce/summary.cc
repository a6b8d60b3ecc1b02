#include "src/reproduce/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "src/bench/result/text_table.h"

namespace verbena::reproduce {

namespace {

std::string error_text(const Verdict& verdict) {
  if (verdict.error_points) return fmt::format("{:+.1f} points", *verdict.error_points);
  return verdict.error ? fmt::format("{:+.0f} %", 100 * *verdict.error) : "";
}

std::string outcome_text(const Verdict& verdict) {
  std::string text = outcome_name(verdict.outcome);
  // Orders and trends have no tolerance.
  if (verdict.error_points) {
    text += fmt::format(" (within {:.1f} points)", verdict.tolerance_points);
  } else if (verdict.error) {
    text += fmt::format(" (within {:.0f} %)", 100 * verdict.tolerance);
  }
  return text;
}

// "; over 5 variants: 12 always, 3 mostly, 2 by luck, 9 never"
std::string robustness_text(const Tally& tally) {
  if (tally.variants == 1) return "";
  std::vector<std::string> texts;
  for (const Robustness one :
       {Robustness::kAlways, Robustness::kMostly, Robustness::kByLuck, Robustness::kNever}) {
    const auto found = tally.robustness.find(one);
    texts.push_back(fmt::format("{} {}", found == tally.robustness.end() ? 0 : found->second,
                                robustness_name(one)));
  }
  return fmt::format("; over {} variants they hold: {}", tally.variants, fmt::join(texts, ", "));
}

}  // namespace

Tally tally(const std::vector<Verdict>& verdicts, const std::string& paper) {
  Tally tally;
  for (const Verdict& verdict : verdicts) {
    const Claim& claim = *verdict.claim;
    if (claim.paper != paper || claim.kind == "setup") continue;
    const bool checked = verdict.outcome != Outcome::kUnchecked;
    const bool held = verdict.outcome == Outcome::kPass;
    if (claim.kind == "calibration") {
      tally.calibration_rows += checked ? 1 : 0;
      tally.calibration_held += held ? 1 : 0;
    } else if (!verdict.spent_on.empty() && verdict.reason != "not selected") {
      ++tally.spent;
      tally.spent_held += held ? 1 : 0;
    } else {
      tally.checked += checked ? 1 : 0;
      tally.passed += held ? 1 : 0;
      tally.failed += checked && !held ? 1 : 0;
      tally.unchecked += checked ? 0 : 1;
      if (checked && verdict.variants > 1) {
        tally.variants = verdict.variants;
        ++tally.robustness[verdict.robustness()];
      }
    }
  }
  return tally;
}

std::string summary_line(const std::string& paper, const Tally& tally) {
  // A share of nothing would read as a failure.
  const std::string share = tally.checked == 0
                                ? "nothing of it could be checked"
                                : fmt::format("{:.0f} % of those checked and not spent passed",
                                              100 * static_cast<double>(tally.passed) /
                                                  static_cast<double>(tally.checked));
  const std::string calibration =
      tally.calibration_rows == 0
          ? "no calibration row checked"
          : fmt::format("{} of {} calibration rows within {:.0f} %", tally.calibration_held,
                        tally.calibration_rows, 100 * kCalibrationTolerance);
  return fmt::format(
      "{}: {}; result rows: {} checked, {} passed, {} failed, {} unchecked, {} spent on "
      "calibration ({} within {:.0f} %); {}{}\n",
      paper, calibration, tally.checked, tally.passed, tally.failed, tally.unchecked, tally.spent,
      tally.spent_held, 100 * kCalibrationTolerance, share, robustness_text(tally));
}

std::string verdicts_text(const std::vector<Verdict>& verdicts, const std::string& paper) {
  std::vector<std::vector<std::string>> rows = {
      {"claim", "stated", "verdict", "", "", "error", "simulated"}};
  size_t seeds = 1;
  size_t variants = 1;
  std::string failures;
  std::map<std::string, std::vector<std::string>> unchecked;  // ids by reason
  for (const Verdict& verdict : verdicts) {
    const Claim& claim = *verdict.claim;
    if (claim.paper != paper || verdict.reason == "not selected") continue;
    if (verdict.outcome == Outcome::kUnchecked) {
      unchecked[verdict.reason].push_back(claim.id);
      continue;
    }
    std::string outcome = outcome_text(verdict);
    if (!verdict.spent_on.empty()) outcome += ", spent";
    seeds = std::max(seeds, verdict.runs);
    variants = std::max(variants, verdict.variants);
    rows.push_back(
        {claim.id, claim.text(), outcome, fmt::format("{}", verdict.runs_held),
         fmt::format("{} ({})", robustness_name(verdict.robustness()), verdict.variants_held),
         error_text(verdict), verdict.simulated});
    if (verdict.outcome == Outcome::kFail) {
      failures += fmt::format("  {}: {}\n", claim.id, verdict.reason);
    }
  }
  std::string text;
  rows[0][3] = fmt::format("of {} seeds", seeds);
  rows[0][4] = fmt::format("of {} variants", variants);
  for (std::vector<std::string>& row : rows) {
    if (variants == 1) row.erase(row.begin() + 4);
    if (seeds == 1) row.erase(row.begin() + 3);
  }
  if (rows.size() > 1) text += bench::text_table(rows, rows[0].size());
  if (!failures.empty()) text += "\nWhat fails, and why as far as it is known:\n" + failures;
  if (!unchecked.empty()) text += "\nNot checked:\n";
  for (const auto& [reason, ids] : unchecked) {
    text += fmt::format("  {} ({}):", reason, ids.size());
    for (const std::string& id : ids) text += " " + id.substr(paper.size() + 1);
    text += "\n";
  }
  return text;
}

}  // namespace verbena::reproduce
