#include "src/device/soft/page_share.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/device/soft/page_share_internal.h"
#include "src/device/soft/raw_syscall.h"
#include "src/device/soft/thread_census.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace verbena::soft {
namespace {

constexpr uint64_t kHugePageBytes = 2u << 20;
// From here on the C library serves malloc() by mmap() and realloc() by mremap().
constexpr uint64_t kSeamFromBytes = 128u << 10;
constexpr uint64_t kCollectAfterBytes = 64u << 20;
constexpr uint64_t kSpareMappings = 8;
// Large pieces are moved by several threads: most of the time goes into making new pages.
constexpr uint64_t kParallelFromBytes = 32u << 20;
constexpr size_t kMovers = 4;

std::string describe(uint64_t begin, uint64_t end) {
  return fmt::format("[{:#x}, {:#x})", begin, end);
}

std::string read_word(const char* path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word.empty() ? "unknown" : word;
}

bool huge_pages_on_request() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(file, line);
  return line.find("[advise]") != std::string::npos;
}

}  // namespace

// ---- helpers ----

std::string explain_failure(int error, std::string_view call) {
  if (error == ENOMEM && call != "madvise(MADV_POPULATE_WRITE)") {
    return fmt::format(
        "{}: {}; the process has reached vm.max_map_count={} mappings or its memory limit: "
        "register "
        "fewer and larger blocks, or raise it with sysctl vm.max_map_count=1000000",
        call, strerror(error), read_word("/proc/sys/vm/max_map_count"));
  }
  if (error == ENOMEM || error == ENOSPC || (error == EFAULT && call.starts_with("madvise"))) {
    return fmt::format(
        "{}: {}; sharing needs as much free memory as the pages hold, up to {} MiB at a time: free "
        "some, or raise the memory limit",
        call, strerror(error), kMaxMoveBytes >> 20);
  }
  if (error == EBUSY) {
    return fmt::format("{}: {}; another userfaultfd of this process watches the pages", call,
                       strerror(error));
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

// ---- set-up ----

Result<std::unique_ptr<PageShare>> PageShare::create() { return create(Options()); }

Result<std::unique_ptr<PageShare>> PageShare::create(const Options& options) {
  std::unique_ptr<PageShare> share(new PageShare);
  share->page_bytes_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  share->best_ = options.best;
  share->huge_pages_ = huge_pages_on_request();
  VERBENA_ASSIGN_OR_RETURN(share->query_, VmaQuery::open(options.mappings));
  VERBENA_RETURN_IF_ERROR(share->open_files());

  std::byte* workspaces = raw_map(0, kMovers * sizeof(Workspace), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (workspaces == nullptr) {
    return Status(StatusCode::kLimitExceeded, fmt::format("cannot prepare to share memory: {}",
                                                          explain_failure(errno, "mmap")));
  }
  share->workspaces_ = reinterpret_cast<Workspace*>(workspaces);
  for (size_t i = 0; i < kMovers; ++i) {
    // Below the stack, so that an overflow shows.
    raw_syscall(SYS_mprotect, as_argument(share->workspaces_[i].guard), sizeof(Workspace::guard),
                PROT_NONE);
  }
  share->enter_fork_handlers();
  return share;
}

PageShare::PageShare() = default;

PageShare::~PageShare() {
  if (workspaces_ == nullptr) return;
  leave_fork_handlers();
  for (const auto& [begin, end] : new_mappings_) raw_unmap(begin, end - begin);
  for (size_t i = 0; i < kMovers; ++i) {
    const SpareMappings& spare = workspaces_[i].spare;
    if (spare.address != nullptr && !spare.used) {
      raw_unmap(as_number(spare.address), spare.length_bytes);
    }
  }
  raw_unmap(as_number(workspaces_), kMovers * sizeof(Workspace));
}

Status PageShare::open_files() {
  VERBENA_RETURN_IF_ERROR(open_file());
  // Without it every page counts as touched.
  pagemap_ = FileDescriptor(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  open_userfaultfd();
  return {};
}

Status PageShare::open_file() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < kSpanBytes) {
    return {StatusCode::kLimitExceeded,
            fmt::format("cannot make the file for shared memory: it is {} bytes long (sparse), the "
                        "limit of this process is {}; remove it with ulimit -f unlimited",
                        kSpanBytes, limit.rlim_cur)};
  }
  constexpr const char* kName = "verbena";
  int fd = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  file_ = FileDescriptor(fd);
  struct stat status {};
  // Sealed, so that no peer can cut the file under this process.
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(kSpanBytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
      fstat(fd, &status) != 0) {
    const int error = errno;
    file_.reset();
    return {
        error == EMFILE || error == ENFILE ? StatusCode::kLimitExceeded : StatusCode::kUnsupported,
        fmt::format("cannot make the file for shared memory (memfd of {} bytes, sparse): {}; "
                    "needed are Linux 5.14 or newer and a free descriptor (ulimit -n)",
                    kSpanBytes, strerror(error))};
  }
  inode_ = status.st_ino;
  device_major_ = major(status.st_dev);
  device_minor_ = minor(status.st_dev);
  return {};
}

void PageShare::open_userfaultfd() {
  for (const Writers writers : {Writers::kHeld, Writers::kHeldInUser}) {
    if (writers < best_) continue;
    userfaultfd_ = new_userfaultfd(writers, 0);
    writers_ = writers;
    if (userfaultfd_.valid()) return;
  }
  writers_ = Writers::kNone;
}

FileDescriptor PageShare::new_userfaultfd(Writers writers, uint64_t features) const {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  FileDescriptor descriptor;
  if (writers == Writers::kHeldInUser) {
    descriptor =
        FileDescriptor(static_cast<int>(syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY)));
  } else {
    descriptor = FileDescriptor(static_cast<int>(syscall(SYS_userfaultfd, kFlags)));
    const FileDescriptor device(descriptor.valid() ? -1
                                                   : open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
    if (device.valid()) {
      descriptor = FileDescriptor(ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags));
    }
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (descriptor.valid() && ioctl(descriptor.get(), UFFDIO_API, &api) != 0) descriptor.reset();
  return descriptor;
}

bool PageShare::make_spare(SpareMappings& spare) const {
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

void PageShare::exempt_this_thread() {
  const std::lock_guard lock(mutex_);
  const pid_t self = this_thread();
  if (std::find(exempt_threads_.begin(), exempt_threads_.end(), self) == exempt_threads_.end()) {
    exempt_threads_.push_back(self);
  }
}

// ---- share ----

bool PageShare::is_own(const Vma& vma) const {
  return vma.inode == inode_ && vma.shared && vma.device_major == device_major_ &&
         vma.device_minor == device_minor_;
}

// After mremap() the mapping is elsewhere, but its offset in the file is not.
bool PageShare::is_in_place(const Vma& vma) const {
  return is_own(vma) && vma.offset_bytes == vma.start;
}

Status PageShare::look(Range range, bool* in_place) const {
  *in_place = true;
  uint64_t at = range.first;
  VmaQuery::Scan scan(query_, range.first, range.second);
  for (Vma vma; at < range.second && scan.next(&vma); at = vma.end) {
    if (vma.start > at) break;
    *in_place = *in_place && is_in_place(vma);
  }
  if (at >= range.second) return {};
  return {StatusCode::kInvalidArgument,
          fmt::format("memory {} is not mapped from {:#x} on; register memory that exists",
                      describe(range.first, range.second), at)};
}

PageShare::Range PageShare::whole_pages(const void* address, uint64_t length_bytes) const {
  const uint64_t begin = as_number(address);
  return {begin & ~(page_bytes_ - 1),
          (begin + length_bytes + page_bytes_ - 1) & ~(page_bytes_ - 1)};
}

Result<PageShare::Outcome> PageShare::share(void* address, uint64_t length_bytes) {
  const uint64_t begin = as_number(address);
  if (length_bytes == 0) return Outcome{};
  if (length_bytes > ~0ull - begin - page_bytes_) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} bytes at {:#x} go beyond the end of the address space",
                              length_bytes, begin));
  }
  const Range range = whole_pages(address, length_bytes);
  const std::lock_guard lock(mutex_);
  bool in_place;
  VERBENA_RETURN_IF_ERROR(look(range, &in_place));
  if (in_place) return Outcome{};

  if (shared_since_collection_bytes_ >= kCollectAfterBytes) collect_unmapped();
  std::vector<Piece> pieces;
  std::string reason = pieces_to_move(range, &pieces);
  for (size_t i = 0; i < pieces.size() && reason.empty(); ++i) reason = share_piece(pieces[i]);
  if (reason.empty()) return Outcome{};
  ++held_private_[Range(begin, begin + length_bytes)];
  return Outcome{Sharing::kPrivate, fmt::format("{} stays private memory: {}",
                                                describe(range.first, range.second), reason)};
}

