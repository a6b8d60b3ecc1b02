#include "join/rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "verbena/data_path.h"

namespace verbena::join_app {
namespace {

constexpr uint64_t kRowsOfBatch = 64 * 1024;
constexpr uint64_t kBatchBytes = uint64_t{1} << 28;  // far below what offsets of 32 bits can tell
constexpr uint64_t kGrantBytes = uint64_t{1} << 20;
// Reckoned for each column besides the row: an offset, or a null of a fixed width.
constexpr uint32_t kCountedBytes = 8;

Block block_of(const std::vector<uint8_t>& bytes) {
  Block block(bytes.size());
  if (!bytes.empty()) copy_bytes(block.as<char>(), bytes.data(), bytes.size());
  return block;
}

template <typename T>
void append(std::vector<uint8_t>* to, T value) {
  to->resize(to->size() + sizeof(T));
  store(to->data() + to->size() - sizeof(T), value);
}

// Bytes that are taken from the front, as long as there are some.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  bool take(uint64_t size_bytes, std::string_view* taken) {
    if (size_bytes > bytes_.size()) return false;
    *taken = bytes_.substr(0, size_bytes);
    bytes_.remove_prefix(size_bytes);
    return true;
  }
  bool empty() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
};

}  // namespace

uint64_t RowWriter::size_bytes(RowNumber row) const {
  uint64_t bytes = 1 + (columns_.size() + 7) / 8;
  for (const uint32_t number : columns_) {
    const Column& column = table_.columns()[number];
    if (column.has_nulls && is_null(table_.place(column, row))) continue;
    if (column.type.has_bytes()) {
      bytes += column.type.offset_bytes() +
               bytes_of(table_.place(column, row), column.type.layout).size();
    } else {
      bytes += column.type.layout == Layout::kBool ? 1 : column.type.width_bytes;
    }
  }
  return bytes;
}

void RowWriter::write(RowNumber row, char* to) const {
  const uint64_t bitmap_bytes = (columns_.size() + 7) / 8;
  *to = tag_;
  auto* const nulls = reinterpret_cast<uint8_t*>(to + 1);
  clear_bytes(nulls, bitmap_bytes);
  char* at = to + 1 + bitmap_bytes;
  for (uint32_t i = 0; i < columns_.size(); ++i) {
    const Column& column = table_.columns()[columns_[i]];
    const Table::Place place = table_.place(column, row);
    if (is_null(place)) {
      set_bit(nulls, i);
    } else if (column.type.layout == Layout::kBool) {
      *at++ = bit(place.piece.values, place.index) ? 1 : 0;
    } else if (column.type.layout == Layout::kFixed) {
      const uint32_t width = column.type.width_bytes;
      copy_bytes(at, place.piece.values + place.index * width, width);
      at += width;
    } else {
      const std::string_view bytes = bytes_of(place, column.type.layout);
      if (column.type.layout == Layout::kOffset32) {
        store(at, static_cast<uint32_t>(bytes.size()));
      } else {
        store(at, uint64_t{bytes.size()});
      }
      at += column.type.offset_bytes();
      copy_bytes(at, bytes.data(), bytes.size());
      at += bytes.size();
    }
  }
}

TableBuilder::TableBuilder(std::vector<Field> fields) : fields_(std::move(fields)) {
  for (const Field& field : fields_) {
    ArrowSchema schema = {};
    schema.format = field.format.c_str();
    Building column;
    column.type = *column_type(schema, "");  // of a table that was read
    if (column.type.width_bytes > kCountedBytes) {
      long_columns_.push_back(static_cast<uint32_t>(columns_.size()));
    }
    columns_.push_back(std::move(column));
  }
}

