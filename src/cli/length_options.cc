#include "src/cli/length_options.h"

#include "src/device/sim/profile_variants.h"

namespace verbena::cli {

std::vector<CLI::Option*> add_length_options(CLI::App& command, const std::string& requests,
                                             const std::string& help, LengthTexts& texts) {
  CLI::Option* runs =
      command.add_option("--runs", texts.runs, "How many times each point is measured");
  runs->option_text("N (3)");
  CLI::Option* duration =
      command.add_option("--duration", texts.duration, "How long each run lasts");
  duration->option_text("TIME (300ms)");
  CLI::Option* count = command.add_option(requests, texts.requests, help);
  count->option_text("N")->excludes(duration);
  CLI::Option* stall = command.add_option("--stall-timeout", texts.stall,
                                          "End a run in which nothing completes, or a node is "
                                          "silent, for this long, and say which node");
  stall->option_text("TIME (30s)");
  CLI::Option* variants = command.add_option(
      "--variants", texts.variants,
      "Simulated: N variants of the profile, for the band of the results; N times the time");
  variants->option_text("N (1)");
  return {runs, duration, count, stall, variants};
}

Status apply_length(const LengthTexts& texts, bench::Plan* plan) {
  if (!texts.runs.empty()) {
    VERBENA_ASSIGN_OR_RETURN(
        const uint64_t runs,
        parse_one(texts.runs, {.what = "number of runs", .min = 1, .max = bench::kMaxRuns}));
    plan->runs = static_cast<uint32_t>(runs);
  }
  if (!texts.variants.empty()) {
    VERBENA_ASSIGN_OR_RETURN(
        const uint64_t variants,
        parse_one(texts.variants,
                  {.what = "number of variants", .min = 1, .max = sim::kMostVariants}));
    plan->run.variants = static_cast<uint32_t>(variants);
  }
  bench::RunLength& length = plan->run.length;
  if (!texts.duration.empty()) {
    VERBENA_ASSIGN_OR_RETURN(length.duration_ns, bench::parse_duration_ns(texts.duration));
    length.requests = UINT64_MAX;
  }
  if (!texts.requests.empty()) {
    VERBENA_ASSIGN_OR_RETURN(
        length.requests,
        parse_one(texts.requests,
                  {.what = "number of requests", .min = 1, .max = bench::kMaxRequests}));
    length.duration_ns = bench::kUnlimitedRunNs;
  }
  if (!texts.stall.empty()) {
    VERBENA_ASSIGN_OR_RETURN(plan->run.stall_ns, bench::parse_duration_ns(texts.stall));
  }
  return Status::ok_status();
}

Result<uint64_t> parse_one(const std::string& text, bench::ListLimits limits) {
  limits.single = true;
  VERBENA_ASSIGN_OR_RETURN(const std::vector<uint64_t> list, bench::parse_count_list(text, limits));
  return list[0];
}

}  // namespace verbena::cli
