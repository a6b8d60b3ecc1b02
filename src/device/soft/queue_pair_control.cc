// Queue pairs: creation, the steps between states, destruction.
#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "src/base/log.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/faults/faults.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/queue_pair_attributes.h"
#include "src/device/soft/rc.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

// With a shared receive queue, how many datagrams of one queue pair may lie unpolled.
constexpr uint32_t kMaxSharedDatagrams = 4096;

int reset(Qp& qp) {
  {
    const OwnerLock::Guard guard(qp.send_lock);
    qp.generation = qp.rnic->next_generation();
    qp.next_flush = IBV_WC_WR_FLUSH_ERR;
    qp.attributes.dest_qp_num = 0;
    set_state(qp, IBV_QPS_RESET);
    // Work that waits is dropped without a completion, as are completions not polled yet.
    while (!qp.waiting.empty()) drop_waiting(qp);
    faults::drop(qp);
  }
  // What a peer in the middle of a message may still write, the program must not take back yet: the
  // buffers of receives, regions that stay registered.
  qp.resetting = true;
  const std::vector<Rnic::PeerFlight> standing = qp.rnic->quiesce_peers(&qp);
  if (!standing.empty()) {
    return fail(
        EBUSY,
        fmt::format("soft0: queue pair {:#x}: {} is stopped in the middle of an access to this "
                    "process's memory; continue or end it, then reset or destroy again",
                    qp.number, Rnic::describe(standing)));
  }
  qp.resetting = false;
  // A peer that was not there yet when this queue pair was connected may have sent since.
  const bool has_sender = qp.shared->connection.sender_generation.load() != 0;
  if (qp.srq != nullptr && (qp.peer.number != 0 || has_sender)) reclaim_shared_receives(qp, true);
  forget_completions(*qp.send_cq, qp);
  const auto links = qp.rnic->lock_links();
  const OwnerLock::Guard send_guard(qp.send_lock);
  const OwnerLock::Guard recv_guard(qp.recv_lock);
  const OwnerLock::Guard cq_guard(qp.recv_cq->lock);
  std::erase(qp.recv_cq->flushing, &qp);
  end_flush_wait(qp);
  qp.peer = {};
  qp.send_posted = 0;
  qp.send_retired.store(0);
  qp.receives.reset();
  qp.arrivals.next = 0;
  qp.arrivals.closed = false;
  qp.arrivals.established = false;
  if (has_datagrams(qp.transport)) {
    ud_reset(qp);
  } else {
    for (uint32_t i = 0; i <= qp.arrivals.mask; ++i) {
      qp.arrivals.packets[i].mark.store(0, std::memory_order_relaxed);
    }
  }
  ConnectionShared& connection = qp.shared->connection;
  connection.credits.store(qp.receives.credits());
  connection.consumed.store(0);
  connection.sender_generation.store(0);
  qp.shared->reliable.fault.store(0);
  return 0;
}

// What lies in shared memory behind a QpShared: packets or datagrams, and receives of its own.
struct Sizes {
  uint32_t packets;   // or datagrams
  uint32_t receives;  // 0 with a shared receive queue
  size_t stride_bytes;
  size_t bytes() const {
    return sizeof(QpShared) + packets * sizeof(Packet) + receives * stride_bytes;
  }
};

Sizes sizes_of(const Qp& qp) {
  const ibv_qp_cap& cap = qp.init.cap;
  const Srq* const srq = qp.srq;
  // What arrives lies at the shared receive queue that it is for.
  if (is_xrc(qp.transport)) return {.packets = 1, .receives = 0, .stride_bytes = 0};
  const uint32_t receives = srq != nullptr ? 0 : std::bit_ceil(std::max(cap.max_recv_wr, 1u));
  // A connection's sender may take all shared receives: what tells of each needs a place, or the
  // sender would wait for a receive though there are some. Datagrams that find none are dropped.
  uint32_t packets = receives;
  if (srq != nullptr) {
    packets = std::bit_ceil(has_datagrams(qp.transport) ? std::min(srq->depth, kMaxSharedDatagrams)
                                                        : srq->depth);
  }
  return {.packets = packets,
          .receives = receives,
          .stride_bytes = shared_receive_stride_bytes(cap.max_recv_sge)};
}

