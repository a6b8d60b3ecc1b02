// Queue pairs: creation, the state machine, connecting to a peer, destruction.
#include <fmt/format.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "src/base/log.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/control.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

// With a shared receive queue, how many arrivals of one queue pair may lie unpolled.
constexpr uint32_t kMaxSharedPackets = 4096;

struct Transition {
  ibv_qp_state from;
  ibv_qp_state to;
  int required;
  int optional;
};

// InfiniBand specification, table 91 (RC).
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER,
     IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH |
         IBV_QP_PATH_MIG_STATE},
};

const char* state_name(ibv_qp_state state) {
  constexpr const char* kNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return static_cast<size_t>(state) < std::size(kNames) ? kNames[state] : "unknown";
}

int check_transition(ibv_qp_state from, ibv_qp_state to, int mask) {
  mask &= ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) {
    return mask == 0 ? 0
                     : fail(EINVAL, fmt::format("soft0: the step to {} takes no attributes",
                                                state_name(to)));
  }
  for (const Transition& step : kTransitions) {
    if (step.from != from || step.to != to) continue;
    if ((mask & step.required) != step.required || (mask & ~(step.required | step.optional)) != 0) {
      return fail(
          EINVAL,
          fmt::format(
              "soft0: the step from {} to {} needs the attributes {:#x} and may have {:#x}, "
              "given were {:#x} (ibv_qp_attr_mask)",
              state_name(from), state_name(to), step.required, step.optional, mask));
    }
    return 0;
  }
  return fail(EINVAL, fmt::format("soft0: a queue pair does not go from {} to {}", state_name(from),
                                  state_name(to)));
}

int check_values(const ibv_qp_attr& attributes, int mask) {
  if ((mask & IBV_QP_PORT) != 0 && attributes.port_num != 1) {
    return fail(EINVAL,
                fmt::format("soft0: has port 1 only, asked for port {}", attributes.port_num));
  }
  if ((mask & IBV_QP_PKEY_INDEX) != 0 && attributes.pkey_index != 0) {
    return fail(EINVAL, "soft0: has one partition key, index 0");
  }
  if ((mask & IBV_QP_PATH_MTU) != 0 &&
      (attributes.path_mtu < IBV_MTU_256 || attributes.path_mtu > IBV_MTU_4096)) {
    return fail(EINVAL, "soft0: the path MTU must be between 256 and 4096 bytes");
  }
  if ((mask & IBV_QP_DEST_QPN) != 0 && attributes.dest_qp_num > 0xffffff) {
    return fail(EINVAL, fmt::format("soft0: there is no queue pair {:#x}; numbers have 24 bits",
                                    attributes.dest_qp_num));
  }
  if ((mask & IBV_QP_TIMEOUT) != 0 && attributes.timeout > 31)
    return fail(EINVAL, "soft0: timeout is 0 to 31");
  if ((mask & IBV_QP_RETRY_CNT) != 0 && attributes.retry_cnt > 7)
    return fail(EINVAL, "soft0: retry_cnt is 0 to 7");
  if ((mask & IBV_QP_RNR_RETRY) != 0 && attributes.rnr_retry > 7)
    return fail(EINVAL, "soft0: rnr_retry is 0 to 7");
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0 && attributes.min_rnr_timer > 31) {
    return fail(EINVAL, "soft0: min_rnr_timer is 0 to 31");
  }
  for (const auto& [named, depth] : {std::pair(IBV_QP_MAX_QP_RD_ATOMIC, attributes.max_rd_atomic),
                                     {IBV_QP_MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic}}) {
    if ((mask & named) == 0 || depth <= kMaxOutstandingReads) continue;
    return fail(EINVAL, fmt::format("soft0: {} outstanding READs and atomics of a queue pair; the "
                                    "limit is {}",
                                    depth, kMaxOutstandingReads));
  }
  return 0;
}

