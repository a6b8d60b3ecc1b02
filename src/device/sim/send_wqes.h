// The send queue of a simulated queue pair.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/assert.h"

namespace verbena::sim {

// A send WQE. Messages of a queue pair are numbered like their WQEs.
struct Wqe {
  uint64_t wr_id = 0;
  uint64_t remote_address = 0;
  uint64_t compare = 0;
  uint64_t swap = 0;
  uint32_t rkey = 0;
  uint32_t length_bytes = 0;
  uint32_t packets = 1;  // of the request or, for READ, of the response
  uint32_t arrived = 0;  // packets of the response
  uint32_t imm_data = 0;
  ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
  uint8_t sges = 0;
  bool inlined = false;
  bool signaled = false;
  bool fence = false;
  bool done = false;   // READ, atomic: the response is there
  bool late = false;   // it came with its doorbell while others waited, and is fetched after all
  bool asked = false;  // and it counts as outstanding
  bool bad = false;    // its memory may not be used: it fails when its turn comes
};

// The bytes of an inline WQE; its place in the queue keeps the memory for the next one.
struct InlineBytes {
  std::unique_ptr<std::byte[]> bytes;
  uint32_t capacity = 0;

  std::byte* hold(uint32_t length) {
    if (length > capacity) {
      capacity = std::max(length, 2 * capacity);
      bytes = std::make_unique<std::byte[]>(capacity);
    }
    return bytes.get();
  }
};

// A few neighbouring WQEs of a send queue.
struct SendBlock {
  static constexpr uint32_t kEntries = 4;

  explicit SendBlock(uint32_t max_sges)
      : sges(std::make_unique<ibv_sge[]>(size_t{kEntries} * max_sges)) {}

  std::array<Wqe, kEntries> wqes;
  std::array<InlineBytes, kEntries> inline_bytes;
  std::unique_ptr<ibv_sge[]> sges;
};

// The send WQEs of a queue pair, by their numbers. Most queues of a large cluster are deep and
// hardly used: memory is there for those that the RNIC still has to do with, not for the whole
// depth.
class SendWqes {
 public:
  void configure(uint32_t depth, uint32_t max_sges) {
    max_sges_ = max_sges;
    blocks_.resize(depth / SendBlock::kEntries + 2);
  }
  void clear() {
    for (std::unique_ptr<SendBlock>& block : blocks_) block.reset();
    oldest_ = 0;
  }
  // Makes the place of a new WQE, the next one. Nobody will ask for those below `done` again.
  void add(uint64_t number, uint64_t done) {
    const uint64_t next = number / SendBlock::kEntries;
    std::unique_ptr<SendBlock>& block = blocks_[next % blocks_.size()];
    if (number % SendBlock::kEntries != 0 && block != nullptr) return;
    if (next - oldest_ == blocks_.size()) {
      ++oldest_;
    } else if (oldest_ < next && (oldest_ + 1) * SendBlock::kEntries <= done) {
      block = std::move(blocks_[oldest_++ % blocks_.size()]);
    } else {
      block = std::make_unique<SendBlock>(max_sges_);
    }
  }

  Wqe& wqe(uint64_t number) { return block_of(number).wqes[number % SendBlock::kEntries]; }
  ibv_sge* sges(uint64_t number) {
    return &block_of(number).sges[number % SendBlock::kEntries * max_sges_];
  }
  InlineBytes& inline_bytes(uint64_t number) {
    return block_of(number).inline_bytes[number % SendBlock::kEntries];
  }

 private:
  SendBlock& block_of(uint64_t number) {
    SendBlock* const block = blocks_[number / SendBlock::kEntries % blocks_.size()].get();
    VERBENA_DEBUG_ASSERT(block != nullptr && number / SendBlock::kEntries >= oldest_);
    return *block;
  }

  std::vector<std::unique_ptr<SendBlock>> blocks_;
  uint64_t oldest_ = 0;  // block that there is
  uint32_t max_sges_ = 1;
};

}  // namespace verbena::sim