// The receives of the queue pair itself, shown at `shown`.
void set_up_receives(Qp& qp, const Sizes& sizes, std::byte* shown) {
  ConnectionShared& connection = qp.shared->connection;
  if (sizes.receives != 0) {
    const ibv_qp_cap& cap = qp.init.cap;
    qp.receives.configure(std::max(cap.max_recv_wr, 1u), sizes.receives,
                          std::max(cap.max_recv_sge, 1u), shown, sizes.stride_bytes);
    connection.receives = reinterpret_cast<uint64_t>(shown);
    connection.receive_count = sizes.receives;
    connection.receive_stride_bytes = static_cast<uint32_t>(sizes.stride_bytes);
  }
  connection.credits.store(qp.receives.credits());
}

void set_up_connection(Qp& qp, const Sizes& sizes) {
  ConnectionShared& connection = qp.shared->connection;
  qp.arrivals.packets = reinterpret_cast<Packet*>(qp.shared + 1);
  qp.arrivals.mask = sizes.packets - 1;
  connection.packets = reinterpret_cast<uint64_t>(qp.arrivals.packets);
  connection.packet_count = sizes.packets;
  set_up_receives(qp, sizes, reinterpret_cast<std::byte*>(qp.arrivals.packets + sizes.packets));
}

// Makes the queue pair's shared part.
Status set_up_shared(Qp& qp, Rnic& rnic) {
  const Sizes sizes = sizes_of(qp);
  if (has_datagrams(qp.transport)) {
    VERBENA_ASSIGN_OR_RETURN(
        qp.datagrams, rnic.datagram_rings().take(
                          sizes.packets, sizes.receives, sizes.stride_bytes,
                          [&rnic](size_t size_bytes) { return rnic.allocate_shared(size_bytes); }));
    qp.destinations.reset(new Destinations(qp.transport));
    qp.shared = qp.datagrams->shared();
    qp.shared->gate.store(make_gate(qp.generation, 0, IBV_QPS_RESET));
    set_up_receives(qp, sizes, qp.datagrams->receives());
    if (qp.transport == Transport::kRawPacket) {
      VERBENA_ASSIGN_OR_RETURN(void* flows, rnic.allocate_shared(kMaxFlows * sizeof(FlowShared)));
      qp.flows = static_cast<FlowShared*>(flows);
    }
    qp.shared->datagram.flows = reinterpret_cast<uint64_t>(qp.flows);
  } else {
    VERBENA_ASSIGN_OR_RETURN(void* memory, rnic.allocate_shared(sizes.bytes()));
    qp.shared = static_cast<QpShared*>(memory);
    qp.shared_bytes = sizes.bytes();
    set_up_connection(qp, sizes);
  }
  qp.shared->transport = static_cast<uint32_t>(qp.transport);
  qp.shared->domain = qp.domain;
  if (qp.xrc_domain != nullptr) qp.shared->xrc_domain = qp.xrc_domain->id;
  qp.shared->completion_queue = reinterpret_cast<uint64_t>(qp.recv_cq->shared);
  if (qp.srq != nullptr) {
    qp.shared->shared_receive_queue = reinterpret_cast<uint64_t>(qp.srq->shared);
  }
  return {};
}

void free_shared_part(Qp& qp) {
  if (qp.datagrams == nullptr) return qp.rnic->free_shared(qp.shared, qp.shared_bytes);
  if (qp.flows != nullptr) qp.rnic->free_shared(qp.flows, kMaxFlows * sizeof(FlowShared));
  const Sizes sizes = sizes_of(qp);
  qp.rnic->datagram_rings().put(std::move(qp.datagrams), sizes.receives, sizes.stride_bytes);
}

// Whether soft0 can make such a queue pair. 0, or an errno value as from fail().
int check_init(const ibv_context* context, const ibv_qp_init_attr& init) {
  const bool sends = init.qp_type != IBV_QPT_XRC_RECV;
  const bool receives = sends && init.qp_type != IBV_QPT_XRC_SEND;
  if ((sends && init.send_cq == nullptr) || (receives && init.recv_cq == nullptr)) {
    return fail(EINVAL,
                "soft0: a queue pair needs a send and a receive completion queue (of XRC: "
                "what sends needs a send completion queue)");
  }
  for (const ibv_cq* cq : {init.send_cq, init.recv_cq}) {
    if (cq == nullptr) continue;
    if (const int error = check_valid<Cq>(cq); error != 0) return error;
    if (cq->context != context) {
      return fail(EINVAL, "soft0: a queue pair's domain and queues must be of one context");
    }
  }
  if (init.srq != nullptr) {
    if (const int error = check_valid<Srq>(init.srq); error != 0) return error;
    if (init.srq->context != context) {
      return fail(EINVAL, "soft0: a queue pair's domain and queues must be of one context");
    }
    if (as_srq(init.srq).xrc != nullptr) {
      return fail(EINVAL,
                  "soft0: a shared receive queue of XRC serves no queue pair directly; "
                  "requests of XRC name it by its number");
    }
  }
  const ibv_qp_cap& cap = init.cap;
  if (cap.max_send_wr > kMaxQueueWrs || cap.max_recv_wr > kMaxQueueWrs ||
      cap.max_send_sge > kMaxSges || cap.max_recv_sge > kMaxSges ||
      cap.max_inline_data > kMaxInlineBytes) {
    return fail(
        EINVAL,
        fmt::format("soft0: a queue pair with {}/{} send/receive work requests, {}/{} SGEs, {} B "
                    "inline; the limits are {} work requests, {} SGEs, {} B inline",
                    cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge,
                    cap.max_inline_data, kMaxQueueWrs, kMaxSges, kMaxInlineBytes));
  }
  return 0;
}

