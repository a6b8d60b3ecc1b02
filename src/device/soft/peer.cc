#include "src/device/soft/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/base/runtime.h"
#include "src/device/soft/rnic.h"

namespace verbena::soft {
namespace {

constexpr uint64_t kWindowBytes = 1ull << 30;
constexpr uint64_t kAddressSpaceBytes = 1ull << 47;
// A peer can tell of regions of any size; it must not use up this process's addresses.
constexpr uint64_t kMaxMappedBytes = 2 * kMaxRegionBytes;
// Of pidfd_open(), since Linux 6.9; older headers do not have it.
constexpr unsigned kPidfdThread = O_EXCL;

// By raw system calls: programs that hook mmap must not take these for their own.
void* raw_mmap(uint64_t length_bytes, int fd, uint64_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, length_bytes, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_NORESERVE, fd, offset));
}

void raw_munmap(void* address, uint64_t length_bytes) {
  syscall(SYS_munmap, address, length_bytes);
}

}  // namespace

// Descriptors of a process mean something only while it is the one that wrote the record:
// `life_fd_` is opened first and checked last, and what was opened in between is that process's.
Status Peer::open_files(const ProcessRecord& record) {
  const Status gone{StatusCode::kUnavailable, fmt::format("soft0: process {} is gone", record.pid)};
  // Whatever stands under the number, opening it neither waits nor becomes this process's terminal.
  constexpr int kFlags = O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const auto open_of_peer = [&](int fd, int access) {
    return open(fmt::format("/proc/{}/fd/{}", record.pid, fd).c_str(), access | kFlags);
  };
  life_fd_ = open_of_peer(record.life_fd, O_RDONLY);
  const int life_error = errno;
  pid_fd_ = static_cast<int>(syscall(SYS_pidfd_open, record.pid, 0));
  // Old filters for system calls refuse what they do not know by EPERM; the kernel itself does not.
  if (pid_fd_ < 0 && errno != ENOSYS && errno != EPERM) {
    if (errno == ESRCH) return gone;
    return {StatusCode::kLimitExceeded, fmt::format("soft0: cannot watch process {} (pidfd_open): "
                                                    "{}; raise the limit of open files (ulimit -n)",
                                                    record.pid, strerror(errno))};
  }
  thread_fd_ = static_cast<int>(syscall(SYS_pidfd_open, record.service_thread, kPidfdThread));
  if (thread_fd_ < 0 && errno == ESRCH) return gone;
  // Another process may have a thread with that number by now.
  const std::string thread = fmt::format("/proc/{}/task/{}", record.pid, record.service_thread);
  if (thread_fd_ >= 0 && access(thread.c_str(), F_OK) != 0) return gone;
  life_number_ = record.life_fd;
  life_id_ = record.life_id;
  memory_fd_ = open_of_peer(record.memory_fd, O_RDWR);
  const int memory_error = errno;
  for (const auto& [fd, error] : {std::pair(life_fd_, life_error), {memory_fd_, memory_error}}) {
    if (fd >= 0) continue;
    if (error == ENOENT) return gone;
    const bool too_many = error == EMFILE || error == ENFILE;
    return {too_many ? StatusCode::kLimitExceeded : StatusCode::kPermissionDenied,
            fmt::format("soft0: cannot open the memory of process {} (/proc/{}/fd): {}; {}",
                        record.pid, record.pid, strerror(error),
                        too_many ? "raise ulimit -n"
                                 : "it must run as the same user, not be set-uid, and be "
                                   "dumpable (VERBENA_MAKE_DUMPABLE=1 there)")};
  }
  if (pipe_id(life_fd_) != record.life_id || !exists()) return gone;
  return {};
}

namespace {

// A file that is cut, or whose pages may be refused when they are touched (huge pages, a full file
// system), would kill this process. Where writing is sealed nothing can be mapped.
bool safe_to_map(int fd) {
  struct stat status {};
  struct statfs file_system {};
  constexpr int kWanted = F_SEAL_SHRINK | F_SEAL_SEAL;
  constexpr int kUnwanted = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;
  const int seals = fcntl(fd, F_GET_SEALS);
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
         static_cast<uint64_t>(status.st_size) >= kAddressSpaceBytes && seals >= 0 &&
         (seals & (kWanted | kUnwanted)) == kWanted && fstatfs(fd, &file_system) == 0 &&
         file_system.f_type == TMPFS_MAGIC;
}

}  // namespace

