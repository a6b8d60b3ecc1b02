// Which buffers a program sends from again and again: those are worth a registration, and need no
// copy from then on ("bufreuse" 3).
//
// Per message, a sender asks the table what to do with the buffer, and does it:
//
//   const BufferUse use = table.count(buffer, bytes);
//   switch (use.way) {
//     case BufferUse::Way::kCopy:      // into memory that is registered already
//       break;
//     case BufferUse::Way::kRegister:  // from its place, from now on
//       if (auto source = lookup.get(buffer, bytes, 0); source.ok()) table.registered(use);
//       else table.refused(use);       // copy
//       break;
//     case BufferUse::Way::kInPlace:   // as registered before
//       if (auto source = lookup.find(buffer, bytes, 0); !source) table.lost(use);  // copy
//   }
//
// A buffer is an address. It is registered after a part of the least number of reuses that pays at
// the size of the message at hand (reuse_thresholds.h), in the hope of as many more; a buffer whose
// registration did not last (lookup.find() above) has to earn the next one, and twice as much where
// the last one did not pay. One that grows is registered anew. The first use is no reuse.
//
// **Adaptation** (3.4): a program that does not use its buffers again would fill the table in vain.
// Buffers are no longer added while some have met in a bucket and fewer than a fifth of those in
// the table are registered. What is in it goes on to be counted, and if that changes the shares,
// buffers are added again (the paper leaves that open).
//
// For one thread at a time; no call but create() allocates. A look-up counts as a poll
// (verbena/data_path.h) of the bucket and one of the buffer, if it is there; or of the tree's
// nodes. Which buffers meet in a bucket depends on their addresses, so in a simulation none do: the
// table is only closed when it is full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "src/memory/reuse_thresholds.h"
#include "verbena/status.h"

namespace verbena {

// What the buffers are found by. The paper compares both (figure 3), and takes the hash table.
enum class BufferUseIndex {
  kHash,  // multiplicative hash of the address; who meets in a bucket is in its list
  kTree,  // balanced binary tree; no buckets, so the table is only closed when it is full
};

struct BufferUseOptions {
  BufferUseIndex index = BufferUseIndex::kHash;
  unsigned bucket_bits = 20;  // a million buckets, 4 bytes each, touched as they are used
  uint32_t max_buffers = 1u << 18;
  // The part of the least number of reuses after which a buffer is registered; the paper: 0.25,
  // 0.5, 1.
  double speculation = 0.25;
  bool adapts = true;
  // Forgets all once it is full, instead of taking no more; needs kHash.
  bool starts_anew = false;
  double least_registered_share = 0.2;
  // Counts buffers of messages that are too small to pay, too: for statistics of a program.
  bool counts_all_sizes = false;
};

// What to do with one message, and why.
struct BufferUse {
  enum class Way : uint8_t { kCopy, kRegister, kInPlace };
  enum class Reason : uint8_t {
    kNeverPays,   // at this size
    kSeldomUsed,  // so far
    kClosed,      // not in the table, which takes no more (adaptation)
    kFull,        // not in the table, which is full
    kRefused,     // the registration failed; it is tried again after twice as many reuses
    kOftenUsed,
    kRegistered,
  };

  Way way = Way::kCopy;
  Reason reason = Reason::kNeverPays;
  uint32_t bytes = 0;
  uint32_t reuses = 0;        // so far; since its registration was lost, if it was
  uint32_t least_reuses = 0;  // that pay
  uint32_t due = 0;           // reuses after which it is registered
  uint32_t place = UINT32_MAX;
  uint64_t address = 0;
};

// Of a program's buffers ("bufreuse" tables 1 and 3).
struct BufferUseStatistics {
  uint64_t uses = 0;             // counted in the table
  uint64_t reuses = 0;           // of these, of a buffer that was in it
  uint64_t not_added = 0;        // uses of buffers that it did not take
  uint32_t buffers = 0;          // in the table
  uint32_t registered = 0;       // of these, as frequently used
  uint32_t in_lists = 0;         // that met another one in their bucket
  uint32_t most_reuses = 0;      // of one buffer
  uint32_t most_used_bytes = 0;  // its latest message
};

class BufferUseTable {
 public:
  //   kInvalidArgument  an option makes no sense
  //   kLimitExceeded    no memory
  static Result<BufferUseTable> create(const ReuseThresholds& thresholds,
                                       const BufferUseOptions& options = {});
  BufferUseTable(BufferUseTable&&) noexcept = default;
  BufferUseTable& operator=(BufferUseTable&&) noexcept = default;

  // Counts a message of `bytes` from the buffer, and decides how to send it; by other thresholds
  // than the table's own where the message travels another way.
  BufferUse count(const void* buffer, uint32_t bytes) { return count(buffer, bytes, thresholds_); }
  BufferUse count(const void* buffer, uint32_t bytes, const ReuseThresholds& thresholds);
  // What count() would decide next, and nothing changes.
  BufferUse look(const void* buffer, uint32_t bytes, const ReuseThresholds& thresholds);
  // What became of a decision: kRegister was carried out, or could not be; kInPlace found that the
  // registration has gone.
  void registered(const BufferUse& use);
  void refused(const BufferUse& use);
  void lost(const BufferUse& use);

  // One line.
  static std::string explain(const BufferUse& use);
  // Cost: a pass over the table.
  BufferUseStatistics statistics() const;

 private:
  struct Buffer {
    uint64_t address;
    uint32_t uses;
    uint32_t counted_from;  // uses before which reuses do not count
    uint32_t next;          // in the list of its bucket: place + 1; 0: none
    uint32_t not_before;    // reuses, after a refusal
    uint32_t bytes;
    uint32_t registered_bytes;  // 0: it is not
  };
  void start_anew();
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  using Tree = std::pmr::map<uint64_t, uint32_t>;
  // In one block, since it refers to itself.
  struct TreeMemory {
    explicit TreeMemory(uint32_t buffers);
    std::unique_ptr<std::byte[]> bytes;
    std::pmr::monotonic_buffer_resource resource;
    Tree tree;
  };

  BufferUseTable(const ReuseThresholds& thresholds, const BufferUseOptions& options);
  uint32_t find(uint64_t address);
  uint32_t find_in_list(uint32_t bucket, uint64_t address);
  uint32_t add(uint64_t address);
  bool closed() const;
  BufferUse::Reason why_not_added() const;
  uint32_t due_after(uint32_t least_reuses, const Buffer& buffer) const;
  void decide(const Buffer& buffer, BufferUse* use) const;
  uint32_t bucket_of(uint64_t address) const;

  ReuseThresholds thresholds_;
  BufferUseOptions options_;
  std::unique_ptr<uint32_t[], Free> buckets_;  // place + 1 of the first; 0: none
  std::unique_ptr<TreeMemory> tree_;
  std::vector<Buffer> buffers_;
  uint64_t uses_ = 0;
  uint64_t not_added_ = 0;
  uint64_t added_ = 0;
  uint32_t registered_ = 0;
  uint32_t in_lists_ = 0;
};

}  // namespace verbena
