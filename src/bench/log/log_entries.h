// What the entries of the log's load say, so that a reader knows whether it has all of them, once,
// in the order in which they were appended.
//
// Each entry has its writer, its phase, and a number that rises with each entry of this writer. At
// the end of a phase a writer appends a last entry, which tells how many of its entries were
// acknowledged, and at which positions: their count, and a hash over positions and numbers in their
// order. A reader computes the same of what it reads. So who finds both equal has read each
// acknowledged entry once, and where the writer was told that it is; positions rise, so all readers
// have read the same entries in the same order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "verbena/apps/log.h"

namespace verbena::bench {

// At the beginning of each entry.
struct EntryStamp {
  uint32_t writer = 0;
  uint32_t phase = 0;  // with kLastEntry: the writer's last one
  uint64_t number = 0;
};
inline constexpr uint32_t kLastEntry = 1u << 31;

// What was acknowledged, or read, of a writer.
struct EntrySum {
  uint64_t count = 0;
  uint64_t hash = 0;

  void add(LogPosition position, uint64_t number) {
    uint64_t mixed = hash ^ position ^ (number << 32 | number >> 32);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    hash = mixed ^ (mixed >> 27);
    ++count;
  }
  friend bool operator==(const EntrySum&, const EntrySum&) = default;
};

struct LastEntry {
  EntryStamp stamp;
  EntrySum acknowledged;
};
inline constexpr uint32_t kLeastEntryBytes = sizeof(LastEntry);

// The bytes behind the stamp follow from it.
inline void fill_entry(std::span<char> entry, const EntryStamp& stamp) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  std::memcpy(entry.data(), &stamp, sizeof(stamp));
  uint64_t word = (uint64_t{stamp.writer} << 40 ^ uint64_t{stamp.phase} << 32) + stamp.number;
  for (size_t at = sizeof(stamp); at < entry.size(); at += sizeof(word)) {
    word += kStep;
    std::memcpy(entry.data() + at, &word, std::min(sizeof(word), entry.size() - at));
  }
}

// What one reader makes of the entries of a phase.
class EntryCheck {
 public:
  // `writers` of the numbers below `numbers` write. `verify`: else only the ends are looked for.
  void begin(uint32_t phase, uint32_t numbers, uint32_t writers, uint32_t entry_bytes,
             bool verify) {
    phase_ = phase;
    verify_ = verify;
    expected_.assign(entry_bytes, 0);
    writers_.assign(numbers, {});
    running_ = writers;
    entries_ = mismatches_ = 0;
    position_ = 0;
  }

  // What an earlier phase has left is passed over.
  void take(LogPosition position, std::string_view entry);

  // Entries of this phase, without the writers' last ones.
  uint64_t entries() const { return entries_; }
  // All writers have ended the phase.
  bool is_over() const { return running_ == 0; }
  // Entries that are no writer's, are not as they were appended, come twice or too late; and
  // writers whose entries are not those that were acknowledged.
  uint64_t mismatches() const { return mismatches_; }

 private:
  struct Seen {
    EntrySum sum;
    uint64_t next_number = 0;
    bool ended = false;
  };

  uint32_t phase_ = 0;
  bool verify_ = false;
  std::vector<char> expected_;
  std::vector<Seen> writers_;
  uint32_t running_ = 0;
  uint64_t entries_ = 0;
  uint64_t mismatches_ = 0;
  LogPosition position_ = 0;  // of the entry before
};

}  // namespace verbena::bench
