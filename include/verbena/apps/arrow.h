// The structs of the Arrow C data interface and the Arrow C stream interface, by which programs and
// languages hand tables to each other without a copy and without a common library:
// https://arrow.apache.org/docs/format/CDataInterface.html
//
// These are the published ABI. Other headers that declare them do so under the same guards, so they
// may be included together.
//
// Who calls release() of a struct owns it; release() sets `release` to null. A struct whose
// `release` is null was released or moved away.
#pragma once

#include <cstdint>

extern "C" {

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

// The type of an array; of a table the type is a struct ("+s") with a child for each column.
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;

  void (*release)(ArrowSchema*);
  void* private_data;
};

// The values of an array.
struct ArrowArray {
  int64_t length;
  int64_t null_count;  // -1: not counted
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;

  void (*release)(ArrowArray*);
  void* private_data;
};

#endif  // ARROW_C_DATA_INTERFACE

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

// Arrays of one type, one after the other. The calls return 0 or an errno; at the end get_next()
// yields an array whose `release` is null.
struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema* out);
  int (*get_next)(ArrowArrayStream*, ArrowArray* out);
  const char* (*get_last_error)(ArrowArrayStream*);

  void (*release)(ArrowArrayStream*);
  void* private_data;
};

#endif  // ARROW_C_STREAM_INTERFACE

}  // extern "C"
