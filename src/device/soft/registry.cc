#include "src/device/soft/registry.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/device/soft/layout.h"

namespace verbena::soft {
namespace {

constexpr const char* kSlotPrefix = "soft0.";
// Whatever lies there under a slot's name, looking at it neither waits nor leads elsewhere.
constexpr int kLookFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

std::string slot_name(uint32_t slot) { return fmt::format("{}{}", kSlotPrefix, slot); }

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

uint64_t pid_namespace_of_self() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// Whether a living process holds the lock of a slot's file. The lock belongs to the open file, so
// that neither another part of the same process nor a look at the file can drop it.
bool locked(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Status cannot(const char* what, const std::string& path, const char* remedy) {
  const StatusCode code = errno == ENOSPC || errno == EDQUOT ? StatusCode::kLimitExceeded
                                                             : StatusCode::kPermissionDenied;
  return {code, fmt::format("soft0: cannot {} {}: {}; {}", what, path, strerror(errno), remedy)};
}

constexpr const char* kElsewhere =
    "free some space there or set VERBENA_RUNTIME_DIR to another directory in memory";

}  // namespace

uint32_t pipe_id(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode) ? static_cast<uint32_t>(status.st_ino)
                                                             : 0;
}

// Field 22 of /proc/PID/stat, counted behind the parenthesized name, which may hold anything.
uint64_t process_start_time_ticks(pid_t pid) {
  FileDescriptor file(open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t length = read(file.get(), text, sizeof(text) - 1);
  if (length <= 0) return 0;
  text[length] = '\0';
  const char* at = strrchr(text, ')');
  for (int field = 2; at != nullptr && field < 22; ++field) {
    at = strchr(at + 1, ' ');
  }
  return at == nullptr ? 0 : strtoull(at, nullptr, 10);
}

Result<Registry> Registry::open() {
  const char* base = getenv("VERBENA_RUNTIME_DIR");
  const std::string path =
      fmt::format("{}/verbena-{}", base != nullptr && *base != '\0' ? base : "/dev/shm", geteuid());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return cannot("make", path, kElsewhere);
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
  unlinkat(directory_fd_, slot_name(slot_).c_str(), 0);
  close(std::exchange(slot_fd_, -1));
}

void Registry::abandon() {
  if (slot_fd_ >= 0) close(std::exchange(slot_fd_, -1));
}

void Registry::remove_leftovers() const {
  DIR* entries = fdopendir(openat(directory_fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (strncmp(entry->d_name, kSlotPrefix, strlen(kSlotPrefix)) != 0) continue;
    FileDescriptor file(openat(directory_fd_, entry->d_name, kLookFlags));
    if (file.get() < 0 && (errno == EMFILE || errno == ENFILE)) break;
    if (file.get() < 0 || !locked(file.get())) unlinkat(directory_fd_, entry->d_name, 0);
  }
  closedir(entries);
}

Result<uint32_t> Registry::join(ProcessRecord record) {
  // Joining is serialized by a lock that the kernel releases at death. Its file holds the last slot
  // given out.
  FileDescriptor gate(openat(directory_fd_, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  int locked_gate = -1;
  while (gate.get() >= 0 && (locked_gate = flock(gate.get(), LOCK_EX)) != 0 && errno == EINTR) {
  }
  if (locked_gate != 0) return cannot("lock", path_ + "/lock", kElsewhere);
  remove_leftovers();
  uint32_t last = 0;
  if (pread(gate.get(), &last, sizeof(last), 0) != sizeof(last)) last = 0;

  for (uint32_t step = 1; step < kMaxProcesses; ++step) {
    const uint32_t slot = 1 + (last + step - 1) % (kMaxProcesses - 1);
    const std::string name = slot_name(slot);
    FileDescriptor file(
        openat(directory_fd_, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0 && errno == EEXIST) continue;  // in use
    if (file.get() < 0) return cannot("make", path_ + "/" + name, kElsewhere);

    record.magic = kLayoutMagic;
    record.version = kLayoutVersion;
    record.slot = slot;
    record.pid = getpid();
    record.start_time_ticks = process_start_time_ticks(record.pid);
    record.pid_namespace = pid_namespace_of_self();
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (pwrite(file.get(), &record, sizeof(record), 0) != sizeof(record) ||
        fcntl(file.get(), F_OFD_SETLK, &lock) != 0 ||
        pwrite(gate.get(), &slot, sizeof(slot), 0) != sizeof(slot)) {
      Status status = cannot("write", path_ + "/" + name, kElsewhere);
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
  ProcessRecord record{};
  if (file.get() < 0 || pread(file.get(), &record, sizeof(record), 0) != sizeof(record) ||
      !locked(file.get())) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("soft0: no living process of this user has slot {}", slot));
  }
  if (record.magic != kLayoutMagic || record.slot != slot || record.version != kLayoutVersion) {
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
  if (record.start_time_ticks != process_start_time_ticks(record.pid)) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("soft0: process {} of slot {} is gone", record.pid, slot));
  }
  return record;
}

bool Registry::alive(uint32_t slot) const { return find(slot).ok(); }

}  // namespace verbena::soft
