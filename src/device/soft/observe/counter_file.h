// The counters of a process's queue pairs, in a file of the registry's directory.
//
// A file of their own rather than the process's memory file: who watches needs no access to the
// process, and what was counted outlives it, however it ends. Each word has one writer, who adds to
// it without an atomic operation. Readers take words as they find them, and check what they index
// with.
//
// "counters.SLOT" is one process's, "counters.sum" has what ended ones had counted. Who next joins
// the registry adds the files of ended processes to the sum.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "src/base/known_file.h"
#include "src/device/soft/layout.h"
#include "src/device/soft/observe/watched.h"
#include "verbena/status.h"

namespace verbena::soft {

class Registry;

// The first lines are the posting side's, the last one the polling side's, so that threads that do
// one or the other do not share one.
struct alignas(kCacheLineBytes) QpCounters {
  // Under send_lock.
  uint64_t bytes;
  uint64_t requests[kCountedOpcodes];
  uint64_t errors;
  uint64_t waits;
  uint64_t dropped;  // for want of a queue pair that takes them, or of a receive
  // Of the control path.
  std::atomic<uint32_t> number;  // 0: there is no such queue pair
  std::atomic<uint32_t> peer;
  std::atomic<uint16_t> transport;
  std::atomic<uint16_t> state;
  uint32_t reserved;
  // Under the lock of the receive completion queue.
  alignas(kCacheLineBytes) uint64_t received;
  uint64_t received_bytes;
  uint64_t receive_errors;
  uint64_t receive_dropped;  // that had arrived
};
static_assert(sizeof(QpCounters) == 4 * kCacheLineBytes);
static_assert(offsetof(QpCounters, received) == 3 * kCacheLineBytes);

class CounterFile {
 public:
  // Of the process that has `slot`. Where no file can be made, the log says so, and the counters
  // are this process's alone.
  CounterFile(const Registry& registry, uint32_t slot);
  ~CounterFile();
  CounterFile(const CounterFile&) = delete;
  CounterFile& operator=(const CounterFile&) = delete;

  // The counters of a new queue pair, which begin at zero. They stay where they are to the end of
  // the process. Not thread-safe.
  QpCounters& enter(uint32_t index, uint32_t qp_number, Transport transport);

 private:
  struct Place;
  Status make(const Registry& registry, uint32_t slot);
  bool reserve(uint32_t index);

  Place* place_ = nullptr;  // the mapped file
  int fd_ = -1;
  KnownFile file_;                                // that fd_ was opened for
  uint32_t reserved_ = 0;                         // queue pairs, of which the file's space is there
  std::vector<std::unique_ptr<QpCounters>> own_;  // of which it is not
};

// Adds the files of processes that have ended to the sum. Under the registry's lock.
void sum_up_ended_counters(const Registry& registry);

// As Watch::read.
Status read_counters(const Registry& registry,
                     const std::function<void(const WatchedProcess&)>& process,
                     const std::function<void(const WatchedQueuePair&)>& queue_pair,
                     Counts& device);

}  // namespace verbena::soft