Transport transport_of(ibv_qp_type type) {
  return type == IBV_QPT_UD           ? Transport::kDatagram
         : type == IBV_QPT_RAW_PACKET ? Transport::kRawPacket
         : type == IBV_QPT_UC         ? Transport::kUnreliable
         : type == IBV_QPT_XRC_SEND   ? Transport::kXrcSend
         : type == IBV_QPT_XRC_RECV   ? Transport::kXrcReceive
                                      : Transport::kReliable;
}

void fill_public_part(Qp& qp, ibv_context* context, ibv_pd* pd, const ibv_qp_init_attr& init) {
  ibv_qp& verbs = qp.verbs;
  qp.shown_domain = pd;
  verbs.context = context;
  verbs.qp_context = init.qp_context;
  verbs.pd = pd;
  verbs.send_cq = init.send_cq;
  verbs.recv_cq = init.recv_cq;
  verbs.srq = init.srq;
  verbs.handle = qp.index;
  verbs.qp_num = qp.number;
  verbs.qp_type = init.qp_type;
}

// What a queue pair of this type does not have is not even looked at.
void drop_unused(ibv_qp_init_attr& init) {
  if (init.qp_type != IBV_QPT_XRC_SEND && init.qp_type != IBV_QPT_XRC_RECV) return;
  init.recv_cq = nullptr;
  init.srq = nullptr;
  init.cap.max_recv_wr = 0;
  init.cap.max_recv_sge = 0;
  if (init.qp_type == IBV_QPT_XRC_SEND) return;
  init.send_cq = nullptr;
  init.cap = {};
}

// As RNICs, whose work requests have room for data in place of their gather entries: programs rely
// on that.
uint32_t granted_inline_bytes(const ibv_qp_cap& cap) {
  const uint32_t sges = std::max(cap.max_send_sge, 1u);
  return std::max(cap.max_inline_data, sges * uint32_t{sizeof(ibv_sge)});
}
static_assert(kMaxSges * sizeof(ibv_sge) <= kMaxInlineBytes);

