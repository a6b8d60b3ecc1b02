// A table that was handed over by the Arrow C data interface: its batches are kept as they are, and
// looked into without copies.
//
// A row has a number of 32 bits which leads to its place without a search: the upper bits are the
// number of a piece (a part of a batch), the lower `piece_bits` the row in it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "join/bytes.h"
#include "join/column_type.h"
#include "join/memory.h"
#include "verbena/apps/arrow.h"
#include "verbena/status.h"

namespace verbena::join_app {

// Releases what it owns.
template <typename T>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned(Owned&& other) noexcept : value_(other.value_) { other.value_.release = nullptr; }
  ~Owned() {
    if (value_.release != nullptr) value_.release(&value_);
  }
  T* get() { return &value_; }
  const T* operator->() const { return &value_; }
  const T& operator*() const { return value_; }

 private:
  T value_ = {};
};

using RowNumber = uint32_t;
// No number of a row: tables have at most kMaxRows.
inline constexpr RowNumber kNoRow = UINT32_MAX;
inline constexpr uint64_t kMaxRows = uint64_t{1} << 30;

// A column's values in one piece. Value i of the piece is the one at first + i.
struct Piece {
  const uint8_t* validity = nullptr;  // null: none is null
  const uint8_t* values = nullptr;    // or the offsets
  const uint8_t* bytes = nullptr;     // that the offsets mean
  uint64_t first = 0;
};

struct Column {
  std::string name;
  ColumnType type;
  bool has_nulls = false;
  uint64_t size_bytes = 0;  // of the values, without offsets and validity
  std::vector<Piece> pieces;
};

class Table {
 public:
  // Reads the stream to its end; the caller releases it. `name` ("left") is for messages.
  static Result<Table> read(ArrowArrayStream* stream, const std::string& name,
                            MemoryBudget& budget);

  const std::string& name() const { return name_; }
  uint64_t rows() const { return rows_; }
  uint64_t size_bytes() const { return size_bytes_; }
  const std::vector<Column>& columns() const { return columns_; }
  // The rows of each piece, in order.
  const std::vector<uint32_t>& piece_rows() const { return piece_rows_; }
  uint32_t piece_bits() const { return piece_bits_; }
  // kInvalidArgument: none, or several of the name
  Result<uint32_t> find(const std::string& column) const;

  // A row of a column, and its index in the piece's buffers.
  struct Place {
    const Piece& piece;
    uint64_t index;
  };
  Place place(const Column& column, RowNumber row) const {
    const Piece& piece = column.pieces[uint64_t{row} >> piece_bits_];
    return {piece, piece.first + (row & ((uint64_t{1} << piece_bits_) - 1))};
  }

 private:
  Status add_batch(Owned<ArrowArray> batch, MemoryBudget& budget);
  void cut_into_pieces();

  std::string name_;
  uint64_t rows_ = 0;
  uint64_t size_bytes_ = 0;
  std::vector<Owned<ArrowArray>> batches_;
  std::vector<Column> columns_;
  std::vector<uint32_t> piece_rows_;
  uint32_t piece_bits_ = 32;
};

inline bool is_null(const Table::Place& place) {
  return place.piece.validity != nullptr && !bit(place.piece.validity, place.index);
}
inline std::string_view bytes_of(const Table::Place& place, Layout layout) {
  uint64_t begin;
  uint64_t end;
  if (layout == Layout::kOffset32) {
    begin = load<uint32_t>(place.piece.values + place.index * 4);
    end = load<uint32_t>(place.piece.values + place.index * 4 + 4);
  } else {
    begin = load<uint64_t>(place.piece.values + place.index * 8);
    end = load<uint64_t>(place.piece.values + place.index * 8 + 8);
  }
  if (begin == end) return "";  // there may be no bytes at all, not even a pointer to them
  return {reinterpret_cast<const char*>(place.piece.bytes) + begin, end - begin};
}

}  // namespace verbena::join_app
