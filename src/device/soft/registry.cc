#include "src/device/soft/registry.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "src/base/assert.h"
#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/base/silence_watch.h"
#include "src/device/soft/directory_files.h"
#include "src/device/soft/file_lock.h"
#include "src/device/soft/layout.h"
#include "src/device/soft/observe/counter_file.h"

namespace verbena::soft {
namespace {

constexpr const char* kSlotPrefix = "soft0.";
constexpr const char* kGroupPrefix = "group.";
// Whatever lies there under a slot's name, opening it neither blocks nor follows a link.
constexpr int kLookFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

std::string slot_name(uint32_t slot) { return fmt::format("{}{}", kSlotPrefix, slot); }

// "group.GID.QPN", both hexadecimal.
std::string member_name(const std::string& group, uint32_t qp_number) {
  return fmt::format("{}{}.{:06x}", kGroupPrefix, group, qp_number);
}

// The number in a member's name; 0 if it is none.
uint32_t member_number(const char* name) {
  if (strncmp(name, kGroupPrefix, strlen(kGroupPrefix)) != 0) return 0;
  const char* dot = strrchr(name, '.');
  const unsigned long number = strtoul(dot + 1, nullptr, 16);
  return number <= 0xffffff ? static_cast<uint32_t>(number) : 0;
}

uint64_t pid_namespace_of_self() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Whether a living process holds the lock of a slot's file. The lock belongs to the open file, so
// that neither another part of the same process nor opening the file can drop it.
bool locked(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// What helps where the runtime directory cannot be used, by errno.
const char* elsewhere() {
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
      return "make its parent directory or set VERBENA_RUNTIME_DIR to another one in memory";
    case ENOSPC:
    case EDQUOT:
      return "free some space there or set VERBENA_RUNTIME_DIR to another directory in memory";
    default:
      return "set VERBENA_RUNTIME_DIR to a directory in memory that this user can write to";
  }
}

Status no_descriptor(const std::string& path) {
  return {StatusCode::kLimitExceeded,
          fmt::format("soft0: cannot open {}: {}; raise the limit of open files (ulimit -n)", path,
                      strerror(errno))};
}

Status cannot(const char* what, const std::string& path, const char* remedy) {
  if (errno == EMFILE || errno == ENFILE) return no_descriptor(path);
  const StatusCode code = errno == ENOSPC || errno == EDQUOT ? StatusCode::kLimitExceeded
                                                             : StatusCode::kPermissionDenied;
  return {code, fmt::format("soft0: cannot {} {}: {}; {}", what, path, strerror(errno), remedy)};
}

// The process that holds the flock of this file; 0 if the kernel does not tell, as of one in
// another PID namespace.
pid_t holder_of_lock(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return 0;
  FILE* locks = fopen("/proc/locks", "re");
  if (locks == nullptr) return 0;
  pid_t holder = 0;
  char line[256];
  while (holder == 0 && fgets(line, sizeof(line), locks) != nullptr) {
    // "7: FLOCK  ADVISORY  WRITE 4711 00:1a:23 0 EOF"; who waits has an arrow behind the number.
    int pid = 0;
    unsigned device_major = 0;
    unsigned device_minor = 0;
    unsigned long long inode = 0;
    if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%llu", &pid, &device_major, &device_minor,
               &inode) == 4 &&
        device_major == major(status.st_dev) && device_minor == minor(status.st_dev) &&
        inode == status.st_ino) {
      holder = pid;
    }
  }
  fclose(locks);
  return holder;
}

