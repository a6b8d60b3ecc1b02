#include "src/bench/result/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace verbena::bench {

namespace {

// How many columns of a terminal UTF-8 text takes: no wide characters occur here.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string significant(double value) {
  const double size = std::abs(value);
  // By what it will be rounded to: 9.996 has no third digit behind the point.
  if (size >= 99.95) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string scaled(double value, std::span<const char* const> units) {
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{} {}", significant(value), units[unit]);
}

}  // namespace

std::string text_table(const std::vector<std::vector<std::string>>& rows, size_t left) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    if (row.empty()) continue;
    widths.resize(std::max(widths.size(), row.size()));
    // A row with fewer cells is a remark in its last one, which may be long.
    const size_t cells = row.size() < rows.front().size() ? row.size() - 1 : row.size();
    for (size_t i = 0; i < cells; ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool remark = row.size() < rows.front().size() && i + 1 == row.size();
      const size_t missing = remark ? 0 : widths[i] - width_of(row[i]);
      if (i > 0) line += "  ";
      if (i >= left && !remark) line.append(missing, ' ');
      line += row[i];
      if (i < left) line.append(missing, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string time_text(double ns) {
  constexpr std::array<const char*, 4> kUnits = {"ns", "us", "ms", "s"};
  return scaled(ns, kUnits);
}

std::string rate_text(double per_s) {
  constexpr std::array<const char*, 4> kUnits = {"/s", "k/s", "M/s", "G/s"};
  return scaled(per_s, kUnits);
}

std::string bandwidth_text(double bytes_per_s) {
  constexpr std::array<const char*, 5> kUnits = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  return scaled(bytes_per_s, kUnits);
}

std::string count_text(double count) {
  return count >= 1000 ? fmt::format("{:.0f}", count) : significant(count);
}

}  // namespace verbena::bench
