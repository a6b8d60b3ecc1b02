// Where threads sleep until a completion queue or a counter has something: in fi_cq_sread,
// fi_cntr_wait, or in poll() at the descriptor that fi_control(FI_GETWAIT) gives.
#pragma once

#include <rdma/fi_eq.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/ofi/domain.h"

namespace verbena::ofi {

struct Endpoint;

// Of fi_cq_attr and fi_cntr_attr.
constexpr bool can_wait_at(fi_wait_obj object) {
  return object == FI_WAIT_NONE || object == FI_WAIT_UNSPEC || object == FI_WAIT_FD ||
         object == FI_WAIT_YIELD;
}

class WaitPoint {
 public:
  explicit WaitPoint(Domain& of) : domain_(of) {}
  WaitPoint(const WaitPoint&) = delete;
  WaitPoint& operator=(const WaitPoint&) = delete;
  ~WaitPoint();

  // The descriptor to poll; it is made at the first call. An error of libfabric.
  int descriptor();
  // Something has come, by whichever thread. Under the domain's lock.
  void notify() {
    if (sleepers_ > 0 || watched_) [[unlikely]]
      wake();
  }
  // The same of all in the domain: what a call posts may complete without an event. Under the lock.
  static void notify_all(Domain& domain) {
    if (domain.asleep.empty()) [[likely]]
      return;
    for (WaitPoint* const point : domain.asleep) point->notify();
  }
  // One of the threads that wait, or the next one, returns without anything. Takes the lock.
  void signal();

  // The endpoints whose messages may be what is waited for, asked each time, under the lock.
  using Sources = std::function<const std::vector<Endpoint*>&()>;

  // Lets the sources' messages come until ready(), which is asked under the domain's lock: first
  // by polling, then asleep. Returns without it after a signal, and after the time.
  void wait(const Sources& sources, int timeout_ms, const std::function<bool()>& ready);
  // fi_trywait: whether nothing is there, by ready(), and the descriptor becomes readable when
  // something comes. Takes the lock.
  bool prepare(const Sources& sources, const std::function<bool()>& ready);

 private:
  enum class Rest : uint8_t { kSleep, kNap, kPoll };

  Rest how_to_rest(const std::vector<Endpoint*>& endpoints);
  void wake();
  void wake_all();
  void forget_wakes();
  void fall_asleep();
  void get_up();

  Domain& domain_;
  FileDescriptor all_;
  // Of notify() and signal(); what follows is under the domain's lock.
  FileDescriptor own_;
  uint32_t sleepers_ = 0;
  bool waking_ = false;   // some of them have not got up since they were woken
  bool watched_ = false;  // by poll(), since prepare()
  bool signalled_ = false;
};

// fi_control(FI_GETWAIT) of an object with FI_WAIT_FD.
int get_descriptor(WaitPoint& point, void* into);

}  // namespace verbena::ofi
