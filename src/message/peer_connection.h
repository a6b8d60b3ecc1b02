// One connection of a messenger: what of it the data path uses. Its owner is the messenger.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/assert.h"
#include "src/channel/send_queue.h"
#include "src/connect/peer_watch.h"
#include "src/memory/registration_cache.h"
#include "src/message/connector.h"
#include "src/message/message_header.h"
#include "src/message/queue_channel.h"
#include "src/message/ring_channel.h"
#include "src/message/sequence.h"

namespace verbena::message {

// SENDs that are ahead of what comes by the ring, or that cannot be handled yet. As many as the
// peer has credits.
class WaitingArrivals {
 public:
  WaitingArrivals() = default;
  explicit WaitingArrivals(uint32_t capacity) : arrivals_(capacity) {}

  bool empty() const { return count_ == 0; }
  const SharedReceives::Arrival& front() const { return arrivals_[first_]; }
  // False: there are as many as the peer has credits.
  bool push(const SharedReceives::Arrival& arrival) {
    if (count_ == arrivals_.size()) [[unlikely]]
      return false;
    arrivals_[(first_ + count_++) % arrivals_.size()] = arrival;
    return true;
  }
  void pop() {
    VERBENA_DEBUG_ASSERT(count_ > 0);
    first_ = static_cast<uint32_t>((first_ + 1) % arrivals_.size());
    --count_;
  }

 private:
  std::vector<SharedReceives::Arrival> arrivals_;
  uint32_t first_ = 0;
  uint32_t count_ = 0;
};

// Requests for one-sided operations that wait, in order, where they came: for room to answer, or
// for what has to be over before. As many as the peer has slots and credits.
struct ParkedRequest {
  ParsedMessage message;
  bool by_ring = false;
  uint32_t where = 0;  // ring slot, or receive
};
class ParkedRequests {
 public:
  ParkedRequests() = default;
  explicit ParkedRequests(uint32_t capacity) : requests_(capacity) {}

  bool empty() const { return count_ == 0; }
  const ParkedRequest& front() const { return requests_[first_]; }
  void push(const ParkedRequest& request) {
    VERBENA_ASSERT(count_ < requests_.size());
    requests_[(first_ + count_++) % requests_.size()] = request;
  }
  void pop() {
    VERBENA_DEBUG_ASSERT(count_ > 0);
    first_ = static_cast<uint32_t>((first_ + 1) % requests_.size());
    --count_;
  }

 private:
  std::vector<ParkedRequest> requests_;
  uint32_t first_ = 0;
  uint32_t count_ = 0;
};

// Registrations that a send queue may read from once more, though the peer has the message: until
// the acknowledgement is there, the device may send it again. Each belongs to another work request
// that is not retired, so there are at most as many as the queue is deep.
class HeldRegions {
 public:
  HeldRegions() = default;
  explicit HeldRegions(uint32_t capacity) { regions_.reserve(capacity); }

  bool empty() const { return regions_.empty(); }
  // Until the work request at `end` is retired.
  void add(uint64_t end, internal::CachedRegion* region) {
    VERBENA_ASSERT(regions_.size() < regions_.capacity());
    regions_.push_back({end, region});
  }
  // Gives each of those that are over, up to `retired`, to `done`.
  template <typename Done>
  void release(uint64_t retired, Done&& done) {
    for (size_t i = 0; i < regions_.size();) {
      if (regions_[i].end > retired) {
        ++i;
        continue;
      }
      done(&regions_[i].region);
      regions_[i] = regions_.back();
      regions_.pop_back();
    }
  }

 private:
  struct Held {
    uint64_t end;
    internal::CachedRegion* region;
  };
  std::vector<Held> regions_;
};

struct PeerConnection {
  uint32_t number = 0;
  PeerNumber peer = 0;
  std::string name;  // for people
  Joined joined;     // control connection and endpoint
  bool broken = false;
  uint64_t drained_at = 0;  // of a broken one: polls of the completion queue that found it empty

  // --- to the peer ---
  channel::SendQueue sends;
  ibv_qp* queue_pair = nullptr;
  WriteNow write_now = nullptr;  // null: all is posted
  QueueSender queue;
  QueueSender credit_messages;      // one buffer: one at a time is on its way
  uint64_t credit_message_end = 0;  // its work request's place in the send queue
  uint32_t next_sequence = 0;
  uint64_t last_tag_out = 0;       // of eager messages: the header cache
  RingSender* ring_out = nullptr;  // one of the messenger's
  bool ring_out_usable = false;
  uint64_t ring_full_since_ns = 0;  // when a message found no credit; 0: none has since some came
  // The peer's ring, which is written once there is one of this side's for it.
  bool awaits_ring_out = false;
  uint64_t offered_address = 0;
  uint32_t offered_key = 0;
  uint64_t ring_out_end =
      0;  // where the send queue is when nothing of a ring that was left remains
  uint32_t early_by_queue = 0;   // by SEND, where these have no number
  uint32_t sent_considered = 0;  // of both when the rings to send from were reconsidered

  // --- from the peer ---
  Sequence arriving;
  uint64_t last_tag_in = 0;
  QueueCredits owed;
  WaitingArrivals waiting;
  RingReceiver* ring_in = nullptr;
  uint64_t offer_again_at = 0;  // arrivals; the peer has declined, so often:
  uint32_t declines = 0;
  bool ring_in_left = false;  // not written any more, though messages in it may be in use
  uint64_t arrivals = 0;
  uint64_t arrivals_served = 0;  // when it was last looked after
  connect::SilenceCheck silence;
  // At so many arrivals, the next message found no room: while there are no more, it waits. And
  // until when that is waited for though the peer has gone; 0: it has not.
  uint64_t stalled_at = ~uint64_t{0};
  uint64_t stalled_end_ns = 0;

  // --- what is due, in the messenger's list of busy connections ---
  bool busy = false;
  bool due_offer = false;
  bool due_leave = false;
  bool due_left = false;
  // How many of the messenger's transfers, moves and envelopes are this connection's.
  uint32_t transfers = 0;
  uint32_t moves = 0;
  uint32_t envelopes = 0;
  // Transfers that are not over: the first and the last, plus 1.
  uint32_t first_transfer = 0;
  uint32_t last_transfer = 0;
  // The same of long messages that go out, by the numbers of their operations.
  // Of the credits that chunks took, those that have not come back.
  uint32_t credits_of_chunks = 0;
  uint32_t first_outgoing = 0;
  uint32_t last_outgoing = 0;

  // The same of short ones that the device gathers from users' memory, in the order of posting.
  uint32_t first_gathered = 0;
  uint32_t last_gathered = 0;
  // Of gathered ones that the peer has confirmed or answered before the device was told so.
  HeldRegions held;
  bool told_gathered = false;  // the log has that there are some

  PeerStatistics counts;
  uint32_t told_methods = 0;  // a bit for each Method that the log has
  // The same of what is moved for its one-sided operations.
  uint32_t first_move = 0;
  uint32_t last_move = 0;
  uint32_t fetching = 0;  // of these, long puts and gets whose bytes are on their way
  uint32_t storing = 0;
  ParkedRequests parked;
};

}  // namespace verbena::message
