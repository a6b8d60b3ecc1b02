// The memory of a table that no front-end uses, as its back-end reads and writes it.
#pragma once

#include <cstdint>
#include <span>

#include "hashtable/layout.h"
#include "verbena/data_path.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::hashtable {

class TableMemory {
 public:
  // kProtocolViolation: no hashtable, or a damaged one.
  static Result<TableMemory> of(std::span<char> memory) {
    Header header;
    header.magic = 0;
    if (memory.size() >= sizeof(header)) copy_bytes(&header, memory.data(), sizeof(header));
    VERBENA_ASSIGN_OR_RETURN(const Layout layout, Layout::of(header, memory.size()));
    return TableMemory(memory.data(), layout);
  }

  const Layout& layout() const { return layout_; }
  uint64_t word(RemotePointer<uint64_t> at) const {
    uint64_t word = 0;
    copy_bytes(&word, data_ + at.offset_bytes, sizeof(word));
    return word;
  }
  void set_word(RemotePointer<uint64_t> at, uint64_t word) {
    copy_bytes(data_ + at.offset_bytes, &word, sizeof(word));
  }
  char* at(uint64_t offset_bytes) { return data_ + offset_bytes; }

 private:
  TableMemory(char* data, const Layout& layout) : data_(data), layout_(layout) {}

  char* data_;
  Layout layout_;
};

}  // namespace verbena::hashtable
