// The simulated RNIC's objects, each behind the public part that verbs shows.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "src/base/assert.h"
#include "src/device/sim/event_queue.h"
#include "src/device/sim/growing_ring.h"
#include "src/device/sim/random_cache.h"
#include "src/device/sim/send_wqes.h"
#include "src/device/sim/shared_queue_lock.h"
#include "src/device/sim/state_cache.h"

namespace verbena::sim {

class Node;
struct Fiber;
struct Packet;
struct QueuePair;

enum class NakCode : uint8_t { kNone, kRnr, kSequence, kAccess, kInvalid, kOperation };

// Where queue pairs ring for the RNIC. Several of them may have one; the stores of their threads
// must not mix, so it has a lock.
struct DoorbellRegister {
  bool dedicated = false;  // to one queue pair, which locks nothing
  uint32_t users = 0;
  Time free_at = 0;
  const Fiber* holder = nullptr;  // who held the lock last
  GrowingRing<Time> turns;        // when those who spin for it will have it
};

struct Context {
  ibv_context verbs{};
  Node* node = nullptr;
  uint32_t socket = 0;  // that the RNIC's port is attached to
  std::deque<ibv_async_event> events;
  std::vector<DoorbellRegister> registers;

  // For a new queue pair: a dedicated register while there is one, then the shared one with the
  // fewest users (the mlx5 driver's rule; with one register that all share, mlx4's).
  DoorbellRegister& take_register() {
    DoorbellRegister* chosen = nullptr;
    for (DoorbellRegister& one : registers) {
      if (one.dedicated && one.users == 0) {
        chosen = &one;
        break;
      }
      const bool fewer = chosen == nullptr || one.users < chosen->users;
      if (!one.dedicated && fewer) chosen = &one;
    }
    VERBENA_ASSERT(chosen != nullptr);
    ++chosen->users;
    return *chosen;
  }
};

// A protection domain.
struct Pd {
  ibv_pd verbs{};
  uint32_t users = 0;  // objects that were made in it
};

// Translations of 8 B in a line of their table, which the drivers allocate by such lines (Linux:
// mthca's MTT segments, mlx4's log_mtts_per_seg).
inline constexpr uint64_t kTranslationsOfLine = 8;

struct Region {
  ibv_mr verbs{};
  Fiber* owner = nullptr;  // the thread that polls what devices write there
  uint64_t iova = 0;
  uint32_t socket = 0;  // where the memory lies
  uint32_t access = 0;
  // By line of the table; most regions have one.
  CacheStamp first_translations;
  std::unique_ptr<CacheStamp[]> further_translations;

  bool covers(uint64_t address, uint64_t bytes) const {
    return address >= iova && bytes <= verbs.length && address - iova <= verbs.length - bytes;
  }
  std::byte* at(uint64_t address) const {
    return static_cast<std::byte*>(verbs.addr) + (address - iova);
  }
  CacheStamp& translations(uint64_t line) {
    return line == 0 ? first_translations : further_translations[line - 1];
  }
};

struct Channel {
  ibv_comp_channel verbs{};
  std::deque<struct Cq*> events;
};

struct Cq {
  struct Entry {
    ibv_wc completion;
    QueuePair* sender;  // of a send: the queue pair whose WQEs below `message` it frees
    uint64_t message;
  };
  // As in QueuePair, where the lock and the condition variable are in the public part.
  struct Behind {
    std::byte shown[offsetof(ibv_cq, mutex)];
    Fiber* poller;  // who polled last
    uint32_t users;
    bool armed;
    bool overrun;
    GrowingRing<Entry> entries;
    SharedQueueLock lock;
  };
  static_assert(sizeof(Behind) <= offsetof(ibv_cq, comp_events_completed));

  Cq() {
    std::memset(static_cast<void*>(&verbs), 0, sizeof(verbs));
    std::construct_at(&own.entries);
    std::construct_at(&own.lock);
  }
  ~Cq() {
    std::destroy_at(&own.lock);
    std::destroy_at(&own.entries);
  }
  Cq(const Cq&) = delete;
  Cq& operator=(const Cq&) = delete;

  union {
    ibv_cq verbs;
    Behind own;
  };

