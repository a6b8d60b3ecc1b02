// The private halves of soft0's verbs objects. Each but the context begins with its public ibv_
// part, so that a pointer to one is a pointer to the other.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "src/device/soft/layout.h"
#include "src/device/soft/owner_lock.h"
#include "src/device/soft/peer.h"
#include "src/device/soft/rnic.h"
#include "src/device/soft/validity.h"

namespace verbena::soft {

struct AsyncEvent {
  ibv_event_type type;
  void* object;
};

struct Context {
  static constexpr const char* kName = "context";
  verbs_context verbs{};  // what programs see is its last member
  Validity validity;
  Rnic* rnic = nullptr;
  std::atomic<uint32_t> users{0};  // domains, channels, completion queues
  std::atomic<bool> closed{false};
  int event_write_fd = -1;  // async_fd is the read end
  int event_take_fd = -1;   // the same read end, never blocking; used under verbs.mutex
  // Under verbs.mutex. The pipe only wakes: whoever may open this process's descriptors can write
  // into it, so nothing in it is believed.
  std::deque<AsyncEvent> events;
};

struct Domain {
  static constexpr const char* kName = "protection domain";
  ibv_pd verbs{};
  Validity validity;
  uint32_t id = 0;
  std::atomic<uint32_t> users{0};
};

struct Region {
  static constexpr const char* kName = "memory region";
  ibv_mr verbs{};
  Validity validity;
  // What stands in the public part can be overwritten by the program.
  Domain* domain = nullptr;
  uint32_t key = 0;
};

struct Channel {
  static constexpr const char* kName = "completion channel";
  ibv_comp_channel verbs{};
  Validity validity;
  int write_fd = -1;
  uint32_t id = 0;
  std::atomic<uint32_t> users{0};
};

// A completed send, as it waits in the completion queue.
struct Completion {
  uint64_t wr_id;
  Qp* qp;
  ibv_wc_status status;
  ibv_wc_opcode opcode;
  uint32_t byte_count;
  uint32_t send_position;  // send queue entries up to here are free once this is polled
};

struct Cq {
  static constexpr const char* kName = "completion queue";
  ibv_cq verbs{};
  Validity validity;
  Rnic* rnic = nullptr;
  CqShared* shared = nullptr;
  Channel* channel = nullptr;
  uint32_t id = 0;

  // Completed sends; receive completions are made by the poll that finds their packet. Guarded by
  // `lock`, like all below.
  OwnerLock lock;
  std::unique_ptr<Completion[]> ring;
  uint32_t capacity = 0;
  uint32_t mask = 0;
  uint32_t head = 0;
  uint32_t tail = 0;
  bool overrun = false;
  bool served_own =
      false;  // the last single poll took an own completion: look at arrivals first now

  // Queue pairs whose arrivals end here. The first kScanned connected ones are looked at on every
  // poll; the others ring a bell (one bit each) so that a poll costs no look at each of thousands.
  static constexpr uint32_t kScanned = 8;
  Qp* scanned[kScanned] = {};
  uint32_t scanned_count = 0;
  uint32_t next_scanned = 0;
  std::vector<Qp*> belled;
  uint32_t next_bell = 0;
  uint32_t next_kind = 0;     // of arrivals that is looked at first
  std::vector<Qp*> flushing;  // queue pairs in error whose receives are still to be flushed

  std::mutex senders_mutex;
  std::vector<Qp*> senders;          // queue pairs whose sends complete here
  std::atomic<uint32_t> waiting{0};  // how many of them wait for their peer
  uint64_t events_delivered = 0;     // like async_delivered, under verbs.mutex
  uint64_t async_delivered = 0;
  std::atomic<uint32_t> users{0};
};

struct PostedReceive {
  uint64_t wr_id;
  uint32_t length_bytes;
  uint32_t sge_count;
  ibv_sge* sges;
  std::atomic<bool> posted;  // shared receive queues: not consumed yet
};

struct Srq {
  static constexpr const char* kName = "shared receive queue";
  ibv_srq verbs{};
  Validity validity;
  Rnic* rnic = nullptr;
  SrqShared* shared = nullptr;
  size_t shared_bytes = 0;
  uint32_t id = 0;
  uint32_t depth = 0;
  uint32_t max_sges = 0;
  // Where things lie in the shared block, and how many: what stands there itself can be overwritten
  // by peers.
  uint32_t domain = 0;
  std::atomic<uint64_t>* ring = nullptr;
  uint32_t ring_mask = 0;
  std::byte* shared_receives = nullptr;
  uint32_t shared_receive_stride_bytes = 0;
  SharedReceive& shared_receive(uint32_t index) const {
    return *reinterpret_cast<SharedReceive*>(shared_receives +
                                             index * size_t{shared_receive_stride_bytes});
  }

