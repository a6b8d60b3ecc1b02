// Collective operations over tagged messages, by the algorithms that the papers' MPIs had.
//
//   barrier    exchanges with the rank whose number differs in one bit, from the lowest bit on;
//              ranks beyond the largest power of two tell one below it before and are told behind
//              (MPICH's of "mpiiba" 5)
//   broadcast  binomial tree from rank 0 ("bufreuse" 5.1.3)
//   scatter    binomial tree: each step sends half of what a rank has, from intermediate buffers
//              ("bufreuse" 5.1.3)
//   allreduce  sums to rank 0 along a binomial tree, and a broadcast of them (MPICH's of
//              "mpiiba" 5)
#pragma once

#include <cstdint>
#include <vector>

#include "src/bench/message/message_buffers.h"
#include "src/bench/message/message_rank.h"
#include "verbena/status.h"

namespace verbena::bench {

// The binomial tree with root 0 of `size` ranks. A rank receives from `parent`, and sends to
// children one after the other, the one with the largest subtree first.
struct BinomialPlace {
  uint32_t parent = 0;
  uint32_t subtree = 0;  // ranks of its own one, which are `rank` and those behind it
  struct Child {
    uint32_t rank = 0;
    uint32_t subtree = 0;
    bool operator==(const Child&) const = default;
  };
  std::vector<Child> children;
};
BinomialPlace binomial_place(uint32_t rank, uint32_t size);

// Of a barrier.
struct BarrierPlace {
  // The largest power of two that is not above the size; those behind it take part by a proxy.
  uint32_t core = 1;
  bool is_proxied = false;
  bool is_proxy = false;
  uint32_t other = 0;  // of the two above
  std::vector<uint32_t> partners;
};
BarrierPlace barrier_place(uint32_t rank, uint32_t size);

// Memory of a rank.
uint64_t collective_memory_bytes(const Point& point);

class MessageCollectives {
 public:
  explicit MessageCollectives(MessageRank& rank);

  Status open() const;
  void begin() { operations_ = 0; }
  // One operation, which all ranks take part in.
  bool run();
  // Ranks beside rank 0 that messages with bytes come from and go to.
  std::vector<uint32_t> partners() const;
  // That were ended.
  uint64_t operations() const { return operations_; }

 private:
  bool barrier();
  bool broadcast();
  bool broadcast_down(char* bytes);
  bool scatter();
  bool allreduce();
  // Number i of the numbers of one rank, and the sum of those of all.
  uint64_t addend(uint32_t rank, uint64_t i) const { return (operations_ + 1) * (rank + 1) + i; }
  uint64_t sum(uint64_t i) const {
    const uint64_t size = rank_.size();
    return (operations_ + 1) * (size * (size + 1) / 2) + size * i;
  }

  MessageRank& rank_;
  const MessageTest test_;
  const uint64_t size_bytes_;
  const BinomialPlace tree_;
  const BarrierPlace barrier_;
  MessageBuffers data_;  // of scatter: a block for each rank of the subtree
  MessageBuffers other_;
  char nothing_ = 0;
  uint64_t operations_ = 0;
};

}  // namespace verbena::bench
