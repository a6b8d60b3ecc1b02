// The blocks of consolidated remote memory that are kept here. Data path.
//
// Four-way associative: a block can lie in four places only, so finding one is four comparisons,
// and nothing is allocated. Blocks with modifications are in a list, the one with the first lease
// in front: leases are all equally long, so new ones go to the end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/remote/dirty_bits.h"

namespace verbena::remote {

struct Block {
  static constexpr uint64_t kNone = ~uint64_t{0};

  uint64_t number = kNone;  // its place in the region, in blocks
  uint64_t used = 0;        // when, counted in uses
  bool loaded = false;      // all bytes are known, not only the modified ones
  uint32_t modifications = 0;
  uint64_t lease_end_ns = 0;
  // In the list of modified blocks.
  Block* before = nullptr;
  Block* behind = nullptr;
};

class BlockBuffer {
 public:
  // `blocks`: a power of two.
  BlockBuffer(uint32_t blocks, uint32_t block_bytes)
      : block_bytes_(block_bytes),
        words_(DirtyBits::words_for(block_bytes)),
        blocks_(blocks),
        bytes_(uint64_t{blocks} * block_bytes),
        bits_(uint64_t{blocks} * words_) {}

  // Null if it is not here.
  Block* find(uint64_t number) {
    Block* const set = set_of(number);
    for (Block* block = set; block != set + kWays; ++block) {
      if (block->number == number) {
        block->used = ++uses_;
        return block;
      }
    }
    return nullptr;
  }
  // The place that `number` is to have: empty, or with the block that must go for it.
  Block& place_for(uint64_t number) {
    Block* const set = set_of(number);
    Block* oldest = set;
    for (Block* block = set; block != set + kWays; ++block) {
      if (block->used < oldest->used) oldest = block;
    }
    return *oldest;
  }
  // A place that has no modifications becomes the block.
  void reset(Block& block, uint64_t number) {
    VERBENA_DEBUG_ASSERT(block.modifications == 0);
    block.number = number;
    block.loaded = false;
    block.used = number == Block::kNone ? 0 : ++uses_;
  }

  char* bytes(const Block& block) { return bytes_.data() + index_of(block) * block_bytes_; }
  DirtyBits dirty(const Block& block) {
    return DirtyBits({bits_.data() + index_of(block) * words_, words_});
  }
  std::span<Block> all() { return blocks_; }

  // The modified block whose lease ends first; null if there is none.
  Block* first_modified() const { return first_; }
  void append(Block& block) {
    block.before = last_;
    block.behind = nullptr;
    (last_ != nullptr ? last_->behind : first_) = &block;
    last_ = &block;
  }
  void remove(Block& block) {
    (block.before != nullptr ? block.before->behind : first_) = block.behind;
    (block.behind != nullptr ? block.behind->before : last_) = block.before;
  }

 private:
  static constexpr uint32_t kWays = 4;

  Block* set_of(uint64_t number) {
    // Neighbours go into different sets, and so do blocks a power of two apart.
    const uint64_t mixed = (number * 0x9e3779b97f4a7c15u) >> 32;
    return &blocks_[mixed % (blocks_.size() / kWays) * kWays];
  }
  uint64_t index_of(const Block& block) const {
    return static_cast<uint64_t>(&block - blocks_.data());
  }

  uint32_t block_bytes_;
  uint32_t words_;  // of bits, per block
  uint64_t uses_ = 0;
  std::vector<Block> blocks_;
  std::vector<char> bytes_;
  std::vector<uint64_t> bits_;
  Block* first_ = nullptr;
  Block* last_ = nullptr;
};

}  // namespace verbena::remote
