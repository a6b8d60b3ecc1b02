// Memory of the join: what it may take, and blocks of it.
#pragma once

#include <cstdint>
#include <string>

#include "verbena/status.h"

namespace verbena::join_app {

// What the process could still take without being killed or refused: the least of what the machine,
// its control groups and its address space have left.
uint64_t available_memory_bytes();

// Large blocks that were freed are kept for those that come next, up to so many bytes in all. Their
// pages are the system's whenever it wants them, and count as available.
inline constexpr uint64_t kMostKeptBytes = uint64_t{2} << 30;
uint64_t kept_memory_bytes();
void drop_kept_memory();

// The bytes that one join has taken, against its limit. Used by many threads.
class MemoryBudget {
 public:
  // `limit_bytes` 0: four fifths of what is available.
  explicit MemoryBudget(uint64_t limit_bytes);

  // Before the limit is known to hold for what comes: takes the bytes of an input that was handed
  // over. Called by one thread.
  Status take_input(uint64_t bytes, const std::string& what);
  // Takes bytes that are about to be allocated; false: nothing was taken, they are above the limit.
  bool take(uint64_t bytes);
  // The same, with the message that refuses it.
  Status take(uint64_t bytes, const std::string& what);
  void give_back(uint64_t bytes);
  // Whether so many could be taken now.
  bool has(uint64_t bytes) const;

  // For `bytes` more that the budget does not have.
  Status refusal(uint64_t bytes, const std::string& what) const;
  uint64_t used_bytes() const;
  uint64_t peak_bytes() const;

 private:
  bool measured_;  // the limit is what is available, not what the user has set
  uint64_t limit_bytes_;
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

// A block of memory, not initialized, aligned to 64 bytes. Large ones take huge pages where the
// system has them: they are read and written at random.
class Block {
 public:
  Block() = default;
  explicit Block(uint64_t size_bytes);  // throws std::bad_alloc
  Block(Block&& other) noexcept;
  Block& operator=(Block&& other) noexcept;
  ~Block();

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  void* data_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint64_t capacity_bytes_ = 0;  // of a large one
};

}  // namespace verbena::join_app
