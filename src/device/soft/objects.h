// The private halves of soft0's verbs objects. Each but the context begins with its public ibv_
// part, so that a pointer to one is a pointer to the other. The program can overwrite that part:
// what stands there is for the program, and is read back in is_intact() only.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/base/assert.h"
#include "src/base/device_settings.h"
#include "src/device/soft/completion_ring.h"
#include "src/device/soft/datagram_ring.h"
#include "src/device/soft/event_count.h"
#include "src/device/soft/extended_poll.h"
#include "src/device/soft/layout.h"
#include "src/device/soft/owner_lock.h"
#include "src/device/soft/peer_queue_pair.h"
#include "src/device/soft/receive_ring.h"
#include "src/device/soft/rnic.h"
#include "src/device/soft/send_batch.h"
#include "src/device/soft/validity.h"
#include "src/device/soft/waiting_sends.h"

namespace verbena::soft {

namespace faults {
struct Network;
class SendFaults;
}  // namespace faults

// The public part of an object, with which it begins; null of none.
template <typename Public, typename Object>
Public* public_part(Object* object) {
  return reinterpret_cast<Public*>(object);
}

struct AsyncEvent {
  ibv_event_type type;
  void* object;
};

struct Context {
  static constexpr const char* kName = "context";
  verbs_context verbs{};  // what programs see is its last member
  Validity validity;
  Rnic* rnic = nullptr;
  std::shared_ptr<faults::Network> network;  // null: none is pretended
  // Whether it had one when it was opened. Also known once it is closed, since what is posted to
  // its destroyed objects still takes the way through the layers.
  bool opened_in_network = false;
  LinkLayer link_layer = LinkLayer::kInfiniBand;
  uint32_t device_index = 0;
  std::atomic<uint32_t> users{0};  // domains, channels, completion queues
  std::atomic<bool> closed{false};
  int event_write_fd = -1;
  int event_read_fd = -1;  // async_fd
  int event_take_fd = -1;  // the same read end, never blocking; used under events_mutex
  std::mutex events_mutex;
  // Under events_mutex. The pipe only wakes: whoever may open this process's descriptors can write
  // into it, so nothing in it is believed.
  std::deque<AsyncEvent> events;
};

struct ThreadDomain {
  static constexpr const char* kName = "thread domain";
  ibv_td verbs{};
  Validity validity;
  std::atomic<uint32_t> users{0};
};

struct XrcDomain {
  static constexpr const char* kName = "XRC domain";
  ibv_xrcd verbs{};
  Validity validity;
  XrcDomainId id{};
  int file_fd = -1;  // keeps the inode from being used for another file
  int lock_fd = -1;  // tells other processes that the domain is open
  std::atomic<uint32_t> users{0};
};

struct Domain {
  static constexpr const char* kName = "protection domain";
  ibv_pd verbs{};
  Validity validity;
  uint32_t id = 0;
  std::atomic<uint32_t> users{0};
  // Of a parent domain: the domain that it stands for, and has the id of; the thread domain.
  Domain* parent = nullptr;
  ThreadDomain* threads = nullptr;
};

struct DeviceMemory;

struct Region {
  static constexpr const char* kName = "memory region";
  ibv_mr verbs{};
  Validity validity;
  // What stands in the public part can be overwritten by the program.
  Domain* domain = nullptr;
  uint32_t key = 0;
  DeviceMemory* device_memory = nullptr;  // that it is of, if any
  bool is_null = false;                   // of ibv_alloc_null_mr()
  bool is_intact() const { return verbs.pd == public_part<ibv_pd>(domain); }
};
// The object of what is registered under `key`, valid.
Region& make_region(ibv_pd*, uint32_t key, void* address, size_t length_bytes);

struct Window {
  static constexpr const char* kName = "memory window";
  ibv_mw verbs{};
  Validity validity;
  Domain* domain = nullptr;
  ibv_mw_type type = IBV_MW_TYPE_1;
  uint32_t place = 0;  // in the region table, as region_index() of all its keys
  std::mutex mutex;    // of changes
  uint32_t key = 0;    // the last one of type 1, under `mutex`
  bool is_intact() const { return verbs.pd == public_part<ibv_pd>(domain); }
};

struct DeviceMemory {
  static constexpr const char* kName = "device memory";
  ibv_dm verbs{};
  Validity validity;
  Rnic* rnic = nullptr;
  std::byte* bytes = nullptr;
  size_t size_bytes = 0;
  std::atomic<uint32_t> users{0};
};

struct Channel {
  static constexpr const char* kName = "completion channel";
  ibv_comp_channel verbs{};
  Validity validity;
  int read_fd = -1;
  int write_fd = -1;
  uint32_t id = 0;
  std::atomic<uint32_t> users{0};
};

class PollSleeper;

struct Cq {
  static constexpr const char* kName = "completion queue";
  union {
    ibv_cq verbs;
    ibv_cq_ex extended{};  // of ibv_create_cq_ex()
  };
  Validity validity;
  Rnic* rnic = nullptr;
  CqShared* shared = nullptr;
  Channel* channel = nullptr;
  uint32_t id = 0;

