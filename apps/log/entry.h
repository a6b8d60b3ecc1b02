// An entry as it was read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "log/crc32c.h"
#include "log/layout.h"
#include "verbena/data_path.h"

namespace verbena::log_app {

template <typename T>
T read_value(const char* from) {
  T value{};
  copy_bytes(&value, from, sizeof(value));
  return value;
}

// Calls on_record(number, bytes) for each record of the entry of so many places. False, before any
// call, if that is not what was written there: torn, damaged, or of another place.
template <typename OnRecord>
bool for_each_record(const char* entry, uint64_t place, uint32_t places, OnRecord&& on_record) {
  const auto header = read_value<EntryHeader>(entry);
  if (header.place != place || header.records == 0 || header.records > kMaxRecords ||
      header.bytes < headers_bytes(header.records) || places_of(header.bytes) != places) {
    return false;
  }
  const char* const descriptions = entry + sizeof(header);
  const uint32_t crc = crc32c(crc32c(0, &header, offsetof(EntryHeader, crc)), descriptions,
                              header.records * sizeof(RecordHeader));
  if (crc != header.crc) return false;
  const auto described = [&](uint32_t number) {
    return read_value<RecordHeader>(descriptions + number * sizeof(RecordHeader));
  };
  uint64_t at = headers_bytes(header.records);
  for (uint32_t i = 0; i < header.records; ++i) {
    const RecordHeader record = described(i);
    if (record.bytes > header.bytes - at) return false;
    if (crc32c(0, entry + at, record.bytes) != record.crc) return false;
    at += record.bytes;
  }
  at = headers_bytes(header.records);
  for (uint32_t i = 0; i < header.records; ++i) {
    const uint32_t bytes = described(i).bytes;
    on_record(i, std::string_view(entry + at, bytes));
    at += bytes;
  }
  return true;
}

inline bool is_intact(const char* entry, uint64_t place, uint32_t places) {
  return for_each_record(entry, place, places, [](uint32_t, std::string_view) {});
}

}  // namespace verbena::log_app
