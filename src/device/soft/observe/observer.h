// What is written, and who writes it: rings of the threads that post and poll, queue pairs as the
// layer knows them, and a thread that writes files.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/observe/capture.h"
#include "src/device/soft/observe/pcap_file.h"
#include "src/device/soft/observe/record_ring.h"
#include "src/device/soft/observe/trace_file.h"
#include "src/device/soft/observe/tracked_queue_pair.h"

namespace verbena::soft::observe {

// Of one thread.
struct ThreadRings {
  std::unique_ptr<RecordRing> trace;    // TraceRecord; null where no trace is written
  std::unique_ptr<RecordRing> packets;  // PacketRecord and the packet
  std::atomic<bool> in_use{true};       // by a living thread
};

class Observer {
 public:
  // As the environment asks for it; null if it asks for nothing, or a file cannot be written, which
  // the log says. The first call of a process makes it.
  static Observer* start();
  // Null also in a child that was forked and has not opened a device itself.
  static Observer* current() { return instance.load(std::memory_order_acquire); }

  // Of the calling thread, made at its first call; null where there are too many threads, and then
  // what the thread does is dropped.
  ThreadRings* rings();
  // Made at the first call for a queue pair's index.
  TrackedQueuePair& tracked(const Qp& qp);
  // Null if nothing was posted to it.
  TrackedQueuePair* find(uint32_t qp_number) {
    TrackedQueuePair* known = tracked_[index_of(qp_number)].load(std::memory_order_acquire);
    return known != nullptr && known->number == qp_number ? known : nullptr;
  }
  // As observe::wait_for_captures().
  void wait_for_captures();
  bool captures() const { return pcap_.has_value(); }
  bool traces() const { return trace_.has_value(); }
  SnapLength snap() const { return snap_; }
  // A request or packets that there were no rings for, or no place to remember.
  void count_dropped() { dropped_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Observer() = default;
  static std::unique_ptr<Observer> make();
  void write_on();
  // Waits so long where a thread is about to have rings; then they are left for the next time.
  void drain(uint64_t patience_ns);
  void read_rings(uint64_t patience_ns);
  void finish();
  void add_unpolled();
  uint64_t dropped_of(std::unique_ptr<RecordRing> ThreadRings::*ring);

  static std::atomic<Observer*> instance;

  Observer* former_ = nullptr;  // that was made before

  std::optional<TraceFile> trace_;
  std::optional<PcapFile> pcap_;
  SnapLength snap_{};
  pthread_key_t key_ = 0;
  std::atomic<uint64_t> dropped_{0};
  std::atomic<TrackedQueuePair*> tracked_[kMaxQueuePairs] = {};
  std::mutex tracked_mutex_;  // of those who make them

  std::mutex rings_mutex_;
  std::vector<std::unique_ptr<ThreadRings>> rings_;

  std::mutex mutex_;
  Condition asked_;
  bool ending_ = false;
  Thread writer_;
};

}  // namespace verbena::soft::observe