  OwnerLock lock;
  std::unique_ptr<PostedReceive[]> receives;
  std::unique_ptr<ibv_sge[]> sges;
  std::vector<uint16_t> free;  // indexes
  uint64_t tail = 0;
  uint32_t limit = 0;  // raise an event below this; 0: off
  uint64_t async_delivered = 0;
  std::atomic<uint32_t> users{0};
};

// A work request that could not be carried out at once, with copies of what it points to.
struct WaitingSend {
  ibv_send_wr wr;
  uint32_t position;
  ibv_sge* sges;  // own array
  std::byte* inline_data;
};

// What an initiator remembers of a remote (or local) region that it used, so that the next use is
// one load and a compare. Valid as long as the entry's stamp is the same.
struct RegionView {
  uint64_t stamp = 0;
  uint64_t iova = 0;
  uint64_t length_bytes = 0;
  std::byte* base = nullptr;  // where iova lies here; null: through the kernel
  // More is copied in parts; 0 where the kernel copies, which never does it at once.
  uint32_t at_once_bytes = 0;
  uint64_t address = 0;  // in the owner's process
  uint32_t access = 0;
  uint32_t domain = 0;
  bool locked_atomics = false;         // Peer::update_foreign()
  std::shared_ptr<std::byte> segment;  // that `base` points into, if it is one
};

// The connected peer queue pair, mapped and checked at RTR.
struct PeerQp {
  std::shared_ptr<Peer> process;
  uint32_t taker_number = 0;  // the peer's queue pair number, as it stands in claims
  const RegionEntry* regions = nullptr;
  QpShared* shared = nullptr;
  uint32_t life = 0;  // of the peer's queue pair when it was connected to
  uint64_t gate_ready =
      kNoGate;  // the gate's value while the peer is RTR; known from the first operation on
  uint64_t gate_sending = kNoGate;  // ... RTS
  Packet* packets = nullptr;
  uint32_t packet_mask = 0;
  std::byte* receives = nullptr;
  uint32_t receive_mask = 0;
  uint32_t receive_stride_bytes = 0;
  CqShared* cq = nullptr;
  SrqShared* srq = nullptr;
  std::atomic<uint64_t>* srq_ring = nullptr;
  std::byte* srq_receives = nullptr;
  uint32_t srq_ring_mask = 0;
  uint32_t srq_receive_count = 0;
  uint32_t srq_receive_stride_bytes = 0;
  uint32_t domain = 0;
  uint32_t receive_domain =
      0;  // of the receives' memory: a shared receive queue may have another one
  uint32_t bell = kNoBell;
  bool has_channel = false;

  // What a sender knows of the peer's receive queue; refreshed from credits when used up.
  uint32_t next_receive = 0;
  uint32_t known_receives = 0;
  uint32_t shortest_receive = 0;
  uint32_t next_packet = 0;
  uint32_t known_consumed = 0;
};

enum class Wait : uint8_t { kNothing, kReceiver, kPeer };

struct Qp {
  static constexpr const char* kName = "queue pair";
  ibv_qp verbs{};
  Validity validity;
  Rnic* rnic = nullptr;
  const RegionEntry* regions = nullptr;  // of this process
  uint32_t domain = 0;
  Cq* send_cq = nullptr;
  Cq* recv_cq = nullptr;
  Srq* srq = nullptr;
  QpShared* shared = nullptr;
  size_t shared_bytes = 0;
  uint32_t index = 0;
  uint32_t life = 0;
  ibv_qp_init_attr init{};
  ibv_qp_attr attributes{};

  // --- send side, under send_lock ---
  alignas(kCacheLineBytes) OwnerLock send_lock;
  std::atomic<ibv_qp_state> state{IBV_QPS_RESET};
  std::atomic<uint64_t> flight{0};  // shared->in_flight, where no peer can write
  uint32_t send_posted = 0;
  std::atomic<uint32_t> send_retired{0};  // written where completions are polled
  uint32_t send_depth = 0;
  PeerQp peer;
  static constexpr uint32_t kViews = 32;
  RegionView remote_views[kViews];
  std::unique_ptr<WaitingSend[]> waiting;  // ring of send_depth entries
  std::unique_ptr<ibv_sge[]> waiting_sges;
  std::unique_ptr<std::byte[]> waiting_inline;
  uint32_t waiting_head = 0;
  std::atomic<uint32_t> waiting_count{0};
  Wait wait = Wait::kNothing;
  uint64_t wait_deadline_ns = 0;  // 0: without end
  // What the next request that is posted in the error state completes with.
  ibv_wc_status next_flush = IBV_WC_WR_FLUSH_ERR;
  std::atomic<uint64_t> last_retry_ns{0};

  // --- receive side: posting under recv_lock, consuming under recv_cq->lock ---
  alignas(kCacheLineBytes) OwnerLock recv_lock;
  uint32_t recv_posted = 0;
  uint32_t recv_depth = 0;
  uint32_t recv_mask = 0;
  uint32_t shortest_receive = ~0u;
  std::unique_ptr<PostedReceive[]> receives;
  std::unique_ptr<ibv_sge[]> recv_sges;
  std::byte* shared_receives = nullptr;
  uint32_t shared_receive_stride_bytes = 0;

