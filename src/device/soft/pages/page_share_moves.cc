// Prepares moves of pages and runs them.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/device/soft/pages/page_share_internal.h"
#include "src/device/soft/pages/raw_syscall.h"
#include "src/device/soft/pages/thread_census.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace verbena::soft {
namespace {

// From here on the C library serves malloc() by mmap() and realloc() by mremap().
constexpr uint64_t kSeamFromBytes = 128u << 10;
constexpr uint64_t kSpareMappings = 8;

std::string read_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word.empty() ? "unknown" : word;
}

}  // namespace

std::string describe(uint64_t begin, uint64_t end) {
  return fmt::format("[{:#x}, {:#x})", begin, end);
}

std::string explain_failure(int error, std::string_view call) {
  if (error == ENOMEM && call != "madvise(MADV_POPULATE_WRITE)") {
    return fmt::format(
        "{}: {}; the process has reached vm.max_map_count={} mappings or its memory limit: "
        "register fewer and larger blocks, or raise it with sysctl vm.max_map_count=1000000",
        call, strerror(error), read_word("/proc/sys/vm/max_map_count"));
  }
  if (error == ENOMEM || error == ENOSPC || (error == EFAULT && call.starts_with("madvise"))) {
    return fmt::format(
        "{}: {}; sharing needs as much free memory as the pages hold, up to {} MiB at a time: free "
        "some, or raise the memory limit",
        call, strerror(error), kMaxMoveBytes >> 20);
  }
  if (error == EMFILE || error == ENFILE) {
    return fmt::format("{}: {}; raise the limit of open files (ulimit -n)", call, strerror(error));
  }
  if (error == EBUSY) {
    return fmt::format("{}: {}; another userfaultfd of this process is registered for the pages",
                       call, strerror(error));
  }
  return fmt::format("{}: {}; moving pages needs Linux 5.14 or newer", call, strerror(error));
}

std::byte* raw_map(uint64_t address, uint64_t length_bytes, int protection, int flags, int fd,
                   uint64_t offset_bytes) {
  const long result =
      raw_syscall(SYS_mmap, static_cast<long>(address), static_cast<long>(length_bytes), protection,
                  flags, fd, static_cast<long>(offset_bytes));
  if (!is_error(result)) return reinterpret_cast<std::byte*>(result);
  errno = static_cast<int>(-result);
  return nullptr;
}

void raw_unmap(uint64_t address, uint64_t length_bytes) {
  if (length_bytes == 0) return;
  raw_syscall(SYS_munmap, static_cast<long>(address), static_cast<long>(length_bytes));
}

