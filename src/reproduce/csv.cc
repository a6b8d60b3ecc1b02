#include "src/reproduce/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace verbena::reproduce {

Result<std::vector<std::vector<std::string>>> parse_csv(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string cell;
  size_t opened = 0;  // where the quote is that is not closed yet
  bool quoted = false;
  const auto end_row = [&] {
    row.push_back(std::move(cell));
    cell.clear();
    if (row.size() > 1 || !row[0].empty()) rows.push_back(std::move(row));
    row.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (quoted && letter == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      cell += text[++i];
    } else if (letter == '"') {
      quoted = !quoted;
      opened = i;
    } else if (quoted) {
      cell += letter;
    } else if (letter == ',') {
      row.push_back(std::move(cell));
      cell.clear();
    } else if (letter == '\n') {
      end_row();
    } else if (letter != '\r') {
      cell += letter;
    }
  }
  if (quoted) {
    const auto lines = std::count(text.begin(), text.begin() + static_cast<long>(opened), '\n');
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("line {}: a quote is not closed", lines + 1));
  }
  if (!cell.empty() || !row.empty()) end_row();
  return rows;
}

}  // namespace verbena::reproduce
