// Whose rings a receiver polls ("mpiiba" 3.3 and 4.6): at most as many connections as there are
// places; all others use the SEND/RECV channel. No device, and no allocation after construction.
//
// A connection is out, in, or leaving: told to stop, but still polled until its sender has said
// that it has stopped. This class decides; its owner tells the peers.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/assert.h"
#include "verbena/message_polling.h"

namespace verbena::message {

class PollingSet {
 public:
  static constexpr uint32_t kNone = ~0u;

  PollingSet(PollingSetPolicy policy, PollingOrder order, uint32_t places,
             uint32_t max_connections);

  // --- what happened ---

  // A connection was made or has ended. One that ended is out at once.
  void add(uint32_t connection);
  void remove(uint32_t connection);
  // A message of the connection was taken.
  void count(uint32_t connection) {
    ++members_[connection].recent;
    ++arrivals_;
  }
  // How much the application will receive from it; 0: not worth a place.
  void hint(uint32_t connection, uint32_t weight) { members_[connection].hint = weight; }
  // The owner sleeps, where no ring wakes it: all leave and nobody joins, until a whole period has
  // gone by without another call of this.
  void rest() { resting_ = rested_ = true; }
  bool is_resting() const { return resting_; }
  // The sender has stopped.
  void left(uint32_t connection);
  // The sender has stopped unasked, or never began, since it has no ring to send from: it is
  // leaving, and does not join again before it is invited.
  void decline(uint32_t connection);
  void invite(uint32_t connection) { members_[connection].declined = false; }

  // --- what to do ---

  // A connection that is to get a place now, which it has from then on; kNone: none. Call until
  // then, now and then: after count() of one that is out, add(), hint(), left(), and when due().
  uint32_t next_to_join();
  // One that is to leave, and is leaving from then on.
  uint32_t next_to_leave();
  // Every so many messages, the places are given anew.
  bool due() const { return arrivals_ >= kPeriodMessages; }
  // What was counted becomes what the next decisions rest on.
  void end_period();

  bool is_in(uint32_t connection) const { return members_[connection].state != State::kOut; }
  bool has_place() const { return polled_.size() < places_; }
  bool has_declined(uint32_t connection) const { return members_[connection].declined; }
  // In, and not to leave.
  bool is_staying(uint32_t connection) const { return members_[connection].state == State::kIn; }

  // --- polling ---

  // How many are to be polled, and who is the i-th of this round.
  uint32_t size() const { return static_cast<uint32_t>(polled_.size()); }
  uint32_t at(uint32_t i) const {
    const uint32_t place = start_ + i;
    return polled_[place < polled_.size() ? place : place - polled_.size()];
  }
  // The i-th of this round was the last one polled, with a message found or not. Circular polling
  // goes on behind it.
  void end_round(uint32_t i) {
    if (order_ == PollingOrder::kCircular && !polled_.empty()) {
      start_ = static_cast<uint32_t>((start_ + i + 1) % polled_.size());
    }
  }

 private:
  enum class State : uint8_t { kOut, kIn, kLeaving };
  struct Member {
    State state = State::kOut;
    bool known = false;
    bool declined = false;
    uint32_t hint = 0;
    uint32_t recent = 0;   // messages of this period
    uint32_t traffic = 0;  // mean of the periods before, scaled by kScale
  };

  static constexpr uint32_t kPeriodMessages = 1024;
  static constexpr uint32_t kScale = 16;
  // One that is out takes the place of one that is in if it has so many times its messages.
  static constexpr uint32_t kHysteresis = 2;

  uint64_t merit(const Member& member) const;
  uint32_t best_out() const;
  uint32_t worst_in() const;
  void sort();

  PollingSetPolicy policy_;
  PollingOrder order_;
  uint32_t places_;
  std::vector<Member> members_;
  std::vector<uint32_t> polled_;  // in or leaving, in the order of polling
  uint32_t known_ = 0;            // members from here on have never been known
  uint32_t start_ = 0;
  bool resting_ = false;
  bool rested_ = false;  // in this period
  uint64_t arrivals_ = 0;
};

}  // namespace verbena::message
