// Makes ordinary memory of this process reachable for other processes, by plain loads and stores.
//
// Memory that an application registers is private: from malloc or mmap, a global, a stack. share()
// replaces its pages, in place and with their contents, by pages of one memory file (memfd) per
// process in which the file offset equals the address. A peer opens /proc/PID/fd/N and maps the
// file at offset = remote address. Neighbouring pages end up in one mapping by construction.
//
// When the last registration of a page ends, release() turns it back into private anonymous memory
// with the same contents: what is not registered is ordinary memory, with the kernel's own
// madvise(), mremap(), mlock() and fork(), and no peer's mapping of the file reaches it.
//
// What registration changes for the application, while it lasts:
// - The pages count as shared memory of the process, and an mlock() on them is lost.
// - MADV_DONTNEED does not zero them, unless forget() is told: the library in front of libibverbs
//   does that. With Discards::kDoneOrRefused, and beside the runtime of Go, it fails instead.
// - fork() copies all of them, see page_share_fork.cc. A raw clone() without the C library's fork
//   handlers leaves parent and child on the same pages.
// - The kernel may hold the old pages while they move: direct I/O, io_uring or another RNIC with
//   the same memory must not be at work on it during its first registration, nor during its last
//   deregistration. A futex without the private flag in such memory must have no waiter then.
// - Shared blocks of 128 KiB and more refuse to grow by mremap() (realloc() then copies): behind
//   them in the file lie other pages.
//
// Pages can only move back while no other thread writes to them. What happens where that cannot be:
//
// | how writers are held                       | at registration       | at deregistration       |
// |---|---|---|
// | kHeld                                      | shared                | private                 |
// | kHeldInUser                                | shared                | private; in the stack   |
// |                                            |                       | of another thread locked|
// | kNone, no other thread                     | shared and locked     | private                 |
// | kNone, threads were started since          | (as above)            | stays shared and locked |
// | kNone, MADV_DONTNEED seen by forget()      | shared                | private; stays shared   |
// |                                            |                       | with other threads      |
// | kNone, ulimit -l forbids the lock          | left private          | nothing to do           |
// | any, Discards::kDoneOrRefused,             | shared and locked;    | private                 |
// |     nobody tells forget(); or Go's runtime | without the lock left |                         |
// |                                            | private               |                         |
// | kNone with `quiet`                         | shared                | private                 |
// | any, the move fails (no memory, mappings)  | left private          | stays shared and locked;|
// |                                            |                       | logged if that fails    |
//
// Locked is mlock2(MLOCK_ONFAULT): the kernel then refuses MADV_DONTNEED with EINVAL, which memory
// allocators expect, instead of leaving old contents where the program takes zeroes for granted.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/vma_query.h"
#include "src/device/soft/pages/page_counts.h"
#include "verbena/status.h"

namespace verbena::soft {

class Reservation;
struct ThreadPlace;

// One per process, kept until the process ends: a second one cannot share what the first one has.
// Thread-safe; all calls are control path.
class PageShare {
 public:
  // How other threads are kept from writing to pages that move, best first.
  enum class Writers {
    kHeld,        // they wait, in user mode and in system calls (userfaultfd)
    kHeldInUser,  // they wait; a system call that meets a moving page (below 1 ms) gives EFAULT
    kNone,        // pages move only while no other thread runs
  };
  struct Options {
    // Takes the best that the machine allows, but none better than this.
    Writers best = Writers::kHeld;
    VmaQuery::Source mappings = VmaQuery::Source::kBest;
    // The application's word that no other thread writes to pages while they move: with kNone they
    // move beside other threads, too.
    bool quiet = false;
  };
  // Takes `quiet` from the environment (VERBENA_QUIET_REGISTRATION). Fails without /proc, memfd or
  // with a file size limit (ulimit -f).
  static Result<std::unique_ptr<PageShare>> create();
  static Result<std::unique_ptr<PageShare>> create(const Options& options);
  ~PageShare();
  PageShare(const PageShare&) = delete;
  PageShare& operator=(const PageShare&) = delete;

  // The memory file, for /proc/PID/fd/N. A forked child has another one under the same number.
  int fd() const { return file_.get(); }
  Writers writers() const { return writers_; }