void copy_attributes(ibv_qp_attr& kept, const ibv_qp_attr& given, int mask) {
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0) kept.qp_access_flags = given.qp_access_flags;
  if ((mask & IBV_QP_PKEY_INDEX) != 0) kept.pkey_index = given.pkey_index;
  if ((mask & IBV_QP_PORT) != 0) kept.port_num = given.port_num;
  if ((mask & IBV_QP_AV) != 0) kept.ah_attr = given.ah_attr;
  if ((mask & IBV_QP_PATH_MTU) != 0) kept.path_mtu = given.path_mtu;
  if ((mask & IBV_QP_TIMEOUT) != 0) kept.timeout = given.timeout;
  if ((mask & IBV_QP_RETRY_CNT) != 0) kept.retry_cnt = given.retry_cnt;
  if ((mask & IBV_QP_RNR_RETRY) != 0) kept.rnr_retry = given.rnr_retry;
  if ((mask & IBV_QP_RQ_PSN) != 0) kept.rq_psn = given.rq_psn & 0xffffff;
  if ((mask & IBV_QP_SQ_PSN) != 0) kept.sq_psn = given.sq_psn & 0xffffff;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) kept.max_rd_atomic = given.max_rd_atomic;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) kept.max_dest_rd_atomic = given.max_dest_rd_atomic;
  if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) kept.min_rnr_timer = given.min_rnr_timer;
  if ((mask & IBV_QP_DEST_QPN) != 0) kept.dest_qp_num = given.dest_qp_num;
}

bool plausible_stride(uint32_t stride_bytes) {
  return stride_bytes >= sizeof(SharedReceive) &&
         stride_bytes <= shared_receive_stride_bytes(kMaxSges) &&
         stride_bytes % kCacheLineBytes == 0;
}

// Maps an array of the peer. Counts come from the peer, so they are bounded here.
template <typename T>
T* map_array(Peer& process, uint64_t address, uint64_t count, uint64_t stride_bytes,
             uint64_t max_count) {
  if (address == 0 || address % kCacheLineBytes != 0 || count == 0 || count > max_count)
    return nullptr;
  return reinterpret_cast<T*>(process.map(address, count * stride_bytes));
}

// A peer of this process is described by its private half. What stands in shared memory, where
// other peers can write, is not even looked at.
void link_within_process(const Qp& other, PeerQp& peer) {
  peer.regions = other.regions;
  peer.shared = other.shared;
  peer.life = static_cast<uint32_t>(other.shared->gate.load(std::memory_order_acquire) >> 32);
  peer.domain = other.domain;
  peer.receive_domain = other.domain;
  peer.bell = other.bell;
  peer.packets = other.packets;
  peer.packet_mask = other.packet_mask;
  peer.cq = other.recv_cq->shared;
  peer.has_channel = other.recv_cq->channel != nullptr;
  if (const Srq* srq = other.srq; srq != nullptr) {
    peer.srq = srq->shared;
    peer.receive_domain = srq->domain;
    peer.srq_ring = srq->ring;
    peer.srq_ring_mask = srq->ring_mask;
    peer.srq_receives = srq->shared_receives;
    peer.srq_receive_count = srq->depth;
    peer.srq_receive_stride_bytes = srq->shared_receive_stride_bytes;
  } else {
    peer.receives = other.shared_receives;
    peer.receive_mask = other.recv_mask;
    peer.receive_stride_bytes = other.shared_receive_stride_bytes;
  }
}

