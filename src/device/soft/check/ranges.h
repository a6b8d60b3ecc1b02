// Which memory posted work requests use. Equal ranges are one entry, since programs post one buffer
// many times.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace verbena::soft::check {

struct RangeUse {
  uint32_t uses = 0;
  uint64_t written = 0;         // how often work of the program's own may have written into it
  const void* place = nullptr;  // of the latest post
};

class Ranges {
 public:
  // Of at least one byte.
  RangeUse& add(uint64_t begin, uint64_t end, const void* place) {
    longest_ = std::max(longest_, end - begin);
    RangeUse& use = uses_[{begin, end}];
    ++use.uses;
    use.place = place;
    return use;
  }
  void remove(uint64_t begin, uint64_t end) {
    const auto found = uses_.find({begin, end});
    if (found != uses_.end() && --found->second.uses == 0) uses_.erase(found);
    if (uses_.empty()) longest_ = 0;
  }
  RangeUse* find(uint64_t begin, uint64_t end) {
    const auto found = uses_.find({begin, end});
    return found != uses_.end() ? &found->second : nullptr;
  }
  // Calls use(begin, end, RangeUse&) for what overlaps [begin, end), until that returns false.
  template <typename Use>
  void for_overlaps(uint64_t begin, uint64_t end, Use&& use) {
    const uint64_t first = begin > longest_ ? begin - longest_ : 0;
    for (auto at = uses_.lower_bound({first, 0}); at != uses_.end() && at->first.first < end;
         ++at) {
      if (at->first.second > begin && !use(at->first.first, at->first.second, at->second)) return;
    }
  }
  bool empty() const { return uses_.empty(); }

 private:
  std::map<std::pair<uint64_t, uint64_t>, RangeUse> uses_;
  uint64_t longest_ = 0;
};

}  // namespace verbena::soft::check
