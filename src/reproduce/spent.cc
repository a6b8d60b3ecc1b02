#include "src/reproduce/spent.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <filesystem>

namespace verbena::reproduce {

Result<std::map<std::string, std::string>> read_spent_claims(const std::string& profile_path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(profile_path, error)) {
    return Status(StatusCode::kNotFound, fmt::format("there is no profile {}", profile_path));
  }
  std::map<std::string, std::string> spent;
  try {
    const toml::table profile = toml::parse_file(profile_path);
    for (const auto& [parameter, node] : profile) {
      const toml::table* table = node.as_table();
      const toml::array* claims = table == nullptr ? nullptr : (*table)["claims"].as_array();
      if (claims == nullptr) continue;
      for (const toml::node& claim : *claims) {
        std::string& parameters = spent[claim.value_or(std::string())];
        parameters += (parameters.empty() ? "" : ", ") + std::string(parameter.str());
      }
    }
  } catch (const toml::parse_error& bad) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{} line {}: {}", profile_path, bad.source().begin.line, bad.description()));
  }
  return spent;
}

}  // namespace verbena::reproduce
