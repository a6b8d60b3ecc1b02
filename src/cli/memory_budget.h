// The memory of this machine, shared out among what runs at the same time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::cli {

class MemoryBudget {
 public:
  // For so many pieces of work, told apart by their numbers from 0 on.
  MemoryBudget(uint64_t free_bytes, size_t count) : free_bytes_(free_bytes), taken_bytes_(count) {}

  bool has(uint64_t bytes) const { return bytes <= free_bytes_; }
  uint64_t free_bytes() const { return free_bytes_; }

  // What does not fit has all there is: it runs alone.
  void take(size_t number, uint64_t bytes) {
    taken_bytes_[number] = std::min(free_bytes_, bytes);
    free_bytes_ -= taken_bytes_[number];
  }
  void give_back(size_t number) {
    free_bytes_ += taken_bytes_[number];
    taken_bytes_[number] = 0;
  }

 private:
  uint64_t free_bytes_;
  std::vector<uint64_t> taken_bytes_;
};

}  // namespace verbena::cli
