// Rows as bytes, which the shuffle carries, and tables made of such rows.
//
//   1 byte      which table
//   1 bit each  columns, 1: null; up to a whole byte
//   values      of those that are not null: fixed ones as they are, a bool in a byte, of texts
//               their length in as many bytes as an offset has, and then they
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "join/arrays.h"
#include "join/memory.h"
#include "join/table.h"
#include "verbena/apps/arrow.h"
#include "verbena/status.h"

namespace verbena::join_app {

// Writes rows of a table.
class RowWriter {
 public:
  RowWriter(const Table& table, std::vector<uint32_t> columns, char tag)
      : table_(table), columns_(std::move(columns)), tag_(tag) {}

  uint64_t size_bytes(RowNumber row) const;
  // Writes size_bytes() to `to`.
  void write(RowNumber row, char* to) const;

 private:
  const Table& table_;
  std::vector<uint32_t> columns_;
  char tag_;
};

// Collects rows of other executors in batches.
class TableBuilder {
 public:
  explicit TableBuilder(std::vector<Field> fields);

  // What a row holds behind its first byte.
  //   kProtocolViolation  not a row of this table
  //   kLimitExceeded      above the budget
  Status add(std::string_view row, MemoryBudget& budget);
  uint64_t rows() const { return rows_; }
  // Makes a stream of all rows; what they took of the budget is given back, for the reader takes it
  // again.
  void finish(MemoryBudget& budget, ArrowArrayStream* stream);

 private:
  struct Building {
    ColumnType type;
    std::vector<uint8_t> validity;
    std::vector<uint8_t> values;  // or offsets
    std::vector<uint8_t> bytes;
    uint64_t nulls = 0;
  };
  void end_batch();

  std::vector<Field> fields_;
  std::vector<Building> columns_;
  std::vector<uint32_t> long_columns_;  // whose nulls take more than is reckoned for any column
  std::vector<Owned<ArrowArray>> batches_;
  uint64_t rows_ = 0;
  uint64_t batch_rows_ = 0;
  uint64_t batch_bytes_ = 0;
  uint64_t granted_bytes_ = 0;
  uint64_t used_bytes_ = 0;
};

}  // namespace verbena::join_app
