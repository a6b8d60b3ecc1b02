// Tables and numbers for people.
#pragma once

#include <string>
#include <vector>

namespace verbena::bench {

// Columns as wide as their widest cell, two blanks apart; the first `left` columns are aligned
// left, the others right. Ends with a newline. The first row is the heading.
std::string text_table(const std::vector<std::vector<std::string>>& rows, size_t left);

// Three significant digits and the unit that suits: "281 ns", "1.24 us"; "3.21 M/s"; "10.4 GB/s".
std::string time_text(double ns);
std::string rate_text(double per_s);
std::string bandwidth_text(double bytes_per_s);
std::string count_text(double count);

}  // namespace verbena::bench
