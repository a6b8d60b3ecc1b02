// Sizes, counts and times as people type them: "64,4KiB", "64,…,4MiB", "1,16", "1s".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/status.h"

namespace verbena::bench {

// What a list may hold; `what` names one entry in errors ("request size").
struct ListLimits {
  std::string_view what;
  uint64_t min = 0;
  uint64_t max = 0;
  bool single = false;  // a list is refused
};

// More entries than anybody means to measure are a slip of the keyboard.
inline constexpr size_t kMaxListEntries = 256;

// A comma-separated list of sizes, each a whole number with an optional unit (B, KiB, MiB, GiB).
// "a,…,b" or "a,...,b" stands for a, every power of two between, and b. Repeated values count once.
Result<std::vector<uint64_t>> parse_size_list(std::string_view text, const ListLimits& limits);
// The same without units.
Result<std::vector<uint64_t>> parse_count_list(std::string_view text, const ListLimits& limits);

// "500ms", "1s", "2min", "1.5s": a time above 0 in nanoseconds.
Result<uint64_t> parse_duration_ns(std::string_view text);

// "64 B", "4 KiB", "1.5 MiB": binary units, the largest that leaves at least 1.
std::string size_text(uint64_t bytes);

}  // namespace verbena::bench
