// What the members of a world do with soft0. All of it follows from the seed: each member makes the
// whole plan for itself, so that nobody has to be told.
//
//   life    objects, connections and memory, as they are made anew
//   round   receives and requests of each queue pair, carried out at the same time; at its end
//           everybody compares all that has happened with the model
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

namespace verbena::soft_model {

inline constexpr uint32_t kMaxMembers = 4;
inline constexpr uint32_t kMaxEnds = 24;
inline constexpr uint32_t kNobody = UINT32_MAX;
inline constexpr uint32_t kMaxPieces = 16;
inline constexpr uint32_t kTickets = 32;
inline constexpr uint32_t kGrhBytes = 40;
inline constexpr uint32_t kSharedDepth = 32;
inline constexpr uint64_t kWordAt = 64;  // of the word of an arena that everybody counts up

// Bytes of an arena.
struct Piece {
  uint64_t offset = 0;
  uint32_t length_bytes = 0;
};

// Which memory key a request names.
enum class Key : uint8_t {
  kTarget,     // of the region that the peer may do everything with
  kWindow,     // of the window on it
  kReadOnly,   // of a region of the same memory
  kWriteOnly,  // the same
  kGone,       // of a region that was deregistered
  kWord,       // of the word that everybody counts up
};
inline constexpr uint32_t kKeys = 6;

struct Request {
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0;  // ibv_send_flags
  std::vector<Piece> pieces = {};
  uint64_t remote = 0;  // offset in the peer's arena
  Key key = Key::kTarget;
  uint32_t immediate = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t to = kNobody;  // of a datagram: the queue pair
  bool wrong_qkey = false;
  bool wrong_lkey = false;
  // The queue pair goes to the error state before it, by its owner.
  bool after_to_error = false;
  ibv_wc_status status = IBV_WC_SUCCESS;  // the prediction
};

uint32_t size_of(const Request& request);
bool is_signaled(const Request& request);

// Where the memory of a queue pair is in its member's arena. The peer reaches the target only.
struct Places {
  uint64_t source = 0;   // of what is sent and written
  uint64_t landing = 0;  // of what is read
  uint64_t target = 0;
  uint64_t tickets = 0;  // of what the shared word held
  uint64_t receives = 0;
};

struct EndPlan {
  ibv_qp_type type = IBV_QPT_RC;
  uint32_t member = 0;
  uint32_t peer = kNobody;  // the connected queue pair
  bool extended = false;    // posts by ibv_wr_start()
  bool shared_receives = false;
  bool signal_all = false;
  uint32_t send_cq = 0;
  uint32_t recv_cq = 0;
  uint32_t send_depth = 0;
  uint32_t max_inline_bytes = 0;
  Places places = {};
};

struct MemberPlan {
  std::vector<bool> extended_cqs = {};  // polled by ibv_start_poll()
  bool sleeps = false;                  // waits on a completion channel
  bool datagrams_share = false;         // its shared receive queue gets datagrams
  uint64_t shared_receives = 0;         // where they are
  uint64_t arena_bytes = 0;
};

struct Life {
  uint64_t seed = 0;
  std::vector<MemberPlan> members = {};
  std::vector<EndPlan> ends = {};
  uint32_t area_bytes = 0;
  uint32_t message_bytes = 0;
  uint32_t receive_depth = 0;
  uint32_t slot_bytes = 0;
  uint32_t rounds = 0;
  uint32_t victim = kNobody;  // is killed in the last round

  bool is_last(uint32_t round) const { return round + 1 == rounds; }
  // Whether what a queue pair does ends with the victim.
  bool is_cut(uint32_t end, uint32_t round) const {
    return victim != kNobody && is_last(round) && ends[end].peer != kNobody &&
           (ends[end].member == victim || ends[ends[end].peer].member == victim);
  }
};

struct EndRound {
  std::vector<Request> requests = {};
  uint32_t early_receives = 0;  // posted before anybody sends
  uint32_t late_receives = 0;
  uint32_t flushed_receives = 0;  // in the error state at the end
  bool is_reset = false;          // before the next round
  bool registers_anew = false;
  bool invalidates_window = false;
  bool binds_window = false;
};

struct Round {
  std::vector<EndRound> ends = {};
  std::vector<uint32_t> early_shared = {};  // receives, by member
  std::vector<uint32_t> late_shared = {};
};

// The buffers of the receive number `number` of a queue pair, or of a member's shared queue
// (`end` kNobody), and how much they hold.
struct Receive {
  std::vector<Piece> pieces = {};
  uint32_t capacity_bytes = 0;
};
Receive receive_of(const Life& life, uint32_t member, uint32_t end, uint64_t number, uint32_t slot);
uint32_t capacity_of(const Life& life, uint32_t end, uint64_t number);

}  // namespace verbena::soft_model
