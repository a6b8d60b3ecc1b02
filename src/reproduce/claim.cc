#include "src/reproduce/claim.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "src/reproduce/csv.h"

namespace verbena::reproduce {

namespace {

constexpr std::array kColumns = {&Claim::id,     &Claim::paper,      &Claim::section,
                                 &Claim::figure, &Claim::experiment, &Claim::setup,
                                 &Claim::metric, &Claim::subject,    &Claim::value,
                                 &Claim::unit,   &Claim::relation,   &Claim::kind};

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<Range> parse_range(std::string_view text) {
  const size_t dots = text.find("..");
  const auto low = parse_number(text.substr(0, dots));
  const auto high = dots == std::string_view::npos ? low : parse_number(text.substr(dots + 2));
  if (!low || !high) return std::nullopt;
  return Range{*low, *high};
}

}  // namespace

std::string_view Claim::comparison() const {
  const std::string_view text = relation;
  const size_t end = text.find_first_not_of("<>=~");
  return text.substr(0, end);
}

std::string Claim::text() const {
  if (value.empty()) return relation;
  const std::string_view sign = comparison();
  const std::string prefix = sign.empty() || sign == "=" ? "" : fmt::format("{} ", sign);
  return fmt::format("{}{}{}{}", prefix, value, unit.empty() ? "" : " ",
                     unit == "percent" ? "%"
                     : unit == "count" ? ""
                                       : unit);
}

Result<std::vector<Claim>> read_claims(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return Status(StatusCode::kNotFound,
                  fmt::format("cannot read the papers' claims {}: {}; install verbena again", path,
                              std::strerror(errno)));
  }
  const auto error = [&](size_t row, std::string_view what) {
    return Status(StatusCode::kInvalidArgument, fmt::format("{} row {}: {}", path, row, what));
  };
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto rows = parse_csv(text);
  if (!rows.ok()) return error(0, rows.status().message());
  std::vector<Claim> claims;
  std::set<std::string> seen;
  for (size_t i = 1; i < rows->size(); ++i) {  // behind the heading
    const std::vector<std::string>& cells = (*rows)[i];
    if (cells.size() != kColumns.size()) {
      return error(i + 1,
                   fmt::format("{} cells where {} are needed", cells.size(), kColumns.size()));
    }
    Claim claim;
    for (size_t column = 0; column < kColumns.size(); ++column) {
      claim.*kColumns[column] = cells[column];
    }
    if (!seen.insert(claim.id).second) {
      return error(i + 1, fmt::format("a second claim '{}'", claim.id));
    }
    claim.number = parse_range(claim.value);
    claims.push_back(std::move(claim));
  }
  return claims;
}

}  // namespace verbena::reproduce