void PageShare::release(void* address, uint64_t length_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found =
      held_private_.find(Range(as_number(address), as_number(address) + length_bytes));
  if (found != held_private_.end() && --found->second == 0) held_private_.erase(found);
}

std::string PageShare::pieces_to_move(Range range, std::vector<Piece>* pieces) const {
  const std::vector<ThreadPlace> threads = threads_of_process();
  VmaQuery::Scan scan(query_, range.first, range.second, VmaQuery::Detail::kNamed);
  for (Vma vma; scan.next(&vma);) {
    if (is_in_place(vma)) continue;
    Piece piece{{std::max(range.first, vma.start), std::min(range.second, vma.end)}, vma};
    std::string reason = why_not_movable(piece, threads);
    if (!reason.empty()) return reason;
    pieces->push_back(piece);
  }
  // Peers write to these through the kernel, which may hold on to the old pages.
  for (const auto& [held, count] : held_private_) {
    for (const Piece& piece : *pieces) {
      if (held.first < piece.range.second && piece.range.first < held.second) {
        return fmt::format(
            "an earlier registration, {}, had to leave these pages private and still exists",
            describe(held.first, held.second));
      }
    }
  }
  return {};
}

bool PageShare::other_threads_run(const std::vector<ThreadPlace>& threads) const {
  const pid_t self = this_thread();
  return threads.empty() ||
         std::any_of(threads.begin(), threads.end(), [&](const ThreadPlace& thread) {
           return thread.id != self && std::find(exempt_threads_.begin(), exempt_threads_.end(),
                                                 thread.id) == exempt_threads_.end();
         });
}

