// Shared receive queues.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {

namespace {

// Its shared part begins with a SrqShared of `head_bytes` and ends with `tail_bytes` more.
Srq* make_srq(ibv_pd* pd, void* srq_context, const ibv_srq_attr& attributes, size_t head_bytes,
              size_t tail_bytes) {
  if (check_valid<Domain>(pd) != 0) return nullptr;
  const uint32_t depth = attributes.max_wr;
  const uint32_t max_sges = attributes.max_sge;
  if (depth < 1 || depth > kMaxQueueWrs || max_sges > kMaxSges) {
    fail(EINVAL, fmt::format("soft0: a shared receive queue of {} work requests of {} SGEs each: "
                             "possible are 1 to {} work requests of at most {} SGEs",
                             depth, max_sges, kMaxQueueWrs, kMaxSges));
    return nullptr;
  }
  Rnic& rnic = *as_context(pd->context).rnic;
  const uint32_t ring_count = std::bit_ceil(depth);
  const size_t stride_bytes = shared_receive_stride_bytes(max_sges);
  const size_t receives_offset =
      head_bytes + ring_count * sizeof(std::atomic<uint64_t>) + kCacheLineBytes;
  const size_t receives_start = receives_offset / kCacheLineBytes * kCacheLineBytes;
  const size_t shared_bytes = receives_start + depth * stride_bytes + tail_bytes;
  if (!count_in(rnic.shared_receive_queue_count, kMaxSharedReceiveQueues, Srq::kName))
    return nullptr;
  Result<void*> memory = rnic.allocate_shared(shared_bytes);
  if (!memory.ok()) {
    end_use(rnic.shared_receive_queue_count);
    fail(memory.status());
    return nullptr;
  }
  const auto base = reinterpret_cast<uint64_t>(*memory);
  auto* srq = new Srq;
  srq->verbs.context = pd->context;
  srq->verbs.srq_context = srq_context;
  srq->verbs.pd = pd;
  srq->rnic = &rnic;
  srq->depth = depth;
  srq->max_sges = max_sges;
  srq->shared_bytes = shared_bytes;
  srq->receives = std::make_unique<PostedReceive[]>(depth);
  srq->sges = std::make_unique<ibv_sge[]>(size_t{depth} * max_sges);
  srq->free.reserve(depth);
  for (uint32_t index = depth; index-- > 0;) {
    srq->receives[index].sges = &srq->sges[size_t{index} * max_sges];
    srq->free.push_back(static_cast<uint16_t>(index));
  }
  srq->shared = static_cast<SrqShared*>(*memory);
  srq->shared->ring = base + head_bytes;
  srq->shared->receives = base + receives_start;
  srq->shared->ring_count = ring_count;
  srq->shared->receive_count = depth;
  srq->shared->receive_stride_bytes = static_cast<uint32_t>(stride_bytes);
  srq->shared->domain = as_domain(pd).id;
  srq->protection_domain = &as_domain(pd);
  srq->domain = srq->protection_domain->id;
  srq->ring = reinterpret_cast<std::atomic<uint64_t>*>(srq->shared->ring);
  srq->ring_mask = ring_count - 1;
  srq->shared_receives = reinterpret_cast<std::byte*>(srq->shared->receives);
  srq->shared_receive_stride_bytes = static_cast<uint32_t>(stride_bytes);
  as_domain(pd).users.fetch_add(1);
  return srq;
}

// What make_srq() made, when nobody has seen it.
void free_srq(Srq* srq) {
  end_use(srq->protection_domain->users);
  srq->rnic->free_shared(srq->shared, srq->shared_bytes);
  end_use(srq->rnic->shared_receive_queue_count);
}

int check_xrc_init(const ibv_srq_init_attr_ex& init) {
  constexpr uint32_t kNeeded = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  if ((init.comp_mask & kNeeded) != kNeeded || init.xrcd == nullptr || init.cq == nullptr) {
    return fail(EINVAL,
                "soft0: a shared receive queue of XRC needs its XRC domain and completion queue");
  }
  if (const int error = check_valid<XrcDomain>(init.xrcd); error != 0) return error;
  if (const int error = check_valid<Cq>(init.cq); error != 0) return error;
  if (init.xrcd->context != init.pd->context || init.cq->context != init.pd->context) {
    return fail(EINVAL,
                "soft0: a shared receive queue's domains and completion queue must be of "
                "one context");
  }
  return 0;
}

// The places of the arrivals ring, free for its first lap, and packets: behind the receives.
void set_up_arrivals(Srq& srq, std::byte* at) {
  XrcQueue& xrc = *srq.xrc;
  const uint32_t places = srq.ring_mask + 1;
  xrc.packets = reinterpret_cast<Packet*>(at);
  xrc.arrivals = reinterpret_cast<std::atomic<uint64_t>*>(xrc.packets + srq.depth);
  for (uint32_t i = 0; i < places; ++i) {
    xrc.arrivals[i].store(make_free_place(i), std::memory_order_relaxed);
  }
  xrc.shared->arrivals = reinterpret_cast<uint64_t>(xrc.arrivals);
  xrc.shared->packets = reinterpret_cast<uint64_t>(xrc.packets);
}

// Ends what senders do with the queue. Not 0, as from fail(), while one stands still.
int stop_xrc_senders(Srq& srq) {
  srq.rnic->xrc_queues().withdraw(srq);
  forget_target(*srq.rnic, srq);
  const std::vector<Rnic::PeerFlight> standing = srq.rnic->quiesce_peers();
  if (standing.empty()) return 0;
  return fail(EBUSY,
              fmt::format("soft0: {} is stopped in the middle of an access to this process's "
                          "memory; continue or end it, then destroy the queue again",
                          Rnic::describe(standing)));
}

void end_xrc(Srq& srq) {
  XrcQueue& xrc = *srq.xrc;
  {
    const OwnerLock::Guard guard(xrc.cq->lock);
    std::erase(xrc.cq->xrc_queues, &srq);
    xrc.cq->next_xrc_queue = 0;
  }
  end_use(xrc.cq->users);
  end_use(xrc.domain->users);
}

}  // namespace

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  Srq* srq = make_srq(pd, init->srq_context, init->attr, sizeof(SrqShared), 0);
  if (srq == nullptr) return nullptr;
  make_valid(*srq, pd->context);
  return &srq->verbs;
}