  // Completed sends; receive completions are made by the poll that finds their packet. Guarded by
  // `lock`, like all below.
  OwnerLock lock;
  CompletionRing completions;
  bool overrun = false;
  bool ignores_overrun = false;  // the oldest makes room then
  uint32_t empty_polls = 0;      // in a row
  bool served_own =
      false;  // own completions have filled the last poll: the next one takes arrivals first

  // Queue pairs whose arrivals end here. The first kScanned connected ones are checked on every
  // poll; the peers of the others set a bit in the ready bitmap, so that a poll need not check each
  // of thousands.
  static constexpr uint32_t kScanned = 8;
  Qp* scanned[kScanned] = {};
  uint32_t scanned_count = 0;
  uint32_t next_scanned = 0;
  std::vector<Qp*> with_ready_bit;  // by bit
  uint32_t next_ready_bit = 0;
  // The connected one of these that was served last. It is polled first, without its bit, which
  // stays set meanwhile: so a sender that is the only busy one moves no line of the bitmap. After
  // recent_limit completions of it the others come first: one where they are busy, too, and up to
  // kMostInRow where they were not.
  static constexpr uint32_t kMostInRow = 16;
  Qp* recent = nullptr;
  uint32_t recent_row = 0;
  uint32_t recent_limit = 1;
  uint32_t next_kind = 0;        // of arrivals that is polled first
  std::vector<Srq*> xrc_queues;  // what arrives at them completes here
  uint32_t next_xrc_queue = 0;
  std::vector<Qp*> flushing;   // queue pairs in error whose receives are still to be flushed
  uint64_t flush_tickets = 0;  // handed out so far, see Qp::flush_ticket

  std::mutex senders_mutex;
  std::vector<Qp*> senders;  // queue pairs whose sends complete here
  // How many of them wait for their peer, and how many of `flushing` have a ticket.
  std::atomic<uint32_t> waiting{0};
  // What a thread that polls this queue in vain may sleep on; null where none would (poll_pause.h).
  std::atomic<PollSleeper*> poller{nullptr};
  EventCount completion_events;
  EventCount async_events;
  std::atomic<uint32_t> users{0};
  Domain* parent_domain = nullptr;  // of ibv_create_cq_ex()
  ExtendedPoll poll;
  bool is_intact() const { return verbs.channel == public_part<ibv_comp_channel>(channel); }
};

// What a shared receive queue of XRC has besides. `next` is under the lock of `cq`.
struct XrcQueue {
  XrcShared* shared = nullptr;
  Cq* cq = nullptr;
  XrcDomain* domain = nullptr;
  uint32_t number = 0;
  uint64_t stamp = 0;
  std::atomic<uint64_t>* arrivals = nullptr;
  Packet* packets = nullptr;
  uint64_t next = 0;  // position in `arrivals`
  // Acquire: behind it lie the packet, and the data that its sender placed before.
  bool arrived(uint32_t mask) const {
    return arrivals[next & mask].load(std::memory_order_acquire) >> 16 == (next << 1 | 1);
  }
};

struct Srq {
  static constexpr const char* kName = "shared receive queue";
  ibv_srq verbs{};
  Validity validity;
  Rnic* rnic = nullptr;
  Domain* protection_domain = nullptr;
  SrqShared* shared = nullptr;
  size_t shared_bytes = 0;
  uint32_t id = 0;
  uint32_t depth = 0;
  uint32_t max_sges = 0;
  // Where things lie in the shared block, and how many: what stands there itself can be overwritten
  // by peers.
  uint32_t domain = 0;  // its id
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
  uint32_t limit = 0;             // raise an event below this; 0: off
  std::unique_ptr<XrcQueue> xrc;  // of those of XRC
  EventCount events;
  std::atomic<uint32_t> users{0};
  bool is_intact() const { return verbs.pd == public_part<ibv_pd>(protection_domain); }
};

// The ring of packets in which the one peer of a connected queue pair announces what it sends.
struct PacketRing {
  Packet* packets = nullptr;
  uint32_t mask = 0;
  uint32_t next = 0;
  bool closed = false;
  bool established = false;  // something has arrived
  Packet& packet(uint32_t number) const { return packets[number & mask]; }
  // Acquire: behind the mark lie the packet, and the data that the sender placed before it.
  bool arrived() const { return packet(next).mark.load(std::memory_order_acquire) == next + 1; }
  // Nothing arrives any more: no sender is as far as to write the mark that is expected then.
  void close() {
    if (closed) return;
    closed = true;
    next += 1u << 31;
  }
};

class Destinations;
struct DestroyDestinations {
  void operator()(Destinations*) const;
};

struct Qp {
  static constexpr const char* kName = "queue pair";
  union {
    ibv_qp verbs;
    ibv_qp_ex extended{};  // of ibv_create_qp_ex()
  };
  Validity validity;
  Transport transport = Transport::kReliable;
  Rnic* rnic = nullptr;
  const RegionEntry* regions = nullptr;  // of this process
  Domain* protection_domain = nullptr;   // null: receives by XRC
  // What `verbs` shows: as above, or what a receiver by XRC was made with and does not use.
  const ibv_pd* shown_domain = nullptr;
  uint32_t domain = 0;              // its id
  uint32_t number = 0;              // make_qp_number() of `index`
  XrcDomain* xrc_domain = nullptr;  // of those that receive by XRC
  // XRC: one that nobody polls in place of those that the queue pair does not have.
  Cq* send_cq = nullptr;
  Cq* recv_cq = nullptr;
  Srq* srq = nullptr;
  QpShared* shared = nullptr;
  QpCounters* counters = nullptr;
  size_t shared_bytes = 0;
  uint32_t index = 0;
  uint32_t generation = 0;
  ibv_qp_init_attr init{};
  ibv_qp_attr attributes{};

