// Tells what the program does to memory that is watched: unmaps it, moves it, discards its pages.
//
// A device that pins pages goes on with them, whatever becomes of the program's mappings. The
// kernel reports that to whoever has a userfaultfd, and the thread that changes its memory does not
// return from its call before the event has been read. Nothing else of userfaultfd is used:
// memory is watched for write protection, of which there is none, so no access is ever held up, and
// an unprivileged process may do it (UFFD_USER_MODE_ONLY).
//
// | the program                                | event                                          |
// |---|---|
// | munmap, mmap over it, brk, mremap smaller  | after the change                               |
// | mremap to another address                  | after the change, with the new address         |
// | madvise: DONTNEED, FREE, REMOVE            | before the change                              |
// | mprotect, mremap larger in place, fork     | none: the pages stay the process's             |
// | shmat(SHM_REMAP) over it; madvise:         | none, although the pages go: the kernel (6.18) |
// | GUARD_INSTALL                              | does not report these                          |
//
// "After the change" leaves a time in which another thread may already have other memory at the
// address, while the event has not been read. That is what changing() is for: the kernel counts
// changes while it holds the lock of the address space, so who has got the address anew finds the
// count raised until the event has been read. From before it is read, `epoch` is odd or different.
// So changing(), then `epoch`, tell whether all changes that anybody can know of are in take().
//
// Memory has one userfaultfd: what another one watches already, of another cache or library, cannot
// be watched.
//
// The thread that reads takes no lock and allocates nothing, ever: a thread that gives memory back
// waits for it, perhaps inside of malloc() and with locks of the program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "src/base/assert.h"
#include "src/base/known_file.h"
#include "src/base/runtime.h"
#include "src/base/vma_query.h"
#include "src/memory/range_set.h"
#include "verbena/status.h"

namespace verbena {

class MemoryEvents {
 public:
  struct Change {
    enum class Kind { kUnmapped, kMoved, kDiscarded };
    Kind kind = Kind::kUnmapped;
    AddressRange range;
    uint64_t moved_to = 0;  // kMoved: the address that the pages have now
  };

  // `epoch` is even and not 0; from now on only this object changes it. It outlives the object.
  //   kUnsupported  the system lacks or forbids userfaultfd, or its events do not do what the cache
  //                 of registrations rests on; asked, not assumed
  static Result<std::unique_ptr<MemoryEvents>> create(uint64_t* epoch);
  // Stops watching. Threads that change their memory meanwhile return.
  ~MemoryEvents();
  MemoryEvents(const MemoryEvents&) = delete;
  MemoryEvents& operator=(const MemoryEvents&) = delete;

  // Whether some change of watched memory has an event that is yet to be read. Any thread. Cost:
  // two system calls (0.3 µs), which take no lock. Always, once the program has closed the
  // descriptor.
  bool changing() const { return why_not_calm() != 0; }
  // Waits until all changes that were there when it was called are in take(): *epoch is what the
  // word said then. False after `limit_ns`: threads change their memory all the time; and at once
  // if the descriptor is closed.
  bool wait_until_read(uint64_t limit_ns, uint64_t* epoch) const;

  // The rest is for one thread at a time.

  // Watches whole pages; those of huge pages around them, too. The reason why not, which is empty
  // if it is done: shared memory and files change without an event.
  std::string watch(AddressRange pages);
  void unwatch(AddressRange pages);

  // Hands over the changes read since the last call. False: there were more than are kept, and any
  // watched memory may have changed.
  template <typename Handler>
  bool take(Handler&& changed) {
    const bool complete = !lost_.exchange(false, std::memory_order_acquire);
    uint64_t taken = taken_.load(std::memory_order_relaxed);
    const uint64_t written = written_.load(std::memory_order_acquire);
    VERBENA_ASSERT(written - taken <= kMostChanges);
    for (; taken != written; ++taken) {
      const Change change = changes_[taken % kMostChanges];
      note(change);
      changed(change);
    }
    taken_.store(taken, std::memory_order_release);
    return complete;
  }

 private:
  static constexpr size_t kMostChanges = 4096;

  explicit MemoryEvents(uint64_t* epoch) : epoch_(epoch) {}
  Status open();
  Status try_out();
  int why_not_calm() const;
  void read_events();
  void log(const Change& change);
  void note(const Change& change);
  bool control_range(unsigned long request, AddressRange range) const;

  uint64_t* const epoch_;
  HiddenDescriptor userfaultfd_;
  // A pipe that wakes the reading thread to end; without it, that takes up to a second.
  HiddenDescriptor wakes_;
  HiddenDescriptor woken_;
  std::atomic<bool> ending_{false};
  VmaQuery mappings_;
  RangeSet watched_;
  // A ring with one writer, the reading thread, and one reader at a time.
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> taken_{0};
  std::atomic<bool> lost_{false};
  Change changes_[kMostChanges];
  Thread reader_;
};

}  // namespace verbena
