// Reads tables, and checks all that the C data interface lets a consumer check: what is wrong here
// would be read out of bounds later. How long a buffer is, it does not say; the producer vouches
// for that.
#include "join/table.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace verbena::join_app {
namespace {

// No array is longer; so sums of lengths and offsets do not overflow.
constexpr int64_t kMaxLength = int64_t{1} << 48;

Status violation(const std::string& what) {
  return Status(StatusCode::kProtocolViolation, what + "; mend the producer of the Arrow data");
}

Status stream_failure(ArrowArrayStream* stream, const std::string& name, int error) {
  const char* const text =
      stream->get_last_error != nullptr ? stream->get_last_error(stream) : nullptr;
  return Status(StatusCode::kUnavailable, "the stream of the " + name + " table failed: " +
                                              (text != nullptr ? text : std::strerror(error)));
}

// What holds for every array. `rows`: the values that are used.
Status check_array(const ArrowArray& array, int64_t buffers, uint64_t rows,
                   const std::string& what) {
  if (array.release == nullptr) return violation(what + " was released before it was read");
  if (array.length < 0 || array.length > kMaxLength || array.offset < 0 ||
      array.offset > kMaxLength || array.null_count < -1 || array.null_count > array.length) {
    return violation(what + " has length " + std::to_string(array.length) + ", offset " +
                     std::to_string(array.offset) + " and null count " +
                     std::to_string(array.null_count) + ", which cannot be");
  }
  if (static_cast<uint64_t>(array.length) < rows) {
    return violation(what + " has " + std::to_string(array.length) + " values, and " +
                     std::to_string(rows) + " are needed");
  }
  if (array.n_buffers != buffers || (buffers > 0 && array.buffers == nullptr)) {
    return violation(what + " has " + std::to_string(array.n_buffers) + " buffers instead of " +
                     std::to_string(buffers));
  }
  if (array.dictionary != nullptr) return violation(what + " has a dictionary and its type none");
  if (array.null_count > 0 && array.buffers[0] == nullptr) {
    return violation(what + " has nulls and no validity bitmap");
  }
  return Status::ok_status();
}

// Offsets that rise from 0 or more; then the last one bounds them all.
template <typename Offset>
Status check_offsets(const uint8_t* offsets, uint64_t rows, const std::string& what,
                     uint64_t* bytes) {
  const Offset first = load<Offset>(offsets);
  Offset last = first;
  bool rises = first >= 0;
  for (uint64_t i = 1; i <= rows; ++i) {
    const Offset offset = load<Offset>(offsets + i * sizeof(Offset));
    rises &= offset >= last;
    last = offset;
  }
  if (!rises) return violation(what + " has offsets that fall or are negative");
  *bytes = static_cast<uint64_t>(last - first);
  return Status::ok_status();
}

// Looks into a column's array, of which `rows` values from `skip` on belong to the table. Adds the
// bytes it takes.
Result<Piece> look_into(const ArrowArray& array, const ColumnType& type, uint64_t skip,
                        uint64_t rows, const std::string& what, uint64_t* size_bytes) {
  VERBENA_RETURN_IF_ERROR(check_array(array, type.has_bytes() ? 3 : 2, skip + rows, what));
  if (array.n_children != 0) return violation(what + " has children and its type none");
  Piece piece;
  piece.first = static_cast<uint64_t>(array.offset) + skip;
  if (rows == 0) return piece;
  if (array.null_count != 0) piece.validity = static_cast<const uint8_t*>(array.buffers[0]);
  piece.values = static_cast<const uint8_t*>(array.buffers[1]);
  if (piece.values == nullptr) {
    return violation(what + " has " + std::to_string(rows) + " values and no buffer of them");
  }
  if (!type.has_bytes()) {
    *size_bytes += type.layout == Layout::kBool ? rows / 8 : rows * type.width_bytes;
    return piece;
  }
  piece.bytes = static_cast<const uint8_t*>(array.buffers[2]);
  const uint8_t* const offsets = piece.values + piece.first * type.offset_bytes();
  uint64_t bytes = 0;
  VERBENA_RETURN_IF_ERROR(type.layout == Layout::kOffset32
                              ? check_offsets<int32_t>(offsets, rows, what, &bytes)
                              : check_offsets<int64_t>(offsets, rows, what, &bytes));
  if (bytes > 0 && piece.bytes == nullptr) {
    return violation(what + " has " + std::to_string(bytes) +
                     " bytes of values and no buffer of them");
  }
  *size_bytes += bytes;
  return piece;
}

}  // namespace

Result<Table> Table::read(ArrowArrayStream* stream, const std::string& name, MemoryBudget& budget) {
  Table table;
  table.name_ = name;
  Owned<ArrowSchema> schema;
  if (const int error = stream->get_schema(stream, schema.get()); error != 0) {
    return stream_failure(stream, name, error);
  }
  if (schema->release == nullptr || schema->format == nullptr ||
      std::string_view(schema->format) != "+s") {
    return Status(StatusCode::kInvalidArgument,
                  "the " + name + " input is no table but a stream of " +
                      type_name(schema->format != nullptr ? schema->format : "") +
                      "; give a stream of record batches");
  }
  if (schema->n_children < 0 || (schema->n_children > 0 && schema->children == nullptr)) {
    return violation("the schema of the " + name + " table has no list of its columns");
  }
  for (int64_t i = 0; i < schema->n_children; ++i) {
    if (schema->children[i] == nullptr) {
      return violation("column " + std::to_string(i) + " of the " + name + " table has no schema");
    }
    const ArrowSchema& child = *schema->children[i];
    Column column;
    column.name = child.name != nullptr ? child.name : "";
    VERBENA_ASSIGN_OR_RETURN(column.type, column_type(child, name));
    table.columns_.push_back(std::move(column));
  }
  for (;;) {
    Owned<ArrowArray> batch;
    if (const int error = stream->get_next(stream, batch.get()); error != 0) {
      return stream_failure(stream, name, error);
    }
    if (batch->release == nullptr) break;
    VERBENA_RETURN_IF_ERROR(table.add_batch(std::move(batch), budget));
  }
  table.cut_into_pieces();
  return table;
}

