#include "src/device/soft/pages/page_share.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>

#include "src/device/soft/pages/go_runtime.h"
#include "src/device/soft/pages/page_share_internal.h"
#include "src/device/soft/pages/raw_syscall.h"
#include "src/device/soft/pages/thread_census.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace verbena::soft {
namespace {

constexpr uint64_t kCollectAfterBytes = 64u << 20;

bool huge_pages_on_request() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string line;
  std::getline(file, line);
  return line.find("[advise]") != std::string::npos;
}

}  // namespace

Result<std::unique_ptr<PageShare>> PageShare::create() {
  const char* quiet = std::getenv("VERBENA_QUIET_REGISTRATION");
  if (quiet == nullptr || std::string_view(quiet) != "1") return create(Options());
  return create({.best = Writers::kNone, .quiet = true});
}

Result<std::unique_ptr<PageShare>> PageShare::create(const Options& options) {
  std::unique_ptr<PageShare> share(new PageShare);
  share->page_bytes_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  share->best_ = options.best;
  share->quiet_ = options.quiet;
  share->huge_pages_ = huge_pages_on_request();
  VERBENA_ASSIGN_OR_RETURN(share->query_, VmaQuery::open(options.mappings));
  VERBENA_RETURN_IF_ERROR(share->open_files());

  std::byte* workspace = raw_map(0, sizeof(Workspace), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (workspace == nullptr) {
    return Status(StatusCode::kLimitExceeded, fmt::format("cannot prepare to share memory: {}",
                                                          explain_failure(errno, "mmap")));
  }
  share->workspace_ = reinterpret_cast<Workspace*>(workspace);
  // Below the stack, so that an overflow shows.
  raw_syscall(SYS_mprotect, as_argument(workspace), sizeof(Workspace::guard), PROT_NONE);
  share->enter_fork_handlers();
  return share;
}

PageShare::PageShare() = default;

PageShare::~PageShare() {
  if (workspace_ == nullptr) return;
  leave_fork_handlers();
  for (const auto& [begin, end] : new_mappings_) raw_unmap(begin, end - begin);
  const SpareMappings& spare = workspace_->spare;
  if (spare.address != nullptr && !spare.used) {
    raw_unmap(as_number(spare.address), spare.length_bytes);
  }
  raw_unmap(as_number(workspace_), sizeof(Workspace));
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

void PageShare::exempt_this_thread() {
  const std::lock_guard lock(mutex_);
  const pid_t self = this_thread();
  if (std::find(exempt_threads_.begin(), exempt_threads_.end(), self) == exempt_threads_.end()) {
    exempt_threads_.push_back(self);
  }
}

bool PageShare::is_own(const Vma& vma) const {
  return vma.inode == inode_ && vma.shared && vma.device_major == device_major_ &&
         vma.device_minor == device_minor_ && !is_alias(vma);
}

// After mremap() the mapping is elsewhere, but its offset in the file is not.
bool PageShare::is_in_place(const Vma& vma) const {
  return is_own(vma) && vma.offset_bytes == vma.start;
}

Status PageShare::find_mapped(Range range, int protection, bool* in_place, bool* usable) const {
  *in_place = *usable = true;
  uint64_t at = range.first;
  VmaQuery::Scan scan(query_, range.first, range.second);
  for (Vma vma; at < range.second && scan.next(&vma); at = vma.end) {
    if (vma.start > at) break;
    *usable = *usable && (vma.protection() & protection) == protection;
    *in_place = *in_place && *usable && is_in_place(vma);
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

bool PageShare::all_discards_seen() {
  return discards_seen.load(std::memory_order_relaxed) && !has_go_runtime();
}

bool PageShare::must_refuse(Discards discards) {
  if (has_go_runtime()) return true;
  return discards == Discards::kDoneOrRefused && !discards_seen.load(std::memory_order_relaxed);
}

Result<PageShare::Outcome> PageShare::share(void* address, uint64_t length_bytes,
                                            Discards discards) {
  const uint64_t begin = as_number(address);
  if (length_bytes == 0) return Outcome{};
  if (length_bytes > ~0ull - begin - page_bytes_) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} bytes at {:#x} go beyond the end of the address space",
                              length_bytes, begin));
  }
  const Range range = whole_pages(address, length_bytes);
  const bool refuses = must_refuse(discards);
  const bool all_seen = all_discards_seen();
  const std::lock_guard lock(mutex_);
  bool in_place;
  bool usable;
  VERBENA_RETURN_IF_ERROR(find_mapped(range, PROT_NONE, &in_place, &usable));
  std::string reason;
  if (!in_place) {
    if (shared_since_collection_bytes_ >= kCollectAfterBytes) collect_unmapped();
    std::vector<Piece> pieces;
    reason = pieces_to_move(range, &pieces);
    for (size_t i = 0; i < pieces.size() && reason.empty(); ++i) reason = make_anonymous(pieces[i]);
    for (size_t i = 0; i < pieces.size() && reason.empty(); ++i) reason = share_piece(pieces[i]);
  }
  const bool may_not_move_back = !in_place && writers_ == Writers::kNone && !quiet_;
  const bool locks = refuses || (may_not_move_back && !all_seen);
  if (reason.empty() && locks) reason = lock_shared(range);
  if (reason.empty()) {
    registrations_.add(range);
    return Outcome{};
  }
  // What of it was shared before the rest failed.
  for (const Range& part : registrations_.parts(range, 0)) make_unregistered(part, nullptr);
  hold_private({begin, begin + length_bytes}, range);
  return Outcome{Sharing::kPrivate, fmt::format("{} stays private memory: {}",
                                                describe(range.first, range.second), reason)};
}

void PageShare::hold_everything(uint64_t length_bytes) {
  const std::lock_guard lock(mutex_);
  hold_private({0, length_bytes}, {0, kSpanBytes});
}

void PageShare::hold_private(Range exact, Range pages) {
  std::vector<Range> shared;
  uint64_t at = pages.first;
  const auto add_until = [&](uint64_t end) {
    if (at < end) shared.emplace_back(at, end);
  };
  for (const Range& part : registrations_.parts(pages, 0)) {
    add_until(part.first);
    at = part.second;
  }
  add_until(pages.second);
  for (const Range& part : shared) registrations_.add(part);
  held_private_.emplace(exact, std::move(shared));
}

bool PageShare::in_place(const void* address, uint64_t length_bytes, bool writes) const {
  bool in_place;
  bool usable;
  return find_mapped(whole_pages(address, length_bytes), PROT_READ | (writes ? PROT_WRITE : 0),
                     &in_place, &usable)
             .ok() &&
         in_place;
}

bool PageShare::is_mapped(const void* address, uint64_t length_bytes, bool writes) const {
  bool in_place;
  bool usable;
  return find_mapped(whole_pages(address, length_bytes), PROT_READ | (writes ? PROT_WRITE : 0),
                     &in_place, &usable)
             .ok() &&
         usable;
}

bool PageShare::share_again(const void* address, uint64_t length_bytes, bool writes,
                            Discards discards) {
  if (length_bytes == 0 || length_bytes > ~0ull - as_number(address) - page_bytes_) return false;
  const bool refuses = must_refuse(discards);
  // So no other registration's end makes the pages private in between.
  const std::lock_guard lock(mutex_);
  if (!in_place(address, length_bytes, writes)) return false;
  if (refuses && !lock_shared(whole_pages(address, length_bytes)).empty()) return false;
  registrations_.add(whole_pages(address, length_bytes));
  return true;
}

}  // namespace verbena::soft
