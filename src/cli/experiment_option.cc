#include "src/cli/experiment_option.h"

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

Result<bench::Plan> read_experiment(const std::string& name_or_path) {
  const std::vector<std::string> names = experiment_names();
  if (std::find(names.begin(), names.end(), name_or_path) == names.end()) {
    return bench::read_experiment_file(name_or_path);
  }
  VERBENA_ASSIGN_OR_RETURN(const std::string folder, find_share("experiments", ""));
  return bench::read_experiment_file(folder + "/" + name_or_path + kExtension);
}

}  // namespace verbena::cli