std::string PageShare::why_not_movable(const Piece& piece,
                                       const std::vector<ThreadPlace>& threads) const {
  const Vma& vma = piece.vma;
  const auto [begin, end] = piece.range;
  const bool own = is_own(vma);
  if (end > kSpanBytes) {
    return fmt::format("it lies above {:#x}, the end of the memory file", kSpanBytes);
  }
  if (!vma.readable) {
    return fmt::format("[{:#x}, {:#x}) cannot be read; allow it with mprotect()", begin, end);
  }
  if (vma.executable) {
    return fmt::format("[{:#x}, {:#x}) is executable code {}; register data", begin, end, vma.name);
  }
  if (vma.shared && !own) {
    return fmt::format(
        "[{:#x}, {:#x}) is a shared mapping of the application ({}); register memory from malloc() "
        "or a private mmap() for direct access",
        begin, end, vma.name);
  }
  if (vma.page_bytes > page_bytes_ || vma.named("/anon_hugepage")) {
    return fmt::format(
        "[{:#x}, {:#x}) consists of huge pages (hugetlb); use transparent huge pages, "
        "madvise(MADV_HUGEPAGE), for direct access",
        begin, end);
  }
  if ((vma.name[0] == '[' && !vma.named("[heap]") && !vma.named("[stack]") &&
       !vma.named("[anon:")) ||
      (vma.named("/dev/") && !vma.named("/dev/zero")) || vma.named("anon_inode:")) {
    return fmt::format("[{:#x}, {:#x}) belongs to the kernel or a device ({})", begin, end,
                       vma.name);
  }
  const uint64_t work = as_number(workspaces_);
  if (begin < work + kMovers * sizeof(Workspace) && work < end) {
    return "it contains memory that the sharing of pages itself needs";
  }
  // A stack grows by faults below its lowest page, and a shared page does not grow.
  const uint64_t frame = as_number(__builtin_frame_address(0));
  const bool stack =
      vma.named("[stack]") || (this_thread() == getpid() && vma.start <= frame && frame < vma.end);
  Vma below;
  if (stack && begin == vma.start && !VmaQuery::Scan(query_, begin - 1, begin).next(&below)) {
    return "it contains the lowest page of a stack that can still grow";
  }
  return why_not_beside_threads(piece, threads);
}

