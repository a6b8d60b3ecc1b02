// Tables for tests, which go into the Arrow C data interface and come out of it again; and what a
// join of them must be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "join/arrays.h"
#include "join/bytes.h"
#include "join/column_type.h"
#include "src/base/runtime.h"
#include "verbena/apps/join.h"

namespace verbena::join_app {

// A value is its bytes, or null.
using Value = std::optional<std::string>;

struct TestColumn {
  std::string name;
  std::string format;
  std::vector<Value> values;
};
struct TestTable {
  std::vector<TestColumn> columns;

  size_t rows() const { return columns.empty() ? 0 : columns[0].values.size(); }
  std::vector<Value> row(size_t number) const {
    std::vector<Value> values;
    for (const TestColumn& column : columns) values.push_back(column.values[number]);
    return values;
  }
};

template <typename T>
std::string bytes_of_value(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
inline TestColumn int_column(std::string name, const std::vector<std::optional<int64_t>>& values) {
  TestColumn column = {std::move(name), "l", {}};
  for (const auto& value : values) {
    column.values.push_back(value.has_value() ? Value(bytes_of_value(*value)) : std::nullopt);
  }
  return column;
}

inline ColumnType type_of(const std::string& format) {
  ArrowSchema schema = {};
  schema.format = format.c_str();
  return *column_type(schema, "test");
}

// The rows `from` to `end` of a column, behind `offset` values that do not belong to it.
inline Owned<ArrowArray> to_array(const TestColumn& column, size_t from, size_t end,
                                  size_t offset) {
  const ColumnType type = type_of(column.format);
  const size_t rows = end - from + offset;
  std::vector<Block> buffers;
  const auto zeroed = [&buffers](size_t bytes) {
    buffers.emplace_back(bytes + 1);
    std::memset(buffers.back().as<char>(), 0, bytes + 1);
    return buffers.back().as<uint8_t>();
  };
  std::vector<Value> values(offset, std::string(std::max(type.width_bytes, 1u), '\x7f'));
  values.insert(values.end(), column.values.begin() + static_cast<ptrdiff_t>(from),
                column.values.begin() + static_cast<ptrdiff_t>(end));
  uint64_t nulls = 0;
  uint8_t* const validity = zeroed(rows / 8 + 1);
  for (size_t i = 0; i < rows; ++i) values[i] ? set_bit(validity, i) : void(++nulls);
  if (nulls == 0) buffers[0] = Block();
  if (type.layout == Layout::kBool) {
    uint8_t* const bits = zeroed(rows / 8 + 1);
    for (size_t i = 0; i < rows; ++i) {
      if (values[i] && (*values[i])[0] != 0) set_bit(bits, i);
    }
  } else if (type.layout == Layout::kFixed) {
    uint8_t* const bytes = zeroed(rows * type.width_bytes);
    for (size_t i = 0; i < rows; ++i) {
      if (values[i]) std::memcpy(bytes + i * type.width_bytes, values[i]->data(), type.width_bytes);
    }
  } else {
    uint8_t* const offsets = zeroed((rows + 1) * type.offset_bytes());
    std::string text;
    for (size_t i = 0; i < rows; ++i) {
      text += values[i].value_or("");
      const uint64_t at = text.size();
      std::memcpy(offsets + (i + 1) * type.offset_bytes(), &at, type.offset_bytes());
    }
    std::memcpy(zeroed(text.size()), text.data(), text.size());
  }
  Owned<ArrowArray> array = make_array(rows, nulls, std::move(buffers));
  array.get()->offset = static_cast<int64_t>(offset);
  array.get()->length = static_cast<int64_t>(end - from);
  return array;
}

// In batches of random length, whose columns begin at random offsets.
inline ArrowArrayStream to_stream(const TestTable& table, Random& random) {
  std::vector<Field> fields;
  for (const TestColumn& column : table.columns) fields.push_back({column.name, column.format});
  std::vector<Owned<ArrowArray>> batches;
  const size_t most = 1 + random.below(table.rows() + 1);
  for (size_t from = 0; from < table.rows();) {
    const size_t end = std::min(table.rows(), from + random.below(most + 1));
    const size_t batch_offset = random.below(3);
    std::vector<Owned<ArrowArray>> columns;
    for (const TestColumn& column : table.columns) {
      // The batch's own offset applies to its columns, too.
      const size_t offset = random.below(20);
      columns.push_back(to_array(column, from, end, offset + batch_offset));
      columns.back().get()->offset -= static_cast<int64_t>(batch_offset);
      columns.back().get()->length += static_cast<int64_t>(batch_offset);
    }
    batches.push_back(make_batch(end - from, std::move(columns)));
    batches.back().get()->offset = static_cast<int64_t>(batch_offset);
    from = end;
  }
  ArrowArrayStream stream;
  make_stream(std::move(fields), std::move(batches), &stream);
  return stream;
}

// Reads and releases the stream.
inline TestTable from_stream(ArrowArrayStream* stream) {
  TestTable table;
  Owned<ArrowSchema> schema;
  EXPECT_EQ(stream->get_schema(stream, schema.get()), 0);
  for (int64_t i = 0; i < schema->n_children; ++i) {
    table.columns.push_back({schema->children[i]->name, schema->children[i]->format, {}});
  }
  for (;;) {
    Owned<ArrowArray> batch;
    EXPECT_EQ(stream->get_next(stream, batch.get()), 0);
    if (batch->release == nullptr) break;
    EXPECT_EQ(batch->n_children, schema->n_children);
    for (int64_t i = 0; i < batch->n_children; ++i) {
      const ArrowArray& array = *batch->children[i];
      EXPECT_EQ(array.length, batch->length);
      TestColumn& column = table.columns[static_cast<size_t>(i)];
      const ColumnType type = type_of(column.format);
      const auto* const validity = static_cast<const uint8_t*>(array.buffers[0]);
      const auto* const values = static_cast<const uint8_t*>(array.buffers[1]);
      int64_t nulls = 0;
      for (int64_t row = 0; row < array.length; ++row) {
        const auto at = static_cast<uint64_t>(row);
        if (validity != nullptr && !bit(validity, at)) {
          column.values.emplace_back();
          ++nulls;
        } else if (type.layout == Layout::kBool) {
          column.values.emplace_back(std::string(1, bit(values, at) ? '\1' : '\0'));
        } else if (type.layout == Layout::kFixed) {
          column.values.emplace_back(std::string(
              reinterpret_cast<const char*>(values) + at * type.width_bytes, type.width_bytes));
        } else {
          const Piece piece = {nullptr, values, static_cast<const uint8_t*>(array.buffers[2]), 0};
          column.values.emplace_back(std::string(bytes_of({piece, at}, type.layout)));
        }
      }
      EXPECT_EQ(array.null_count, nulls);
    }
  }
  stream->release(stream);
  EXPECT_EQ(stream->release, nullptr);
  return table;
}

// --- random tables ---

// The columns of a key, by their formats on the left and on the right.
struct Case {
  const char* name;
  std::vector<std::pair<std::string, std::string>> formats;
};
inline std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

// The key's value for a number: numbers below 100 are different ones, the same for both formats.
inline Value key_value(const std::string& format, uint64_t number) {
  const ColumnType type = type_of(format);
  if (type.layout == Layout::kBool) return std::string(1, static_cast<char>(number % 2));
  if (type.has_bytes()) {
    return number == 0 ? "" : "key " + std::string(number % 23, 'x') + std::to_string(number);
  }
  std::string bytes(type.width_bytes, '\xff');
  bytes[number % type.width_bytes] = static_cast<char>(number);
  bytes[0] = static_cast<char>(number + 100);
  return bytes;
}

// Numbers of which few are frequent, as orders of customers are.
inline uint64_t skewed(Random& random, uint64_t bound) {
  return random.below(3) == 0 ? random.below(2) : random.below(1 + random.below(bound));
}

inline TestTable draw_table(Random& random, const Case& keys, bool is_left, size_t rows,
                            uint64_t bound) {
  TestTable table;
  const std::vector<std::string> payload = {"l", "g", "u", "b", "w:5", "Z", "d:20,2", "S", "tdD"};
  for (size_t i = 0; i < keys.formats.size(); ++i) {
    const auto& [left, right] = keys.formats[i];
    table.columns.push_back(
        {(is_left ? "key" : "right_key") + std::to_string(i), is_left ? left : right, {}});
  }
  for (const std::string& format : payload) {
    table.columns.push_back({(is_left ? "left " : "right ") + format, format, {}});
  }
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < table.columns.size(); ++i) {
      TestColumn& column = table.columns[i];
      const bool is_key = i < keys.formats.size();
      // Some columns have no nulls at all.
      const bool null = i % 2 == rows % 2 && random.below(10) == 0;
      const uint64_t number = is_key ? skewed(random, bound) : random.below(100);
      column.values.push_back(null ? std::nullopt : key_value(column.format, number));
    }
  }
  return table;
}

