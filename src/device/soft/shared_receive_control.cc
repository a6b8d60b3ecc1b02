// Shared receive queues.
#include <fmt/format.h>

#include <bit>
#include <cerrno>

#include "src/device/soft/control.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {

ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  if (check_valid<Domain>(pd) != 0) return nullptr;
  const uint32_t depth = init->attr.max_wr;
  const uint32_t max_sges = init->attr.max_sge;
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
      sizeof(SrqShared) + ring_count * sizeof(std::atomic<uint64_t>) + kCacheLineBytes;
  const size_t receives_start = receives_offset / kCacheLineBytes * kCacheLineBytes;
  const size_t shared_bytes = receives_start + depth * stride_bytes;
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
  srq->verbs.srq_context = init->srq_context;
  srq->verbs.pd = pd;
  pthread_mutex_init(&srq->verbs.mutex, nullptr);
  pthread_cond_init(&srq->verbs.cond, nullptr);
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
  srq->shared->ring = base + sizeof(SrqShared);
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
  make_valid(*srq, pd->context);
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
  drop_events_of(verbs->context, &srq);
  await_acknowledgements(*verbs, verbs->events_completed, srq.async_delivered);
  end_use(srq.protection_domain->users);
  srq.rnic->free_shared(srq.shared, srq.shared_bytes);
  end_use(srq.rnic->shared_receive_queue_count);
  retire(&srq);
  return 0;
}

}  // namespace verbena::soft
