// Tells other processes that the members of a multicast group have changed. To tell one takes file
// descriptors; where there are none left, the notice waits until there are.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <mutex>

#include "src/device/soft/layout.h"

namespace verbena::soft {

class Rnic;

class GroupNotices {
 public:
  explicit GroupNotices(Rnic& rnic) : rnic_(rnic) {}

  // Tells every living process, after the registry says so. Control path: opens files of each.
  // Those that cannot be told for want of descriptors are told by the service thread; there are
  // at most kMaxProcesses of them. Any thread.
  void tell_all();
  // Whether a process is still to be told.
  bool pending() const { return pending_.load(std::memory_order_relaxed); }
  // The service thread's: tells those that are still to be told, if there are descriptors.
  void tell_again();

 private:
  // False if it has to be told later.
  bool tell(uint32_t slot);
  void tell_later(const std::bitset<kMaxProcesses>& slots);

  Rnic& rnic_;
  std::atomic<bool> pending_{false};
  std::atomic<bool> said_{false};
  std::mutex mutex_;
  std::bitset<kMaxProcesses> untold_;
  bool any_untold_ = false;  // which processes there are could not be read
};

}  // namespace verbena::soft