  alignas(kCacheLineBytes) Packet* packets = nullptr;
  uint32_t packet_mask = 0;
  uint32_t next_packet = 0;
  std::atomic<uint32_t> recv_consumed{0};
  std::atomic<uint32_t> recv_visible{0};  // recv_posted, for flushing under recv_cq->lock
  uint32_t bell = kNoBell;

  std::mutex control;      // modify, destroy, error
  bool resetting = false;  // a peer that stands still keeps the reset from its end
  uint64_t async_delivered = 0;
};

inline Context& as_context(ibv_context* verbs) {
  return *reinterpret_cast<Context*>(reinterpret_cast<std::byte*>(verbs) -
                                     offsetof(verbs_context, context));
}
inline Domain& as_domain(ibv_pd* verbs) { return *reinterpret_cast<Domain*>(verbs); }
inline Region& as_region(ibv_mr* verbs) { return *reinterpret_cast<Region*>(verbs); }
inline Channel& as_channel(ibv_comp_channel* verbs) { return *reinterpret_cast<Channel*>(verbs); }
inline Cq& as_cq(ibv_cq* verbs) { return *reinterpret_cast<Cq*>(verbs); }
inline Srq& as_srq(ibv_srq* verbs) { return *reinterpret_cast<Srq*>(verbs); }
inline Qp& as_qp(ibv_qp* verbs) { return *reinterpret_cast<Qp*>(verbs); }

// --- data path, one file each ---
int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr** bad);       // send_datapath.cc
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr** bad);       // receive_datapath.cc
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr** bad);  // receive_datapath.cc
int poll_cq(ibv_cq*, int count, ibv_wc*);                      // completion_datapath.cc
int req_notify_cq(ibv_cq*, int solicited_only);                // completion_datapath.cc

// Adds a completion of own work. Returns false, and puts the queue into overrun, if there is no
// room.
bool push_completion(Cq& cq, const Completion& completion);
// Tells a sleeping owner that something arrived: of a peer's queue, of an own one.
void ring_peer_channel(Peer& process, CqShared& cq, bool solicited);
void ring_own_channel(Cq& cq, bool solicited);

// Tries again what waits in send queues: of one queue pair (takes send_lock), of all that complete
// into `cq`.
void retry_waiting(Qp& qp);
void retry_waiting_of(Cq& cq);

// Drops a queue pair's completions from a queue, as a reset and destruction require.
void forget_completions(Cq& cq, const Qp& qp);
// Makes `cq` look for the arrivals of `qp`, and says whether these must ring a bell (and which).
uint32_t attach_receiver(Cq& cq, Qp& qp);
void detach_receiver(Cq& cq, Qp& qp);
// From now on the receives of `qp` complete as flushed, after what has arrived already.
void start_flushing(Qp& qp);
// Posts the shared receives again that the peer of `qp` took without delivering; with `all`, also
// those whose packet nobody will poll any more. The peer touches nothing any more.
void reclaim_shared_receives(Qp& qp, bool all);
// Makes receive `index` of the shared queue available again. Holds srq.lock.
void publish_shared_receive(Srq& srq, uint16_t index);

// --- errors (recovery.cc) ---
// To the error state: sends that wait, or else the next one posted, complete with `first` and then
// as flushed, receives are flushed. An asynchronous event is raised where `event` is one. The
// caller holds none of the queue pair's locks, or, for the second, send_lock.
inline constexpr int kNoEvent = -1;
void fail_queue_pair(Qp& qp, ibv_wc_status first, int event);
void fail_queue_pair_locked(Qp& qp, ibv_wc_status first, int event);
void raise_event(ibv_context* context, ibv_event_type type, void* object);
// Asks the peer's service thread to fail the connected queue pair with `event`. Holds send_lock,
// within a Flight.
void blame_peer(Qp& qp, ibv_event_type event);
// Starts to wait for the peer with `wr` at the head of the send queue, or queues it behind others.
// Holds send_lock.
int enqueue_waiting(Qp& qp, const ibv_send_wr& wr, uint32_t position, Wait reason);
void flush_waiting(Qp& qp, ibv_wc_status first);
// Forgets the first waiting send.
void drop_waiting(Qp& qp);
// Stores state and gate together. Holds send_lock.
void set_state(Qp& qp, ibv_qp_state state);

// Maps and checks the queue pair that this one is being connected to (queue_pair_control.cc).
Status connect_peer(Qp& qp, uint32_t number);

// 0 if it is an open context, else as check_valid().
int check_valid_context(const ibv_context* verbs);
// Counts an object of the process in; false, as fail(ENOMEM), if there are `limit` already.
bool count_in(std::atomic<uint32_t>& count, uint32_t limit, const char* name);

// What was wrong with this thread's latest call through control(); empty if nothing was.
const char* last_error();
// Remembers the message and sets errno to `error`, which it returns.
int fail(int error, std::string_view message);
int fail(const Status& status);

}  // namespace verbena::soft