  // What MADV_DONTNEED by the program may do to pages while they are shared, where nobody tells
  // forget() of it.
  enum class Discards {
    kMayBeLost,      // nothing: the program knows that the memory is registered
    kDoneOrRefused,  // no such thing: the pages are locked, or stay private
  };
  enum class Sharing {
    kShared,   // in the memory file at offset = address
    kPrivate,  // left alone: peers must go through process_vm_readv() and process_vm_writev()
  };
  struct Outcome {
    Sharing sharing = Sharing::kShared;
    std::string reason;  // kPrivate: one line with cause, limit and remedy
  };
  // Registers the pages that hold [address, address + length) and shares them. Fails with
  // kInvalidArgument if something in the range is not mapped.
  //
  // After kPrivate the range stays private until release(): peers that write through the kernel
  // must not be surprised by pages that move. kPrivate is the answer for MAP_SHARED, huge-page,
  // device, executable and inaccessible memory, for the page at a thread's upper stack end (the
  // kernel writes there), when the process runs out of mappings, when other threads run and
  // nothing holds them, and while a peer that stands still may yet write to what lay there before.
  Result<Outcome> share(void* address, uint64_t length_bytes,
                        Discards discards = Discards::kMayBeLost);
  // Peers reach all memory through the kernel until release() of this range, as kPrivate: until
  // then no page moves, so what is not shared by now stays private.
  void hold_everything(uint64_t length_bytes);
  // As share(), for pages that are all shared already and readable, and writable if `writes`.
  // False, and nothing is registered, if there are others. Cost: a system call per mapping, two
  // with kDoneOrRefused.
  bool share_again(const void* address, uint64_t length_bytes, bool writes,
                   Discards discards = Discards::kMayBeLost);
  // Whether the program has these pages in the memory file at their addresses, readable, and
  // writable if `writes`. Of a range that is registered, at this moment: no lock. Cost: a system
  // call per mapping.
  bool in_place(const void* address, uint64_t length_bytes, bool writes) const;

  // Whether the program has memory in all of these pages at this moment, readable, and writable if
  // `writes`, whatever it is. As in_place(), no lock, and a system call per mapping.
  bool is_mapped(const void* address, uint64_t length_bytes, bool writes) const;

  // The registration of exactly this range, for which share() said `sharing`, has ended, and no
  // peer touches it any more. Pages that no other one covers become private again.
  void release(void* address, uint64_t length_bytes, Sharing sharing);

  // Peers that were in the middle of touching memory when it was taken from them, and go on at any
  // time, perhaps much later.
  struct StandingPeers {
    std::function<bool()> gone_on;  // or ended: they touch nothing any more
    std::string who;                // "process 7"
  };
  // As release(), but beside such peers: all pages move out of their reach, and what the file has
  // there is kept until they have gone on. Where that cannot be, because another registration
  // covers a page or it cannot move, kUnavailable says why, and the registration goes on to be
  // counted.
  Status cut_off(void* address, uint64_t length_bytes, Sharing sharing,
                 const StandingPeers& standing);
  // Peers may have gone on: gives back what was kept for them.
  void check_standing_peers();

  // Somebody tells forget() of every MADV_DONTNEED that goes through the C library. What the
  // runtime of Go discards does not: where there is one, pages are shared as with kDoneOrRefused.
  static void set_discards_seen() { discards_seen.store(true, std::memory_order_relaxed); }

  // The calling thread declares that it never writes to memory of the application that is not yet
  // shared, and thus does not count as another thread. For the RNIC's own service threads.
  void exempt_this_thread();

  // A counter in shared memory that is odd while pages are in flight, until the next fork() in the
  // child: a peer's process_vm_readv() that fails then may find them a moment later.
  void show_moves(std::atomic<uint64_t>* moves) { shown_moves_ = moves; }

  // Zeroed shared memory at offset = address, whole pages, from 2 MiB on aligned to 2 MiB. Made for
  // the RNIC's tables and for registered arenas. A forked child does not have it: touching it there
  // is a segmentation fault.
  Result<void*> map_new(uint64_t length_bytes);
  void unmap_new(void* address, uint64_t length_bytes);

  // A second mapping of part of the memory file, for whole pages, kept until the process ends. It
  // stays valid whatever the application does to the pages' own mapping. Null with errno on
  // failure.
  std::byte* map_alias(uint64_t offset_bytes, uint64_t length_bytes);

  // The mappings of this process, for callers that check memory before they share it.
  const VmaQuery& mappings() const { return query_; }
  // Whether pages of this mapping are in the memory file already.
  bool shares(const Vma& vma) const { return is_own(vma); }

  // The application is about to unmap or discard (MADV_DONTNEED) these whole pages: gives their
  // memory back, they read as zero from now on. Waits for no lock and allocates nothing, so that a
  // memory allocator may call it. Nothing happens to pages that are not shared, nor perhaps to
  // those that mremap() moved.
  void forget(void* address, uint64_t length_bytes);
  // Whether some page of the range is shared. An interposed mremap() that lets pages grow has to
  // copy them to new memory then. No lock, no allocation.
  bool shares_any(const void* address, uint64_t length_bytes) const;
  // The protection (PROT_...) of the memory in the range; -1 if some of it is missing, protected
  // otherwise, or neither private nor of the memory file. Where the program has one mapping,
  // sharing a part of it or marking its first page makes several. No lock, no allocation.
  int protection_of(const void* address, uint64_t length_bytes) const;