// `pd` or, of one that receives by XRC, `xrc_domain`; both are valid.
ibv_qp* make_qp(ibv_context* context, ibv_pd* pd, XrcDomain* xrc_domain, ibv_qp_init_attr* wanted) {
  ibv_qp_init_attr used = *wanted;
  drop_unused(used);
  const ibv_qp_init_attr* const init = &used;
  if (check_init(context, *init) != 0) return nullptr;
  if (init->qp_type != IBV_QPT_XRC_RECV) used.cap.max_inline_data = granted_inline_bytes(used.cap);
  Rnic& rnic = *as_context(context).rnic;
  const ibv_qp_cap& cap = init->cap;
  const Result<Cq*> idle = rnic.idle_queue();
  if (!idle.ok()) {
    fail(idle.status());
    return nullptr;
  }
  auto qp = std::make_unique<Qp>();
  qp->transport = transport_of(init->qp_type);
  qp->rnic = &rnic;
  qp->regions = rnic.own_regions();
  if (pd != nullptr) {
    qp->protection_domain = &as_domain(pd);
    qp->domain = qp->protection_domain->id;
  }
  qp->xrc_domain = xrc_domain;
  qp->send_cq = init->send_cq == nullptr ? *idle : &as_cq(init->send_cq);
  qp->recv_cq = init->recv_cq == nullptr ? *idle : &as_cq(init->recv_cq);
  qp->srq = init->srq == nullptr ? nullptr : &as_srq(init->srq);
  qp->generation = rnic.next_generation();
  qp->init = *init;
  qp->send_depth = std::max(cap.max_send_wr, 1u);
  if (is_reliable(qp->transport)) {
    qp->waiting.configure(qp->send_depth, std::max(cap.max_send_sge, 1u), cap.max_inline_data);
  }

  if (const Status status = set_up_shared(*qp, rnic); !status.ok()) {
    fail(status);
    return nullptr;
  }
  Result<uint32_t> index = rnic.publish(qp.get());
  if (!index.ok()) {
    free_shared_part(*qp);
    fail(index.status());
    return nullptr;
  }
  qp->index = *index;
  qp->number = make_qp_number(rnic.slot(), qp->index);
  qp->counters = &rnic.count_queue_pair(qp->index, qp->transport);
  qp->shared->number = qp->number;
  fill_public_part(*qp, context, pd, *init);
  set_state(*qp, IBV_QPS_RESET);
  if (pd != nullptr) qp->protection_domain->users.fetch_add(1);
  if (xrc_domain != nullptr) xrc_domain->users.fetch_add(1);
  qp->send_cq->users.fetch_add(1);
  qp->recv_cq->users.fetch_add(1);
  if (qp->srq != nullptr) qp->srq->users.fetch_add(1);
  {
    std::lock_guard guard(qp->send_cq->senders_mutex);
    qp->send_cq->senders.push_back(qp.get());
  }
  if (init->recv_cq != nullptr) qp->ready_bit = attach_receiver(*qp->recv_cq, *qp);
  qp->shared->ready_bit = qp->ready_bit;
  if (has_datagrams(qp->transport)) {
    rnic.datagram_rings().publish(
        qp->index, {qp->datagrams.get(),
                    {qp->recv_cq->shared, qp->ready_bit, qp->recv_cq->channel != nullptr},
                    qp->srq != nullptr ? qp->srq->shared : nullptr,
                    qp->flows});
    rnic.begin_datagrams();
  }
  faults::attach(*qp, as_context(context).network);
  make_valid(*qp, context);
  wanted->cap = used.cap;
  return &qp.release()->verbs;
}

}  // namespace

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  if (check_valid<Domain>(pd) != 0) return nullptr;
  switch (init->qp_type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
    case IBV_QPT_XRC_SEND:
      return make_qp(pd->context, pd, nullptr, init);
    case IBV_QPT_XRC_RECV:
      fail(EINVAL,
           "soft0: a queue pair of type XRC_RECV needs an XRC domain; make it by "
           "ibv_create_qp_ex()");
      return nullptr;
    default:
      fail(
          EOPNOTSUPP,
          fmt::format("soft0: offers RC, UC, UD, XRC and raw packet queue pairs, asked for type {}",
                      static_cast<int>(init->qp_type)));
      return nullptr;
  }
}

ibv_qp* create_xrc_receiver(ibv_context* context, ibv_xrcd* xrc_domain, ibv_qp_init_attr* init) {
  if (check_valid<XrcDomain>(xrc_domain) != 0) return nullptr;
  if (xrc_domain->context != context) {
    fail(EINVAL, "soft0: the queue pair's XRC domain is of another context");
    return nullptr;
  }
  return make_qp(context, nullptr, &as_xrc_domain(xrc_domain), init);
}