int reset(Qp& qp) {
  {
    const OwnerLock::Guard guard(qp.send_lock);
    qp.life = qp.rnic->next_life();
    qp.next_flush = IBV_WC_WR_FLUSH_ERR;
    qp.attributes.dest_qp_num = 0;
    set_state(qp, IBV_QPS_RESET);
    // Work that waits is dropped without a completion, as are completions not polled yet.
    while (qp.waiting_count.load(std::memory_order_relaxed) > 0) drop_waiting(qp);
  }
  // What a peer in the middle of a message may still write, the program must not take back yet: the
  // buffers of receives, regions that stay registered.
  qp.resetting = true;
  const std::vector<Rnic::PeerFlight> standing = qp.rnic->quiesce_peers(&qp);
  if (!standing.empty()) {
    const std::string why = fmt::format(
        "soft0: queue pair {:#x}: {} stands still in the middle of an access to this "
        "process's memory; continue or end it, then reset or destroy again",
        qp.verbs.qp_num, Rnic::describe(standing));
    // Said here, too: not everybody who destroys something looks at what that returns.
    log_warning("{}", why);
    return fail(EBUSY, why);
  }
  qp.resetting = false;
  if (qp.srq != nullptr && qp.peer.taker_number != 0) reclaim_shared_receives(qp, true);
  forget_completions(*qp.send_cq, qp);
  const auto links = qp.rnic->lock_links();
  const OwnerLock::Guard send_guard(qp.send_lock);
  const OwnerLock::Guard recv_guard(qp.recv_lock);
  const OwnerLock::Guard cq_guard(qp.recv_cq->lock);
  std::erase(qp.recv_cq->flushing, &qp);
  qp.peer = {};
  for (RegionView& view : qp.remote_views) view = {};
  qp.send_posted = 0;
  qp.send_retired.store(0);
  qp.recv_posted = 0;
  qp.shortest_receive = ~0u;
  qp.recv_consumed.store(0);
  qp.recv_visible.store(0);
  qp.next_packet = 0;
  for (uint32_t i = 0; i <= qp.packet_mask; ++i)
    qp.packets[i].mark.store(0, std::memory_order_relaxed);
  qp.shared->credits.store(~0ull << 32);
  qp.shared->consumed.store(0);
  qp.shared->sender_life.store(0);
  qp.shared->fault.store(0);
  return 0;
}

}  // namespace

