// Another process's software RNIC, as mapped into this one.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/device/soft/layout.h"
#include "src/device/soft/registry.h"
#include "verbena/status.h"

namespace verbena::soft {

class Peer {
 public:
  // Maps a living process's header; `memory_path` of its own process is not used for `self`.
  static Result<std::shared_ptr<Peer>> attach(const ProcessRecord& record);
  // This process as its own peer: addresses are what they are.
  static std::shared_ptr<Peer> self(uint32_t slot, Header* header);
  ~Peer();

  uint32_t slot() const { return slot_; }
  pid_t pid() const { return pid_; }
  // Report (EPOLLHUP, EPOLLIN) the end of the process; -1 where there is no such thing. life_fd()
  // is the read end of a pipe whose write end the kernel closes at exec too, but which children
  // that were made without the C library's fork() keep open. pid_fd() tells of the process alone,
  // and is missing on Linux before 5.3, under valgrind before 3.22 and in some sandboxes.
  int life_fd() const { return life_fd_; }
  int pid_fd() const { return pid_fd_; }
  bool is_self() const { return self_; }
  const Header& header() const { return *header_; }
  // Whether none of these has reported yet, so that the pid and descriptors are those of the peer.
  bool exists() const;

  // Set once by the service thread when the process has ended.
  bool dead() const { return dead_.load(std::memory_order_acquire); }
  void set_dead() { dead_.store(true, std::memory_order_release); }

  // Where [address, address + length) of the peer lies here; null if it cannot be mapped. Maps on
  // first use, in windows of at least 1 GiB so that a peer takes few mappings. Cost: a map look-up,
  // or a system call.
  std::byte* map(uint64_t address, uint64_t length_bytes);

  // Copies between this process and memory of the peer that cannot be mapped. False if the kernel
  // refuses.
  bool write_foreign(uint64_t address, const void* source, size_t size_bytes);
  bool read_foreign(uint64_t address, void* destination, size_t size_bytes);

  // Writes to a pipe of the peer: descriptor `fd` of that process, if that is still pipe `id`.
  void notify(int fd, uint32_t id, const void* message, size_t size_bytes);
  void wake_service() {
    const char byte = 0;
    notify(header_->wake_fd, header_->wake_id, &byte, 1);
  }

 private:
  Peer() = default;
  Status open_files(const ProcessRecord& record);
  int pipe_of(int fd, uint32_t id);

  uint32_t slot_ = 0;
  pid_t pid_ = 0;
  int life_fd_ = -1;
  int pid_fd_ = -1;
  int memory_fd_ = -1;
  bool self_ = false;
  Header* header_ = nullptr;
  std::atomic<bool> dead_{false};

  std::mutex mutex_;
  struct Window {
    uint64_t end;
    std::byte* base;
  };
  std::map<uint64_t, Window> windows_;  // by first address
  std::vector<std::pair<void*, uint64_t>> mappings_;
  uint64_t mapped_bytes_ = 0;
  // By (id << 32 | fd). All are closed when there are too many: a peer's channels come and go.
  static constexpr size_t kMaxPipes = 64;
  std::map<uint64_t, int> pipes_;
};

}  // namespace verbena::soft
