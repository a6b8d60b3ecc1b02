#include "join/keys.h"

#include <algorithm>
#include <string>
#include <utility>

namespace verbena::join_app {
namespace {

uint64_t product(uint64_t a, uint64_t b) {
  const auto wide = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64);
}
constexpr uint64_t kFirst = 0x9e3779b97f4a7c15;
constexpr uint64_t kSecond = 0xc2b2ae3d27d4eb4f;

uint64_t hash_word(uint64_t hash, uint64_t word) { return product(hash ^ word ^ kFirst, kSecond); }

// The same on every host, whatever the type's offsets.
uint64_t hash_bytes(uint64_t hash, const uint8_t* bytes, uint64_t size) {
  uint64_t left = size;
  for (; left >= 8; left -= 8, bytes += 8) hash = hash_word(hash, load<uint64_t>(bytes));
  uint64_t last = 0;
  for (uint64_t i = 0; i < left; ++i) last |= uint64_t{bytes[i]} << (8 * i);
  return hash_word(hash_word(hash, last), size);
}

// Values of 1, 2, 4 and 8 bytes, in the bits above `shift` of the keys.
template <typename T>
void pack(const uint8_t* values, uint32_t rows, uint32_t shift, uint64_t* keys) {
  for (uint32_t i = 0; i < rows; ++i) {
    keys[i] |= uint64_t{load<T>(values + i * sizeof(T))} << shift;
  }
}

uint32_t packed_bytes(const ColumnType& type) {
  if (type.layout == Layout::kBool) return 1;
  const uint32_t width = type.layout == Layout::kFixed ? type.width_bytes : 0;
  return width == 1 || width == 2 || width == 4 || width == 8 ? width : UINT32_MAX / 64;
}

}  // namespace

Keys::Keys(const Table& table, std::vector<uint32_t> columns)
    : table_(table), columns_(std::move(columns)) {
  uint64_t bytes = 0;
  for (const uint32_t number : columns_) {
    const Column& column = table.columns()[number];
    bytes += packed_bytes(column.type);
    may_be_null_ |= column.has_nulls;
  }
  exact_ = bytes <= 8;
}

void Keys::read(RowNumber first, uint32_t rows, Words* words) const {
  std::fill_n(words->keys, rows, 0);  // NOLINT(conventions): a block in the cache
  if (may_be_null_) std::fill_n(words->nulls, rows, false);  // NOLINT(conventions)
  uint32_t shift = 0;
  for (const uint32_t number : columns_) {
    const Column& column = table_.columns()[number];
    const Table::Place place = table_.place(column, first);
    if (place.piece.validity != nullptr) {
      for (uint32_t i = 0; i < rows; ++i) {
        words->nulls[i] |= !bit(place.piece.validity, place.index + i);
      }
    }
    if (!exact_) {
      add_hash(column.type, place, rows, words);
      continue;
    }
    const uint32_t width = packed_bytes(column.type);
    const uint8_t* const values = place.piece.values + place.index * width;
    if (column.type.layout == Layout::kBool) {
      for (uint32_t i = 0; i < rows; ++i) {
        words->keys[i] |= uint64_t{bit(place.piece.values, place.index + i)} << shift;
      }
    } else if (width == 1) {
      pack<uint8_t>(values, rows, shift, words->keys);
    } else if (width == 2) {
      pack<uint16_t>(values, rows, shift, words->keys);
    } else if (width == 4) {
      pack<uint32_t>(values, rows, shift, words->keys);
    } else {
      pack<uint64_t>(values, rows, shift, words->keys);
    }
    shift += 8 * width;
  }
}

void Keys::add_hash(const ColumnType& type, const Table::Place& first, uint32_t rows,
                    Words* words) {
  for (uint32_t i = 0; i < rows; ++i) {
    uint64_t& hash = words->keys[i];
    const uint64_t index = first.index + i;
    if (type.layout == Layout::kBool) {
      hash = hash_word(hash, bit(first.piece.values, index) ? 1 : 0);
    } else if (type.layout == Layout::kFixed) {
      hash = hash_bytes(hash, first.piece.values + index * type.width_bytes, type.width_bytes);
    } else {
      const std::string_view bytes = bytes_of({first.piece, index}, type.layout);
      hash = hash_bytes(hash, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    }
  }
}

bool Keys::equal(RowNumber row, const Keys& other, RowNumber other_row) const {
  for (size_t i = 0; i < columns_.size(); ++i) {
    const Column& mine = table_.columns()[columns_[i]];
    const Column& theirs = other.table_.columns()[other.columns_[i]];
    const Table::Place here = table_.place(mine, row);
    const Table::Place there = other.table_.place(theirs, other_row);
    if (mine.type.has_bytes()) {
      if (bytes_of(here, mine.type.layout) != bytes_of(there, theirs.type.layout)) return false;
    } else if (mine.type.layout == Layout::kBool) {
      if (bit(here.piece.values, here.index) != bit(there.piece.values, there.index)) return false;
    } else {
      const uint32_t width = mine.type.width_bytes;
      const auto* const a = reinterpret_cast<const char*>(here.piece.values + here.index * width);
      const auto* const b = reinterpret_cast<const char*>(there.piece.values + there.index * width);
      if (std::string_view(a, width) != std::string_view(b, width)) return false;
    }
  }
  return true;
}

Result<KeyColumns> find_keys(const std::vector<JoinKey>& keys, const Table& left,
                             const Table& right) {
  KeyColumns found;
  if (keys.empty()) {
    return Status(StatusCode::kInvalidArgument, "no key to join by; name at least one column");
  }
  for (const JoinKey& key : keys) {
    const std::string& right_name = key.right.empty() ? key.left : key.right;
    VERBENA_ASSIGN_OR_RETURN(const uint32_t in_left, left.find(key.left));
    VERBENA_ASSIGN_OR_RETURN(const uint32_t in_right, right.find(right_name));
    const ColumnType& left_type = left.columns()[in_left].type;
    const ColumnType& right_type = right.columns()[in_right].type;
    if (!comparable(left_type, right_type)) {
      return Status(StatusCode::kInvalidArgument,
                    "the key '" + key.left + "' of the left table is " +
                        type_name(left_type.format) + ", its partner '" + right_name +
                        "' of the right one " + type_name(right_type.format) +
                        "; cast one of them to the other's type");
    }
    if (left_type.floating_point) {
      return Status(StatusCode::kInvalidArgument,
                    "the key '" + key.left + "' is " + type_name(left_type.format) +
                        ", and floating-point numbers cannot be a key; cast it on both sides to an "
                        "integer or decimal type");
    }
    found.left.push_back(in_left);
    found.right.push_back(in_right);
  }
  return found;
}

}  // namespace verbena::join_app