Result<std::shared_ptr<Peer>> Peer::attach(const ProcessRecord& record) {
  std::shared_ptr<Peer> peer(new Peer);
  peer->slot_ = record.slot;
  peer->pid_ = record.pid;
  VERBENA_RETURN_IF_ERROR(peer->open_files(record));
  if (!safe_to_map(peer->memory_fd_) || record.header_address % kCacheLineBytes != 0 ||
      record.header_address > kAddressSpaceBytes - sizeof(Header)) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("soft0: the memory file of process {} is not one of soft0 (a memfd "
                              "of {} bytes, sealed against shrinking)",
                              record.pid, kAddressSpaceBytes));
  }
  peer->header_ = reinterpret_cast<Header*>(peer->map(record.header_address, sizeof(Header)));
  if (peer->header_ == nullptr) {
    return Status(
        StatusCode::kLimitExceeded,
        fmt::format(
            "soft0: cannot map the tables of process {}: {}; raise vm.max_map_count or ulimit -v",
            record.pid, strerror(errno)));
  }
  if (peer->header_->magic != kLayoutMagic || peer->header_->version != kLayoutVersion ||
      peer->header_->slot != record.slot) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("soft0: the tables of process {} are those of another version; use "
                              "one build of Verbena for both",
                              record.pid));
  }
  if (!peer->can_copy(record.header_address)) peer->header_->copies_refused.store(1);
  peer->wake_fd_ = peer->open_pipe(peer->header_->wake_fd, peer->header_->wake_id);
  if (peer->wake_fd_ < 0 && (errno == EMFILE || errno == ENFILE)) {
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("soft0: cannot open the pipe of process {} (/proc/{}/fd): {}; raise "
                              "the limit of open files (ulimit -n)",
                              record.pid, record.pid, strerror(errno)));
  }
  return peer;
}

std::shared_ptr<Peer> Peer::self(uint32_t slot, Header* header, PageShare& pages) {
  std::shared_ptr<Peer> peer(new Peer);
  peer->slot_ = slot;
  peer->pid_ = getpid();
  peer->own_pages_ = &pages;
  peer->memory_fd_ = pages.fd();
  peer->header_ = header;
  peer->wake_fd_ = peer->open_pipe(header->wake_fd, header->wake_id);
  return peer;
}

Peer::~Peer() {
  for (const auto& [base, length_bytes] : mappings_) raw_munmap(base, length_bytes);
  for (const auto& [key, fd] : pipes_) close(fd);
  if (wake_fd_ >= 0) close(wake_fd_);
  if (memory_fd_ >= 0 && !is_self()) close(memory_fd_);
  if (pid_fd_ >= 0) close(pid_fd_);
  if (thread_fd_ >= 0) close(thread_fd_);
  if (life_fd_ >= 0) close(life_fd_);
}

std::byte* Peer::map(uint64_t address, uint64_t length_bytes) {
  const uint64_t end = address + length_bytes;
  if (end < address || end > kAddressSpaceBytes) {
    errno = EINVAL;
    return nullptr;
  }
  std::lock_guard guard(mutex_);
  if (auto it = windows_.upper_bound(address); it != windows_.begin()) {
    --it;
    if (end <= it->second.end) return it->second.base + (address - it->first);
  }
  // A window that starts like an older one but is longer replaces it in the index; the old mapping
  // stays, because pointers into it are cached.
  const uint64_t start = address / kWindowBytes * kWindowBytes;
  const uint64_t stop = (end + kWindowBytes - 1) / kWindowBytes * kWindowBytes;
  if (mapped_bytes_ + (stop - start) > kMaxMappedBytes) {
    errno = ENOMEM;
    return nullptr;
  }
  void* base = nullptr;
  if (is_self()) {
    base = own_pages_->map_alias(start, stop - start);
    if (base == nullptr) return nullptr;
  } else {
    base = raw_mmap(stop - start, memory_fd_, start);
    if (base == MAP_FAILED) return nullptr;
    mappings_.emplace_back(base, stop - start);
  }
  mapped_bytes_ += stop - start;
  windows_[start] = {stop, static_cast<std::byte*>(base)};
  return static_cast<std::byte*>(base) + (address - start);
}