ibv_srq* create_xrc_srq(ibv_srq_init_attr_ex* init) {
  if (check_valid<Domain>(init->pd) != 0 || check_xrc_init(*init) != 0) return nullptr;
  // Of what is too deep, make_srq() says so.
  const uint32_t depth = std::min(init->attr.max_wr, kMaxQueueWrs);
  const size_t tail_bytes = depth * sizeof(Packet) + std::bit_ceil(depth) * sizeof(uint64_t);
  Srq* srq = make_srq(init->pd, init->srq_context, init->attr, sizeof(XrcShared), tail_bytes);
  if (srq == nullptr) return nullptr;
  srq->xrc = std::make_unique<XrcQueue>();
  XrcQueue& xrc = *srq->xrc;
  xrc.shared = reinterpret_cast<XrcShared*>(srq->shared);
  xrc.cq = &as_cq(init->cq);
  xrc.domain = &as_xrc_domain(init->xrcd);
  xrc.shared->domain = xrc.domain->id;
  xrc.shared->completion_queue = reinterpret_cast<uint64_t>(xrc.cq->shared);
  set_up_arrivals(*srq, srq->shared_receives + depth * size_t{srq->shared_receive_stride_bytes});
  const Result<uint32_t> number = srq->rnic->xrc_queues().publish(*srq);
  if (!number.ok()) {
    fail(number.status());
    free_srq(srq);
    delete srq;
    return nullptr;
  }
  xrc.cq->users.fetch_add(1);
  xrc.domain->users.fetch_add(1);
  {
    const OwnerLock::Guard guard(xrc.cq->lock);
    xrc.cq->xrc_queues.push_back(srq);
  }
  make_valid(*srq, init->pd->context);
  return &srq->verbs;
}

int modify_srq(ibv_srq* verbs, ibv_srq_attr* attributes, int mask) {
  if (const int error = check_valid<Srq>(verbs); error != 0) return error;
  if ((mask & IBV_SRQ_MAX_WR) != 0) {
    return fail(EOPNOTSUPP,
                "soft0: a shared receive queue cannot be resized; create it with its final depth");
  }
  Srq& srq = as_srq(verbs);
  if ((mask & IBV_SRQ_LIMIT) != 0) {
    if (attributes->srq_limit > srq.depth) {
      return fail(
          EINVAL,
          fmt::format("soft0: a limit of {} exceeds the shared receive queue's {} work requests",
                      attributes->srq_limit, srq.depth));
    }
    const OwnerLock::Guard guard(srq.lock);
    srq.limit = attributes->srq_limit;
  }
  return 0;
}

int query_srq(ibv_srq* verbs, ibv_srq_attr* attributes) {
  if (const int error = check_valid<Srq>(verbs); error != 0) return error;
  Srq& srq = as_srq(verbs);
  *attributes = {.max_wr = srq.depth, .max_sge = srq.max_sges, .srq_limit = srq.limit};
  return 0;
}

int destroy_srq(ibv_srq* verbs) {
  if (const int error = check_valid<Srq>(verbs); error != 0) return error;
  Srq& srq = as_srq(verbs);
  if (srq.users.load() != 0) {
    return fail(EBUSY, "soft0: the shared receive queue still has queue pairs; destroy them first");
  }
  if (srq.xrc != nullptr) {
    if (const int error = stop_xrc_senders(srq); error != 0) return error;
    end_xrc(srq);
  }
  drop_events_of(verbs->context, &srq);
  srq.events.settle();
  free_srq(&srq);
  retire(&srq);
  return 0;
}

}  // namespace verbena::soft
