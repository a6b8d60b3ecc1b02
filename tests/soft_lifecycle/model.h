// The reference model: what each queue pair can do to its peer, and what comes of it. Everything
// happens one after another, so there is one right outcome. Where an RNIC may do one thing or
// another, the test keeps away (Model::is_doubtful()).
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tests/soft_lifecycle/script.h"

namespace verbena::soft_lifecycle {

// A queue pair as an object: others have had its number, or will.
struct Identity {
  uint64_t birth = 0;       // 0: none
  uint64_t generation = 0;  // counts its resets
  bool operator==(const Identity&) const = default;
};

// A completion that is due.
struct Due {
  uint64_t id = 0;  // 0: any of the shared receives
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t bytes = 0;
  uint64_t hash = kHashOfNothing;
};

struct QueuePairModel {
  enum class State { kNone, kInit, kReady, kError };

  State state = State::kNone;
  uint32_t member = 0;
  bool shared = false;
  bool patient = false;
  bool unreliable = false;
  Identity self;
  QueuePairAddress address;
  uint32_t peer_number = 0;
  Identity peer;                // the one that had the number when this one was connected
  Identity meets;               // of the peer: whom this one has reached
  Identity is_met_by;           // the only one that this one hears
  bool tells_of_death = false;  // by the next request
  std::deque<Command> receives;
  std::deque<Command> pending;  // sends
  std::deque<Due> sent;         // due completions of each kind
  std::deque<Due> got;
  std::vector<uint32_t> free_sends;
  std::vector<uint32_t> free_receives;
  bool armed = false;
  bool event_due = false;
};

struct MemberModel {
  uint64_t life = 0;  // 0: it is dead
  bool on_one_queue = false;
  uint64_t arena = 0;
  std::array<std::byte, kArenaBytes> image = {};
  std::array<uint32_t, kRegions> keys = {};  // the latest; 0: none yet
  std::array<bool, kRegions> registered = {};
  std::array<QueuePairModel, kQueuePairs> queue_pairs;
  std::vector<uint64_t> shared_posted;  // receives
  uint32_t shared_taken = 0;            // by messages that were not polled
  std::vector<uint32_t> shared_free;    // slots
};

enum class Missed { kNever, kMaybe, kSurely };
enum class Attempt { kDone, kFailed, kWaitsForPeer, kWaitsForReceive };

class Model {
 public:
  Model();

  MemberModel& member(uint32_t index) { return members_[index]; }
  QueuePairModel& queue_pair(uint32_t member, uint32_t index) {
    return members_[member].queue_pairs[index];
  }

  void begin_life(uint32_t member, bool on_one_queue, uint64_t arena);
  void make(QueuePairModel& one, const Command& command, const QueuePairAddress& address);
  void destroy(QueuePairModel& one);
  void connect(QueuePairModel& one, const Command& command);
  void reset(QueuePairModel& one);
  void to_error(QueuePairModel& one);
  void receive(QueuePairModel& one, const Command& request);
  // Carries the request out, lets it wait, or fails it.
  Attempt post(QueuePairModel& one, const Command& request);
  // Carries out what waits and can go on now. False: nothing can.
  bool go_on(QueuePairModel& one);
  // Whether the end of a member's process is one that this queue pair learns of.
  Missed would_miss(const QueuePairModel& one, uint32_t dead) const;
  // It has learned of its peer's end.
  void miss(QueuePairModel& one);
  void end_life(uint32_t member);

  // The peer that it was connected to, if that is still there.
  QueuePairModel* peer_of(const QueuePairModel& one);
  // Whether an RNIC might take another queue pair for one of these two, by its number.
  bool is_doubtful(const QueuePairModel& one);
  // What a request would come to. Changes nothing.
  Attempt look_ahead(QueuePairModel& one, const Command& request);

 private:
  bool reaches(const QueuePairModel& one, const QueuePairModel& peer) const;
  bool has_receive(const QueuePairModel& one) const;
  // Where the request reads or writes in the image; nothing where it may not.
  std::optional<uint64_t> place_of(const QueuePairModel& peer, const Command& request) const;
  Attempt attempt(QueuePairModel& one, const Command& request);
  // What does not get through vanishes, and its sender does not learn of it.
  void attempt_unreliably(QueuePairModel& one, const Command& request);
  void fail(QueuePairModel& one, ibv_wc_status first = IBV_WC_WR_FLUSH_ERR);
  void complete_send(QueuePairModel& one, const Command& request, ibv_wc_status status,
                     uint32_t bytes = 0, uint64_t hash = kHashOfNothing);
  void complete_receive(QueuePairModel& one, ibv_wc_status status, uint32_t bytes = 0,
                        uint64_t hash = kHashOfNothing);
  void give_back(QueuePairModel& one);

  std::array<MemberModel, kMembers> members_;
  uint64_t lives_ = 0;
  uint64_t births_ = 0;
};

// The bytes that a seed stands for.
std::vector<std::byte> pattern(uint64_t seed, uint32_t bytes);

}  // namespace verbena::soft_lifecycle
