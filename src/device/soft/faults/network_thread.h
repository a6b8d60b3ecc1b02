// Carries out requests when their time has come: on each poll of a completion queue of the process,
// and on a thread for programs that sleep or look at memory.
//
// Locks, in this order: that of the run, a queue pair's send_lock, that of the list.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/faults/fate.h"
#include "verbena/status.h"

namespace verbena::soft::faults {

class SendFaults;

// By SIGKILL, as `kill-after` asks for.
void end_process(const char* reason);

class Progress {
 public:
  // Of this process; a child of fork() has another one.
  static Progress& get();
  // Starts the thread, unless it runs. kLimitExceeded where it cannot be.
  static Status start();
  // Null if there is none yet.
  static Progress* existing();
  // Whether the process is the one that it was made in.
  bool is_own() const;

  // Ends the process with SIGKILL then.
  void kill_at(uint64_t at_ns);

  // The first request of a queue pair is on its way. Holds its send_lock.
  void add(SendFaults& sends, uint64_t due_ns);
  // It is about to be destroyed.
  void remove(SendFaults& sends);
  // After a poll, or before: whatever is due, unless another thread is at it.
  void run_if_due() {
    const uint64_t due_ns = next_due_ns_.load(std::memory_order_relaxed);
    if (due_ns == kNever) [[likely]]
      return;
    if (due_ns <= now_ns()) try_run();
  }
  // Returns when no request is being carried out that was before the call.
  void wait_for_running();
  // From now on the thread carries nothing out; polls do. Returns when it is not at it, or after a
  // second.
  void stop();

 private:
  Progress();
  void try_run();
  void run();
  void serve();
  void list(SendFaults& sends, uint64_t due_ns);

  const uint32_t process_;  // which one in a row of forks
  std::mutex run_mutex_;
  std::vector<SendFaults*> running_;  // under run_mutex_
  std::atomic<bool> stopped_{false};

  std::mutex list_mutex_;
  Condition changed_;
  std::vector<SendFaults*> listed_;
  std::atomic<uint64_t> next_due_ns_{
      kNever};  // of those that are listed; written under list_mutex_
  uint64_t kill_at_ns_ = kNever;
  uint64_t sleeps_until_ns_ = 0;  // the thread; 0: it does not sleep

  std::mutex start_mutex_;
  Thread thread_;  // under start_mutex_
};

}  // namespace verbena::soft::faults
