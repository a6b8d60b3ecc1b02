// fork(): the child gets private copies of all shared pages, as it would have without us.
//
// The kernel gives parent and child the same shared pages. The child's first act therefore is to
// copy them to anonymous memory, before fork() returns; the parent's thread waits for it, so that
// its own writes after fork() are not in the copy. The parent's pages stay in place all the time:
// what peers write there meanwhile is neither lost nor late. The cost is one copy of all shared
// memory that was ever touched (about 0.3 s per GiB) and as much memory.
//
// - The stack of the thread that forks is needed twice at once. If pages of it are shared, they
//   become private before the fork; afterwards the parent shares them again and keeps what peers
//   wrote to them in between.
// - Other threads of the parent go on. What they write while the child copies may be in the copy;
//   a child of a process with threads may rely on little in any case (POSIX).
// - Memory of map_new() is not inherited; the child finds inaccessible pages there.
// - If the child has no memory for a copy, the pages are inaccessible to it, never shared.
// - vfork(), posix_spawn(), system() and popen() run no handlers and need none.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/device/soft/pages/page_share_internal.h"
#include "src/device/soft/pages/raw_syscall.h"
#include "src/device/soft/pages/thread_census.h"

namespace verbena::soft {

// Runs the handlers of all instances. The order in which handlers run matters twice: before the
// fork, memory allocators lock themselves, and we may have to allocate, so ours must come first,
// which takes late registration. In the child, other handlers write to memory, which must be the
// child's own by then, so ours must come first there too, which takes early registration.
class ForkHandlers {
 public:
  static void enter(PageShare* share) {
    static const bool registered = [] {
      return pthread_atfork(before, after_in_parent, nullptr) == 0;
    }();
    (void)registered;
    const std::lock_guard lock(mutex());
    shares().push_back(share);
  }
  static void leave(PageShare* share) {
    const std::lock_guard lock(mutex());
    shares().erase(std::remove(shares().begin(), shares().end(), share), shares().end());
  }

  __attribute__((constructor)) static void register_early() {
    pthread_atfork(nullptr, nullptr, after_in_child);
  }

