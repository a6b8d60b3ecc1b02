// The keys of rows as words of 64 bits: of fixed-width columns that together have at most 8 bytes
// the key itself, of all others a hash, after which the columns are compared.
#pragma once

#include <cstdint>
#include <vector>

#include "join/table.h"
#include "verbena/apps/join.h"
#include "verbena/status.h"

namespace verbena::join_app {

// Spreads the bits of a key over the word; the upper ones pick the partition, those below the place
// in its table.
inline uint64_t mix(uint64_t key) {
  key ^= key >> 32;
  key *= 0xd6e8feb86659fd93;
  key ^= key >> 32;
  key *= 0xd6e8feb86659fd93;
  return key ^ (key >> 32);
}

// The keys of one table.
class Keys {
 public:
  static constexpr uint32_t kBlockRows = 1024;
  struct Words {
    uint64_t keys[kBlockRows];
    bool nulls[kBlockRows];  // whether a column of the key is null
  };

  Keys(const Table& table, std::vector<uint32_t> columns);

  bool exact() const { return exact_; }
  bool may_be_null() const { return may_be_null_; }
  // Of up to kBlockRows rows from `first` on, which lie in one piece. `nulls` is set only if
  // may_be_null().
  void read(RowNumber first, uint32_t rows, Words* words) const;
  // Compares the columns, of which none is null. Not needed where keys are exact().
  bool equal(RowNumber row, const Keys& other, RowNumber other_row) const;

 private:
  static void add_hash(const ColumnType& type, const Table::Place& first, uint32_t rows,
                       Words* words);

  const Table& table_;
  std::vector<uint32_t> columns_;
  bool exact_ = false;
  bool may_be_null_ = false;
};

// The columns of the keys in both tables.
struct KeyColumns {
  std::vector<uint32_t> left;
  std::vector<uint32_t> right;
};
//   kInvalidArgument  no such column, or types that cannot be compared
Result<KeyColumns> find_keys(const std::vector<JoinKey>& keys, const Table& left,
                             const Table& right);

}  // namespace verbena::join_app
