// Bytes of messages that nobody has posted a receive for, in a bounded number of small blocks.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/base/assert.h"
#include "src/message/pieces.h"
#include "src/message/zeroed_array.h"
#include "verbena/data_path.h"

namespace verbena::message {

class UnexpectedStore {
 public:
  static constexpr uint32_t kNone = 0;
  static constexpr uint32_t kBlockBytes = 256;

  explicit UnexpectedStore(uint64_t bytes)
      : blocks_(bytes / kBlockBytes + 1), next_(blocks_.size()), free_count_(blocks_.size() - 1) {}

  bool has_room(uint64_t bytes) const { return blocks_of(bytes) <= free_count_; }
  uint64_t free_blocks() const { return free_count_; }

  // Needs has_room() for all bytes. The number of its first block, kNone for no bytes.
  uint32_t put(std::span<const iovec> pieces) {
    uint32_t first = kNone;
    uint32_t last = kNone;
    uint64_t filled_bytes = kBlockBytes;
    for (const iovec& piece : pieces) {
      const auto* from = static_cast<const char*>(piece.iov_base);
      for (uint64_t left_bytes = piece.iov_len; left_bytes > 0;) {
        if (filled_bytes == kBlockBytes) {
          const uint32_t block = allocate();
          (last != kNone ? next_[last] : first) = block;
          last = block;
          filled_bytes = 0;
        }
        const uint64_t some_bytes = std::min(left_bytes, kBlockBytes - filled_bytes);
        copy_bytes(blocks_[last].bytes + filled_bytes, from, some_bytes);
        from += some_bytes;
        left_bytes -= some_bytes;
        filled_bytes += some_bytes;
      }
    }
    return first;
  }
  // What fits. The blocks stay.
  uint64_t get(uint32_t first, uint64_t bytes, PieceCursor& to) const {
    uint64_t done = 0;
    for (uint32_t block = first; done < bytes && !to.at_end(); block = next_[block]) {
      VERBENA_ASSERT(block != kNone);
      done += to.put(blocks_[block].bytes, std::min<uint64_t>(kBlockBytes, bytes - done));
    }
    return done;
  }
  void free(uint32_t first) {
    while (first != kNone) {
      const uint32_t next = next_[first];
      next_[first] = free_;
      free_ = first;
      first = next;
      ++free_count_;
    }
  }

 private:
  struct Block {
    char bytes[kBlockBytes];
  };

  static uint64_t blocks_of(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }
  uint32_t allocate() {
    VERBENA_DEBUG_ASSERT(free_count_ > 0);
    uint32_t block = free_;
    if (block != kNone) {
      free_ = next_[block];
    } else {
      block = ++used_ever_;
    }
    next_[block] = kNone;
    --free_count_;
    return block;
  }

  ZeroedArray<Block> blocks_;
  ZeroedArray<uint32_t> next_;  // of a message, or of free ones
  uint64_t free_count_;
  uint32_t free_ = kNone;
  uint32_t used_ever_ = 0;
};

}  // namespace verbena::message