// --- the definition ---

// What the join must be, in any order.
inline std::vector<std::vector<Value>> expected_rows(const TestTable& left, const TestTable& right,
                                                     const JoinOptions& options) {
  const auto find = [](const TestTable& table, const std::string& name) {
    return static_cast<size_t>(std::ranges::find(table.columns, name, &TestColumn::name) -
                               table.columns.begin());
  };
  std::vector<size_t> left_keys;
  std::vector<size_t> right_keys;
  for (const JoinKey& key : options.keys) {
    left_keys.push_back(find(left, key.left));
    right_keys.push_back(find(right, key.right.empty() ? key.left : key.right));
  }
  const auto key_of = [](const TestTable& table, const std::vector<size_t>& columns, size_t row) {
    std::vector<Value> key;
    for (const size_t column : columns) key.push_back(table.columns[column].values[row]);
    return key;
  };
  std::map<std::vector<Value>, std::vector<size_t>> right_rows;
  for (size_t i = 0; i < right.rows(); ++i) right_rows[key_of(right, right_keys, i)].push_back(i);
  std::vector<std::vector<Value>> rows;
  for (size_t i = 0; i < left.rows(); ++i) {
    const auto key = key_of(left, left_keys, i);
    const auto found = right_rows.find(key);
    const bool matches = found != right_rows.end() && std::ranges::find(key, Value()) == key.end();
    if (options.kind == JoinKind::kSemi || options.kind == JoinKind::kAnti) {
      if (matches == (options.kind == JoinKind::kSemi)) rows.push_back(left.row(i));
      continue;
    }
    const auto add = [&](std::optional<size_t> of_right) {
      rows.push_back(left.row(i));
      for (size_t column = 0; column < right.columns.size(); ++column) {
        if (std::ranges::find(right_keys, column) != right_keys.end()) continue;
        rows.back().push_back(of_right.has_value() ? right.columns[column].values[*of_right]
                                                   : std::nullopt);
      }
    };
    if (matches) {
      for (const size_t of_right : found->second) add(of_right);
    } else if (options.kind == JoinKind::kLeft) {
      add(std::nullopt);
    }
  }
  std::ranges::sort(rows);
  return rows;
}
inline std::vector<std::vector<Value>> sorted_rows(const TestTable& table) {
  std::vector<std::vector<Value>> rows;
  for (size_t i = 0; i < table.rows(); ++i) rows.push_back(table.row(i));
  std::ranges::sort(rows);
  return rows;
}

}  // namespace verbena::join_app
