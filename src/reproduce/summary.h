// Verdicts for people.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "src/reproduce/verdict.h"

namespace verbena::reproduce {

// How many rows of a paper came out how. Rows that were spent on calibration count as such alone,
// but for those that were not selected: these are unchecked like any other.
struct Tally {
  size_t calibration_rows = 0;  // those of hardware that could be checked
  size_t calibration_held = 0;
  size_t checked = 0;  // result rows, of these
  size_t passed = 0;
  size_t failed = 0;
  size_t unchecked = 0;
  size_t spent = 0;
  size_t spent_held = 0;
  // Of those checked, where each was checked with several variants of the profile.
  size_t variants = 1;
  std::map<Robustness, size_t> robustness{};
};
Tally tally(const std::vector<Verdict>& verdicts, const std::string& paper);

// One line per paper.
std::string summary_line(const std::string& paper, const Tally& tally);

// A paper's claims that were checked, then those that cannot be, by reason. Not those that were not
// selected.
std::string verdicts_text(const std::vector<Verdict>& verdicts, const std::string& paper);

}  // namespace verbena::reproduce
