// The options that say how long and how often something is measured, shared by commands.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/experiment/size_list.h"
#include "verbena/status.h"

namespace verbena::cli {

// What is empty is as the experiment has it, or the standard.
struct LengthTexts {
  std::string runs;
  std::string requests;
  std::string duration;
  std::string stall;
  std::string variants;

  bool chosen() const { return !requests.empty() || !duration.empty(); }
};

// --runs, --duration, --stall-timeout, --variants and `requests`, an option with its help; `texts`
// must outlive the command.
std::vector<CLI::Option*> add_length_options(CLI::App& command, const std::string& requests,
                                             const std::string& help, LengthTexts& texts);
// What the command line says replaces what the plan has.
Status apply_length(const LengthTexts& texts, bench::Plan* plan);

// A single number within the limits.
Result<uint64_t> parse_one(const std::string& text, bench::ListLimits limits);

}  // namespace verbena::cli
