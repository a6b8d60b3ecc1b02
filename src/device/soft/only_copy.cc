#include "src/device/soft/only_copy.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {
namespace {

// The path of the code in this line of /proc/self/maps; empty if it is no code of a file.
std::string_view code_in(std::string_view line, uint64_t* start, uint64_t* end) {
  char protection[5] = {};
  int path_at = 0;
  if (std::sscanf(std::string(line).c_str(), "%lx-%lx %4s %*s %*s %*s %n", start, end, protection,
                  &path_at) != 3 ||
      protection[2] != 'x' || path_at == 0) {
    return {};
  }
  std::string_view path = line.substr(static_cast<size_t>(path_at));
  constexpr std::string_view kDeleted = " (deleted)";
  if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
  return path;
}

}  // namespace

// The loader's own list has the objects of one namespace (dlmopen), the kernel's has all.
Status check_only_copy() {
  const auto here = reinterpret_cast<uintptr_t>(&check_only_copy);
  std::string own = "the one that is linked into this program";
  std::string other;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t start = 0;
    uint64_t end = 0;
    const std::string_view path = code_in(line, &start, &end);
    if (path.substr(path.rfind('/') + 1) != kLibraryName) continue;
    (here >= start && here < end ? own : other) = path;
  }
  if (other.empty()) return {};
  return {StatusCode::kUnavailable,
          fmt::format("soft0: {} is loaded {}, and a process has one software RNIC; load {} by its "
                      "name without a path and without dlmopen(), and let LD_PRELOAD and "
                      "LD_LIBRARY_PATH lead to one copy",
                      other, other == own ? "twice" : "beside " + own, kLibraryName)};
}

}  // namespace verbena::soft