std::string name_of_process(pid_t pid) {
  FileDescriptor file(open(fmt::format("/proc/{}/comm", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[32];
  const ssize_t length = read(file.get(), text, sizeof(text));
  if (length <= 1) return fmt::format("process {}", pid);
  return fmt::format("process {} ({})", pid,
                     std::string_view(text, static_cast<size_t>(length) - 1));
}

// The last slot that was given out, which the file of the lock holds.
uint32_t last_slot(int gate) {
  uint32_t last = 0;
  return pread(gate, &last, sizeof(last), 0) == sizeof(last) ? last : 0;
}

// Takes the lock, which a living process holds for as long as it takes to make a small file.
Status lock_gate(int gate, const std::string& path, uint64_t patience_ns) {
  constexpr uint64_t kBetweenTriesNs = 2'000'000;
  SilenceWatch watch(patience_ns, now_ns());
  while (flock(gate, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return cannot("lock", path, elsewhere());
    if (watch.too_long(now_ns(), last_slot(gate))) {
      const pid_t holder = holder_of_lock(gate);
      const std::string who = holder > 0 ? name_of_process(holder) : "a process";
      const std::string remedy =
          holder > 0
              ? fmt::format("continue it if it is stopped (kill -CONT {0}), or end it", holder)
              : "'lslocks' as root may name it; end it";
      return {StatusCode::kUnavailable,
              fmt::format(
                  "soft0: {} has held the lock {} for {:.1f} s, which every process needs to open "
                  "the device; {}, or set VERBENA_RUNTIME_DIR to another directory in memory",
                  who, path, static_cast<double>(watch.silent_ns()) / 1e9, remedy)};
    }
    sleep_ns(kBetweenTriesNs);
  }
  return {};
}

}  // namespace

std::string connection_socket_name(uint32_t slot) { return fmt::format("cm.{}", slot); }

uint32_t pipe_id(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode) ? static_cast<uint32_t>(status.st_ino)
                                                             : 0;
}

namespace {

// A field of /proc/PID/stat, counted behind the parenthesized name, which may hold anything; 0 if
// there is none.
uint64_t stat_field(pid_t pid, int number) {
  FileDescriptor file(open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return 0;  // errno says why
  char text[1024];
  const ssize_t length = read(file.get(), text, sizeof(text) - 1);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* at = strrchr(text, ')');
  for (int field = 2; at != nullptr && field < number; ++field) {
    at = strchr(at + 1, ' ');
  }
  return at == nullptr ? 0 : strtoull(at, nullptr, 10);
}

}  // namespace

uint64_t process_start_time_ticks(pid_t pid) { return stat_field(pid, 22); }

bool is_exiting(pid_t pid) {
  constexpr uint64_t kExiting = 4;  // PF_EXITING of the kernel
  return (stat_field(pid, 9) & kExiting) != 0;
}

Result<Registry> Registry::open() {
  const char* base = getenv("VERBENA_RUNTIME_DIR");
  const std::string path =
      fmt::format("{}/verbena-{}", base != nullptr && *base != '\0' ? base : "/dev/shm", geteuid());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return cannot("make", path, elsewhere());
  }
  FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status {};
  if (directory.get() < 0 || fstat(directory.get(), &status) != 0) {
    return cannot("open", path, "remove it, or set VERBENA_RUNTIME_DIR to another directory");
  }
  if (status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
    return Status(
        StatusCode::kPermissionDenied,
        fmt::format(
            "soft0: {} is not private: it belongs to user {} with mode {:o}, wanted user {} with "
            "mode 700; have it removed, or set VERBENA_RUNTIME_DIR to another directory",
            path, status.st_uid, status.st_mode & 0777, geteuid()));
  }
  return Registry(directory.release(), path);
}

Registry::Registry(Registry&& other) noexcept
    : directory_fd_(std::exchange(other.directory_fd_, -1)),
      slot_fd_(std::exchange(other.slot_fd_, -1)),
      slot_(std::exchange(other.slot_, 0)),
      path_(std::move(other.path_)) {}

Registry::~Registry() {
  leave();
  if (directory_fd_ >= 0) close(directory_fd_);
}

void Registry::leave() {
  if (slot_fd_ < 0) return;
  unlinkat(directory_fd_, connection_socket_name(slot_).c_str(), 0);
  unlinkat(directory_fd_, slot_name(slot_).c_str(), 0);
  close(std::exchange(slot_fd_, -1));
}

void Registry::abandon() {
  if (slot_fd_ >= 0) close(std::exchange(slot_fd_, -1));
}

void Registry::remove_leftovers() const {
  for_each_file(directory_fd_, [this](const char* name) {
    if (strncmp(name, kXrcDomainPrefix, strlen(kXrcDomainPrefix)) == 0) {
      remove_closed_domain(name);
      return true;
    }
    std::string slot_file = name;
    if (const uint32_t member = member_number(name); member != 0) {
      slot_file = slot_name(slot_of(member));
    } else if (strncmp(name, kSlotPrefix, strlen(kSlotPrefix)) != 0) {
      return true;
    }
    FileDescriptor file(openat(directory_fd_, slot_file.c_str(), kLookFlags));
    if (file.get() < 0 && (errno == EMFILE || errno == ENFILE)) return false;
    if (file.get() < 0 || !locked(file.get())) unlinkat(directory_fd_, name, 0);
    return true;
  });
}

void Registry::remove_closed_domain(const char* name) const {
  const FileDescriptor file(
      openat(directory_fd_, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  struct stat status {};
  // Under the lock: whoever opens the file meanwhile gets no lock on it before it is gone. Another
  // one by the name may be there by now.
  if (file.valid() && fcntl(file.get(), F_OFD_SETLK, &lock) == 0 &&
      fstat(file.get(), &status) == 0 && status.st_nlink != 0) {
    unlinkat(directory_fd_, name, 0);
  }
}

Result<std::vector<uint32_t>> Registry::slots() const {
  std::vector<uint32_t> found;
  const bool read = for_each_file(directory_fd_, [&found](const char* name) {
    if (strncmp(name, kSlotPrefix, strlen(kSlotPrefix)) != 0) return true;
    const unsigned long slot = strtoul(name + strlen(kSlotPrefix), nullptr, 10);
    if (slot > 0 && slot < kMaxProcesses) found.push_back(static_cast<uint32_t>(slot));
    return true;
  });
  if (!read) return cannot("read", path_, elsewhere());
  return found;
}

// Counted once the new member is in: where several join at a time, too many may be refused, never
// too few.
Status Registry::join_group(const std::string& group, uint32_t qp_number) const {
  const std::string name = member_name(group, qp_number);
  const FileDescriptor file(openat(directory_fd_, name.c_str(),
                                   O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0 && errno == EEXIST) return {};
  if (file.get() < 0) return cannot("make", path_ + "/" + name, elsewhere());
  Status fits = check_groups(/*of_dead=*/true);
  if (fits.code() == StatusCode::kLimitExceeded) fits = check_groups(/*of_dead=*/false);
  if (!fits.ok()) leave_group(group, qp_number);
  return fits;
}

// Members of dead processes, which the next process removes, are told from others by a file each.
Status Registry::check_groups(bool of_dead) const {
  std::set<std::string, std::less<>> groups;
  uint32_t members = 0;
  const bool read = for_each_file(directory_fd_, [&](const char* name) {
    const uint32_t member = member_number(name);
    if (member == 0 || (!of_dead && !taken(slot_of(member)))) return true;
    ++members;
    if (const std::string_view group(name, strrchr(name, '.')); !groups.contains(group)) {
      groups.emplace(group);
    }
    return members <= kMaxGroupMembers;
  });
  if (!read) return cannot("read", path_, elsewhere());
  if (groups.size() > kMaxMulticastGroups) {
    return {StatusCode::kLimitExceeded,
            fmt::format("soft0: no more than {} multicast groups at a time (max_mcast_grp); leave "
                        "one with ibv_detach_mcast",
                        kMaxMulticastGroups)};
  }
  if (members > kMaxGroupMembers) {
    return {StatusCode::kLimitExceeded,
            fmt::format("soft0: no more than {} queue pairs attached to multicast groups at a time "
                        "(max_total_mcast_qp_attach); leave one with ibv_detach_mcast",
                        kMaxGroupMembers)};
  }
  return {};
}

bool Registry::leave_group(const std::string& group, uint32_t qp_number) const {
  return unlinkat(directory_fd_, member_name(group, qp_number).c_str(), 0) == 0;
}

Result<std::vector<uint32_t>> Registry::members_of(const std::string& group) const {
  std::vector<uint32_t> found;
  const std::string prefix = kGroupPrefix + group + ".";
  const bool read = for_each_file(directory_fd_, [&](const char* name) {
    const uint32_t number = member_number(name);
    if (number != 0 && strncmp(name, prefix.c_str(), prefix.size()) == 0) found.push_back(number);
    return found.size() < kMaxGroupMembers;
  });
  if (!read) return cannot("read", path_, elsewhere());
  return found;
}

void Registry::remove_connection_sockets() const {
  for_each_file(directory_fd_, [this](const char* name) {
    uint32_t slot = 0;
    int end = 0;
    if (sscanf(name, "cm.%u%n", &slot, &end) != 1 || name[end] != '\0') return true;
    FileDescriptor owner(openat(directory_fd_, slot_name(slot).c_str(), kLookFlags));
    const bool gone = owner.get() < 0 ? errno == ENOENT : !locked(owner.get());
    if (gone) unlinkat(directory_fd_, name, 0);
    return true;
  });
}

Result<uint32_t> Registry::join(ProcessRecord record, uint64_t patience_ns) {
  VERBENA_ASSERT(slot_fd_ < 0);
  // Joining is serialized by a lock that the kernel releases at death. Its file holds the last slot
  // given out.
  FileDescriptor gate(openat(directory_fd_, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  const std::string gate_path = path_ + "/lock";
  if (gate.get() < 0) return cannot("open", gate_path, elsewhere());
  VERBENA_RETURN_IF_ERROR(lock_gate(gate.get(), gate_path, patience_ns));
  const FileUnlock unlock(gate.get());
  remove_leftovers();
  remove_connection_sockets();  // nobody takes their slots meanwhile
  sum_up_ended_counters(*this);
  const uint32_t last = last_slot(gate.get());

  for (uint32_t step = 1; step < kMaxProcesses; ++step) {
    const uint32_t slot = 1 + (last + step - 1) % (kMaxProcesses - 1);
    const std::string name = slot_name(slot);
    FileDescriptor file(
        openat(directory_fd_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0 && errno == EEXIST) continue;  // in use
    if (file.get() < 0) return cannot("make", path_ + "/" + name, elsewhere());

    record.magic = kLayoutMagic;
    record.version = kLayoutVersion;
    record.slot = slot;
    record.pid = getpid();
    errno = 0;
    record.start_time_ticks = process_start_time_ticks(record.pid);
    if (record.start_time_ticks == 0 && (errno == EMFILE || errno == ENFILE)) {
      Status status = no_descriptor("/proc/self/stat");
      unlinkat(directory_fd_, name.c_str(), 0);
      return status;
    }
    record.pid_namespace = pid_namespace_of_self();
    struct flock slot_lock {};
    slot_lock.l_type = F_WRLCK;
    slot_lock.l_whence = SEEK_SET;
    if (pwrite(file.get(), &record, sizeof(record), 0) != sizeof(record) ||
        fcntl(file.get(), F_OFD_SETLK, &slot_lock) != 0 ||
        pwrite(gate.get(), &slot, sizeof(slot), 0) != sizeof(slot)) {
      Status status = cannot("write", path_ + "/" + name, elsewhere());
      unlinkat(directory_fd_, name.c_str(), 0);
      return status;
    }
    slot_fd_ = file.release();
    slot_ = slot;
    return slot;
  }
  return Status(
      StatusCode::kLimitExceeded,
      fmt::format(
          "soft0: {} processes of this user have the device open, which is the limit; close some",
          kMaxProcesses - 1));
}

Result<ProcessRecord> Registry::find(uint32_t slot) const {
  FileDescriptor file(openat(directory_fd_, slot_name(slot).c_str(), kLookFlags));
  if (file.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
    return no_descriptor(path_ + "/" + slot_name(slot));
  }
  if (file.get() < 0 || !locked(file.get())) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("soft0: no living process of this user has slot {}", slot));
  }
  ProcessRecord record{};
  // Another layout may be shorter.
  const bool whole = pread(file.get(), &record, sizeof(record), 0) == sizeof(record);
  if (!whole || record.magic != kLayoutMagic || record.slot != slot ||
      record.version != kLayoutVersion) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("soft0: the process in slot {} uses layout {}, this one {}; use one "
                              "build of Verbena for both",
                              slot, record.version, kLayoutVersion));
  }
  if (record.pid_namespace != pid_namespace_of_self()) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("soft0: the process in slot {} lives in another PID namespace (container); "
                    "run both in one, or share it (--pid)",
                    slot));
  }
  errno = 0;
  const uint64_t start_time_ticks = process_start_time_ticks(record.pid);
  if (start_time_ticks == 0 && (errno == EMFILE || errno == ENFILE)) {
    return no_descriptor(fmt::format("/proc/{}/stat", record.pid));
  }
  if (record.start_time_ticks != start_time_ticks) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("soft0: process {} of slot {} is gone", record.pid, slot));
  }
  return record;
}

bool Registry::alive(uint32_t slot) const { return find(slot).ok(); }

bool Registry::taken(uint32_t slot) const {
  const FileDescriptor file(openat(directory_fd_, slot_name(slot).c_str(), kLookFlags));
  return file.valid() ? locked(file.get()) : errno != ENOENT;
}

}  // namespace verbena::soft