  Node& node() const { return *reinterpret_cast<const Context*>(verbs.context)->node; }
  Channel* channel() const { return reinterpret_cast<Channel*>(verbs.channel); }
  uint32_t capacity() const { return static_cast<uint32_t>(verbs.cqe); }
};

struct PostedReceive {
  uint64_t wr_id = 0;
  uint32_t sges = 0;
  uint64_t length_bytes = 0;  // several entries may be more than 4 GiB
};

// Of a queue pair, or shared by several. A receive keeps its slot until its completion is there:
// with several queue pairs, receives end in another order than they begin.
struct ReceiveQueue {
  Node* node = nullptr;
  uint32_t depth = 0;
  uint32_t max_sges = 0;
  CachePlace state;  // of the queue and of where its completions go
  uint64_t posted = 0;
  uint64_t recorded = 0;  // of these, the doorbell record in memory tells
  uint64_t known = 0;     // of these, the RNIC knows: it has read the record
  uint64_t fetched = 0;   // of these, the RNIC has
  uint64_t consumed = 0;
  bool fetching = false;
  bool found_none = false;            // the record announced nothing new when it was read just now
  uint32_t epoch = 0;                 // of fetches: earlier ones mean nothing
  std::unique_ptr<uint32_t[]> order;  // slots, by the receive's number
  std::vector<uint32_t> free_slots;
  std::unique_ptr<PostedReceive[]> receives;  // by slot
  std::unique_ptr<ibv_sge[]> sges;
  std::vector<Packet*> starving;  // arrived, while what they need is being fetched

  uint32_t& slot_of(uint64_t number) { return order[number % depth]; }
  ibv_sge* sges_of(uint64_t slot) { return &sges[slot * max_sges]; }
  void release(uint64_t slot) {
    VERBENA_DEBUG_ASSERT(slot < depth && free_slots.size() < depth);
    free_slots.push_back(static_cast<uint32_t>(slot));
  }
  void release_all() {
    free_slots.clear();
    for (uint32_t slot = depth; slot > 0; --slot) free_slots.push_back(slot - 1);
  }
};

struct Srq {
  ibv_srq verbs{};
  ReceiveQueue queue;
  uint32_t users = 0;
};

// What a responder still has to send.
struct PendingResponse {
  uint64_t message = 0;
  uint64_t address = 0;   // here
  uint64_t original = 0;  // atomics
  uint32_t rkey = 0;
  uint32_t length_bytes = 0;
  uint32_t packets = 1;
  uint32_t next_packet = 0;  // to be sent
  uint32_t fetched = 0;      // packets whose payload is there
  uint32_t fetching = 0;     // and on their way
  bool atomic = false;
  bool executed = false;  // atomics
};

// What the requester of a reliable connection keeps of its messages until they are acknowledged.
struct RcRequester {
  CacheStamp read_state;
  uint64_t acked = 0;      // messages that the responder has acknowledged
  uint64_t sent_ever = 0;  // messages whose first packet was sent at least once
  uint64_t looked_up = 0;  // messages whose WQEs were needed for what acknowledgements told
  uint64_t answered = 0;   // all READs and atomics below have their responses
  Time progress_at = 0;
  uint32_t placing = 0;  // packets of responses that are on their way into memory
  uint8_t reads_outstanding = 0;
  uint8_t retries = 0;
  uint8_t rnr_retries = 0;
  bool asked_again : 1 = false;  // since the last response that came in order
  bool paused : 1 = false;       // until an RNR timer ends
  bool timer_running : 1 = false;

  // What is on its way, or in a cache, outlives a generation of the queue pair.
  void reset() { *this = {.read_state = read_state, .placing = placing}; }
};

// What the responder of a reliable connection needs for READs, atomics and refusals: from the
// first one on, since most queue pairs carry none.
struct RcAnswers {
  struct Replay {
    uint64_t message = UINT64_MAX;
    uint64_t original = 0;
  };
  std::vector<PendingResponse> responses;
  std::vector<Replay> atomics;  // the last ones, for repeated requests
  uint64_t atomics_done = 0;
  uint64_t nak_message = 0;
  uint32_t turn_sent = 0;
  bool queued = false;  // in the sending side's ring
};

// What the responder of a reliable connection still has to say.
struct RcResponder {
  std::unique_ptr<RcAnswers> rare;
  NakCode nak = NakCode::kNone;  // what the next acknowledgement says
  bool nak_sent = false;
  bool ack_queued = false;