int modify_qp(ibv_qp* verbs, ibv_qp_attr* attributes, int mask) {
  if (const int error = check_valid<Qp>(verbs); error != 0) return error;
  Qp& qp = as_qp(verbs);
  std::lock_guard guard(qp.control);
  if (qp.resetting) {
    if (const int error = reset(qp); error != 0) return error;
  }
  mask = concerning(qp.transport, mask);
  const ibv_qp_state from = qp.state.load();
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attributes->cur_qp_state != from) {
    return fail(EINVAL, fmt::format("soft0: the queue pair is in state {}, not {}",
                                    state_name(from), state_name(attributes->cur_qp_state)));
  }
  if (const int error = check_transition(qp.transport, from, to, mask); error != 0) return error;
  if (const int error = check_values(*attributes, mask); error != 0) return error;
  if ((mask & IBV_QP_AV) != 0) {
    const int error = check_peer_address(verbs->context, attributes->ah_attr);
    if (error != 0) return error;
  }
  if (to == IBV_QPS_RESET) return reset(qp);
  if (to == IBV_QPS_ERR) {
    if (from == IBV_QPS_RESET)
      return fail(EINVAL, "soft0: a queue pair does not go from RESET to ERR");
    {
      const OwnerLock::Guard guard(qp.send_lock);
      fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, kNoEvent);
      qp.next_flush = IBV_WC_WR_FLUSH_ERR;  // whatever it failed of before
    }
    // As of an RNIC: nothing of the peer is placed after this, unless the peer is stopped.
    static_cast<void>(qp.rnic->quiesce_peers(&qp));
    return 0;
  }

  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR && !has_datagrams(qp.transport)) {
    const auto links = qp.rnic->lock_links();
    Status connected = connect_peer(qp, attributes->dest_qp_num);
    // As on a network, a peer that is not there is no error yet: the first send will not get
    // through.
    if (!connected.ok() && connected.code() != StatusCode::kUnavailable) return fail(connected);
    if (!connected.ok()) log_info("{}", connected.message());
  }
  const OwnerLock::Guard send_guard(qp.send_lock);
  // What a peer or a request has failed since is not undone.
  if (const ibv_qp_state now = qp.state.load(std::memory_order_relaxed); now != from) {
    return fail(EINVAL,
                fmt::format("soft0: the queue pair has failed meanwhile, and is in state {}",
                            state_name(now)));
  }
  copy_attributes(qp.attributes, *attributes, mask);
  qp.shared->access.store(qp.attributes.qp_access_flags, std::memory_order_relaxed);
  qp.shared->reliable.min_rnr_timer.store(qp.attributes.min_rnr_timer, std::memory_order_relaxed);
  qp.shared->datagram.qkey.store(qp.attributes.qkey, std::memory_order_relaxed);
  if (to != from) set_state(qp, to);
  // A peer that ended while this queue pair was being connected has found none to fail.
  if (to == IBV_QPS_RTR && is_reliable(qp.transport) && qp.peer.process != nullptr &&
      qp.peer.process->dead()) {
    fail_queue_pair_locked(qp, IBV_WC_RETRY_EXC_ERR, IBV_EVENT_QP_FATAL);
  }
  return 0;
}

int query_qp(ibv_qp* verbs, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  if (const int error = check_valid<Qp>(verbs); error != 0) return error;
  Qp& qp = as_qp(verbs);
  std::lock_guard guard(qp.control);
  // The initiator has its completion, maybe, and the service thread has not run yet.
  accept_blame(qp);
  const OwnerLock::Guard send_guard(qp.send_lock);  // the service thread may fail it meanwhile
  *attributes = qp.attributes;
  attributes->qp_state = qp.state.load();
  attributes->cur_qp_state = attributes->qp_state;
  attributes->cap = qp.init.cap;
  *init = qp.init;
  return 0;
}

int destroy_qp(ibv_qp* verbs) {
  if (const int error = check_valid<Qp>(verbs); error != 0) return error;
  Qp* qp = &as_qp(verbs);
  {
    std::lock_guard guard(qp->control);
    if (qp->flow_count != 0) {
      return fail(EBUSY, fmt::format("soft0: the queue pair still has {} flows; destroy them first",
                                     qp->flow_count));
    }
    if (const int error = reset(*qp); error != 0) return error;
  }
  faults::detach(*qp);
  leave_groups(*qp);
  detach_receiver(*qp->recv_cq, *qp);
  {
    std::lock_guard guard(qp->send_cq->senders_mutex);
    std::erase(qp->send_cq->senders, qp);
  }
  if (has_datagrams(qp->transport)) {
    qp->rnic->end_datagrams();
    qp->rnic->datagram_rings().withdraw(qp->index);
  }
  // Before another queue pair can have the place, and the counters with it.
  qp->counters->number.store(0, std::memory_order_relaxed);
  qp->rnic->withdraw(qp->index);
  ud_end_looking_after(*qp);
  // Peers in other processes keep their mapping of what is freed below; peers in this one would
  // touch nothing.
  qp->rnic->for_each_queue_pair([qp](Qp& other) {
    if (other.peer.shared != qp->shared) return;
    const OwnerLock::Guard guard(other.send_lock);
    other.peer.shared = nullptr;
  });
  drop_events_of(verbs->context, qp);
  qp->events.settle();
  if (qp->srq != nullptr) end_use(qp->srq->users);
  end_use(qp->send_cq->users);
  end_use(qp->recv_cq->users);
  if (qp->protection_domain != nullptr) end_use(qp->protection_domain->users);
  if (qp->xrc_domain != nullptr) end_use(qp->xrc_domain->users);
  free_shared_part(*qp);
  // A thread whose batch has just completed may still be at its end.
  retire(qp, [batch = std::move(qp->batch)](Qp& shell) mutable {
    shell.batch = std::move(batch);
    refuse_batches(shell.extended);
  });
  return 0;
}

}  // namespace verbena::soft