std::string PageShare::why_not_beside_threads(const Piece& piece,
                                              const std::vector<ThreadPlace>& threads) const {
  const Vma& vma = piece.vma;
  const auto [begin, end] = piece.range;
  const pid_t self = this_thread();
  const pid_t process = getpid();
  rlimit stack{};
  getrlimit(RLIMIT_STACK, &stack);
  const uint64_t stack_bytes = std::min<uint64_t>(stack.rlim_cur, 64u << 20);
  for (const ThreadPlace& thread : threads) {
    const uint64_t block = thread.control_begin;
    if (block == 0) continue;
    if (begin < thread.control_end && block < end) {
      return fmt::format(
          "[{:#x}, {:#x}) contains the page with what the C library keeps about thread {}; use "
          "memory from malloc() for direct access",
          begin, end, thread.id);
    }
    // The kernel writes signal frames to stacks; a fault that it cannot wait for kills the process.
    const bool in_stack = thread.id != process && vma.start <= block && block < vma.end &&
                          begin < block && end > block - std::min(block, stack_bytes);
    if (writers_ == Writers::kHeldInUser && thread.id != self && in_stack) {
      return fmt::format(
          "[{:#x}, {:#x}) is in the stack of the running thread {}; let that thread register it, "
          "or allow sysctl vm.unprivileged_userfaultfd=1",
          begin, end, thread.id);
    }
  }
  if (writers_ == Writers::kHeldInUser && self != process && vma.named("[stack]")) {
    return "it is in the stack of the main thread; let that thread register it, or allow sysctl "
           "vm.unprivileged_userfaultfd=1";
  }
  if (!other_threads_run(threads)) return {};
  if (writers_ == Writers::kNone && vma.writable) {
    return "other threads run, and userfaultfd, which holds them while pages move, is not allowed; "
           "allow it with sysctl vm.unprivileged_userfaultfd=1, or in a container by its seccomp "
           "profile, or register before starting threads";
  }
  return {};
}

std::string PageShare::share_piece(Piece piece) {
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
  if (reason.empty()) reason = claim(piece.range);
  if (!reason.empty()) return reason;
  const auto [begin, end] = piece.range;
  mark_used(piece.range);
  shared_since_collection_bytes_ += end - begin;
  reason = share_chunks(piece);
  if (!reason.empty()) return reason;
  if (end - begin >= kSeamFromBytes) {
    // Grown by mremap(), the block would reach the file's pages behind it, which belong to other
    // addresses. The kernel refuses to grow what is more than one mapping, and the C library's
    // realloc() copies then; so one page gets a mapping of its own by an advice without effect.
    raw_syscall(SYS_madvise, static_cast<long>(begin), static_cast<long>(page_bytes_), MADV_RANDOM);
  }
  return {};
}