Status TableBuilder::add(std::string_view row, MemoryBudget& budget) {
  // Made only where it is needed: rows are many.
  const auto not_a_row = [&row] {
    return Status(StatusCode::kProtocolViolation,
                  "an executor sent " + std::to_string(row.size()) +
                      " bytes that are no row of its table; do all run one release?");
  };
  Reader reader(row);
  std::string_view nulls;
  if (!reader.take((columns_.size() + 7) / 8, &nulls)) return not_a_row();
  const auto is_null = [&nulls](size_t column) {
    return bit(reinterpret_cast<const uint8_t*>(nulls.data()), column);
  };
  // With its part of bitmaps, at most.
  uint64_t row_bytes = row.size() + (kCountedBytes + 1) * columns_.size();
  for (const uint32_t i : long_columns_) {
    if (is_null(i)) row_bytes += columns_[i].type.width_bytes;
  }
  if (used_bytes_ + row_bytes > granted_bytes_) {
    const uint64_t grant = std::max(row_bytes, kGrantBytes);
    VERBENA_RETURN_IF_ERROR(budget.take(grant, "what other executors send"));
    granted_bytes_ += grant;
  }
  used_bytes_ += row_bytes;
  if (batch_rows_ == kRowsOfBatch || batch_bytes_ + row_bytes > kBatchBytes) end_batch();

  for (size_t i = 0; i < columns_.size(); ++i) {
    Building& column = columns_[i];
    const bool null = is_null(i);
    if (batch_rows_ % 8 == 0) column.validity.push_back(0);
    if (null) {
      ++column.nulls;
    } else {
      set_bit(column.validity.data(), batch_rows_);
    }
    std::string_view value;
    if (column.type.layout == Layout::kBool) {
      if (batch_rows_ % 8 == 0) column.values.push_back(0);
      if (null) continue;
      if (!reader.take(1, &value)) return not_a_row();
      if (value[0] != 0) set_bit(column.values.data(), batch_rows_);
    } else if (column.type.layout == Layout::kFixed) {
      const uint32_t width = column.type.width_bytes;
      if (!null && !reader.take(width, &value)) return not_a_row();
      column.values.insert(column.values.end(), value.begin(), value.end());
      if (null) column.values.resize(column.values.size() + width);
    } else {
      const bool wide = column.type.layout == Layout::kOffset64;
      std::string_view length;
      if (!null &&
          !(reader.take(column.type.offset_bytes(), &length) &&
            reader.take(wide ? load<uint64_t>(length.data()) : load<uint32_t>(length.data()),
                        &value))) {
        return not_a_row();
      }
      // Offsets of 32 bits have a sign.
      if (!wide && column.bytes.size() + value.size() > INT32_MAX) return not_a_row();
      column.bytes.insert(column.bytes.end(), value.begin(), value.end());
      if (batch_rows_ == 0) column.values.resize(column.type.offset_bytes());
      if (wide) {
        append(&column.values, uint64_t{column.bytes.size()});
      } else {
        append(&column.values, static_cast<uint32_t>(column.bytes.size()));
      }
    }
  }
  if (!reader.empty()) return not_a_row();
  count_copied_bytes(row.size());
  ++rows_;
  ++batch_rows_;
  batch_bytes_ += row_bytes;
  return Status::ok_status();
}

void TableBuilder::end_batch() {
  if (batch_rows_ == 0) return;
  std::vector<Owned<ArrowArray>> arrays;
  for (Building& column : columns_) {
    std::vector<Block> buffers;
    buffers.push_back(column.nulls > 0 ? block_of(column.validity) : Block());
    buffers.push_back(block_of(column.values));
    if (column.type.has_bytes()) buffers.push_back(block_of(column.bytes));
    arrays.push_back(make_array(batch_rows_, column.nulls, std::move(buffers)));
    column.validity.clear();
    column.values.clear();
    column.bytes.clear();
    column.nulls = 0;
  }
  batches_.push_back(make_batch(batch_rows_, std::move(arrays)));
  batch_rows_ = 0;
  batch_bytes_ = 0;
}

void TableBuilder::finish(MemoryBudget& budget, ArrowArrayStream* stream) {
  end_batch();
  budget.give_back(granted_bytes_);
  make_stream(std::move(fields_), std::move(batches_), stream);
}

}  // namespace verbena::join_app
