// The shared receive queue that a request of XRC names: looked up at its first use, and again when
// it is gone.
#include <bit>
#include <optional>

#include "src/base/log.h"
#include "src/base/shared_memory.h"
#include "src/device/soft/xrc.h"

namespace verbena::soft {
namespace {

// So many queues a queue pair remembers; then it looks them up anew.
constexpr size_t kMaxTargets = 1024;

XrcTarget describe_own(const Srq& srq, Rnic& rnic) {
  const XrcQueue& xrc = *srq.xrc;
  return {.process = nullptr,
          .regions = rnic.own_regions(),
          .domain = srq.domain,
          .srq = {.shared = srq.shared,
                  .ring = srq.ring,
                  .receives = srq.shared_receives,
                  .ring_mask = srq.ring_mask,
                  .receive_count = srq.depth,
                  .stride_bytes = srq.shared_receive_stride_bytes,
                  .xrc = xrc.shared,
                  .arrivals = xrc.arrivals,
                  .packets = xrc.packets,
                  .stamp = xrc.stamp},
          .cq = {xrc.cq->shared, kNoReadyBit, xrc.cq->channel != nullptr}};
}

// Whatever another process says of its queue is checked here.
std::optional<XrcTarget> describe_others(Peer& process, uint32_t number, XrcDomainId domain) {
  const uint64_t address =
      process.header().xrc_queues[index_of(number)].load(std::memory_order_acquire);
  if (address == 0) return std::nullopt;
  XrcTarget target;
  auto* xrc = map_array<XrcShared>(process, address, 1, sizeof(XrcShared), 1);
  if (xrc == nullptr) return std::nullopt;
  PeerSrq& srq = target.srq;
  srq.stamp = xrc->stamp.load(std::memory_order_acquire);
  const XrcDomainId found{load_relaxed(&xrc->domain.device), load_relaxed(&xrc->domain.file)};
  if (static_cast<uint32_t>(srq.stamp) != number || found != domain ||
      !map_shared_receive_queue(process, address, srq, &target.domain)) {
    return std::nullopt;
  }
  const uint32_t places = srq.ring_mask + 1;
  srq.arrivals = map_array<std::atomic<uint64_t>>(process, load_relaxed(&xrc->arrivals), places,
                                                  sizeof(uint64_t), kMaxQueueWrs);
  srq.packets = map_array<Packet>(process, load_relaxed(&xrc->packets), srq.receive_count,
                                  sizeof(Packet), kMaxQueueWrs);
  target.cq.shared =
      map_array<CqShared>(process, load_relaxed(&xrc->completion_queue), 1, sizeof(CqShared), 1);
  if (srq.arrivals == nullptr || srq.packets == nullptr || target.cq.shared == nullptr) {
    return std::nullopt;
  }
  target.cq.has_channel = load_relaxed(&target.cq.shared->has_channel) != 0;
  target.regions = process.header().regions;
  srq.xrc = xrc;
  return target;
}

std::optional<XrcTarget> look_up(Qp& qp, uint32_t number, ibv_wc_status& failure) {
  failure = IBV_WC_REM_INV_REQ_ERR;
  const XrcDomainId& receiver = qp.peer.shared->xrc_domain;
  const XrcDomainId domain{load_relaxed(&receiver.device), load_relaxed(&receiver.file)};
  Result<std::shared_ptr<Peer>> process = qp.rnic->attach(slot_of(number));
  if (!process.ok()) {
    if (process.status().code() != StatusCode::kUnavailable) {
      log_info("soft0: queue pair {:#x} cannot reach the shared receive queue {:#x}: {}", qp.number,
               number, process.status().message());
      failure = IBV_WC_LOC_QP_OP_ERR;
    }
    return std::nullopt;
  }
  std::optional<XrcTarget> target;
  if ((*process)->is_self()) {
    qp.rnic->xrc_queues().with_queue(index_of(number), [&](const Srq& srq) {
      if (srq.xrc->number == number && srq.xrc->domain->id == domain) {
        target = describe_own(srq, *qp.rnic);
      }
    });
  } else {
    target = describe_others(**process, number, domain);
  }
  if (!target.has_value()) return std::nullopt;
  target->process = std::move(*process);
  // Before the stamps of the queue and of its regions are looked at: whoever takes these away sees
  // who may be using them.
  target->process->note_xrc_sender(qp.rnic->slot());
  return target;
}

void use(PeerQp& peer, const XrcTarget& target) {
  // Views are found by keys, which are those of one process.
  if (peer.memory != target.process.get()) peer.views = {};
  peer.memory = target.process.get();
  peer.regions = target.regions;
  peer.domain = target.domain;
  peer.receive_domain = target.domain;
  peer.srq = target.srq;
  peer.cq = target.cq;
}

bool is_usable(const XrcTarget& target) { return target.srq.is_there() && !target.process->dead(); }

}  // namespace

ibv_wc_status aim_slowly(Qp& qp, uint32_t number) {
  PeerQp& peer = qp.peer;
  auto known = peer.targets.find(number);
  if (known == peer.targets.end() || !is_usable(known->second)) {
    peer.srq = {};
    peer.memory = peer.process.get();
    peer.views = {};
    if (known != peer.targets.end()) peer.targets.erase(known);
    if (peer.targets.size() >= kMaxTargets) peer.targets.clear();
    ibv_wc_status failure = IBV_WC_SUCCESS;
    std::optional<XrcTarget> found = look_up(qp, number, failure);
    if (!found.has_value() || !is_usable(*found)) return failure;
    known = peer.targets.emplace(number, std::move(*found)).first;
  }
  use(peer, known->second);
  return IBV_WC_SUCCESS;
}

void forget_targets(Qp& qp, const Peer& process) {
  PeerQp& peer = qp.peer;
  const size_t forgotten = std::erase_if(
      peer.targets, [&](const auto& known) { return known.second.process.get() == &process; });
  if (forgotten == 0 || peer.memory != &process || peer.process.get() == &process) return;
  peer.srq = {};
  peer.memory = peer.process.get();
  peer.views = {};
}

void forget_target(Rnic& rnic, const Srq& srq) {
  rnic.for_each_queue_pair([&srq](Qp& qp) {
    if (qp.transport != Transport::kXrcSend) return;
    const OwnerLock::Guard guard(qp.send_lock);
    const auto known = qp.peer.targets.find(srq.xrc->number);
    if (known == qp.peer.targets.end() || known->second.srq.xrc != srq.xrc->shared) return;
    if (qp.peer.srq.xrc == srq.xrc->shared) {
      qp.peer.srq = {};
      qp.peer.memory = qp.peer.process.get();
      qp.peer.views = {};
    }
    qp.peer.targets.erase(known);
  });
}

}  // namespace verbena::soft