std::string PageShare::share_chunks(const Piece& piece) const {
  const auto [begin, end] = piece.range;
  std::atomic<uint64_t> next{begin / kMaxMoveBytes};
  std::atomic<bool> failed{false};
  const auto move = [&](Workspace& workspace, std::string* reason) {
    while (!failed.load()) {
      const uint64_t chunk = next.fetch_add(1) * kMaxMoveBytes;
      if (chunk >= end) return;
      const Range range(std::max(begin, chunk), std::min(end, chunk + kMaxMoveBytes));
      *reason = share_chunk(workspace, piece, range, nullptr);
      if (!reason->empty()) failed.store(true);
    }
  };
  std::string reasons[kMovers];
  Thread helpers[kMovers];
  cpu_set_t cpus;
  // Without userfaultfd a helper would be one of those other threads that must not run.
  if (end - begin >= kParallelFromBytes && userfaultfd_.valid() &&
      sched_getaffinity(0, sizeof(cpus), &cpus) == 0) {
    const size_t movers = std::min<size_t>(kMovers, static_cast<size_t>(CPU_COUNT(&cpus)));
    for (size_t i = 1; i < movers; ++i) {
      helpers[i] = start_thread("verbena-pages", [&, i] { move(workspaces_[i], &reasons[i]); });
    }
  }
  move(workspaces_[0], &reasons[0]);
  for (size_t i = 1; i < kMovers; ++i) {
    if (helpers[i].joinable()) helpers[i].join();
  }
  for (std::string& reason : reasons) {
    if (!reason.empty()) return std::move(reason);
  }
  return {};
}

std::string PageShare::share_chunk(Workspace& workspace, const Piece& piece, Range chunk,
                                   std::byte* merge_snapshot) const {
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
  PageMove& move = workspace.move;
  move.address = as_pointer(begin);
  move.length_bytes = end - begin;
  move.protection = piece.vma.protection();
  move.contents = from_file ? PageMove::Contents::kAll : PageMove::Contents::kAnonymous;
  move.fill = merge_snapshot != nullptr ? PageMove::Fill::kMerge : PageMove::Fill::kCopy;
  move.snapshot = merge_snapshot;
  move.file_backed = false;
  move.userfaultfd = from_file ? -1 : userfaultfd_.get();
  move.huge_if_dense = end - begin >= kHugePageBytes && huge_pages_;
  return run_move(workspace, reservation);
}