// The kernel takes a process's number only, which another process may have once this one is gone,
// or another program: it is checked before and after. What was read from a stranger goes to nobody,
// and what was written to one is not reported as done.
bool Peer::write_foreign(uint64_t address, const void* source, size_t size_bytes) {
  if (!exists()) return false;
  // The last byte in a call of its own: pollers of the last byte must see the rest.
  const size_t parts[2] = {size_bytes - 1, 1};
  size_t done = 0;
  for (size_t part : parts) {
    while (part > 0) {
      iovec local{const_cast<char*>(static_cast<const char*>(source)) + done, part};
      iovec remote{reinterpret_cast<void*>(address + done), part};
      const ssize_t moved = process_vm_writev(pid_, &local, 1, &remote, 1, 0);
      if (moved <= 0) return false;
      done += static_cast<size_t>(moved);
      part -= static_cast<size_t>(moved);
    }
  }
  return exists();
}

Peer::Read Peer::read_foreign(uint64_t address, void* destination, size_t size_bytes) {
  if (!exists()) return Read::kGone;
  // Pages are in flight for a millisecond at most, unless their mover is stopped.
  constexpr uint64_t kPatienceNs = 10'000'000;
  uint64_t limit_ns = 0;
  Waiter waiter;
  for (size_t done = 0; done < size_bytes;) {
    const Moves moves = page_moves();
    iovec local{static_cast<char*>(destination) + done, size_bytes - done};
    iovec remote{reinterpret_cast<void*>(address + done), size_bytes - done};
    const ssize_t moved = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (moved > 0) {
      done += static_cast<size_t>(moved);
      continue;
    }
    // Memory that is neither gone nor moving is there at the next look.
    const bool may_move =
        moved < 0 && errno == EFAULT && (moves.under_way() || moves != page_moves());
    if (!may_move) return has_ended() ? Read::kGone : Read::kRefused;
    const uint64_t now = now_ns();
    if (limit_ns == 0) limit_ns = now + kPatienceNs;
    if (now > limit_ns) return exists() ? Read::kBusy : Read::kGone;
    waiter.idle();
  }
  return exists() ? Read::kDone : Read::kGone;
}

Peer::Moves Peer::page_moves() const {
  const Rnic* const own = Rnic::existing();
  return {header_->page_moves.load(std::memory_order_acquire),
          own != nullptr ? own->header().page_moves.load(std::memory_order_acquire) : 0};
}

// Of a word that is there: the magic of the header.
bool Peer::can_copy(uint64_t header_address) const {
  uint64_t copied = 0;
  iovec local{&copied, sizeof(copied)};
  iovec remote{reinterpret_cast<void*>(header_address), sizeof(copied)};
  return process_vm_readv(pid_, &local, 1, &remote, 1, 0) == ssize_t{sizeof(copied)};
}

std::shared_ptr<std::byte> Peer::attach_segment(int id, uint64_t end_bytes) {
  std::lock_guard guard(mutex_);
  std::erase_if(segments_, [](const auto& known) { return known.second.expired(); });
  std::shared_ptr<std::byte> segment;
  if (const auto known = segments_.find(id); known != segments_.end())
    segment = known->second.lock();
  if (segment == nullptr) {
    // In another namespace the number means another segment.
    struct stat theirs {};
    struct stat ours {};
    if (stat(fmt::format("/proc/{}/ns/ipc", pid_).c_str(), &theirs) != 0 ||
        stat("/proc/self/ns/ipc", &ours) != 0 || theirs.st_ino != ours.st_ino || !exists()) {
      return nullptr;
    }
    // By raw system calls, as for raw_mmap().
    const long base = syscall(SYS_shmat, id, nullptr, 0);
    if (base == -1) return nullptr;
    segment.reset(reinterpret_cast<std::byte*>(base),
                  [](std::byte* at) { syscall(SYS_shmdt, at); });
    segments_[id] = segment;
  }
  // While it is attached, the number stays its own.
  shmid_ds status{};
  if (shmctl(id, IPC_STAT, &status) != 0 || status.shm_segsz < end_bytes) return nullptr;
  return segment;
}

bool Peer::lock_updates(bool lock) const {
  struct flock record {};
  record.l_type = static_cast<short>(lock ? F_WRLCK : F_UNLCK);
  record.l_whence = SEEK_SET;
  record.l_len = 1;
  return fcntl(memory_fd_, F_OFD_SETLK, &record) == 0;
}