  bool answers() const { return rare != nullptr && !rare->responses.empty(); }
  RcAnswers& make_rare() {
    if (rare == nullptr) rare = std::make_unique<RcAnswers>();
    return *rare;
  }
};

// Of a queue pair, as far as it was chosen when it was made, or by modify_qp(): ibv_qp_attr is
// large.
struct QueuePairChoices {
  uint32_t dest_qp_num;
  uint32_t qp_access_flags;
  uint32_t qkey;
  uint8_t path_mtu;
  uint8_t max_rd_atomic;
  uint8_t max_dest_rd_atomic;
  uint8_t min_rnr_timer;
  uint8_t timeout;
  uint8_t retry_cnt;
  uint8_t rnr_retry;
  bool signals_all;
  uint16_t depth;
  uint16_t receive_depth;
  uint16_t max_inline_bytes;
  uint8_t max_sges;
  uint8_t max_receive_sges;
  uint16_t socket;  // that its port is attached to, and where its queues lie
  uint16_t mtu_bytes;
  DoorbellRegister* doorbell_register;
  Node* peer_node;
};

// A cluster has millions, and each message needs most of what two of them have, which no cache has
// any more: so a queue pair takes few lines, and has memory of its own only for what it uses.
struct alignas(64) QueuePair {
  QueuePair() { std::memset(static_cast<void*>(&verbs), 0, sizeof(verbs)); }
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  // The public part ends with a lock and a condition variable for the events of a kernel's driver.
  // Nobody here has any, and they take more than a line: so they make room.
  struct Behind {
    std::byte shown[offsetof(ibv_qp, mutex)];
    QueuePairChoices chosen;
    // What takes longer for more WQEs, or for translations, must not let the next one overtake it.
    Time fetched_at;
    Time translated_at;  // what it receives and answers
    Time emit_at;
    Time paced;         // gaps between messages, up to send_after
    Time announced_at;  // by the last of the doorbells that reached the RNIC
  };
  static_assert(sizeof(Behind) <= offsetof(ibv_qp, events_completed));
  union {
    ibv_qp verbs;
    Behind own;
  };

  Node* node = nullptr;
  CachePlace context;
  // Grows when it is reset or destroyed: what is under way means nothing then.
  uint32_t generation = 0;

  // --- send queue and sending side ---
  uint16_t posting = 0;    // threads that are in post_send()
  bool all_along = false;  // what is announced and not handled came with the doorbells
  bool pacing = false;     // an event will come at send_after
  SendWqes wqes;
  SharedQueueLock send_lock;
  uint64_t posted = 0;
  uint64_t reclaimed = 0;  // WQEs whose place is free again: after the poll of a completion
  uint64_t announced = 0;  // by the doorbells that reached the RNIC
  uint64_t handled = 0;    // announced by the doorbells that it has handled
  uint64_t fetched = 0;    // and it has so many
  uint64_t retired = 0;    // completed in order
  // Payload: what is being fetched, and what lies ready to be sent.
  uint64_t payload_message = 0;
  // What is sent next.
  uint64_t send_message = 0;
  uint32_t payload_packet = 0;
  uint32_t send_packet = 0;
  uint16_t payload_outstanding = 0;
  uint16_t payload_ready = 0;
  uint32_t turn_sent = 0;  // packets since its turn in the sending side's ring began
  Time send_after = 0;
  Time waiting = 0;          // that the next WQE still has to, for the payload of this one
  uint32_t fetch_epoch = 0;  // of payloads: earlier ones mean nothing

  // --- receiving side ---
  uint32_t expected_packet = 0;
  uint64_t expected_message = 0;
  Time receive_at = 0;
  Time place_at = 0;
  uint32_t current_receive = 0;  // slot; of a SEND of several packets
  bool filling = false;          // such a SEND has begun and not ended
  bool starved = false;          // its packets wait for a receive that is being fetched
  bool queued = false;           // in the sending side's ring
  std::unique_ptr<ReceiveQueue> own_receives;