std::string PageShare::make_private(const Piece& piece, std::byte* snapshot) const {
  Workspace& workspace = workspaces_[0];
  for (uint64_t at = piece.range.first; at < piece.range.second;) {
    const uint64_t end = std::min(piece.range.second, (at / kMaxMoveBytes + 1) * kMaxMoveBytes);
    Reservation reservation(at, end - at);
    if (!reservation.valid() ||
        raw_map(reservation.staging(), end - at, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == nullptr) {
      return explain_failure(errno, "mmap");
    }
    PageMove& move = workspace.move;
    move.address = as_pointer(at);
    move.length_bytes = end - at;
    move.protection = piece.vma.protection();
    move.contents = PageMove::Contents::kFile;
    move.file_offset = piece.vma.offset_bytes + (at - piece.vma.start);
    move.fill = PageMove::Fill::kCopy;
    move.snapshot = snapshot == nullptr ? nullptr : snapshot + (at - piece.range.first);
    move.file_backed = true;
    move.userfaultfd = userfaultfd_.get();
    move.huge_if_dense = false;
    std::string reason = run_move(workspace, reservation);
    if (!reason.empty()) return reason;
    at = end;
  }
  return {};
}

std::string PageShare::run_move(Workspace& workspace, Reservation& reservation) const {
  if (!make_spare(workspace.spare)) return explain_failure(ENOMEM, "mmap");
  PageMove& move = workspace.move;
  move.page_bytes = page_bytes_;
  move.pagemap = pagemap_.get();
  move.file = file_.get();
  move.staging = as_pointer(reservation.staging());
  move.aside = as_pointer(reservation.aside());
  move.spare = &workspace.spare;
  move.error = 0;
  move.failed_call = "";
  move.lost = false;
  move.staging_gone = false;
  move.aside_gone = false;

  run_in_flight(workspace, move_pages, &move);

  VERBENA_ASSERT(!move.lost);
  if (move.staging_gone) reservation.give_up_staging();
  if (move.aside_gone) reservation.give_up_aside();
  return move.error == 0 ? std::string() : explain_failure(move.error, move.failed_call);
}

void PageShare::run_in_flight(Workspace& workspace, void (*body)(void*), void* argument) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  call_on_stack(body, argument, workspace.stack + sizeof(workspace.stack));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::string PageShare::detach_from_file(const Piece& piece) const {
  Workspace& workspace = workspaces_[0];
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

  PageDetach& detach = workspace.detach;
  detach.reader_runs.store(0);
  detach.userfaultfd = userfaultfd.get();
  detach.stop_reader = stop.get();
  Thread reader = start_thread("verbena-detach", [&detach] { read_events(&detach); });
  if (!reader.joinable()) return "no thread can be started; raise ulimit -u";
  for (Waiter waiter; detach.reader_runs.load(std::memory_order_acquire) == 0;) waiter.idle();

  std::string reason;
  const auto [begin, end] = piece.range;
  for (uint64_t at = begin, step; at < end && reason.empty(); at += step) {
    step = std::min(capacity, end - at);
    Reservation reservation(at, step);
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (!make_spare(workspace.spare) || !reservation.valid() ||
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
    detach.spare = &workspace.spare;
    detach.error = 0;
    detach.failed_call = "";
    detach.lost = false;
    detach.barrier_gone = false;
    detach.staging_gone = false;
    run_in_flight(workspace, detach_pages, &detach);
    VERBENA_ASSERT(!detach.lost);
    if (detach.staging_gone) reservation.give_up_staging();
    if (detach.barrier_gone) reservation.give_up_aside();
    if (detach.error != 0) reason = explain_failure(detach.error, detach.failed_call);
  }
  eventfd_write(stop.get(), 1);
  reader.join();
  return reason;
}

// ---- the file ----

bool PageShare::used(Range range) const {
  const auto next = used_.lower_bound(range.second);
  return next != used_.begin() && std::prev(next)->second > range.first;
}

void PageShare::mark_used(Range range) {
  auto at = used_.upper_bound(range.first);
  if (at != used_.begin() && std::prev(at)->second >= range.first) --at;
  while (at != used_.end() && at->first <= range.second) {
    range.first = std::min(range.first, at->first);
    range.second = std::max(range.second, at->second);
    at = used_.erase(at);
  }
  used_.emplace(range.first, range.second);
}

void PageShare::punch(Range range) const {
  const long result =
      raw_syscall(SYS_fallocate, file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<long>(range.first), static_cast<long>(range.second - range.first));
  VERBENA_ASSERT(!is_error(result));
}

// Offsets that had pages before may still be in use at other addresses, where mremap() moved them,
// or hold what was there before it was unmapped.
std::string PageShare::claim(Range range) {
  if (!used(range)) return {};
  std::vector<Piece> moved;
  VmaQuery::Scan scan(query_, 0, kSpanBytes, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    const uint64_t offset_end = vma.offset_bytes + (vma.end - vma.start);
    if (is_own(vma) && !is_in_place(vma) && vma.offset_bytes < range.second &&
        range.first < offset_end) {
      moved.push_back({{vma.start, vma.end}, vma});
    }
  }
  if (!moved.empty() && writers_ == Writers::kNone && other_threads_run(threads_of_process())) {
    return "its pages in the memory file are those of memory that mremap() moved away, and other "
           "threads run; allow sysctl vm.unprivileged_userfaultfd=1";
  }
  for (const Piece& piece : moved) {
    std::string reason = make_private(piece, nullptr);
    if (!reason.empty()) return reason;
  }
  punch(range);
  return {};
}

// Gives back the memory of what the application unmapped without telling.
void PageShare::collect_unmapped() {
  shared_since_collection_bytes_ = 0;
  std::vector<Range> mapped;
  VmaQuery::Scan scan(query_, 0, kSpanBytes, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    if (is_own(vma)) {
      mapped.emplace_back(vma.offset_bytes, vma.offset_bytes + (vma.end - vma.start));
    }
  }
  std::sort(mapped.begin(), mapped.end());
  std::map<uint64_t, uint64_t> before;
  before.swap(used_);
  auto next = mapped.begin();
  for (const auto& [begin, end] : before) {
    uint64_t at = begin;
    // Mappings end in the order in which they begin, unless the application doubled one.
    while (next != mapped.end() && next->second <= at) ++next;
    for (auto in = next; in != mapped.end() && in->first < end && at < end; ++in) {
      if (in->second <= at) continue;
      if (at < in->first) punch(Range(at, in->first));
      at = std::max(at, in->first);
      const uint64_t in_end = std::min(end, in->second);
      mark_used(Range(at, in_end));
      at = in_end;
    }
    if (at < end) punch(Range(at, end));
  }
}

void PageShare::forget(void* address, uint64_t length_bytes) {
  const Range range = whole_pages(address, length_bytes);
  if (range.second <= range.first) return;
  // Another thread may hold the lock and wait for the allocator that calls this. Without the lock
  // the kernel is asked, which takes longer.
  if (mutex_.try_lock()) {
    const bool possible = used(range);
    mutex_.unlock();
    if (!possible) return;
  }
  VmaQuery::Scan scan(query_, range.first, range.second, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    if (!is_own(vma)) continue;
    const uint64_t begin = std::max(range.first, vma.start) - vma.start + vma.offset_bytes;
    const uint64_t end = std::min(range.second, vma.end) - vma.start + vma.offset_bytes;
    punch(Range(begin, end));
  }
}

bool PageShare::shares_any(const void* address, uint64_t length_bytes) const {
  const Range range = whole_pages(address, length_bytes);
  VmaQuery::Scan scan(query_, range.first, range.second, VmaQuery::Detail::kPlace,
                      VmaQuery::Which::kFileBacked);
  for (Vma vma; scan.next(&vma);) {
    if (is_own(vma)) return true;
  }
  return false;
}

// ---- new memory ----

Result<void*> PageShare::map_new(uint64_t length_bytes) {
  if (length_bytes == 0 || length_bytes > kSpanBytes / 2) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot map {} bytes of shared memory; between 1 and {} are possible",
                              length_bytes, kSpanBytes / 2));
  }
  const uint64_t bytes = (length_bytes + page_bytes_ - 1) & ~(page_bytes_ - 1);
  const uint64_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  const std::lock_guard lock(mutex_);
  const uint64_t base = as_number(
      raw_map(0, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  const auto failed = [&](const std::string& reason) {
    if (base != 0) raw_unmap(base, bytes + slack);
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot map {} bytes of shared memory: {}", bytes, reason));
  };
  if (base == 0) return failed(explain_failure(errno, "mmap"));
  const uint64_t begin = slack == 0 ? base : (base + slack - 1) & ~(slack - 1);
  const std::string reason = claim(Range(begin, begin + bytes));
  if (!reason.empty()) return failed(reason);
  std::byte* memory =
      raw_map(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.get(), begin);
  if (memory == nullptr || is_error(raw_syscall(SYS_madvise, as_argument(memory),
                                                static_cast<long>(bytes), MADV_DONTFORK))) {
    return failed(explain_failure(errno, "mmap"));
  }
  if (slack != 0 && huge_pages_) {
    raw_syscall(SYS_madvise, as_argument(memory), static_cast<long>(bytes), MADV_HUGEPAGE);
  }
  raw_unmap(base, begin - base);
  raw_unmap(begin + bytes, base + slack - begin);
  mark_used(Range(begin, begin + bytes));
  new_mappings_.emplace(begin, begin + bytes);
  return memory;
}

void PageShare::unmap_new(void* address, uint64_t length_bytes) {
  if (address == nullptr) return;
  const uint64_t begin = as_number(address);
  const uint64_t end = (begin + length_bytes + page_bytes_ - 1) & ~(page_bytes_ - 1);
  const std::lock_guard lock(mutex_);
  const auto found = new_mappings_.find(begin);
  VERBENA_ASSERT(found != new_mappings_.end() && found->second == end);
  new_mappings_.erase(found);
  // In this order: afterwards the addresses may belong to somebody else.
  punch(Range(begin, end));
  raw_unmap(begin, end - begin);
}

}  // namespace verbena::soft
