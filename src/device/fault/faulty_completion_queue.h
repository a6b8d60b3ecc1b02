// A completion queue some of whose completions come late.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <mutex>

#include "src/device/fault/dice.h"
#include "verbena/fault.h"

namespace verbena::fault {

class FaultyCompletionQueue {
 public:
  using Poll = int (*)(ibv_cq*, int, ibv_wc*);

  FaultyCompletionQueue(ibv_cq* verbs, Poll poll, Fault fault, Dice dice)
      : verbs_(verbs), poll_(poll), fault_(fault), dice_(dice) {}

  // As ibv_poll_cq(); adds to `delayed_count` the completions that it delays.
  int poll(int count, ibv_wc* completions, uint64_t& delayed_count);

  // The owner is about to sleep until the next event, and what was deferred has had its event: so
  // nothing is deferred from here until an event was taken.
  void arm();
  void event_taken();

  // The device is about to flush a work request, which is to complete with another status.
  void expect(const ibv_wc& completion);
  // It does not: the completion comes behind what the device has, and wakes nobody.
  void add_expected(const ibv_wc& completion);
  // The queue pair is gone, and its completions with it.
  void forget(uint32_t queue_pair_number);

 private:
  int take_kept(int count, ibv_wc* completions);
  std::deque<ibv_wc>::iterator find_expected(const ibv_wc& completion);

  ibv_cq* verbs_;
  Poll poll_;
  Fault fault_;
  std::mutex mutex_;
  Dice dice_;
  bool armed_ = false;
  uint64_t deferred_until_ns_ = 0;
  std::deque<ibv_wc> kept_;   // taken from the device, not handed out yet
  std::deque<ibv_wc> added_;  // come after what the device has
  std::deque<ibv_wc> expected_;
};

}  // namespace verbena::fault
