// The blocks of consolidated remote memory that are kept here. Data path.
//
// Four-way associative: a block can lie in four places only, so finding one is four comparisons,
// and nothing is allocated. Blocks with modifications are in a list, the one with the first lease
// in front: leases are all equally long, so new ones go to the end.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "src/remote/dirty_bits.h"
#include "verbena/status.h"

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
  // `blocks`: a power of two. kLimitExceeded: the system has not so much memory.
  static Result<BlockBuffer> create(uint32_t blocks, uint32_t block_bytes) {
    BlockBuffer buffer(blocks, block_bytes);
    if (buffer.blocks_ != nullptr && buffer.bytes_ != nullptr && buffer.bits_ != nullptr) {
      return buffer;
    }
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("the system has no memory for {} blocks of {} bytes; lower "
                              "ConsolidationOptions::blocks or block_bytes",
                              blocks, block_bytes));
  }

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

  char* bytes(const Block& block) { return bytes_.get() + index_of(block) * block_bytes_; }
  DirtyBits dirty(const Block& block) {
    return DirtyBits({bits_.get() + index_of(block) * words_, words_});
  }
  std::span<Block> all() { return {blocks_.get(), count_}; }

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

  BlockBuffer(uint32_t blocks, uint32_t block_bytes)
      : count_(blocks),
        block_bytes_(block_bytes),
        words_(DirtyBits::words_for(block_bytes)),
        blocks_(new (std::nothrow) Block[blocks]),
        bytes_(new (std::nothrow) char[uint64_t{blocks} * block_bytes]),
        bits_(new (std::nothrow) uint64_t[uint64_t{blocks} * words_]()) {}

  Block* set_of(uint64_t number) {
    // Neighbours go into different sets, and so do blocks a power of two apart.
    const uint64_t mixed = (number * 0x9e3779b97f4a7c15u) >> 32;
    return &blocks_[mixed % (count_ / kWays) * kWays];
  }
  uint64_t index_of(const Block& block) const {
    return static_cast<uint64_t>(&block - blocks_.get());
  }

  uint64_t count_;
  uint32_t block_bytes_;
  uint32_t words_;  // of bits, per block
  uint64_t uses_ = 0;
  std::unique_ptr<Block[]> blocks_;
  std::unique_ptr<char[]> bytes_;  // not touched before it is used
  std::unique_ptr<uint64_t[]> bits_;
  Block* first_ = nullptr;
  Block* last_ = nullptr;
};

}  // namespace verbena::remote