Reservation::Reservation(uint64_t address, uint64_t length_bytes) : length_bytes_(length_bytes) {
  const bool aligned = length_bytes >= kHugePageBytes;
  bytes_ = 2 * length_bytes + (aligned ? kHugePageBytes : 0);
  base_ =
      as_number(raw_map(0, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  staging_ = base_ + (aligned ? (address - base_) % kHugePageBytes : 0);
}

Reservation::~Reservation() {
  if (!valid()) return;
  const uint64_t aside_end = aside() + length_bytes_;
  raw_unmap(base_, staging_ - base_);
  if (!staging_gone_) raw_unmap(staging_, length_bytes_);
  if (!aside_gone_) raw_unmap(aside(), length_bytes_);
  raw_unmap(aside_end, base_ + bytes_ - aside_end);
}

bool PageShare::make_spare() {
  SpareMappings& spare = workspace_->spare;
  if (spare.address != nullptr && !spare.used) return true;
  spare = {nullptr, 2 * kSpareMappings * page_bytes_, false};
  std::byte* address =
      raw_map(0, spare.length_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == nullptr) return false;
  // Every second page differs from its neighbours, so that none of them merge.
  for (uint64_t i = 0; i < kSpareMappings; ++i) {
    const long result = raw_syscall(SYS_mprotect, as_argument(address + 2 * i * page_bytes_),
                                    static_cast<long>(page_bytes_), PROT_READ);
    if (is_error(result)) {
      raw_unmap(as_number(address), spare.length_bytes);
      return false;
    }
  }
  spare.address = address;
  return true;
}

// Of all pieces before any is shared: one's place in the file may be where another one's pages lie.
std::string PageShare::make_anonymous(Piece& piece) {
  const bool from_file = piece.vma.inode != 0 && !piece.vma.named("/dev/zero");
  std::string reason;
  if (is_own(piece.vma)) {
    // It was shared at another address and then moved.
    reason = make_private(piece, nullptr);
    piece.vma.inode = 0;
  } else if (from_file && piece.vma.writable && other_threads_run(threads_of_process())) {
    reason = detach_from_file(piece);
    piece.vma.inode = 0;
  }
  return reason;
}

std::string PageShare::share_piece(const Piece& piece) {
  std::string reason = claim(piece.range);
  if (!reason.empty()) return reason;
  const auto [begin, end] = piece.range;
  for (uint64_t at = begin; at < end;) {
    const uint64_t chunk_end = std::min(end, (at / kMaxMoveBytes + 1) * kMaxMoveBytes);
    // First, since a failed move leaves pages in the file, too.
    mark_used(Range(at, chunk_end));
    reason = share_chunk(piece, Range(at, chunk_end), nullptr);
    if (!reason.empty()) {
      punch(Range(at, chunk_end));
      return reason;
    }
    shared_since_collection_bytes_ += chunk_end - at;
    at = chunk_end;
  }
  if (end - begin >= kSeamFromBytes) {
    // Grown by mremap(), the block would reach the file's pages behind it, which belong to other
    // addresses. The kernel refuses to grow what is more than one mapping, and the C library's
    // realloc() copies then; so one page gets a mapping of its own by an advice without effect.
    raw_syscall(SYS_madvise, static_cast<long>(begin), static_cast<long>(page_bytes_), MADV_RANDOM);
  }
  return {};
}

std::string PageShare::share_chunk(const Piece& piece, Range chunk, std::byte* merge_snapshot) {
  const auto [begin, end] = chunk;
  const bool from_file = piece.vma.inode != 0 && !piece.vma.named("/dev/zero");
  if (from_file && is_error(raw_syscall(SYS_madvise, static_cast<long>(begin),
                                        static_cast<long>(end - begin), MADV_POPULATE_READ))) {
    return fmt::format("not all of it can be read; it goes beyond the end of {}", piece.vma.name);
  }
  Reservation reservation(begin, end - begin);
  if (!reservation.valid() || raw_map(reservation.staging(), end - begin, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_FIXED, file_.get(), begin) == nullptr) {
    return explain_failure(errno, "mmap");
  }
  PageMove& move = workspace_->move;
  move.address = as_pointer(begin);
  move.length_bytes = end - begin;
  move.protection = piece.vma.protection();
  move.contents = from_file ? PageMove::Contents::kAll : PageMove::Contents::kAnonymous;
  move.fill = merge_snapshot != nullptr ? PageMove::Fill::kMerge : PageMove::Fill::kCopy;
  move.snapshot = merge_snapshot;
  move.file_backed = false;
  move.userfaultfd = from_file ? -1 : userfaultfd_.get();
  move.huge_if_dense = end - begin >= kHugePageBytes && huge_pages_;
  return run_move(reservation);
}

std::string PageShare::make_private(const Piece& piece, std::byte* snapshot) {
  const auto [begin, piece_end] = piece.range;
  // All new pages come out of one mapping, so that they are one mapping in the end: the kernel
  // joins anonymous memory only if it was one when first touched.
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const uint64_t source =
      as_number(raw_map(0, piece_end - begin, PROT_READ | PROT_WRITE, kFlags, -1, 0));
  if (source == 0) return explain_failure(errno, "mmap");
  uint64_t taken = begin;
  std::string reason;
  if (is_error(raw_syscall(SYS_madvise, static_cast<long>(source), static_cast<long>(page_bytes_),
                           MADV_POPULATE_WRITE))) {
    reason = explain_failure(ENOMEM, "madvise(MADV_POPULATE_WRITE)");
  }
  for (uint64_t at = begin; at < piece_end && reason.empty();) {
    const uint64_t end = std::min(piece_end, (at / kMaxMoveBytes + 1) * kMaxMoveBytes);
    Reservation reservation(at, end - at);
    const auto length = static_cast<long>(end - at);
    if (!reservation.valid() ||
        is_error(raw_syscall(SYS_mremap, static_cast<long>(source + (at - begin)), length, length,
                             MREMAP_MAYMOVE | MREMAP_FIXED,
                             static_cast<long>(reservation.staging())))) {
      reason = explain_failure(ENOMEM, "mremap");
      break;
    }
    taken = end;
    PageMove& move = workspace_->move;
    move.address = as_pointer(at);
    move.length_bytes = end - at;
    move.protection = piece.vma.protection();
    move.contents = PageMove::Contents::kFile;
    move.file_offset = piece.vma.offset_bytes + (at - piece.vma.start);
    move.fill = PageMove::Fill::kCopy;
    move.snapshot = snapshot == nullptr ? nullptr : snapshot + (at - begin);
    move.file_backed = true;
    move.userfaultfd = userfaultfd_.get();
    move.huge_if_dense = false;
    reason = run_move(reservation);
    at = end;
  }
  raw_unmap(source + (taken - begin), piece_end - taken);
  return reason;
}

std::string PageShare::run_move(Reservation& reservation) {
  if (!make_spare()) return explain_failure(ENOMEM, "mmap");
  PageMove& move = workspace_->move;
  move.page_bytes = page_bytes_;
  move.pagemap = pagemap_.get();
  move.file = file_.get();
  move.staging = as_pointer(reservation.staging());
  move.aside = as_pointer(reservation.aside());
  move.spare = &workspace_->spare;
  move.error = 0;
  move.failed_call = "";
  move.lost = false;
  move.staging_gone = false;
  move.aside_gone = false;

  run_in_flight(move_pages, &move);

  VERBENA_ASSERT(!move.lost);
  if (move.staging_gone) reservation.give_up_staging();
  if (move.aside_gone) reservation.give_up_aside();
  return move.error == 0 ? std::string() : explain_failure(move.error, move.failed_call);
}

void PageShare::run_in_flight(void (*body)(void*), void* argument) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (shown_moves_ != nullptr) shown_moves_->fetch_add(1);
  call_on_stack(body, argument, workspace_->stack + sizeof(workspace_->stack));
  if (shown_moves_ != nullptr) shown_moves_->fetch_add(1);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::string PageShare::detach_from_file(const Piece& piece) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return explain_failure(errno, "pipe");
  const FileDescriptor pipe_read(ends[0]);
  const FileDescriptor pipe_write(ends[1]);
  const FileDescriptor userfaultfd = new_userfaultfd(writers_, UFFD_FEATURE_EVENT_REMAP);
  const FileDescriptor stop(eventfd(0, EFD_CLOEXEC));
  if (!userfaultfd.valid() || !stop.valid()) return explain_failure(errno, "userfaultfd");
  // As much as an unprivileged process may ask for; the kernel may grant less.
  fcntl(pipe_write.get(), F_SETPIPE_SZ, 1 << 20);
  const auto capacity = static_cast<uint64_t>(fcntl(pipe_write.get(), F_GETPIPE_SZ));

  PageDetach& detach = workspace_->detach;
  detach.reader_runs.store(0);
  detach.userfaultfd = userfaultfd.get();
  detach.stop_reader = stop.get();
  Thread reader = start_thread("verbena-detach", [&detach] { read_events(&detach); });
  if (!reader.joinable())
    return "no thread can be started; raise the limit of processes (ulimit -u)";
  for (Waiter waiter; detach.reader_runs.load(std::memory_order_acquire) == 0;) waiter.idle();

  std::string reason;
  const auto [begin, end] = piece.range;
  for (uint64_t at = begin, step; at < end && reason.empty(); at += step) {
    step = std::min(capacity, end - at);
    Reservation reservation(at, step);
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (!make_spare() || !reservation.valid() ||
        raw_map(reservation.staging(), 2 * step, PROT_READ | PROT_WRITE, kFlags, -1, 0) ==
            nullptr) {
      reason = explain_failure(errno, "mmap");
      break;
    }
    detach.address = as_pointer(at);
    detach.length_bytes = step;
    detach.protection = piece.vma.protection();
    detach.pipe_read = pipe_read.get();
    detach.pipe_write = pipe_write.get();
    detach.barrier = as_pointer(reservation.aside());
    detach.staging = as_pointer(reservation.staging());
    detach.spare = &workspace_->spare;
    detach.error = 0;
    detach.failed_call = "";
    detach.lost = false;
    detach.barrier_gone = false;
    detach.staging_gone = false;
    run_in_flight(detach_pages, &detach);
    VERBENA_ASSERT(!detach.lost);
    if (detach.staging_gone) reservation.give_up_staging();
    if (detach.barrier_gone) reservation.give_up_aside();
    if (detach.error != 0) reason = explain_failure(detach.error, detach.failed_call);
  }
  eventfd_write(stop.get(), 1);
  reader.join();
  return reason;
}

}  // namespace verbena::soft
