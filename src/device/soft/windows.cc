#include "src/device/soft/windows.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>

#include "src/base/log.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"

namespace verbena::soft {
namespace {

// Of a window; IBV_ACCESS_LOCAL_WRITE means nothing there, and is let through as by RNICs.
constexpr unsigned kWindowRights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned kWindowFlags =
    kWindowRights | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_OPTIONAL_RANGE;

// How long a peer may be without a CPU before it counts as stopped.
constexpr uint64_t kPeerPatienceNs = 2'000'000'000;

NewWindow to_bind(const ibv_mw_bind_info& info, uint32_t key, uint32_t region_domain,
                  uint32_t domain) {
  return {.key = key,
          .region_key = as_region(info.mr).key,
          .address = info.addr,
          .length_bytes = info.length,
          .access = info.mw_access_flags & kWindowRights,
          .zero_based = (info.mw_access_flags & IBV_ACCESS_ZERO_BASED) != 0,
          .region_domain = region_domain,
          .domain = domain};
}

// Waits until the connected peer is in no operation that it began before.
bool peer_is_outside(const Qp& qp) {
  if (qp.peer.shared == nullptr) return true;
  // Pairs with light_fence() in Flight.
  heavy_fence_all();
  const std::optional<PeerFlight> flight = flight_of_peer(qp);
  if (!flight.has_value()) return true;
  const uint64_t limit_ns = now_ns() + kPeerPatienceNs;
  for (Waiter waiter; !flight->over(); waiter.idle()) {
    if (now_ns() > limit_ns) {
      log_error(
          "soft0: queue pair {:#x}: process {} is stopped in the middle of an access to a "
          "memory window that is invalidated",
          qp.number, qp.peer.process->pid());
      return false;
    }
  }
  return true;
}

}  // namespace

bool check_window_request(const ibv_send_wr& wr) {
  if (wr.opcode == IBV_WR_LOCAL_INV) return true;
  const ibv_mw* verbs = wr.bind_mw.mw;
  const ibv_mr* region = wr.bind_mw.bind_info.mr;
  if (check_living<Window>(verbs) != 0 || check_living<Region>(region) != 0) return false;
  const Window& window = as_window(const_cast<ibv_mw*>(verbs));
  return window.type == IBV_MW_TYPE_2 &&
         (wr.bind_mw.bind_info.mw_access_flags & ~kWindowFlags) == 0;
}

ibv_wc_status carry_out_window_request(Qp& qp, const ibv_send_wr& wr) {
  RegionTable& regions = qp.rnic->regions();
  const uint32_t domain = window_domain(qp.generation);
  if (wr.opcode == IBV_WR_BIND_MW) {
    // The consumer owns the low byte of a key, the RNIC the rest.
    Window& window = as_window(wr.bind_mw.mw);
    const uint32_t key = window.place << 8 | (wr.bind_mw.rkey & 0xff);
    // Without bytes it would be unbound, which LOCAL_INV does to those of type 2.
    if (window.domain->id != qp.domain || wr.bind_mw.bind_info.length == 0 ||
        !regions.bind_window(to_bind(wr.bind_mw.bind_info, key, qp.domain, domain)))
      return IBV_WC_MW_BIND_ERR;
    window.verbs.rkey = key;
    return IBV_WC_SUCCESS;
  }
  // The status of all errors of memory management, as of mlx5.
  if (!regions.unbind_window(wr.invalidate_rkey, domain)) return IBV_WC_MW_BIND_ERR;
  return peer_is_outside(qp) ? IBV_WC_SUCCESS : IBV_WC_MW_BIND_ERR;
}

bool invalidate_at_peer(Qp& qp, uint32_t key) {
  const uint32_t index = region_index(key);
  if (index >= kMaxMemoryRegions) return false;
  // None is open to a queue pair that only receives, and could bind none.
  if (is_xrc(qp.transport)) return false;
  const uint32_t domain = window_domain(static_cast<uint32_t>(qp.peer.gate_ready >> 32));
  if (qp.peer.process->is_self()) return qp.rnic->regions().unbind_window(key, domain);
  // The peer's table is its own, but for the end of a window: one atomic step, which the peer's
  // poll of this SEND completes. It publishes no stamp a second time.
  auto& entry = const_cast<RegionEntry&>(qp.peer.regions[index]);
  uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  return static_cast<uint32_t>(stamp) == key && stamp != 0 &&
         (entry.access.load(std::memory_order_relaxed) & kWindowAccess) != 0 &&
         entry.domain.load(std::memory_order_relaxed) == domain &&
         entry.stamp.compare_exchange_strong(stamp, 0);
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (check_valid<Domain>(pd) != 0) return nullptr;
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
    fail(EINVAL,
         fmt::format("soft0: there is no memory window of type {}", static_cast<int>(type)));
    return nullptr;
  }
  Result<uint32_t> key = as_context(pd->context).rnic->regions().reserve_window();
  if (!key.ok()) {
    fail(key.status());
    return nullptr;
  }
  auto* window = new Window;
  window->verbs = {
      .context = pd->context, .pd = pd, .rkey = *key, .handle = region_index(*key), .type = type};
  window->domain = &as_domain(pd);
  window->type = type;
  window->place = region_index(*key);
  window->key = *key;
  window->domain->users.fetch_add(1);
  make_valid(*window, pd->context);
  return &window->verbs;
}