  // --- send queue, under send_lock ---
  alignas(kCacheLineBytes) OwnerLock send_lock;
  std::atomic<ibv_qp_state> state{IBV_QPS_RESET};
  std::atomic<uint64_t> flight{0};  // shared->in_flight, where no peer can write
  uint32_t send_posted = 0;
  std::atomic<uint32_t> send_retired{0};  // written where completions are polled
  uint32_t send_depth = 0;
  // What the next request that is posted in the error state completes with.
  ibv_wc_status next_flush = IBV_WC_WR_FLUSH_ERR;
  PeerQp peer;                                                      // of connected transports
  WaitingSends waiting;                                             // of reliable ones
  std::unique_ptr<SendBatch> batch;                                 // of those with ibv_wr_start()
  std::unique_ptr<Destinations, DestroyDestinations> destinations;  // of datagrams
  std::shared_ptr<faults::SendFaults> faults;                       // in a network, else null

  // --- receive side: posting under recv_lock, consuming under recv_cq->lock ---
  alignas(kCacheLineBytes) OwnerLock recv_lock;
  ReceiveRing receives;  // without a shared receive queue
  alignas(kCacheLineBytes) PacketRing arrivals;
  uint32_t ready_bit = kNoReadyBit;
  uint32_t polls_in_vain = 0;  // of datagrams
  // Its own receives are not flushed yet: its peer may be filling one. 0: it is not.
  uint64_t flush_ticket = 0;
  std::unique_ptr<DatagramRing> datagrams;  // what arrives instead of packets
  FlowShared* flows = nullptr;              // of raw packets; kMaxFlows, changed under `control`
  std::atomic<bool> looked_after{false};    // by the service thread: a sender holds others up

