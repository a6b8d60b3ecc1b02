// How many registrations cover each page of the address space.
//
// Kept as the addresses at which the count changes, so that a region costs two entries however
// long it is, and neighbours with the same count are one.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace verbena::soft {

class PageCounts {
 public:
  using Range = std::pair<uint64_t, uint64_t>;  // begin, end; whole pages

  void add(Range range) { change(range, +1); }
  // A registration of exactly this range, which add() has counted, has ended.
  void remove(Range range) { change(range, -1); }
  // The parts of `range` that exactly so many registrations cover; ascending, not adjacent.
  std::vector<Range> parts(Range range, uint32_t count) const;
  bool empty() const { return count_from_.empty(); }
  void clear() { count_from_.clear(); }

 private:
  using Steps = std::map<uint64_t, uint32_t>;
  void change(Range range, int32_t by);
  Steps::iterator step_at(uint64_t address);
  void drop_if_level(Steps::iterator step);

  // From this address to the next one; 0 before the first.
  Steps count_from_;
};

}  // namespace verbena::soft