Peer::Update Peer::update_foreign(uint64_t address, bool compare, uint64_t operand, uint64_t swap,
                                  uint64_t* before) {
  std::lock_guard guard(updates_mutex_);
  // Usually held for some microseconds; whoever waits longer tries again later.
  constexpr uint64_t kPatienceNs = 1'000'000;
  const uint64_t start_ns = now_ns();
  for (Waiter waiter; !lock_updates(true); waiter.idle()) {
    if (now_ns() - start_ns > kPatienceNs) return Update::kBusy;
  }
  iovec remote{reinterpret_cast<void*>(address), sizeof(uint64_t)};
  const auto move = [&](auto call, uint64_t* value) {
    iovec local{value, sizeof(*value)};
    return call(pid_, &local, 1, &remote, 1, 0) == ssize_t{sizeof(*value)};
  };
  bool done = exists() && move(process_vm_readv, before);
  if (done && (!compare || *before == operand)) {
    uint64_t after = compare ? swap : *before + operand;
    done = move(process_vm_writev, &after);
  }
  done = done && exists();
  lock_updates(false);
  if (done) return Update::kDone;
  return has_ended() ? Update::kBusy : Update::kRefused;
}

// When the thread has ended, others of the program may still run for a moment: until exec has ended
// all of them, which closes the pipe's end in this process, or until the process has ended. A
// process that is on its way out has no descriptors either.
bool Peer::became_another_program() const {
  struct stat status {};
  const std::string path = fmt::format("/proc/{}/fd/{}", pid_, life_number_);
  const bool has_pipe = stat(path.c_str(), &status) == 0 && S_ISFIFO(status.st_mode) &&
                        static_cast<uint32_t>(status.st_ino) == life_id_;
  return !has_pipe && !is_exiting(pid_);
}

bool Peer::has_ended() const {
  constexpr uint64_t kLongestNs = 1'000'000'000;
  const uint64_t start_ns = now_ns();
  for (Waiter waiter; exists(); waiter.idle()) {
    // It may have ended, and been waited for, since exists() looked.
    if (!is_exiting(pid_) || now_ns() - start_ns > kLongestNs) return !exists();
  }
  return true;
}

bool Peer::exists() const {
  if (is_self()) return true;
  pollfd ends[] = {{.fd = life_fd_, .events = 0, .revents = 0},
                   {.fd = pid_fd_, .events = POLLIN, .revents = 0},
                   {.fd = thread_fd_, .events = POLLIN, .revents = 0}};
  if (poll(ends, 3, 0) == 0) return true;
  return ends[0].revents == 0 && ends[1].revents == 0 && !became_another_program();
}

bool Peer::ending() const {
  pollfd end = {.fd = thread_fd_, .events = POLLIN, .revents = 0};
  return poll(&end, 1, 0) != 0;
}

// The descriptor, or -1 and errno.
int Peer::open_pipe(int fd, uint32_t id) const {
  // Opened for reading too, so that a write after the peer's end is no SIGPIPE.
  const int opened = open(fmt::format("/proc/{}/fd/{}", pid_, fd).c_str(),
                          O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (opened < 0) return -1;
  if (id == 0 || pipe_id(opened) != id || !exists()) {
    close(opened);
    errno = ENOENT;
    return -1;
  }
  return opened;
}

int Peer::pipe_of(int fd, uint32_t id) {
  const uint64_t key = static_cast<uint64_t>(id) << 32 | static_cast<uint32_t>(fd);
  if (auto it = pipes_.find(key); it != pipes_.end()) return it->second;
  const int opened = open_pipe(fd, id);
  if (opened < 0) return -1;
  if (pipes_.size() >= kMaxPipes) {
    for (const auto& [old_key, old] : pipes_) close(old);
    pipes_.clear();
  }
  pipes_.emplace(key, opened);
  return opened;
}

bool Peer::notify(int fd, uint32_t id, const void* message, size_t size_bytes) {
  std::lock_guard guard(mutex_);
  const int pipe = pipe_of(fd, id);
  // A full pipe already holds a wake-up; a closed one has nobody to wake.
  if (pipe >= 0) [[maybe_unused]]
    const ssize_t written = write(pipe, message, size_bytes);
  return pipe >= 0;
}

bool Peer::wake_service() {
  const char byte = 0;
  if (wake_fd_ < 0) return notify(header_->wake_fd, header_->wake_id, &byte, 1);
  // A full pipe already holds a wake-up.
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &byte, 1);
  return true;
}

}  // namespace verbena::soft
