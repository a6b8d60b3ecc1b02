// The first phase: the keys of a table with the numbers of their rows, ordered by partition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "join/keys.h"
#include "join/memory.h"
#include "join/parallel.h"

namespace verbena::join_app {

struct Tuple {
  uint64_t key;
  uint64_t row;  // RowNumber; the upper half is 0
};

// What to do with rows whose key is null, and so matches nothing.
enum class NullKeys : uint8_t { kDrop, kKeep };

class Partitions {
 public:
  // Memory: tuple_bytes(table), and some 200 bytes for each partition and thread.
  static Partitions make(const Table& table, const Keys& keys, uint32_t partition_bits,
                         NullKeys nulls, const Executor& executor);
  static uint64_t tuple_bytes(const Table& table) { return table.rows() * sizeof(Tuple); }

  // How many bits make partitions whose tables fit the cache.
  static uint32_t bits_for(uint64_t build_rows);

  uint32_t count() const { return static_cast<uint32_t>(first_.size() - 2); }
  std::span<const Tuple> tuples(uint64_t partition) const {
    return {tuples_.as<const Tuple>() + first_[partition],
            first_[partition + 1] - first_[partition]};
  }
  // The rows without a key, if they are kept.
  std::span<const Tuple> without_key() const { return tuples(count()); }
  uint64_t largest() const;

 private:
  Block tuples_;
  std::vector<uint64_t> first_;  // of each partition, of the rows without a key, and the end
};

}  // namespace verbena::join_app