  std::mutex control;                         // modify, destroy, error
  std::vector<std::string> multicast_groups;  // that it is in, by name, under `control`
  uint32_t flow_count = 0;
  bool resetting = false;  // a peer that stands still keeps the reset from its end
  EventCount events;
  bool is_intact() const {
    return verbs.pd == shown_domain && verbs.send_cq == init.send_cq &&
           verbs.recv_cq == init.recv_cq && verbs.srq == init.srq;
  }
};

inline Context& as_context(ibv_context* verbs) {
  return *reinterpret_cast<Context*>(reinterpret_cast<std::byte*>(verbs) -
                                     offsetof(verbs_context, context));
}
// The context that an object was made with. A program may overwrite the one that the object shows;
// a destroyed object has nothing else.
template <typename Object>
ibv_context* context_of(const Object& object) {
  const ibv_context* own = object.validity.context;
  return own != nullptr ? const_cast<ibv_context*>(own) : object.verbs.context;
}
inline Domain& as_domain(ibv_pd* verbs) { return *reinterpret_cast<Domain*>(verbs); }
inline Region& as_region(ibv_mr* verbs) { return *reinterpret_cast<Region*>(verbs); }
inline Window& as_window(ibv_mw* verbs) { return *reinterpret_cast<Window*>(verbs); }
inline Channel& as_channel(ibv_comp_channel* verbs) { return *reinterpret_cast<Channel*>(verbs); }
inline Cq& as_cq(ibv_cq* verbs) { return *reinterpret_cast<Cq*>(verbs); }
inline Srq& as_srq(ibv_srq* verbs) { return *reinterpret_cast<Srq*>(verbs); }
inline XrcDomain& as_xrc_domain(ibv_xrcd* verbs) { return *reinterpret_cast<XrcDomain*>(verbs); }
inline Qp& as_qp(ibv_qp* verbs) { return *reinterpret_cast<Qp*>(verbs); }

// An object that kept `users` from being destroyed lets go.
inline void end_use(std::atomic<uint32_t>& users) {
  const uint32_t before = users.fetch_sub(1);
  VERBENA_ASSERT(before > 0);
}

// --- data path, one file each ---
int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr** bad);       // send_datapath.cc
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr** bad);       // receive_datapath.cc
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr** bad);  // receive_datapath.cc
int poll_cq(ibv_cq*, int count, ibv_wc*);                      // completion_datapath.cc
int req_notify_cq(ibv_cq*, int solicited_only);                // completion_datapath.cc
// Posts all of what ibv_wr_start() began, or nothing.
int post_batch(Qp& qp, const ibv_send_wr* requests, uint32_t count);  // send_datapath.cc
// Whether the send queue takes all of them now: 0, or what post_batch() would return. Holds
// send_lock, like carry_out().
int check_sends(const Qp& qp, const ibv_send_wr* requests, uint32_t count);  // send_datapath.cc
// What was checked and is no request on windows, in RTS.
void carry_out(Qp& qp, const ibv_send_wr& wr, uint32_t position);  // send_datapath.cc
// Posts a request on windows that has been carried out, see windows.h.
int post_carried_out(Qp& qp, const ibv_send_wr& wr);  // send_datapath.cc

// Completes what was posted at `position` of the send queue: tells the completion queue where that
// is due. Holds send_lock.
void complete_send(Qp& qp, const ibv_send_wr& wr, uint32_t position, ibv_wc_status status,
                   uint32_t size_bytes);
// Tells a sleeping owner that something arrived: of a peer's queue, of an own one.
void ring_peer_channel(Peer& process, CqShared& cq, bool solicited);
void ring_own_channel(Cq& cq, bool solicited);
// Writes the event that a sender was about to write, which has ended: to one, to all of an RNIC.
void ring_abandoned_channel(Cq& cq);
void ring_abandoned_channels(const Rnic& rnic);

// Drops a queue pair's completions from a queue, as a reset and destruction require.
void forget_completions(Cq& cq, const Qp& qp);
// Makes polls of `cq` find the arrivals of `qp`; returns the ready bit that its peer must set, or
// kNoReadyBit.
uint32_t attach_receiver(Cq& cq, Qp& qp);
void detach_receiver(Cq& cq, Qp& qp);
// From now on the receives of `qp` complete as flushed, after what has arrived already, and when
// its peer is done with those that it had taken.
void start_flushing(Qp& qp);
// Nobody waits for its peer any more to flush receives. Holds the lock of the receive completion
// queue.
void end_flush_wait(Qp& qp);
// Reposts the shared receives that the peer of `qp` took without delivering; with `all`, also
// those whose packet nobody will poll any more. The peer touches nothing any more.
void reclaim_shared_receives(Qp& qp, bool all);
// Makes receive `index` of the shared queue available again. Holds srq.lock.
void publish_shared_receive(Srq& srq, uint16_t index);

// --- errors (error_state.cc) ---
// To the error state: sends that wait, or else the next one posted, complete with `first` and then
// as flushed, receives are flushed. An asynchronous event is raised where `event` is one. The
// caller holds none of the queue pair's locks, or, for the second, send_lock.
inline constexpr int kNoEvent = -1;
void fail_queue_pair(Qp& qp, ibv_wc_status first, int event);
void fail_queue_pair_locked(Qp& qp, ibv_wc_status first, int event);
void raise_event(const ibv_context* context, ibv_event_type type, void* object);
template <typename Object>
void raise_event(ibv_event_type type, Object& object) {
  raise_event(object.validity.context, type, &object);
}
// Stores state and gate together. Holds send_lock.
void set_state(Qp& qp, ibv_qp_state state);
// The send queue of an unreliable transport has failed: what is posted is flushed until the program
// sets the queue pair to RTS again. It still receives. Holds send_lock.
void fail_send_queue_locked(Qp& qp);

const char* transport_name(Transport transport);

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
