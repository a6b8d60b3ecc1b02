// The XRC shared receive queues of this process by their numbers, and the processes that send to
// them, which need not have a connection to this one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "verbena/status.h"

namespace verbena::soft {

class Peer;
class Rnic;
struct PeerFlight;
struct Srq;

class XrcQueues {
 public:
  explicit XrcQueues(Rnic& rnic) : rnic_(rnic) {}

  // Gives the queue a number and lets senders find it. Its shared part is complete but for the
  // stamp.
  Result<uint32_t> publish(Srq& srq);
  // Nobody finds the queue any more. Does nothing when it was withdrawn before.
  void withdraw(const Srq& srq);

  // Runs `use` on the queue with this number, if there is one; meanwhile it stays.
  template <typename Use>
  void with_queue(uint32_t index, Use&& use) {
    const std::lock_guard guard(mutex_);
    if (index < queues_.size() && queues_[index] != nullptr) use(*queues_[index]);
  }

  // Adds what other processes are in the middle of that send to these queues.
  void add_flights(std::vector<PeerFlight>& flights);
  // The service thread's: learns when processes end that have begun to send here.
  void watch_senders();
  // The service thread's, too: keeps nothing mapped of those that have ended.
  void forget_ended_senders();
  // Whether there was no file descriptor to look at one of them: watch again later.
  bool has_unwatched() const { return unwatched_.load(std::memory_order_relaxed); }
  // A process in this slot has ended: posts again the receives that it took and did not fill. Those
  // that one which lives there by now may have taken stay until that ends.
  void sender_ended(uint32_t slot);
  // Whether the process in this slot, if any, is known to be in the middle of nothing.
  bool sends_nothing(uint32_t slot);

 private:
  // Nobody in this slot sends here, if it is free.
  void forget_sender(uint32_t slot);
  // Has the sender that could not be looked at looked at again, if that may help.
  void note_unwatched(const Status& failure);

  Rnic& rnic_;
  std::mutex mutex_;
  std::vector<Srq*> queues_;  // by index
  uint32_t next_index_ = 0;
  std::atomic<bool> unwatched_{false};
  // While a sender's bit is cleared for a moment, nobody looks at it.
  std::mutex senders_mutex_;
  // The service thread's.
  std::unordered_map<uint32_t, std::shared_ptr<Peer>> watched_;  // by slot
  bool said_unwatched_ = false;
};

}  // namespace verbena::soft
