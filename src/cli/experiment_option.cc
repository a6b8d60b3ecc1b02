#include "src/cli/experiment_option.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "src/bench/experiment/experiment_file.h"
#include "src/cli/share.h"

namespace verbena::cli {

namespace {

constexpr const char* kExtension = ".toml";

}  // namespace

std::vector<std::string> experiment_names() {
  std::vector<std::string> names;
  const Result<std::string> folder = find_share("experiments", "");
  if (!folder.ok()) return names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(*folder, error)) {
    if (entry.path().extension() == kExtension) names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<bench::Plan> read_experiment(const std::string& name_or_path,
                                    const bench::Workload& workload) {
  std::string path = name_or_path;
  const std::vector<std::string> names = experiment_names();
  if (std::find(names.begin(), names.end(), name_or_path) != names.end()) {
    VERBENA_ASSIGN_OR_RETURN(const std::string folder, find_share("experiments", ""));
    path = folder + "/" + name_or_path + kExtension;
  }
  VERBENA_ASSIGN_OR_RETURN(bench::Plan plan, bench::read_experiment_file(path));
  const bench::Workload& own = plan.sweeps.front().workload();
  if (&own == &workload) return plan;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} is about {}; 'verbena {} --experiment' measures it", name_or_path,
                            own.traits().subject, bench::command_words(own.traits().command)));
}

}  // namespace verbena::cli
