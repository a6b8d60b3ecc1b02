// Another process's software RNIC, as mapped into this one.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/device/soft/layout.h"
#include "src/device/soft/pages/page_share.h"
#include "src/device/soft/registry.h"
#include "verbena/status.h"

namespace verbena::soft {

class Peer {
 public:
  // Maps a living process's header; `memory_path` of its own process is not used for `self`.
  static Result<std::shared_ptr<Peer>> attach(const ProcessRecord& record);
  // This process as its own peer. Registered memory is reached by a second mapping of the memory
  // file, as any peer reaches it, so that what the application does to its own mapping (mprotect,
  // munmap) is no fault here. Tables have the addresses that they have.
  static std::shared_ptr<Peer> self(uint32_t slot, Header* header, PageShare& pages);
  ~Peer();

  uint32_t slot() const { return slot_; }
  pid_t pid() const { return pid_; }
  // Report (EPOLLHUP, EPOLLIN) the end of the process; -1 where there is no such thing. life_fd()
  // is the read end of a pipe whose write end the kernel closes at exec too, but which children
  // that were made without the C library's fork() keep open. pid_fd() tells of the process alone,
  // and is missing on Linux before 5.3, under valgrind before 3.22 and in some sandboxes.
  // thread_fd() tells of the process's service thread, which an exec ends whoever keeps the pipe;
  // it is missing on Linux before 6.9. It reports before the program has ended: see ending().
  int life_fd() const { return life_fd_; }
  int pid_fd() const { return pid_fd_; }
  int thread_fd() const { return thread_fd_; }
  bool is_self() const { return own_pages_ != nullptr; }
  const Header& header() const { return *header_; }
  // Whether its program runs, so that the pid and descriptors are those of the peer, and its
  // threads may access memory.
  bool exists() const;
  // Whether a call of the kernel that failed did so because the process has ended. Waits, at most a
  // second, for one that is about to: its memory is gone before it is seen to have ended.
  bool has_ended() const;
  // Whether a program that exists() is about to end: look again soon.
  bool ending() const;

  // Set once by the service thread when the process has ended.
  bool dead() const { return dead_.load(std::memory_order_acquire); }
  void set_dead() { dead_.store(true, std::memory_order_release); }

  // Where [address, address + length) of the peer's memory file lies here; null if it cannot be
  // mapped. Maps on first use, in windows of at least 1 GiB so that a peer takes few mappings.
  // Cost: a map look-up, or a system call.
  std::byte* map(uint64_t address, uint64_t length_bytes);

  // A System V segment that the peer's application has attached, attached here until the last user
  // lets go. Null if it cannot be attached, or has less than `end_bytes`. Such a segment cannot
  // shrink, so nobody can make this process fault on it.
  std::shared_ptr<std::byte> attach_segment(int id, uint64_t end_bytes);

  // Copies between this process and memory of the peer that is not mapped here. False if the kernel
  // refuses.
  bool write_foreign(uint64_t address, const void* source, size_t size_bytes);
  // kBusy: pages of either process are moving, which takes longer than usual. kGone: it does not
  // exist any more, and what was read may be a stranger's.
  enum class Read { kDone, kRefused, kBusy, kGone };
  Read read_foreign(uint64_t address, void* destination, size_t size_bytes);

  // A remote atomic on such memory, of 8 aligned bytes: read, changed, written back under a record
  // lock on the peer's memory file, which ends with its holder. So it is atomic among all that come
  // this way, not against loads and stores of the peer's own threads. Cost: six system calls.
  enum class Update { kDone, kRefused, kBusy };  // kBusy: another process keeps the lock
  Update update_foreign(uint64_t address, bool compare, uint64_t operand, uint64_t swap,
                        uint64_t* before);

  // Writes to a pipe of the peer: descriptor `fd` of that process, if that is still pipe `id`.
  // False if the pipe cannot be opened, as without a descriptor left.
  bool notify(int fd, uint32_t id, const void* message, size_t size_bytes);
  // Somebody has joined or left a multicast group.
  void raise_group_epoch() { header_->group_epoch.fetch_add(1); }
  // Tells the process that this one, of slot `slot`, is about to send to its XRC shared receive
  // queues: it waits for what is under way, and takes back what a dead sender held.
  void note_xrc_sender(uint32_t slot) {
    header_->xrc_senders[slot / 64].fetch_or(1ull << (slot % 64));
    if (!is_self()) wake_service();
  }
  // Needs no descriptor but the one that attach() has opened. False if there is none and it cannot
  // be opened. Cost: a system call.
  bool wake_service();

 private:
  Peer() = default;
  Status open_files(const ProcessRecord& record);
  bool lock_updates(bool lock) const;
  bool can_copy(uint64_t header_address) const;
  // Of pages of the peer, and of this process.
  struct Moves {
    uint64_t theirs;
    uint64_t ours;
    bool operator==(const Moves&) const = default;
    bool under_way() const { return theirs % 2 != 0 || ours % 2 != 0; }
  };
  Moves page_moves() const;
  bool became_another_program() const;
  int open_pipe(int fd, uint32_t id) const;
  int pipe_of(int fd, uint32_t id);

  uint32_t slot_ = 0;
  pid_t pid_ = 0;
  int life_fd_ = -1;
  int pid_fd_ = -1;
  int thread_fd_ = -1;
  int life_number_ = -1;  // of the peer's end of the pipe, in the peer
  uint32_t life_id_ = 0;
  // The pipe of the peer's service thread; -1 if it has none. Open from the start: what is to be
  // told must not be lost when this process has no descriptors left.
  int wake_fd_ = -1;
  int memory_fd_ = -1;
  PageShare* own_pages_ = nullptr;  // of this process as its own peer
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
  std::map<int, std::weak_ptr<std::byte>> segments_;
  std::mutex updates_mutex_;  // the record lock does not exclude threads of one process
  // By (id << 32 | fd). All are closed when there are too many: a peer's channels come and go.
  static constexpr size_t kMaxPipes = 64;
  std::map<uint64_t, int> pipes_;
};

}  // namespace verbena::soft
