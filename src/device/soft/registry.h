// Where the software RNICs of one user find each other: a private directory with one small file per
// process.
//
// The directory is /dev/shm/verbena-UID (VERBENA_RUNTIME_DIR replaces /dev/shm), mode 0700. A
// process takes a slot by making its file and holding a lock on it. The kernel drops the lock when
// the process ends, however it ends, and even while a killed process is still a zombie; so a file
// without a lock is a left-over, and whoever joins next removes it. Nothing large lies here: tables
// and memory live in each process's own memory file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/status.h"

namespace verbena::soft {

// What a process tells its peers about itself.
struct ProcessRecord {
  uint64_t magic;
  uint32_t version;
  uint32_t slot;
  int32_t pid;
  int32_t memory_fd;          // the memory file, as a descriptor number of that process
  uint64_t start_time_ticks;  // of the process: a reused pid has another
  uint64_t pid_namespace;     // inode
  uint64_t header_address;
  int32_t life_fd;         // write end of a pipe that ends with the process or its program (exec)
  uint32_t life_id;        // of that pipe, see pipe_id()
  int32_t service_thread;  // ends with the program, too
};

// Tells an open pipe from others; 0 if `fd` is none.
uint32_t pipe_id(int fd);

// Tells a process from a later one with the same pid; 0 if there is none.
uint64_t process_start_time_ticks(pid_t pid);
// Whether its main thread has begun to exit.
bool is_exiting(pid_t pid);

// The file of an open XRC domain; what follows names the domain.
inline constexpr const char* kXrcDomainPrefix = "xrcd.";

// The socket of the connection manager of the process in a slot, which leaves it with the slot.
std::string connection_socket_name(uint32_t slot);

class Registry {
 public:
  static constexpr uint64_t kLockPatienceNs = 10'000'000'000;

  // Opens (makes) the directory of this user.
  static Result<Registry> open();
  Registry(Registry&&) noexcept;
  Registry& operator=(Registry&&) = delete;
  ~Registry();  // leaves the slot

  // Removes what dead processes left and takes a free slot; `record` needs memory_fd and
  // header_address, the rest is filled in. Slots rotate, so that a number is not reused soon.
  // kUnavailable if for `patience_ns` nobody, not even another process, got the lock that joining
  // takes: whoever holds it is stopped, or does not belong here.
  Result<uint32_t> join(ProcessRecord record, uint64_t patience_ns = kLockPatienceNs);
  void leave();
  // In a forked child: the slot stays the parent's.
  void abandon();

  // kUnavailable only if the process is gone. Of those that may live: kProtocolViolation with
  // another layout, kUnsupported in another PID namespace, kLimitExceeded without a file descriptor
  // left.
  Result<ProcessRecord> find(uint32_t slot) const;
  bool alive(uint32_t slot) const;
  // Whether a living process holds the slot, of any release and in any PID namespace.
  bool taken(uint32_t slot) const;
  // Those that were taken when looked at; may have left-overs. kLimitExceeded without a file
  // descriptor left.
  Result<std::vector<uint32_t>> slots() const;

  // Multicast groups: a member is an empty file, named by group and queue pair number. What a dead
  // process leaves is removed with its slot. kLimitExceeded beyond kMaxMulticastGroups or
  // kMaxGroupMembers.
  Status join_group(const std::string& group, uint32_t qp_number) const;
  // Needs no file descriptor.
  bool leave_group(const std::string& group, uint32_t qp_number) const;
  // kLimitExceeded without a file descriptor left.
  Result<std::vector<uint32_t>> members_of(const std::string& group) const;

  // Removes the file of an XRC domain that no process has open (xrc_domains.cc).
  void remove_closed_domain(const char* name) const;

  const std::string& path() const { return path_; }  // of the directory

  // For the connection manager (cm/), whose files begin with "cm.".
  int directory_fd() const { return directory_fd_; }

 private:
  explicit Registry(int directory_fd, std::string path)
      : directory_fd_(directory_fd), path_(std::move(path)) {}
  void remove_leftovers() const;
  Status check_groups(bool of_dead) const;
  void remove_connection_sockets() const;

  int directory_fd_ = -1;
  int slot_fd_ = -1;
  uint32_t slot_ = 0;
  std::string path_;
};

}  // namespace verbena::soft
