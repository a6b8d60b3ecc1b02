#include "join/result.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "verbena/data_path.h"

namespace verbena::join_app {
namespace {

using RowNumbers = std::span<const RowNumber>;

struct Sixteen {
  std::array<uint64_t, 2> words;
};

template <typename T>
void gather_values(const Table& table, const Column& column, RowNumbers rows, uint8_t* to) {
  // Of one batch, which is the common case, all values lie in one buffer.
  if (column.pieces.size() == 1) {
    const uint8_t* const from = column.pieces[0].values + column.pieces[0].first * sizeof(T);
    for (size_t i = 0; i < rows.size(); ++i) {
      const T value = rows[i] == kNoRow ? T{} : load<T>(from + uint64_t{rows[i]} * sizeof(T));
      store(to + i * sizeof(T), value);
    }
    return;
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    T value = {};
    if (rows[i] != kNoRow) {
      const Table::Place place = table.place(column, rows[i]);
      value = load<T>(place.piece.values + place.index * sizeof(T));
    }
    store(to + i * sizeof(T), value);
  }
}

Block gather_fixed(const Table& table, const Column& column, RowNumbers rows) {
  const uint32_t width = column.type.width_bytes;
  Block block(rows.size() * width);
  auto* const to = block.as<uint8_t>();
  switch (width) {
    case 1:
      gather_values<uint8_t>(table, column, rows, to);
      break;
    case 2:
      gather_values<uint16_t>(table, column, rows, to);
      break;
    case 4:
      gather_values<uint32_t>(table, column, rows, to);
      break;
    case 8:
      gather_values<uint64_t>(table, column, rows, to);
      break;
    case 16:
      gather_values<Sixteen>(table, column, rows, to);
      break;
    default:
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] == kNoRow) {
          clear_bytes(to + i * width, width);
        } else {
          const Table::Place place = table.place(column, rows[i]);
          move_bytes(to + i * width, place.piece.values + place.index * width, width);
        }
      }
  }
  return block;
}

uint64_t bitmap_bytes(uint64_t rows) { return (rows + 7) / 8; }

// A bitmap of the rows of which `is_set(place)` holds; how many there are is added to `*count`.
template <typename IsSet>
Block gather_bits(const Table& table, const Column& column, RowNumbers rows, uint64_t* count,
                  const IsSet& is_set) {
  Block block(bitmap_bytes(rows.size()));
  auto* const bits = block.as<uint8_t>();
  clear_bytes(bits, block.size_bytes());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == kNoRow || !is_set(table.place(column, rows[i]))) continue;
    set_bit(bits, i);
    ++*count;
  }
  return block;
}

std::string_view text(const Table& table, const Column& column, RowNumber row) {
  if (row == kNoRow) return {};
  const Table::Place place = table.place(column, row);
  return is_null(place) ? std::string_view() : bytes_of(place, column.type.layout);
}

uint64_t text_bytes(const Table& table, const Column& column, RowNumbers rows) {
  uint64_t bytes = 0;
  for (const RowNumber row : rows) bytes += text(table, column, row).size();
  return bytes;
}

// The offsets and the bytes.
template <typename Offset>
void gather_text(const Table& table, const Column& column, RowNumbers rows, uint64_t bytes,
                 std::vector<Block>* buffers) {
  Block offsets((rows.size() + 1) * sizeof(Offset));
  Block texts(bytes);
  uint64_t at = 0;
  store(offsets.as<uint8_t>(), Offset{0});
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string_view value = text(table, column, rows[i]);
    if (!value.empty()) move_bytes(texts.as<char>() + at, value.data(), value.size());
    at += value.size();
    store(offsets.as<Offset>() + i + 1, static_cast<Offset>(at));
  }
  buffers->push_back(std::move(offsets));
  buffers->push_back(std::move(texts));
}

