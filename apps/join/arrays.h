// Makes what is handed out by the Arrow C data interface: schemas, arrays and streams of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "join/memory.h"
#include "join/table.h"
#include "verbena/apps/arrow.h"

namespace verbena::join_app {

struct Field {
  std::string name;
  std::string format;
  bool nullable = true;
};

// An array that owns its buffers. `buffers`: as the layout orders them; an empty block is a null
// pointer.
Owned<ArrowArray> make_array(uint64_t length, uint64_t nulls, std::vector<Block> buffers);
// A record batch of columns.
Owned<ArrowArray> make_batch(uint64_t length, std::vector<Owned<ArrowArray>> columns);
// A stream of such batches.
void make_stream(std::vector<Field> fields, std::vector<Owned<ArrowArray>> batches,
                 ArrowArrayStream* stream);

}  // namespace verbena::join_app
