// The result: which columns it has, and its batches, gathered from both tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "join/arrays.h"
#include "join/keys.h"
#include "join/memory.h"
#include "join/table.h"
#include "verbena/apps/join.h"
#include "verbena/status.h"

namespace verbena::join_app {

class ResultColumns {
 public:
  // The tables must outlive it.
  //   kInvalidArgument  two columns of one name
  static Result<ResultColumns> plan(const Table& left, const Table& right, const KeyColumns& keys,
                                    const JoinOptions& options);

  std::vector<Field> fields() const;
  // About the bytes of so many rows: texts are taken to be as long as the inputs' average.
  uint64_t bytes_of_rows(uint64_t rows) const;
  // Adds the rows that `left` and `right` number, as one batch or several. `right` may have kNoRow,
  // and is not used where all columns come from the left. False: not within the budget.
  bool gather(std::span<const RowNumber> left, std::span<const RowNumber> right,
              MemoryBudget& budget, std::vector<Owned<ArrowArray>>* batches) const;

 private:
  struct Source {
    std::string name;
    const Table* table;
    const Column* column;
    bool is_left;
    bool may_be_missing;  // kNoRow

    bool may_be_null() const { return may_be_missing || column->has_nulls; }
  };

  std::vector<Source> sources_;
};

}  // namespace verbena::join_app
