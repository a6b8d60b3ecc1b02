// IO consolidation: small writes to the same block of remote memory are kept here and written
// together ("memsem" III-C). A block is S aligned bytes; it is written once there were so many
// modifications (theta), or when the lease of the first of them ends. Reads find one's own writes.
//
//   auto region = open_region(device, domain, *control, {.value_bytes = 1024});
//   auto hot = ConsolidatedRegion::create(**region, {.block_bytes = 1024, .modifications = 16});
//   (*hot)->add_hot_range(0, 64 << 10);               // a hint; without, all of it is consolidated
//   (*hot)->write(counter, value);                    // mostly a copy
//   (*hot)->poll();                                   // at least once in a lease: writes what is
//                                                     // due
//   (*hot)->flush();                                  // all of it is at the back-end now
//
// What is lost when this process dies: the modifications that were not written, at most theta - 1
// of each block, none older than the lease (as far as poll() or write() came in time), and what was
// on its way. Nothing is lost that was flushed, or by close().
//
// Two kinds. Shared: any front-end may write into a block. Only modified bytes are written, one
// WRITE for each run of them, and reads go to the back-end. Exclusive: no other one writes there
// while this object has it (a partition, or a lock, sees to that). Blocks are loaded once and stay,
// reads cost nothing then, and a flush is one WRITE: this is what the paper measures.
//
// Who reads at the back-end or another front-end may see a block half old and half new, as with any
// WRITE. One thread uses it. A write is a copy, and a post where it is the theta-th of its block;
// nothing is allocated. It pays where a round trip takes microseconds, so not on soft0: there a
// small WRITE takes less time (some 150 ns) than keeping one (some 230 ns).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena {

struct ConsolidationOptions {
  // S: a power of two, 64 B to what the region has as value_bytes.
  uint32_t block_bytes = 1024;
  // Blocks that are kept at once, 4 to 1,048,576: rounded up to a power of two. One more, and the
  // one that was not used for the longest time (of four) is written.
  uint32_t blocks = 64;
  // Theta, from 1 on: 1 writes each modification at once.
  uint32_t modifications = 16;
  // From the first modification of a block until it is due.
  uint64_t lease_ns = 1'000'000;
  bool exclusive = false;
};

struct ConsolidationStatistics {
  uint64_t modifications = 0;     // parts of writes, of one block each
  uint64_t full_flushes = 0;      // of blocks: theta was reached
  uint64_t due_flushes = 0;       // ... the lease ended
  uint64_t evicting_flushes = 0;  // ... another block took the place
  uint64_t asked_flushes = 0;     // ... flush()
  uint64_t loads = 0;             // of blocks
  uint64_t local_reads = 0;       // parts of reads that needed no round trip
  uint64_t unconsolidated = 0;    // parts of writes outside of the hot ranges
};

class ConsolidatedRegion {
 public:
  // `region` must outlive it, and nobody else may post to or poll it meanwhile.
  //   kInvalidArgument    an option is out of range, or block_bytes above the region's value_bytes,
  //                       or the parts of a region on several sockets do not consist of such blocks
  //   kPermissionDenied   the region is read only
  //   kLimitExceeded      the system has not the memory for so many blocks
  static Result<std::unique_ptr<ConsolidatedRegion>> create(RemoteRegion& region,
                                                            const ConsolidationOptions& options);
  // As close(), but nobody learns of a failure.
  virtual ~ConsolidatedRegion() = default;
  ConsolidatedRegion(const ConsolidatedRegion&) = delete;
  ConsolidatedRegion& operator=(const ConsolidatedRegion&) = delete;

  // A hint: writes into these bytes, and into the rest of their blocks, are worth to be
  // consolidated. With a hint, all others go to the back-end at once, and take a round trip. Few of
  // them: each write searches all. The first one does what close() does, and fails as that does.
  // kInvalidArgument: not inside of the region. Control path.
  virtual Status add_hot_range(uint64_t offset_bytes, uint64_t size_bytes) = 0;

  // Keeps the bytes, and writes what is due. Refused are, before anything happens, writes that
  // RemoteRegion::write() refuses. kUnavailable: the connection broke, and what was not written is
  // lost.
  virtual Status write(uint64_t offset_bytes, std::span<const char> from) = 0;
  // With one's own writes. No round trip where the blocks are loaded, or all bytes one's own.
  virtual Status read(uint64_t offset_bytes, std::span<char> to) = 0;

  template <typename T>
  Status write(RemotePointer<T> to, const std::type_identity_t<T>& value) {
    return write(to.offset_bytes, {reinterpret_cast<const char*>(&value), sizeof(T)});
  }
  template <typename T>
  Result<T> read(RemotePointer<T> from) {
    T value{};
    Status status = read(from.offset_bytes, {reinterpret_cast<char*>(&value), sizeof(T)});
    if (!status.ok()) return status;
    return value;
  }

  // Writes blocks whose lease has ended. Does not wait.
  virtual Status poll() = 0;
  // Writes all that is kept, and returns when it is at the back-end.
  virtual Status flush() = 0;
  // The same, and forgets what was loaded: others may write there from now on. It can be used
  // again.
  virtual Status close() = 0;

  virtual const ConsolidationStatistics& statistics() const = 0;

 protected:
  ConsolidatedRegion() = default;
};

}  // namespace verbena