Status Table::add_batch(Owned<ArrowArray> batch, MemoryBudget& budget) {
  const std::string what =
      "batch " + std::to_string(batches_.size()) + " of the " + name_ + " table";
  VERBENA_RETURN_IF_ERROR(check_array(*batch, 1, 0, what));
  if (batch->n_children != static_cast<int64_t>(columns_.size()) ||
      (batch->n_children > 0 && batch->children == nullptr)) {
    return violation(what + " has " + std::to_string(batch->n_children) + " columns instead of " +
                     std::to_string(columns_.size()));
  }
  const auto rows = static_cast<uint64_t>(batch->length);
  const auto skip = static_cast<uint64_t>(batch->offset);
  if (batch->null_count != 0 && batch->buffers[0] != nullptr) {
    const auto* const validity = static_cast<const uint8_t*>(batch->buffers[0]);
    for (uint64_t i = 0; i < rows; ++i) {
      if (bit(validity, skip + i)) continue;
      return Status(StatusCode::kInvalidArgument,
                    what + " has a row that is null as a whole; give record batches");
    }
  }
  if (rows_ + rows > kMaxRows) {
    return Status(StatusCode::kInvalidArgument,
                  "the " + name_ + " table has more than " + std::to_string(kMaxRows) +
                      " rows, the most of one join; share them among more executors");
  }
  uint64_t size_bytes = 0;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string column = "column '" + columns_[i].name + "' in " + what;
    if (batch->children[i] == nullptr) return violation(column + " is missing");
    uint64_t column_bytes = 0;
    VERBENA_ASSIGN_OR_RETURN(const Piece piece, look_into(*batch->children[i], columns_[i].type,
                                                          skip, rows, column, &column_bytes));
    pieces.push_back(piece);
    columns_[i].size_bytes += column_bytes;
    size_bytes +=
        column_bytes + (columns_[i].type.has_bytes() ? rows * columns_[i].type.offset_bytes() : 0);
  }
  VERBENA_RETURN_IF_ERROR(budget.take_input(size_bytes, what));
  size_bytes_ += size_bytes;
  if (rows == 0) return Status::ok_status();
  rows_ += rows;
  piece_rows_.push_back(static_cast<uint32_t>(rows));
  for (size_t i = 0; i < columns_.size(); ++i) {
    columns_[i].has_nulls |= pieces[i].validity != nullptr;
    columns_[i].pieces.push_back(pieces[i]);
  }
  batches_.push_back(std::move(batch));
  return Status::ok_status();
}

// The largest pieces such that all rows have numbers below kNoRow: a batch that is not as long as
// they are leaves numbers unused.
void Table::cut_into_pieces() {
  const auto fits = [this](uint32_t bits) {
    uint64_t pieces = 0;
    for (const uint32_t rows : piece_rows_) pieces += (uint64_t{rows} + (1ull << bits) - 1) >> bits;
    return pieces << bits <= uint64_t{kNoRow};
  };
  if (piece_rows_.size() <= 1) {
    piece_bits_ = 32;
    return;
  }
  piece_bits_ = 31;
  while (piece_bits_ > 0 && !fits(piece_bits_)) --piece_bits_;
  const uint64_t most = uint64_t{1} << piece_bits_;
  std::vector<uint32_t> piece_rows;
  std::vector<std::vector<Piece>> pieces(columns_.size());
  for (size_t batch = 0; batch < piece_rows_.size(); ++batch) {
    for (uint64_t from = 0; from < piece_rows_[batch]; from += most) {
      piece_rows.push_back(
          static_cast<uint32_t>(std::min<uint64_t>(most, piece_rows_[batch] - from)));
      for (size_t i = 0; i < columns_.size(); ++i) {
        Piece piece = columns_[i].pieces[batch];
        piece.first += from;
        pieces[i].push_back(piece);
      }
    }
  }
  piece_rows_ = std::move(piece_rows);
  for (size_t i = 0; i < columns_.size(); ++i) columns_[i].pieces = std::move(pieces[i]);
}

Result<uint32_t> Table::find(const std::string& column) const {
  std::string known;
  uint32_t found = UINT32_MAX;
  for (uint32_t i = 0; i < columns_.size(); ++i) {
    known += (i > 0 ? ", " : "") + columns_[i].name;
    if (columns_[i].name != column) continue;
    if (found != UINT32_MAX) {
      return Status(StatusCode::kInvalidArgument, "the " + name_ + " table has several columns '" +
                                                      column + "'; rename all but one");
    }
    found = i;
  }
  if (found == UINT32_MAX) {
    return Status(StatusCode::kInvalidArgument, "the " + name_ + " table has no column '" + column +
                                                    "'; it has " +
                                                    (known.empty() ? "none" : known));
  }
  return found;
}

}  // namespace verbena::join_app
