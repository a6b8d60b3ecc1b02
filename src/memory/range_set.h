// A set of addresses, as disjoint ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace verbena {

// From `begin` up to, not including, `end`.
struct AddressRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  bool operator==(const AddressRange&) const = default;
};

class RangeSet {
 public:
  void add(AddressRange range) {
    if (range.begin >= range.end) return;
    auto at = first_behind(range.begin);
    // What touches it becomes one with it.
    if (at != ranges_.begin() && std::prev(at)->second == range.begin) --at;
    while (at != ranges_.end() && at->first <= range.end) {
      range.begin = std::min(range.begin, at->first);
      range.end = std::max(range.end, at->second);
      at = ranges_.erase(at);
    }
    ranges_.emplace(range.begin, range.end);
  }

  void remove(AddressRange range) {
    if (range.begin >= range.end) return;
    for (auto at = first_behind(range.begin); at != ranges_.end() && at->first < range.end;) {
      const auto [begin, end] = *at;
      at = ranges_.erase(at);
      if (begin < range.begin) ranges_.emplace(begin, range.begin);
      if (end > range.end) at = std::next(ranges_.emplace(range.end, end).first);
    }
  }

  // Ascending.
  std::vector<AddressRange> all() const {
    std::vector<AddressRange> list;
    for (const auto& [begin, end] : ranges_) list.push_back({begin, end});
    return list;
  }
  // The parts of `range` that are in the set, ascending.
  std::vector<AddressRange> within(AddressRange range) const {
    std::vector<AddressRange> parts;
    for (auto at = ranges_.upper_bound(range.end); at != ranges_.begin();) {
      const auto [begin, end] = *--at;
      if (end <= range.begin) break;
      const AddressRange part{std::max(begin, range.begin), std::min(end, range.end)};
      if (part.begin < part.end) parts.push_back(part);
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
  }

 private:
  // The first range that ends behind `address`.
  std::map<uint64_t, uint64_t>::iterator first_behind(uint64_t address) {
    auto at = ranges_.upper_bound(address);
    if (at != ranges_.begin() && std::prev(at)->second > address) --at;
    return at;
  }

  std::map<uint64_t, uint64_t> ranges_;  // begin to end
};

}  // namespace verbena
