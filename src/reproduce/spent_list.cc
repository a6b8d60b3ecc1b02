#include "src/reproduce/spent_list.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <filesystem>
#include <string_view>

namespace verbena::reproduce {

namespace {

Status bad_line(const std::string& path, uint32_t line, std::string_view what) {
  return Status(StatusCode::kInvalidArgument, fmt::format("{} line {}: {}", path, line, what));
}

Status add_entry(const std::string& path, const toml::node& node, SpentClaims* spent) {
  const auto wrong = [&](std::string_view what) {
    return bad_line(path, node.source().begin.line, what);
  };
  const toml::table* const entry = node.as_table();
  if (entry == nullptr) return wrong("'spent' is not a list of tables");
  const std::string by = (*entry)["by"].value_or(std::string());
  if (by.empty()) return wrong("no text 'by', which says what was set");
  const toml::array* const claims = (*entry)["claims"].as_array();
  if (claims == nullptr || claims->empty()) return wrong("no list 'claims'");
  for (const toml::node& claim : *claims) {
    const std::string id = claim.value_or(std::string());
    if (id.empty()) return wrong("a claim is named by its id");
    std::string& text = (*spent)[id];
    text += (text.empty() ? "" : ", ") + by;
  }
  return {};
}

}  // namespace

Result<SpentClaims> read_spent_list(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Status(StatusCode::kNotFound,
                  fmt::format("there is no list {}; install verbena again", path));
  }
  SpentClaims spent;
  try {
    const toml::table file = toml::parse_file(path);
    for (const auto& [key, node] : file) {
      const toml::array* const entries = node.as_array();
      if (key.str() != "spent" || entries == nullptr) {
        return bad_line(path, node.source().begin.line, "there are only entries [[spent]]");
      }
      for (const toml::node& entry : *entries) {
        VERBENA_RETURN_IF_ERROR(add_entry(path, entry, &spent));
      }
    }
  } catch (const toml::parse_error& bad) {
    return bad_line(path, bad.source().begin.line, bad.description());
  }
  return spent;
}

}  // namespace verbena::reproduce