Status connect_peer(Qp& qp, uint32_t number) {
  PeerQp peer;
  peer.taker_number = number;
  VERBENA_ASSIGN_OR_RETURN(peer.process, qp.rnic->attach(slot_of(number)));
  Peer& process = *peer.process;
  if (process.is_self()) {
    const Qp* other = qp.rnic->queue_pair(index_of(number));
    if (other == nullptr) {
      return {StatusCode::kUnavailable, fmt::format("soft0: there is no queue pair {:#x}", number)};
    }
    link_within_process(*other, peer);
    qp.peer = std::move(peer);
    return {};
  }
  peer.regions = process.header().regions;
  const uint64_t address =
      process.header().queue_pairs[index_of(number)].load(std::memory_order_acquire);
  if (address == 0) {
    return {StatusCode::kUnavailable,
            fmt::format("soft0: process {} has no queue pair {:#x}", process.pid(), number)};
  }
  const Status broken{StatusCode::kProtocolViolation,
                      fmt::format("soft0: process {} describes its queue pair {:#x} wrongly",
                                  process.pid(), number)};
  peer.shared = map_array<QpShared>(process, address, 1, sizeof(QpShared), 1);
  if (peer.shared == nullptr) return broken;
  const QpShared& shared = *peer.shared;
  peer.life = static_cast<uint32_t>(shared.gate.load(std::memory_order_acquire) >> 32);
  peer.domain = load_relaxed(&shared.domain);
  peer.receive_domain = peer.domain;
  peer.bell = load_relaxed(&shared.bell);
  const uint32_t packet_count = load_relaxed(&shared.packet_count);
  if (!std::has_single_bit(packet_count) || (peer.bell != kNoBell && peer.bell >= kMaxQueuePairs))
    return broken;
  peer.packet_mask = packet_count - 1;
  peer.packets = map_array<Packet>(process, load_relaxed(&shared.packets), packet_count,
                                   sizeof(Packet), kMaxQueueWrs);
  peer.cq = map_array<CqShared>(process, shared.completion_queue, 1, sizeof(CqShared), 1);
  if (peer.packets == nullptr || peer.cq == nullptr) return broken;
  peer.has_channel = load_relaxed(&peer.cq->has_channel) != 0;
  if (const uint64_t srq_address = load_relaxed(&shared.shared_receive_queue); srq_address != 0) {
    peer.srq = map_array<SrqShared>(process, srq_address, 1, sizeof(SrqShared), 1);
    if (peer.srq == nullptr) return broken;
    const uint32_t ring_count = load_relaxed(&peer.srq->ring_count);
    peer.srq_receive_count = load_relaxed(&peer.srq->receive_count);
    peer.srq_receive_stride_bytes = load_relaxed(&peer.srq->receive_stride_bytes);
    if (!std::has_single_bit(ring_count) || !plausible_stride(peer.srq_receive_stride_bytes))
      return broken;
    peer.srq_ring_mask = ring_count - 1;
    peer.receive_domain = load_relaxed(&peer.srq->domain);
    peer.srq_ring = map_array<std::atomic<uint64_t>>(process, peer.srq->ring, ring_count,
                                                     sizeof(uint64_t), kMaxQueueWrs);
    peer.srq_receives = map_array<std::byte>(process, peer.srq->receives, peer.srq_receive_count,
                                             peer.srq_receive_stride_bytes, kMaxQueueWrs);
    if (peer.srq_ring == nullptr || peer.srq_receives == nullptr) return broken;
  } else {
    const uint32_t receive_count = load_relaxed(&shared.receive_count);
    peer.receive_stride_bytes = load_relaxed(&shared.receive_stride_bytes);
    if (!std::has_single_bit(receive_count) || !plausible_stride(peer.receive_stride_bytes))
      return broken;
    peer.receive_mask = receive_count - 1;
    peer.receives = map_array<std::byte>(process, shared.receives, receive_count,
                                         peer.receive_stride_bytes, kMaxQueueWrs);
    if (peer.receives == nullptr) return broken;
  }
  qp.peer = std::move(peer);
  return {};
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  if (check_valid<Domain>(pd) != 0) return nullptr;
  const ibv_qp_cap& cap = init->cap;
  if (init->qp_type != IBV_QPT_RC) {
    fail(EOPNOTSUPP,
         fmt::format("soft0: offers reliable connected (RC) queue pairs, asked for type {}",
                     static_cast<int>(init->qp_type)));
    return nullptr;
  }
  if (init->send_cq == nullptr || init->recv_cq == nullptr) {
    fail(EINVAL, "soft0: a queue pair needs a send and a receive completion queue");
    return nullptr;
  }
  if (check_valid<Cq>(init->send_cq) != 0 || check_valid<Cq>(init->recv_cq) != 0) return nullptr;
  if (init->srq != nullptr && check_valid<Srq>(init->srq) != 0) return nullptr;
  if (init->send_cq->context != pd->context || init->recv_cq->context != pd->context ||
      (init->srq != nullptr && init->srq->context != pd->context)) {
    fail(EINVAL, "soft0: a queue pair's domain and queues must be of one context");
    return nullptr;
  }
  if (cap.max_send_wr > kMaxQueueWrs || cap.max_recv_wr > kMaxQueueWrs ||
      cap.max_send_sge > kMaxSges || cap.max_recv_sge > kMaxSges ||
      cap.max_inline_data > kMaxInlineBytes) {
    fail(
        EINVAL,
        fmt::format(
            "soft0: a queue pair with {}/{} send/receive requests, {}/{} entries, {} B inline; the "
            "limits are {} requests, {} entries, {} B inline",
            cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge,
            cap.max_inline_data, kMaxQueueWrs, kMaxSges, kMaxInlineBytes));
    return nullptr;
  }
  Rnic& rnic = *as_context(pd->context).rnic;
  Srq* srq = init->srq == nullptr ? nullptr : &as_srq(init->srq);
  const uint32_t recv_depth = srq != nullptr ? 0 : std::max(cap.max_recv_wr, 1u);
  const uint32_t recv_count = srq != nullptr ? 0 : std::bit_ceil(recv_depth);
  const uint32_t packet_count =
      srq != nullptr ? std::bit_ceil(std::min(srq->depth, kMaxSharedPackets)) : recv_count;
  const size_t stride_bytes = shared_receive_stride_bytes(cap.max_recv_sge);
  const size_t shared_bytes =
      sizeof(QpShared) + packet_count * sizeof(Packet) + recv_count * stride_bytes;
  Result<void*> memory = rnic.allocate_shared(shared_bytes);
  if (!memory.ok()) {
    fail(memory.status());
    return nullptr;
  }
  auto qp = std::make_unique<Qp>();
  qp->rnic = &rnic;
  qp->regions = rnic.own_regions();
  qp->domain = as_domain(pd).id;
  qp->send_cq = &as_cq(init->send_cq);
  qp->recv_cq = &as_cq(init->recv_cq);
  qp->srq = srq;
  qp->shared_bytes = shared_bytes;
  qp->life = rnic.next_life();
  qp->init = *init;
  qp->send_depth = std::max(cap.max_send_wr, 1u);
  qp->waiting = std::make_unique<WaitingSend[]>(qp->send_depth);
  const size_t send_sges = std::max(cap.max_send_sge, 1u);
  qp->waiting_sges = std::make_unique<ibv_sge[]>(qp->send_depth * send_sges);
  qp->waiting_inline.reset(new std::byte[size_t{qp->send_depth} * cap.max_inline_data + 1]);
  for (uint32_t i = 0; i < qp->send_depth; ++i) {
    qp->waiting[i].sges = &qp->waiting_sges[i * send_sges];
    qp->waiting[i].inline_data = &qp->waiting_inline[size_t{i} * cap.max_inline_data];
  }

  const auto base = reinterpret_cast<uint64_t>(*memory);
  qp->shared = static_cast<QpShared*>(*memory);
  qp->packets = reinterpret_cast<Packet*>(base + sizeof(QpShared));
  qp->packet_mask = packet_count - 1;
  qp->shared->domain = qp->domain;
  qp->shared->packets = reinterpret_cast<uint64_t>(qp->packets);
  qp->shared->packet_count = packet_count;
  qp->shared->completion_queue = reinterpret_cast<uint64_t>(qp->recv_cq->shared);
  qp->shared->credits.store(~0ull << 32);
  if (srq != nullptr) {
    qp->shared->shared_receive_queue = reinterpret_cast<uint64_t>(srq->shared);
    srq->users.fetch_add(1);
  } else {
    qp->recv_depth = recv_depth;
    qp->recv_mask = recv_count - 1;
    qp->receives = std::make_unique<PostedReceive[]>(recv_count);
    const size_t recv_sges = std::max(cap.max_recv_sge, 1u);
    qp->recv_sges = std::make_unique<ibv_sge[]>(recv_count * recv_sges);
    for (uint32_t i = 0; i < recv_count; ++i) qp->receives[i].sges = &qp->recv_sges[i * recv_sges];
    qp->shared_receives = reinterpret_cast<std::byte*>(qp->packets + packet_count);
    qp->shared_receive_stride_bytes = static_cast<uint32_t>(stride_bytes);
    qp->shared->receives = reinterpret_cast<uint64_t>(qp->shared_receives);
    qp->shared->receive_count = recv_count;
    qp->shared->receive_stride_bytes = static_cast<uint32_t>(stride_bytes);
  }

  Result<uint32_t> index = rnic.publish(qp.get());
  if (!index.ok()) {
    if (srq != nullptr) srq->users.fetch_sub(1);
    rnic.free_shared(qp->shared, shared_bytes);
    fail(index.status());
    return nullptr;
  }
  qp->index = *index;
  ibv_qp& verbs = qp->verbs;
  verbs.context = pd->context;
  verbs.qp_context = init->qp_context;
  verbs.pd = pd;
  verbs.send_cq = init->send_cq;
  verbs.recv_cq = init->recv_cq;
  verbs.srq = init->srq;
  verbs.handle = *index;
  verbs.qp_num = make_qp_number(rnic.slot(), *index);
  verbs.qp_type = IBV_QPT_RC;
  pthread_mutex_init(&verbs.mutex, nullptr);
  pthread_cond_init(&verbs.cond, nullptr);
  set_state(*qp, IBV_QPS_RESET);
  as_domain(pd).users.fetch_add(1);
  qp->send_cq->users.fetch_add(1);
  qp->recv_cq->users.fetch_add(1);
  {
    std::lock_guard guard(qp->send_cq->senders_mutex);
    qp->send_cq->senders.push_back(qp.get());
  }
  qp->bell = attach_receiver(*qp->recv_cq, *qp);
  qp->shared->bell = qp->bell;
  make_valid(*qp, pd->context);
  return &qp.release()->verbs;
}

