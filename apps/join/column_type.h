// The types of columns that the join knows, from the format strings of the Arrow C data interface.
#pragma once

#include <cstdint>
#include <string>

#include "verbena/apps/arrow.h"
#include "verbena/status.h"

namespace verbena::join_app {

enum class Layout : uint8_t {
  kBool,      // a bit for each value
  kFixed,     // `width_bytes` for each
  kOffset32,  // offsets of 32 bits into bytes
  kOffset64,  // offsets of 64 bits into bytes
};

struct ColumnType {
  Layout layout = Layout::kFixed;
  uint32_t width_bytes = 0;  // of a fixed value
  bool floating_point = false;
  std::string format;  // as the schema has it, but that one type has one

  bool has_bytes() const { return layout == Layout::kOffset32 || layout == Layout::kOffset64; }
  uint32_t offset_bytes() const { return layout == Layout::kOffset32 ? 4 : 8; }
};

// The type of a column. `table` and the column's name are for the message.
//   kInvalidArgument  not a type that the join can carry: with the remedy
Result<ColumnType> column_type(const ArrowSchema& schema, const std::string& table);

// The type in words, such as "int64" or "timestamp[us]", or the format where there is no word.
std::string type_name(const std::string& format);

// Whether values of two columns can be compared: the same format, or texts of both offset widths.
bool comparable(const ColumnType& left, const ColumnType& right);

}  // namespace verbena::join_app