 private:
  friend class ForkHandlers;
  using Range = std::pair<uint64_t, uint64_t>;  // begin, end
  struct Workspace;
  struct Alias;
  struct Piece {
    Range range;
    Vma vma;
  };

  PageShare();
  Status open_files();
  Status open_file();
  void open_userfaultfd();
  FileDescriptor new_userfaultfd(Writers writers, uint64_t features) const;
  bool make_spare();

  // Each returns the reason why not; empty if it is done.
  std::string pieces_to_move(Range range, std::vector<Piece>* pieces) const;
  std::string why_not_movable(const Piece& piece, const std::vector<ThreadPlace>& threads) const;
  std::string why_not_beside_threads(const Piece& piece,
                                     const std::vector<ThreadPlace>& threads) const;
  std::string make_anonymous(Piece& piece);
  std::string share_piece(const Piece& piece);
  std::string share_chunk(const Piece& piece, Range chunk, std::byte* merge_snapshot);
  std::string make_private(const Piece& piece, std::byte* snapshot);
  std::string detach_from_file(const Piece& piece);
  bool in_stack_of_another_thread(const Piece& piece,
                                  const std::vector<ThreadPlace>& threads) const;
  std::string run_move(Reservation& reservation);
  void run_in_flight(void (*body)(void*), void* argument);

  bool is_own(const Vma& vma) const;
  bool is_alias(const Vma& vma) const;
  bool is_in_place(const Vma& vma) const;
  // `usable`: whether all of it is mapped with at least this protection; `in_place`: and is in the
  // memory file.
  Status find_mapped(Range range, int protection, bool* in_place, bool* usable) const;
  bool other_threads_run(const std::vector<ThreadPlace>& threads) const;
  Range whole_pages(const void* address, uint64_t length_bytes) const;
  // Whether forget() is told of all that the program discards. Both ask the dynamic linker, which
  // may call the program while it holds its lock, and the program forget(): so without mutex_.
  static bool all_discards_seen();
  static bool must_refuse(Discards discards);

  // The ends of registrations, see page_share_release.cc.
  std::string make_unregistered(Range range, const StandingPeers* standing);
  // Ends what add() of the counts began: pages that nothing else covers become private.
  void unregister(Range range, bool all_discards_seen);
  // Until release() of `exact`, `pages` of it do not move: the kernel may hold on to the old ones
  // in the middle of a peer's WRITE.
  void hold_private(Range exact, Range pages);
  std::vector<Piece> find_shared(Range range) const;
  std::string lock_shared(Range range) const;
  void give_back_kept();
  std::string why_kept(Range range);

  // The file as a resource: which offsets may hold pages.
  std::string claim(Range range);
  void collect_unmapped();
  void punch(Range range) const;
  void mark_used(Range range);
  void mark_unused(Range range);
  bool used(Range range) const;

  // fork(), see page_share_fork.cc.
  struct Fork;
  void enter_fork_handlers();
  void leave_fork_handlers();
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();
  std::vector<Piece> own_stack() const;

  uint64_t page_bytes_ = 0;
  Writers writers_ = Writers::kNone;
  Writers best_ = Writers::kHeld;
  bool quiet_ = false;
  bool huge_pages_ = false;
  FileDescriptor file_;
  FileDescriptor userfaultfd_;
  FileDescriptor pagemap_;
  VmaQuery query_;
  uint64_t inode_ = 0;
  uint32_t device_major_ = 0;
  uint32_t device_minor_ = 0;
  Workspace* workspace_ = nullptr;

  std::mutex mutex_;
  // Offsets of the file that may hold pages; maximal, disjoint.
  std::map<uint64_t, uint64_t> used_;
  uint64_t shared_since_collection_bytes_ = 0;
  std::map<uint64_t, uint64_t> new_mappings_;
  std::atomic<const Alias*> aliases_{nullptr};
  // What peers reach through the kernel, and which of its pages are shared: these count as
  // registered as long.
  std::multimap<Range, std::vector<Range>> held_private_;
  // Memory of map_new() counts as registered.
  PageCounts registrations_;
  // Offsets that belong to nobody, but that peers may still touch.
  struct Kept {
    Range range;
    StandingPeers standing;
  };
  std::vector<Kept> kept_;
  std::vector<pid_t> exempt_threads_;
  std::atomic<uint64_t>* shown_moves_ = nullptr;
  std::unique_ptr<Fork> fork_;
  static inline std::atomic<bool> discards_seen{false};
};

}  // namespace verbena::soft
