#include "src/reproduce/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/reproduce/finding.h"

namespace verbena::reproduce {

namespace {

using nlohmann::json;

void join(std::string& text, std::string_view more, std::string_view between) {
  if (more.empty()) return;
  if (!text.empty()) text += between;
  text += more;
}

constexpr double kMostlyShare = 0.8;

// In one run of each point alone.
bool holds(const Check& check, const Source& source, const Verdict& verdict) {
  return std::all_of(check.parts.begin(), check.parts.end(), [&](const Part& part) {
    const Result<Finding> finding = find(part, *verdict.claim, verdict.tolerance, source);
    return finding.ok() && finding->holds;
  });
}

void check(const Check& check, const Source& source, Verdict& verdict) {
  verdict.outcome = Outcome::kPass;
  for (size_t i = 0; i < check.parts.size(); ++i) {
    const Result<Finding> finding = find(check.parts[i], *verdict.claim, verdict.tolerance, source);
    if (!finding.ok()) {
      verdict.outcome = Outcome::kUnchecked;
      verdict.reason = finding.status().message();
      return;
    }
    join(verdict.simulated, finding->text, "; ");
    if (!finding->holds) verdict.outcome = Outcome::kFail;
    if (finding->error) verdict.error = finding->error;
    if (finding->error_points) {
      verdict.error_points = finding->error_points;
      verdict.tolerance_points = finding->tolerance_points;
    }
    if (check.parts.size() == 1) verdict.number = finding->number;
  }
  for (size_t run = 0; run + 1 < verdict.runs + verdict.variants; ++run) {
    Source alone = source;
    alone.run = run;
    if (!holds(check, alone, verdict)) continue;
    if (run < verdict.runs) ++verdict.runs_held;
    if (run == 0 || run >= verdict.runs) ++verdict.variants_held;
  }
  if (verdict.outcome == Outcome::kFail) {
    verdict.reason = check.lacks.empty() ? "not known what the model lacks" : check.lacks;
  }
  join(verdict.reason, check.note, "; ");
}

json stated_json(const Claim& claim) {
  const bool number = claim.number && claim.number->low == claim.number->high;
  return number ? json(claim.number->low) : json(claim.text());
}

json simulated_json(const Verdict& verdict) {
  if (verdict.number) return *verdict.number;
  return verdict.simulated.empty() ? json(nullptr) : json(verdict.simulated);
}

}  // namespace

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPass:
      return "pass";
    case Outcome::kFail:
      return "fail";
    case Outcome::kUnchecked:
      break;
  }
  return "unchecked";
}

const char* robustness_name(Robustness robustness) {
  switch (robustness) {
    case Robustness::kAlways:
      return "always";
    case Robustness::kMostly:
      return "mostly";
    case Robustness::kByLuck:
      return "by luck";
    case Robustness::kNever:
      break;
  }
  return "never";
}

Robustness Verdict::robustness() const {
  if (variants_held == 0) return Robustness::kNever;
  if (variants_held == variants) return Robustness::kAlways;
  const bool mostly =
      static_cast<double>(variants_held) >= kMostlyShare * static_cast<double>(variants);
  return mostly ? Robustness::kMostly : Robustness::kByLuck;
}

std::vector<Verdict> judge(const Catalog& catalog, const std::set<std::string>& chosen,
                           const std::map<std::string, PaperData>& papers,
                           Experiments& experiments) {
  std::vector<Verdict> verdicts;
  for (const Claim& claim : catalog.claims) {
    Verdict verdict{.claim = &claim, .tolerance = kTolerance};
    const Check& rule = catalog.check_of(claim);
    const auto paper = papers.find(claim.paper);
    if (paper != papers.end()) {
      const auto spent = paper->second.spent.find(claim.id);
      if (spent != paper->second.spent.end()) verdict.spent_on = spent->second;
      verdict.runs = paper->second.runs;
      verdict.variants = paper->second.variants;
    }
    if (claim.kind == "calibration" || !verdict.spent_on.empty()) {
      verdict.tolerance = kCalibrationTolerance;
    }
    if (!chosen.contains(claim.id) || paper == papers.end()) {
      verdict.reason = "not selected";
    } else if (rule.parts.empty()) {
      verdict.reason = rule.unchecked;
    } else {
      check(
          rule,
          {&experiments, &catalog.paper_of(claim).uses, &paper->second.measurements, verdict.runs},
          verdict);
    }
    if (!verdict.spent_on.empty() && verdict.reason != "not selected") {
      join(verdict.reason, fmt::format("spent on calibration ({})", verdict.spent_on), "; ");
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

json to_json(const std::vector<Verdict>& verdicts) {
  json list = json::array();
  for (const Verdict& verdict : verdicts) {
    const Claim& claim = *verdict.claim;
    json row = {{"id", claim.id},
                {"stated", stated_json(claim)},
                {"simulated", simulated_json(verdict)},
                {"verdict", outcome_name(verdict.outcome)},
                {"reason", verdict.reason},
                {"paper", claim.paper},
                {"figure", claim.figure},
                {"kind", claim.kind},
                {"unit", claim.unit},
                {"stated_text", claim.text()},
                {"simulated_text", verdict.simulated},
                {"spent", !verdict.spent_on.empty()}};
    if (verdict.error) row["error_percent"] = 100 * *verdict.error;
    if (verdict.error_points) {
      row["error_points"] = *verdict.error_points;
      row["tolerance_points"] = verdict.tolerance_points;
    } else if (verdict.outcome != Outcome::kUnchecked) {
      row["tolerance_percent"] = 100 * verdict.tolerance;
    }
    if (verdict.outcome != Outcome::kUnchecked) {
      row["seeds"] = verdict.runs;
      row["seeds_held"] = verdict.runs_held;
      if (verdict.variants > 1) {
        row["variants"] = verdict.variants;
        row["variants_held"] = verdict.variants_held;
        row["holds"] = robustness_name(verdict.robustness());
      }
    }
    list.push_back(std::move(row));
  }
  return list;
}

}  // namespace verbena::reproduce