 private:
  // Never destroyed: a process may fork while it exits.
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::vector<PageShare*>& shares() {
    static auto* shares = new std::vector<PageShare*>;
    return *shares;
  }
  static void before() {
    mutex().lock();
    for (PageShare* share : shares()) share->before_fork();
    prepared = true;
  }
  static void after_in_parent() {
    prepared = false;
    for (PageShare* share : shares()) share->after_fork_in_parent();
    mutex().unlock();
  }
  static void after_in_child() {
    if (!prepared) return;
    prepared = false;
    for (PageShare* share : shares()) share->after_fork_in_child();
    mutex().unlock();
  }
  static bool prepared;
};

bool ForkHandlers::prepared = false;

void PageShare::enter_fork_handlers() {
  fork_ = std::make_unique<Fork>();
  ForkHandlers::enter(this);
}

void PageShare::leave_fork_handlers() { ForkHandlers::leave(this); }

// The shared pages of the calling thread's stack: in the accessible memory around its frame.
std::vector<PageShare::Piece> PageShare::own_stack() const {
  constexpr uint64_t kBelowBytes = 1u << 20;   // what handlers may still need
  constexpr uint64_t kAboveBytes = 64u << 20;  // the largest stack that we expect
  const uint64_t frame = as_number(__builtin_frame_address(0));
  uint64_t end = std::min(frame + kAboveBytes, kSpanBytes);
  // The C library keeps the thread's control block at the upper end of its stack.
  const auto control_block = static_cast<uint64_t>(pthread_self());
  if (control_block > frame) end = std::min(end, control_block);
  std::vector<Piece> pieces;
  uint64_t previous_end = 0;
  VmaQuery::Scan scan(query_, frame - kBelowBytes, end);
  for (Vma vma; scan.next(&vma); previous_end = vma.end) {
    if (vma.start != previous_end || !vma.writable) {
      if (vma.start > frame) break;
      pieces.clear();
    }
    if (is_in_place(vma)) {
      pieces.push_back({{std::max(vma.start, (frame - kBelowBytes) & ~(page_bytes_ - 1)),
                         std::min(vma.end, (end + page_bytes_ - 1) & ~(page_bytes_ - 1))},
                        vma});
    }
  }
  return pieces;
}

void PageShare::before_fork() {
  mutex_.lock();
  Fork& fork = *fork_;
  fork = Fork();  // what this process, as a child, had from its parent
  for (const Piece& piece : own_stack()) {
    const auto [begin, end] = piece.range;
    std::byte* snapshot = raw_map(0, end - begin, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    const std::string reason =
        snapshot == nullptr ? "out of memory" : make_private(piece, snapshot);
    if (reason.empty()) {
      fork.stack.push_back({piece, snapshot});
      continue;
    }
    // Two processes on one stack would destroy each other.
    if (snapshot != nullptr) raw_unmap(as_number(snapshot), end - begin);
    log_error("the stack of the thread that forks cannot be copied, the child will fail: {}",
              reason);
    raw_syscall(SYS_madvise, static_cast<long>(begin), static_cast<long>(end - begin),
                MADV_DONTFORK);
    fork.withheld.push_back(piece.range);
  }
  VmaQuery::Scan scan(query_, 0, kSpanBytes, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    if (!is_own(vma)) continue;
    const auto after = new_mappings_.upper_bound(vma.start);
    const bool not_inherited =
        after != new_mappings_.begin() && std::prev(after)->second > vma.start;
    if (not_inherited) continue;
    fork.copied_bytes += vma.end - vma.start;
    if (!fork.mappings.empty()) {
      Vma& last = fork.mappings.back();
      if (last.end == vma.start && last.protection() == vma.protection() &&
          last.offset_bytes + (last.end - last.start) == vma.offset_bytes) {
        last.end = vma.end;
        continue;
      }
    }
    fork.mappings.push_back(vma);
  }
  int ends[2];
  if (!fork.mappings.empty() && pipe2(ends, O_CLOEXEC) == 0) {
    fork.done_read = FileDescriptor(ends[0]);
    fork.done_write = FileDescriptor(ends[1]);
  }
}

void PageShare::after_fork_in_parent() {
  Fork& fork = *fork_;
  for (const Fork::StackPiece& shared : fork.stack) {
    Piece piece = shared.piece;
    piece.vma.inode = 0;
    const auto [begin, end] = piece.range;
    std::string reason;
    for (uint64_t at = begin; at < end && reason.empty();) {
      const uint64_t chunk_end = std::min(end, (at / kMaxMoveBytes + 1) * kMaxMoveBytes);
      reason = share_chunk(piece, Range(at, chunk_end), shared.snapshot + (at - begin));
      at = chunk_end;
    }
    if (!reason.empty()) {
      log_error("memory in the stack of the thread that forked is no longer shared with peers: {}",
                reason);
    }
    raw_unmap(as_number(shared.snapshot), end - begin);
  }
  for (const auto& [begin, end] : fork.withheld) {
    raw_syscall(SYS_madvise, static_cast<long>(begin), static_cast<long>(end - begin), MADV_DOFORK);
  }
  // The pipe ends, without a byte, when the child is dead or there is none.
  fork.done_write.reset();
  if (fork.done_read.valid()) {
    // A child that is stopped by a debugger must not stop its parent for good.
    constexpr uint64_t kLongestNs = 10'000'000'000;
    const uint64_t limit_ns = now_ns() + kLongestNs + fork.copied_bytes * 20;
    for (uint64_t now = now_ns(); now < limit_ns; now = now_ns()) {
      pollfd done{fork.done_read.get(), POLLIN, 0};
      const int wait_ms =
          static_cast<int>(std::min<uint64_t>((limit_ns - now) / 1'000'000 + 1, 60'000));
      if (poll(&done, 1, wait_ms) > 0) break;
    }
    fork.done_read.reset();
  }
  fork = Fork();
  mutex_.unlock();
}

namespace {

// Copies one mapping of the file to anonymous memory in its place. The memory that this function's
// callers and the allocator use may be among it: nothing but locals may be written in between.
bool copy_for_child(int file, const Vma& vma) {
  const uint64_t length_bytes = vma.end - vma.start;
  std::byte* copy = raw_map(0, length_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (copy == nullptr) return false;
  const uint64_t offset_end = vma.offset_bytes + length_bytes;
  for (uint64_t at = vma.offset_bytes; at < offset_end;) {
    const long data = raw_syscall(SYS_lseek, file, static_cast<long>(at), SEEK_DATA);
    if (is_error(data) || static_cast<uint64_t>(data) >= offset_end) break;
    const long hole = raw_syscall(SYS_lseek, file, data, SEEK_HOLE);
    if (is_error(hole)) return false;
    const auto begin = static_cast<uint64_t>(data);
    at = std::min(static_cast<uint64_t>(hole), offset_end);
    if (is_error(raw_syscall(SYS_madvise, as_argument(copy + (begin - vma.offset_bytes)),
                             static_cast<long>(at - begin), MADV_POPULATE_WRITE))) {
      return false;
    }
    copy_in_flight(copy + (begin - vma.offset_bytes),
                   as_pointer(vma.start + (begin - vma.offset_bytes)), at - begin);
  }
  const auto length = static_cast<long>(length_bytes);
  raw_syscall(SYS_mprotect, as_argument(copy), length, vma.protection());
  return !is_error(raw_syscall(SYS_mremap, as_argument(copy), length, length,
                               MREMAP_MAYMOVE | MREMAP_FIXED, static_cast<long>(vma.start)));
}

}  // namespace

void PageShare::after_fork_in_child() {
  Fork& fork = *fork_;
  shown_moves_ = nullptr;  // the parent's
  for (const Vma& shared : fork.mappings) {
    const Vma vma = shared;
    if (vma.readable ? copy_for_child(file_.get(), vma) : false) continue;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (raw_map(vma.start, vma.end - vma.start, PROT_NONE, kFlags, -1, 0) == nullptr) abort();
  }
  for (const Fork::StackPiece& piece : fork.stack) {
    raw_unmap(as_number(piece.snapshot), piece.piece.range.second - piece.piece.range.first);
  }
  // Nothing else shall come to lie there, where the RNIC still has pointers to.
  for (const auto& [begin, end] : new_mappings_) {
    raw_map(begin, end - begin, PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  }
  const char done = 0;
  if (fork.done_write.valid()) {
    [[maybe_unused]] const ssize_t written = write(fork.done_write.get(), &done, 1);
  }

  fork.done_write.reset();
  fork.done_read.reset();

  // From here on everything is the child's own. It forgets what its parent knew, but frees it at
  // the next fork only: threads of the parent may hold locks of a memory allocator that does not
  // prepare for forks.
  fork.used.swap(used_);
  fork.new_mappings.swap(new_mappings_);
  fork.held_private.swap(held_private_);
  std::swap(fork.registrations, registrations_);
  fork.kept.swap(kept_);
  fork.exempt_threads.swap(exempt_threads_);
  aliases_.store(nullptr, std::memory_order_relaxed);  // not inherited
  shared_since_collection_bytes_ = 0;
  pagemap_.reset();
  userfaultfd_.reset();
  // The same number as before; where that fails, at least not the parent's file.
  FileDescriptor parents = std::move(file_);
  Status status = query_.reopen();
  if (status.ok()) status = open_files();
  if (file_.valid() && dup3(file_.get(), parents.get(), O_CLOEXEC) == parents.get()) {
    file_ = std::move(parents);
  }
  if (!status.ok()) log_error("after fork: {}", status.message());
  mutex_.unlock();
}

}  // namespace verbena::soft
