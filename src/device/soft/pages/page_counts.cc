#include "src/device/soft/pages/page_counts.h"

#include <algorithm>
#include <iterator>

#include "src/base/assert.h"

namespace verbena::soft {

PageCounts::Steps::iterator PageCounts::step_at(uint64_t address) {
  const auto next = count_from_.upper_bound(address);
  const uint32_t count = next == count_from_.begin() ? 0 : std::prev(next)->second;
  return count_from_.emplace(address, count).first;
}

void PageCounts::drop_if_level(Steps::iterator step) {
  const uint32_t before = step == count_from_.begin() ? 0 : std::prev(step)->second;
  if (step->second == before) count_from_.erase(step);
}

void PageCounts::change(Range range, int32_t by) {
  VERBENA_ASSERT(range.first < range.second);
  const auto begin = step_at(range.first);
  const auto end = step_at(range.second);
  for (auto step = begin; step != end; ++step) {
    VERBENA_ASSERT(by > 0 || step->second > 0);
    step->second += static_cast<uint32_t>(by);
  }
  drop_if_level(end);
  drop_if_level(begin);
}

std::vector<PageCounts::Range> PageCounts::parts(Range range, uint32_t count) const {
  std::vector<Range> found;
  auto next = count_from_.upper_bound(range.first);
  uint32_t current = next == count_from_.begin() ? 0 : std::prev(next)->second;
  for (uint64_t at = range.first; at < range.second; ++next) {
    const uint64_t end =
        next == count_from_.end() ? range.second : std::min(next->first, range.second);
    if (current == count) found.emplace_back(at, end);
    at = end;
    if (next == count_from_.end()) break;
    current = next->second;
  }
  return found;
}

}  // namespace verbena::soft