int modify_qp(ibv_qp* verbs, ibv_qp_attr* attributes, int mask) {
  if (const int error = check_valid<Qp>(verbs); error != 0) return error;
  Qp& qp = as_qp(verbs);
  std::lock_guard guard(qp.control);
  if (qp.resetting) {
    if (const int error = reset(qp); error != 0) return error;
  }
  const ibv_qp_state from = qp.state.load();
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attributes->cur_qp_state != from) {
    return fail(EINVAL, fmt::format("soft0: the queue pair is in state {}, not {}",
                                    state_name(from), state_name(attributes->cur_qp_state)));
  }
  if (const int error = check_transition(from, to, mask); error != 0) return error;
  if (const int error = check_values(*attributes, mask); error != 0) return error;
  if (to == IBV_QPS_RESET) return reset(qp);
  if (to == IBV_QPS_ERR) {
    if (from == IBV_QPS_RESET)
      return fail(EINVAL, "soft0: a queue pair does not go from RESET to ERR");
    const OwnerLock::Guard guard(qp.send_lock);
    fail_queue_pair_locked(qp, IBV_WC_WR_FLUSH_ERR, kNoEvent);
    qp.next_flush = IBV_WC_WR_FLUSH_ERR;  // whatever it failed of before
    return 0;
  }

  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
    const auto links = qp.rnic->lock_links();
    Status connected = connect_peer(qp, attributes->dest_qp_num);
    // As on a network, a peer that is not there is no error yet: the first send will not get
    // through.
    if (!connected.ok() && connected.code() != StatusCode::kUnavailable) return fail(connected);
    if (!connected.ok()) log_info("{}", connected.message());
  }
  const OwnerLock::Guard send_guard(qp.send_lock);
  copy_attributes(qp.attributes, *attributes, mask);
  qp.shared->access.store(qp.attributes.qp_access_flags, std::memory_order_relaxed);
  qp.shared->min_rnr_timer.store(qp.attributes.min_rnr_timer, std::memory_order_relaxed);
  if (to != from) set_state(qp, to);
  // A peer that ended while this queue pair was being connected has found none to fail.
  if (to == IBV_QPS_RTR && qp.peer.process != nullptr && qp.peer.process->dead()) {
    fail_queue_pair_locked(qp, IBV_WC_RETRY_EXC_ERR, IBV_EVENT_QP_FATAL);
  }
  return 0;
}

