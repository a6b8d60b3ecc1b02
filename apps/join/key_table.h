// The hash table of one partition: its distinct keys, and for each the rows that have it, one after
// the other. So how many rows a probe finds is known before they are looked at, and keys with many
// duplicates cost no more than others.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "join/keys.h"
#include "join/partition.h"
#include "verbena/data_path.h"

namespace verbena::join_app {

class KeyTable {
 public:
  // Of a partition with so many rows, at most.
  static uint64_t size_bytes(uint64_t rows) {
    return slots_for(rows) * sizeof(Slot) + rows * (sizeof(uint32_t) + sizeof(RowNumber));
  }

  // `equal(row, other_row)` decides whether rows with the same word have the same key.
  template <typename Equal>
  void build(std::span<const Tuple> tuples, uint32_t partition_bits, const Equal& equal) {
    const uint64_t slots = slots_for(tuples.size());
    shift_ = 64 - static_cast<uint32_t>(std::countr_zero(slots));
    partition_bits_ = partition_bits;
    slots_.assign(slots, Slot{});
    has_duplicates_ = false;
    places_.resize(tuples.size());
    rows_.resize(tuples.size());
    // Each tuple takes the line of its slot twice.
    count_copied_bytes(size_bytes(tuples.size()) + tuples.size() * 2 * kLineBytes);
    // Each key finds its slot, in which `rows` is the place of its first tuple for now.
    for (uint32_t i = 0; i < tuples.size(); ++i) {
      const Tuple& tuple = tuples[i];
      uint64_t place = begin(tuple.key);
      while (slots_[place].count != 0 && !(slots_[place].key == tuple.key &&
                                           equal(row(tuples[slots_[place].rows]), row(tuple)))) {
        place = (place + 1) & (slots - 1);
      }
      Slot& slot = slots_[place];
      places_[i] = static_cast<uint32_t>(place);
      if (slot.count++ == 0) {
        places_[i] |= kFirst;
        slot.key = tuple.key;
        slot.rows = i;
      } else {
        has_duplicates_ = true;
      }
    }
    // Each key gets its part of rows_, which is filled from its end, so that the slot has the
    // beginning when it is full.
    uint32_t used = 0;
    for (uint32_t i = 0; i < tuples.size(); ++i) {
      Slot& slot = slots_[places_[i] & ~kFirst];
      if ((places_[i] & kFirst) != 0) {
        used += slot.count;
        slot.rows = used;
      }
      rows_[--slot.rows] = row(tuples[i]);
    }
  }

  // What find() takes of the table for so many keys: the lines of a slot and of its rows. It does
  // not count them itself, since that would cost more than some of its calls.
  static uint64_t probed_bytes(uint64_t keys) { return keys * 2 * kLineBytes; }

  bool has_duplicates() const { return has_duplicates_; }
  // The rows with the same key. `equal(row)`: whether a row with the same word has it.
  template <typename Equal>
  std::span<const RowNumber> find(uint64_t key, const Equal& equal) const {
    for (uint64_t place = begin(key);; place = (place + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[place];
      if (slot.count == 0) return {};
      if (slot.key == key && equal(rows_[slot.rows])) return {&rows_[slot.rows], slot.count};
    }
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t rows = 0;
    uint32_t count = 0;  // 0: empty
  };
  static constexpr uint32_t kFirst = 1u << 31;
  static constexpr uint64_t kLineBytes = 64;

  static RowNumber row(const Tuple& tuple) { return static_cast<RowNumber>(tuple.row); }
  // At most half of them are used. At least 2, so that a shift by 64 does not occur.
  static uint64_t slots_for(uint64_t rows) {
    return std::bit_ceil(std::max<uint64_t>(2 * rows, 2));
  }
  uint64_t begin(uint64_t key) const { return (mix(key) << partition_bits_) >> shift_; }

  uint32_t shift_ = 63;
  uint32_t partition_bits_ = 0;
  bool has_duplicates_ = false;
  std::vector<Slot> slots_;
  std::vector<uint32_t> places_;  // of each tuple, the slot; kFirst where it made it
  std::vector<RowNumber> rows_;
};

}  // namespace verbena::join_app