Owned<ArrowArray> gather_column(const Table& table, const Column& column, bool may_be_null,
                                RowNumbers rows, uint64_t bytes) {
  std::vector<Block> buffers;
  uint64_t nulls = 0;
  if (may_be_null) {
    uint64_t valid = 0;
    buffers.push_back(gather_bits(table, column, rows, &valid,
                                  [](const Table::Place& place) { return !is_null(place); }));
    nulls = rows.size() - valid;
  } else {
    buffers.emplace_back();
  }
  uint64_t unused = 0;
  switch (column.type.layout) {
    case Layout::kBool:
      buffers.push_back(gather_bits(table, column, rows, &unused, [](const Table::Place& place) {
        return bit(place.piece.values, place.index);
      }));
      break;
    case Layout::kFixed:
      buffers.push_back(gather_fixed(table, column, rows));
      break;
    case Layout::kOffset32:
      gather_text<int32_t>(table, column, rows, bytes, &buffers);
      break;
    case Layout::kOffset64:
      gather_text<int64_t>(table, column, rows, bytes, &buffers);
      break;
  }
  return make_array(rows.size(), nulls, std::move(buffers));
}

}  // namespace

Result<ResultColumns> ResultColumns::plan(const Table& left, const Table& right,
                                          const KeyColumns& keys, const JoinOptions& options) {
  ResultColumns result;
  std::set<std::string> names;
  for (const Column& column : left.columns()) {
    names.insert(column.name);
    result.sources_.push_back({column.name, &left, &column, true, false});
  }
  if (options.kind == JoinKind::kSemi || options.kind == JoinKind::kAnti) return result;
  for (uint32_t i = 0; i < right.columns().size(); ++i) {
    if (std::ranges::find(keys.right, i) != keys.right.end()) continue;
    const Column& column = right.columns()[i];
    std::string name = column.name;
    if (names.contains(name)) name += options.right_suffix;
    if (!names.insert(name).second) {
      return Status(StatusCode::kInvalidArgument,
                    "the result would have two columns '" + name +
                        "'; rename one, or choose another right_suffix");
    }
    result.sources_.push_back(
        {std::move(name), &right, &column, false, options.kind == JoinKind::kLeft});
  }
  return result;
}

std::vector<Field> ResultColumns::fields() const {
  std::vector<Field> fields;
  for (const Source& source : sources_) {
    fields.push_back({.name = source.name, .format = source.column->type.format});
  }
  return fields;
}

uint64_t ResultColumns::bytes_of_rows(uint64_t rows) const {
  double bytes = 0;
  for (const Source& source : sources_) {
    const ColumnType& type = source.column->type;
    bytes += source.may_be_null() ? 0.125 : 0;
    if (type.layout == Layout::kBool) bytes += 0.125;
    bytes += type.width_bytes;
    if (!type.has_bytes()) continue;
    bytes += type.offset_bytes();
    bytes += source.table->rows() == 0 ? 0
                                       : static_cast<double>(source.column->size_bytes) /
                                             static_cast<double>(source.table->rows());
  }
  return static_cast<uint64_t>(bytes * static_cast<double>(rows));
}

bool ResultColumns::gather(RowNumbers left, RowNumbers right, MemoryBudget& budget,
                           std::vector<Owned<ArrowArray>>* batches) const {
  const uint64_t rows = left.size();
  if (rows == 0) return true;
  uint64_t size_bytes = 0;
  std::vector<uint64_t> texts;
  for (const Source& source : sources_) {
    const ColumnType& type = source.column->type;
    texts.push_back(0);
    if (source.may_be_null()) size_bytes += bitmap_bytes(rows);
    if (type.layout == Layout::kBool) size_bytes += bitmap_bytes(rows);
    size_bytes += type.width_bytes * rows;
    if (!type.has_bytes()) continue;
    texts.back() = text_bytes(*source.table, *source.column, source.is_left ? left : right);
    size_bytes += type.offset_bytes() * (rows + 1) + texts.back();
    if (type.layout == Layout::kOffset32 && texts.back() > INT32_MAX) {
      // More than offsets of 32 bits can tell. A single row never has, since its input has not.
      const uint64_t half = rows / 2;
      return gather(left.first(half), right.first(half), budget, batches) &&
             gather(left.subspan(half), right.subspan(half), budget, batches);
    }
  }
  if (!budget.take(size_bytes)) return false;
  std::vector<Owned<ArrowArray>> columns;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    columns.push_back(gather_column(*source.table, *source.column, source.may_be_null(),
                                    source.is_left ? left : right, texts[i]));
  }
  count_copied_bytes(size_bytes);
  batches->push_back(make_batch(rows, std::move(columns)));
  return true;
}

}  // namespace verbena::join_app