int query_qp(ibv_qp* verbs, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  if (const int error = check_valid<Qp>(verbs); error != 0) return error;
  Qp& qp = as_qp(verbs);
  std::lock_guard guard(qp.control);
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
    if (const int error = reset(*qp); error != 0) return error;
  }
  detach_receiver(*qp->recv_cq, *qp);
  {
    std::lock_guard guard(qp->send_cq->senders_mutex);
    std::erase(qp->send_cq->senders, qp);
  }
  qp->rnic->withdraw(qp->index);
  // Peers in other processes keep their mapping of what is freed below; peers in this one would
  // touch nothing.
  qp->rnic->for_each_queue_pair([qp](Qp& other) {
    if (other.peer.shared != qp->shared) return;
    const OwnerLock::Guard guard(other.send_lock);
    other.peer.shared = nullptr;
  });
  drop_events_of(verbs->context, qp);
  pthread_mutex_lock(&verbs->mutex);
  while (verbs->events_completed != static_cast<uint32_t>(qp->async_delivered)) {
    pthread_cond_wait(&verbs->cond, &verbs->mutex);
  }
  pthread_mutex_unlock(&verbs->mutex);
  if (qp->srq != nullptr) qp->srq->users.fetch_sub(1);
  qp->send_cq->users.fetch_sub(1);
  qp->recv_cq->users.fetch_sub(1);
  as_domain(verbs->pd).users.fetch_sub(1);
  qp->rnic->free_shared(qp->shared, qp->shared_bytes);
  retire(qp);
  return 0;
}

}  // namespace verbena::soft
