// Asks the kernel about the mappings of this process.
//
// From Linux 6.11 on one ioctl per mapping (PROCMAP_QUERY, 1 to 2 µs); on older kernels one reading
// of /proc/self/maps per scan, which costs about 0.5 µs per mapping of the process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "src/base/known_file.h"
#include "verbena/status.h"

namespace verbena {

// One mapping, as in /proc/self/maps.
struct Vma {
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t offset_bytes = 0;  // where in its file the mapping starts
  uint64_t inode = 0;         // 0: anonymous
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint64_t page_bytes = 0;  // above the base page size: huge pages; 0: the kernel does not say
  bool readable = false;
  bool writable = false;
  bool executable = false;
  bool shared = false;
  // The path or the kernel's name ("[stack]"), cut off at its end; empty where not asked for.
  char name[64] = {};

  int protection() const;
  bool named(const char* prefix) const;
};

class VmaQuery {
 public:
  enum class Source { kBest, kMapsFile };
  enum class Detail { kPlace, kNamed };
  enum class Which { kAll, kFileBacked };

  // Fails where /proc is not mounted. `source` lets tests take the way of older kernels.
  static Result<VmaQuery> open(Source source = Source::kBest);
  // In a forked child: an open file in /proc stays the parent's.
  Status reopen();

  // The mappings that intersect [begin, end), ascending. Allocates nothing, so that it may run
  // inside a memory allocator. Mappings that change meanwhile may be seen before or after. None is
  // seen where the program has closed the descriptor.
  class Scan {
   public:
    Scan(const VmaQuery& query, uint64_t begin, uint64_t end, Detail detail = Detail::kPlace,
         Which which = Which::kAll);
    // False at the end.
    bool next(Vma* vma);

   private:
    bool next_by_query(Vma* vma);
    bool next_line(Vma* vma);

    const VmaQuery& query_;
    uint64_t cursor_;
    const uint64_t end_;
    const Detail detail_;
    const Which which_;
    // Older kernels: the file, read line by line.
    off_t position_ = 0;
    size_t buffered_ = 0;
    size_t taken_ = 0;
    char buffer_[4096 + 256];
  };

 private:
  bool by_query_ = false;
  HiddenDescriptor maps_;
};

}  // namespace verbena
