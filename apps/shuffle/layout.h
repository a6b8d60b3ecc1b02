// What lies in a receiver's region, and who writes what.
//
//   sums      | lane of sender 0 | lane of sender 1 | ...
//   lane:     announced | released | lengths | records
//
// A lane is the stream of entries of one sender. An entry is a record, a part of one, or a mark
// that the ring's end stays unused. Its length lies in the ring of lengths, unless all records have
// one size; its bytes lie in the ring of records, behind those of the entry before it.
//
//   released .. handed out .. announced .. written .. reserved
//   |-  space of the receiver's user  -|-   known to the sender alone   -|
//
// Why this is right. The sender writes bytes and lengths of entries, and after them the word
// `announced`, over one queue pair: whoever finds the word, finds what was written before it. So
// nothing depends on the order of bytes within a WRITE, records have neither headers nor marks, and
// one word can tell of many WRITEs. The receiver alone writes `released`, below which the sender
// uses space again; it learns it by a READ, and its own counts are never behind. Words only rise.
//
// The end. Each sender adds what it has sent to the sums, and then one to `ended`, by fetch-and-add
// over the same queue pair, which follows all its WRITEs. When `ended` counts all senders, all
// entries are there, and the sums are those of all of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::shuffle_app {

inline constexpr uint64_t kLineBytes = 64;

// Of ShuffleReceiverOptions.
inline constexpr uint32_t kMostRecordBytes = 1u << 20;
inline constexpr uint64_t kLeastBufferBytes = 4096;
inline constexpr uint64_t kMostBufferBytes = uint64_t{1} << 30;
inline constexpr uint32_t kLeastEntries = 16;
inline constexpr uint32_t kMostEntries = 1u << 26;
inline constexpr uint64_t kMostLongBytes = uint64_t{1} << 40;
inline constexpr uint64_t kLeastRecordsOfBuffer = 8;

struct Sums {
  uint64_t ended = 0;  // senders
  uint64_t records = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
};
static_assert(sizeof(Sums) <= kLineBytes);

// How far a receiver has released a lane.
struct Released {
  uint64_t entries = 0;
  uint64_t position = 0;
};

// The highest bit is ShuffleSpan's: the record goes on in the next entry.
inline constexpr uint32_t kMore = 1u << 31;
// Not a length: the next entry begins at the ring's beginning.
inline constexpr uint32_t kSkip = kMore - 1;

// What sender and receiver must agree on: the receiver's options as the sender learns them.
struct LaneShape {
  uint32_t record_bytes = 0;  // 0: any
  uint32_t max_entries = 0;
  uint64_t buffer_bytes = 0;
  uint64_t max_record_bytes = 0;
  uint32_t checksum = 0;

  // Whether a receiver's options can be so: what a peer tells is multiplied only then.
  bool is_possible() const {
    if (record_bytes != 0) {
      return record_bytes <= kMostRecordBytes && max_entries >= kLeastRecordsOfBuffer &&
             buffer_bytes == uint64_t{max_entries} * record_bytes &&
             buffer_bytes <= kMostBufferBytes && max_record_bytes == record_bytes;
    }
    return max_entries >= kLeastEntries && max_entries <= kMostEntries &&
           buffer_bytes >= kLeastBufferBytes && buffer_bytes <= kMostBufferBytes &&
           max_record_bytes >= 1 && max_record_bytes <= kMostLongBytes;
  }

  // The longest entry: with it and what is left unused at the ring's end, an empty ring is enough.
  uint32_t whole_bytes() const {
    return record_bytes != 0 ? record_bytes : static_cast<uint32_t>(buffer_bytes / 4);
  }
  bool has_lengths() const { return record_bytes == 0; }
  uint64_t lengths_bytes() const {
    return has_lengths() ? round_up(uint64_t{max_entries} * sizeof(uint32_t)) : 0;
  }
  static uint64_t round_up(uint64_t bytes) {
    return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  }
};

class LaneLayout {
 public:
  LaneLayout() = default;
  LaneLayout(const LaneShape& shape, uint32_t sender)
      : at_(kLineBytes + sender * stride_bytes(shape)), lengths_bytes_(shape.lengths_bytes()) {}

  // A line of its own, which the sender writes, and another, which the receiver writes.
  uint64_t announced_at() const { return at_; }
  uint64_t released_at() const { return at_ + kLineBytes; }
  uint64_t lengths_at() const { return at_ + 2 * kLineBytes; }
  uint64_t records_at() const { return lengths_at() + lengths_bytes_; }

  static uint64_t stride_bytes(const LaneShape& shape) {
    return 2 * kLineBytes + shape.lengths_bytes() + LaneShape::round_up(shape.buffer_bytes);
  }
  static uint64_t region_bytes(const LaneShape& shape, uint32_t senders) {
    return kLineBytes + senders * stride_bytes(shape);
  }

 private:
  uint64_t at_ = 0;
  uint64_t lengths_bytes_ = 0;
};

// Where the next entry of a stream lies.
class StreamEnd {
 public:
  uint64_t entries = 0;
  uint64_t position = 0;  // with what was left unused
  uint64_t offset = 0;    // of `position` in the ring

  void add(uint64_t more_entries, uint64_t bytes, uint64_t buffer_bytes) {
    entries += more_entries;
    position += bytes;
    offset += bytes;
    if (offset == buffer_bytes) offset = 0;
  }
  // The mark that leaves the ring's end unused.
  void skip(uint64_t buffer_bytes) { add(1, buffer_bytes - offset, buffer_bytes); }
  bool fits(uint64_t bytes, uint64_t buffer_bytes) const { return offset + bytes <= buffer_bytes; }
};

}  // namespace verbena::shuffle_app