  // --- reliable connections ---
  RcRequester requester;
  RcResponder responder;

  Cq* send_cq() const { return reinterpret_cast<Cq*>(verbs.send_cq); }
  Cq* recv_cq() const { return reinterpret_cast<Cq*>(verbs.recv_cq); }
  Srq* srq() const { return reinterpret_cast<Srq*>(verbs.srq); }
  bool is_reliable() const { return verbs.qp_type == IBV_QPT_RC; }
  bool sends_datagrams() const { return verbs.qp_type == IBV_QPT_UD; }
  ibv_qp_state state() const { return verbs.state; }
  // Whether requests of others are taken. What fails in a send queue without reliability (SQE)
  // does not concern them.
  bool takes_requests() const {
    return state() == IBV_QPS_RTR || state() == IBV_QPS_RTS || state() == IBV_QPS_SQE;
  }
  Wqe& wqe(uint64_t number) { return wqes.wqe(number); }
  ibv_sge* sges_of(uint64_t number) { return wqes.sges(number); }
  // Gives back what is retired, unless data of READs is on its way to where the WQEs say.
  void release_wqes() {
    if (posting == 0 && requester.placing == 0) wqes.release_below(retired);
  }
  // WQEs that the RNIC has fetched and not completed.
  uint64_t kept_wqes() const { return fetched > retired ? fetched - retired : 0; }
  ReceiveQueue& receive_queue() { return srq() != nullptr ? srq()->queue : make_own_receives(); }
  // Also where no receives can be posted: the RNIC looks for them once a message needs one.
  ReceiveQueue& make_own_receives() {
    if (own_receives == nullptr) {
      own_receives = std::make_unique<ReceiveQueue>();
      own_receives->node = node;
    }
    return *own_receives;
  }
};
static_assert(sizeof(QueuePair) <= 7 * 64);

// Of a cluster that no cache has, what follows needs all lines of a queue pair: they come together,
// not one after the other.
inline void prefetch(const QueuePair& qp) {
  const auto* const first = reinterpret_cast<const std::byte*>(&qp);
  for (size_t line = 0; line < sizeof(qp); line += alignof(QueuePair)) {
    __builtin_prefetch(first + line, 1);
  }
}

inline Context& as_context(ibv_context* verbs) { return *reinterpret_cast<Context*>(verbs); }
inline Pd& as_pd(ibv_pd* verbs) { return *reinterpret_cast<Pd*>(verbs); }
inline Region& as_region(ibv_mr* verbs) { return *reinterpret_cast<Region*>(verbs); }
inline Channel& as_channel(ibv_comp_channel* verbs) { return *reinterpret_cast<Channel*>(verbs); }
inline Cq& as_cq(ibv_cq* verbs) { return *reinterpret_cast<Cq*>(verbs); }
inline Srq& as_srq(ibv_srq* verbs) { return *reinterpret_cast<Srq*>(verbs); }
inline QueuePair& as_qp(ibv_qp* verbs) { return *reinterpret_cast<QueuePair*>(verbs); }

inline ibv_wc make_completion(uint64_t wr_id, ibv_wc_status status, ibv_wc_opcode opcode,
                              uint32_t queue_pair_number, uint32_t bytes) {
  ibv_wc completion{};
  completion.wr_id = wr_id;
  completion.status = status;
  completion.opcode = opcode;
  completion.qp_num = queue_pair_number;
  completion.byte_len = bytes;
  return completion;
}

// --- data path ---
int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr** bad);       // post.cc
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr** bad);       // post.cc
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr** bad);  // post.cc
int poll_cq(ibv_cq*, int count, ibv_wc*);                      // completion.cc
int req_notify_cq(ibv_cq*, int solicited_only);                // completion.cc
// Adds a completion now, and tells who waits for it.
void push_completion(Cq& cq, const Cq::Entry& entry);
// Drops a queue pair's completions.
void forget_completions(Cq& cq, const QueuePair& qp);

}  // namespace verbena::sim