// Of a window of type 1. The memory that it was bound to is out of reach before it is bound anew.
// What the region does not grant is an error of the request, as it is of an RNIC's.
int bind_mw(ibv_qp* queue, ibv_mw* verbs, ibv_mw_bind* bind) {
  if (const int error = check_living<Qp>(queue); error != 0) return error;
  if (const int error = check_living<Window>(verbs); error != 0) return error;
  Qp& qp = as_qp(queue);
  Window& window = as_window(verbs);
  const ibv_mw_bind_info& info = bind->bind_info;
  if (window.type != IBV_MW_TYPE_1) {
    return fail(EINVAL, "soft0: ibv_bind_mw() binds windows of type 1; post IBV_WR_BIND_MW");
  }
  if (qp.transport != Transport::kReliable) {
    return fail(EOPNOTSUPP, "soft0: memory windows are bound by reliable connections");
  }
  if ((info.mw_access_flags & ~kWindowFlags) != 0) {
    return fail(EINVAL, fmt::format("soft0: a memory window with the access {:#x}; possible is "
                                    "{:#x}",
                                    info.mw_access_flags, kWindowFlags));
  }
  if (info.length != 0) {
    if (const int error = check_living<Region>(info.mr); error != 0) return error;
  }
  const std::lock_guard guard(window.mutex);
  const uint32_t key = ibv_inc_rkey(window.key & 0xff) | window.place << 8;
  RegionTable& regions = qp.rnic->regions();
  const NewWindow bound =
      info.length == 0 ? NewWindow{} : to_bind(info, key, qp.domain, window.domain->id);
  const ibv_qp_state state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) {
    return fail(EINVAL, "soft0: a memory window is bound by a queue pair in RTS");
  }
  ibv_wc_status status = IBV_WC_SUCCESS;
  if (window.domain->id != qp.domain || (info.length != 0 && !regions.can_bind(bound))) {
    log_info(
        "soft0: queue pair {:#x}: IBV_WC_MW_BIND_ERR: the region does not hold the memory window: "
        "it must have IBV_ACCESS_MW_BIND, the window's rights, all of its bytes, and like the "
        "window the queue pair's domain",
        qp.number);
    status = IBV_WC_MW_BIND_ERR;
  } else if (state == IBV_QPS_RTS) {
    regions.unbind_place(window.place);
    if (const auto standing = qp.rnic->quiesce_peers(); !standing.empty()) {
      return fail(EBUSY, fmt::format("soft0: {} is stopped in the middle of an access; the window "
                                     "is invalid, bind it again later",
                                     Rnic::describe(standing)));
    }
    if (info.length != 0 && !regions.bind_window(bound)) {
      return fail(EINVAL, "soft0: the region of the memory window is being deregistered");
    }
  }
  ibv_send_wr wr{};
  wr.wr_id = bind->wr_id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = bind->send_flags & ~unsigned{IBV_SEND_INLINE};
  if (const int error = post_carried_out(qp, make_carried_out(wr, status)); error != 0) {
    if (status != IBV_WC_SUCCESS) return fail(error, "soft0: the send queue has no room");
    if (state == IBV_QPS_RTS) regions.unbind_place(window.place);
    return fail(error,
                "soft0: the send queue has no room for the binding of a memory window, "
                "which is invalid now");
  }
  if (status == IBV_WC_SUCCESS) verbs->rkey = window.key = key;
  return 0;
}

int dealloc_mw(ibv_mw* verbs) {
  if (const int error = check_valid<Window>(verbs); error != 0) return error;
  Window& window = as_window(verbs);
  Rnic& rnic = *as_context(verbs->context).rnic;
  {
    const std::lock_guard guard(window.mutex);
    rnic.regions().unbind_place(window.place);
    if (const auto standing = rnic.quiesce_peers(); !standing.empty()) {
      return fail(EBUSY,
                  fmt::format("soft0: {} is stopped in the middle of an access to the memory "
                              "of the window; continue or end it, then try again",
                              Rnic::describe(standing)));
    }
    rnic.regions().free_place(window.place << 8);
  }
  end_use(window.domain->users);
  retire(&window);
  return 0;
}

}  // namespace verbena::soft
