// Control calls: what the program makes, changes and destroys.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "src/base/runtime.h"
#include "src/device/soft/check/caller.h"
#include "src/device/soft/check/check_records.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::check {
namespace {

template <typename Made>
Made* made(Made* object, Type type, const std::vector<const void*>& uses) {
  if (object == nullptr) return object;
  State& all = *state();
  const Caller caller = find_caller();
  const std::lock_guard guard(all.mutex);
  all.note_made(object, type, caller, uses);
  return object;
}

// What was given back before this call is to be seen with what there was then.
void take_releases_now(State& all) {
  const StateLock guard(all);
  take_releases(all);
}

// Takes a record out before its object is destroyed: other threads look into those that are there.
template <typename Record, typename Public>
std::shared_ptr<Record> take_out(
    State& all, std::unordered_map<const Public*, std::shared_ptr<Record>>& records,
    const Public* verbs) {
  const std::lock_guard guard(all.mutex);
  const auto found = records.find(verbs);
  if (found == records.end()) return nullptr;
  const std::shared_ptr<Record> record = found->second;
  records.erase(found);
  return record;
}

// What still uses an object, as it is reported; empty if nothing known does. Holds State::mutex.
std::string describe_users(const State& all, const void* object, const void** place) {
  size_t count = 0;
  std::string first;
  for (const auto& [self, other] : all.objects) {
    if (std::find(other.uses.begin(), other.uses.end(), object) == other.uses.end()) continue;
    if (count++ != 0) continue;
    first = fmt::format("a {} ({})", type_name(other.type), self);
    *place = other.place;
  }
  if (count > 1) first += fmt::format(" and {} more", count - 1);
  return first;
}

// Destroys `object` by `call`, and notes what came of it. Its record is taken out before: as soon
// as it is gone, another thread may have made one at its address.
template <typename Call>
int destroyed(const void* object, const char* verb, Call&& call) {
  State& all = *state();
  const void* const place = find_caller().place;
  report_gone(all, object, verb, place);
  decltype(State::objects)::node_type taken;
  {
    const std::lock_guard guard(all.mutex);
    taken = all.objects.extract(object);
  }
  const int error = call();
  if (taken.empty()) return error;
  const Type type = taken.mapped().type;
  const void* user_place = nullptr;
  std::string users;
  {
    const std::lock_guard guard(all.mutex);
    if (error == 0) {
      all.note_gone(object, type, place);
      return error;
    }
    all.objects.insert(std::move(taken));
    if (error == EBUSY) users = describe_users(all, object, &user_place);
  }
  if (users.empty()) return error;
  all.report({.kind = CheckKind::kDestroyOrder,
              .place = place,
              .other_place = user_place,
              .what = fmt::format("{} of a {} that is still used", verb, type_name(type)),
              .object = fmt::format("{} {}, used by {}", type_name(type), object, users),
              .other = "user made",
              .hardware = "refuses it with EBUSY, and the object stays",
              .remedy = "destroy what uses it before"});
  return error;
}

// --- domains, regions ---

ibv_pd* checked_alloc_pd(ibv_context* context) {
  return made(next().control.alloc_pd(context), Type::kDomain, {context});
}
int checked_dealloc_pd(ibv_pd* domain) {
  return destroyed(domain, "ibv_dealloc_pd", [&] { return next().control.dealloc_pd(domain); });
}

// Holds State::mutex.
void note_region(State& all, const ibv_mr& region) {
  const RegionEntry& own =
      as_context(region.context).rnic->own_regions()[region_index(region.lkey)];
  const uint64_t begin = own.address.load(std::memory_order_relaxed);
  RegionRecord record{.begin = begin,
                      .end = begin + own.length_bytes.load(std::memory_order_relaxed),
                      .lkey = region.lkey,
                      .access = own.access.load(std::memory_order_relaxed),
                      .released = {}};
  note_region_bounds(record.begin, record.end);
  all.regions[region.lkey] = std::move(record);
}

template <auto VerbsControl::*kRegister>
ibv_mr* checked_registration(ibv_pd* domain, void* address, size_t length_bytes, uint64_t iova,
                             unsigned access) {
  State& all = *state();
  take_releases_now(all);
  ibv_mr* region = made((next().control.*kRegister)(domain, address, length_bytes, iova, access),
                        Type::kRegion, {domain});
  if (region == nullptr) return nullptr;
  const std::lock_guard guard(all.mutex);
  note_region(all, *region);
  // soft0 forgets that memory may come and go.
  all.regions[region->lkey].access |= access & IBV_ACCESS_ON_DEMAND;
  return region;
}

template <typename Queue>
size_t count_uses(const Queue& queue, uint32_t lkey, const void** place) {
  size_t count = 0;
  for (const auto& work : queue) {
    const bool uses = std::any_of(work.pieces.begin(), work.pieces.end(),
                                  [lkey](const Piece& piece) { return piece.lkey == lkey; });
    if (!uses) continue;
    ++count;
    *place = work.place;
  }
  return count;
}

void check_unused(State& all, const ibv_mr* region, const char* verb, const void* place) {
  size_t sends = 0;
  size_t receives = 0;
  const void* posted = nullptr;
  std::string object;
  uint32_t lkey = 0;
  {
    const StateLock guard(all);
    take_releases(all);
    const auto known = all.objects.find(region);
    if (known == all.objects.end() || known->second.process != this_process()) return;
    lkey = region->lkey;
    for (const auto& [verbs, qp] : all.qps) {
      const ibv_qp_state state = as_qp(qp->verbs).state.load(std::memory_order_relaxed);
      if (qp->process != this_process() || state == IBV_QPS_RESET || state == IBV_QPS_ERR) continue;
      const size_t more = count_uses(qp->sends, lkey, &posted);
      // Of an unconnected queue pair nothing can arrive.
      const size_t more_receives =
          state != IBV_QPS_INIT ? count_uses(qp->receives, lkey, &posted) : 0;
      if (more + more_receives > 0) object = describe(*qp);
      sends += more;
      receives += more_receives;
    }
    for (const auto& [verbs, srq] : all.srqs) {
      if (srq->process == this_process() && srq->users > 0) {
        receives += count_uses(srq->receives, lkey, &posted);
      }
    }
  }
  if (sends + receives == 0) return;
  all.report({.kind = CheckKind::kDeregisteredInUse,
              .place = place,
              .other_place = posted,
              .what = fmt::format("{} of a region that {} sends and {} receives under way use",
                                  verb, sends, receives),
              .object = fmt::format("lkey {:#x}{}{}", lkey, object.empty() ? "" : ", ", object),
              .other = "posted",
              .hardware = "they fail with IBV_WC_LOC_PROT_ERR, and the queue pair with them, or "
                          "have been carried out by luck",
              .remedy = "poll the completions of what was sent, and destroy or reset queue pairs "
                        "with posted receives, before"});
}

int checked_dereg_mr(ibv_mr* region) {
  State& all = *state();
  check_unused(all, region, "ibv_dereg_mr", find_caller().place);
  decltype(State::regions)::node_type taken;
  {
    const std::lock_guard guard(all.mutex);
    if (all.objects.contains(region)) taken = all.regions.extract(region->lkey);
  }
  const int error =
      destroyed(region, "ibv_dereg_mr", [&] { return next().control.dereg_mr(region); });
  if (error != 0 && !taken.empty()) {
    const std::lock_guard guard(all.mutex);
    all.regions.insert(std::move(taken));
  }
  return error;
}

int checked_rereg_mr(ibv_mr* region, int flags, ibv_pd* domain, void* address, size_t length_bytes,
                     int access) {
  State& all = *state();
  const void* const place = find_caller().place;
  report_gone(all, region, "ibv_rereg_mr", place);
  check_unused(all, region, "ibv_rereg_mr", place);
  const int error = next().extended.rereg_mr(region, flags, domain, address, length_bytes, access);
  if (error != 0) return error;
  const std::lock_guard guard(all.mutex);
  note_region(all, *region);
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) all.objects[region].uses = {domain};
  return error;
}

ibv_mw* checked_alloc_mw(ibv_pd* domain, ibv_mw_type type) {
  return made(next_operations(domain->context).operations.alloc_mw(domain, type), Type::kWindow,
              {domain});
}
int checked_dealloc_mw(ibv_mw* window) {
  return destroyed(window, "ibv_dealloc_mw",
                   [&] { return next_operations(window->context).operations.dealloc_mw(window); });
}
ibv_dm* checked_alloc_dm(ibv_context* context, ibv_alloc_dm_attr* attributes) {
  return made(next().alloc_dm(context, attributes), Type::kDeviceMemory, {context});
}
int checked_free_dm(ibv_dm* memory) {
  return destroyed(memory, "ibv_free_dm", [&] { return next().free_dm(memory); });
}
ibv_mr* checked_reg_dm_mr(ibv_pd* domain, ibv_dm* memory, uint64_t offset, size_t length_bytes,
                          unsigned access) {
  return made(next().reg_dm_mr(domain, memory, offset, length_bytes, access), Type::kRegion,
              {domain, memory});
}
ibv_mr* checked_alloc_null_mr(ibv_pd* domain) {
  return made(next().alloc_null_mr(domain), Type::kRegion, {domain});
}
ibv_td* checked_alloc_td(ibv_context* context, ibv_td_init_attr* init) {
  return made(next().alloc_td(context, init), Type::kThreadDomain, {context});
}
int checked_dealloc_td(ibv_td* domain) {
  return destroyed(domain, "ibv_dealloc_td", [&] { return next().dealloc_td(domain); });
}
ibv_pd* checked_alloc_parent_domain(ibv_context* context, ibv_parent_domain_init_attr* init) {
  return made(next().alloc_parent_domain(context, init), Type::kDomain, {init->pd, init->td});
}
ibv_ah* checked_create_ah(ibv_pd* domain, ibv_ah_attr* attributes) {
  return made(next().datagrams.create_ah(domain, attributes), Type::kAddressHandle, {domain});
}
int checked_destroy_ah(ibv_ah* handle) {
  return destroyed(handle, "ibv_destroy_ah", [&] { return next().datagrams.destroy_ah(handle); });
}

// --- events ---

// A destruction waits until all events of the object are acknowledged: for ever, if nobody does.
// Another thread may be about to, so this waits a while before it complains.
template <typename AllAcknowledged>
void check_acknowledged(const char* verb, const char* remedy, AllAcknowledged&& acknowledged) {
  constexpr uint64_t kPatienceNs = 20'000'000'000;
  constexpr int kStepMs = 2;
  const uint64_t began_ns = machine_now_ns();
  while (!acknowledged()) {
    if (machine_now_ns() - began_ns < kPatienceNs) {
      poll(nullptr, 0, kStepMs);
      continue;
    }
    state()->report({.kind = CheckKind::kUnacknowledgedEvents,
                     .place = find_caller().place,
                     .what = fmt::format("{} waits for events that the program got and did not "
                                         "acknowledge",
                                         verb),
                     .hardware = "the same: it waits until they are, for ever if nobody does",
                     .remedy = remedy});
    return;
  }
}

bool is_live(const void* object) {
  State& all = *state();
  const std::lock_guard guard(all.mutex);
  const auto found = all.objects.find(object);
  return found != all.objects.end() && found->second.process == this_process();
}

constexpr const char* kAckAsync = "ibv_ack_async_event() for each ibv_get_async_event()";

// --- queues ---

ibv_comp_channel* checked_create_comp_channel(ibv_context* context) {
  return made(next().control.create_comp_channel(context), Type::kChannel, {context});
}
int checked_destroy_comp_channel(ibv_comp_channel* channel) {
  return destroyed(channel, "ibv_destroy_comp_channel",
                   [&] { return next().control.destroy_comp_channel(channel); });
}

ibv_cq* note_cq(ibv_cq* verbs) {
  if (verbs == nullptr) return verbs;
  State& all = *state();
  auto cq = std::make_shared<CqRecord>();
  cq->verbs = verbs;
  cq->process = this_process();
  cq->may_overrun = as_cq(verbs).ignores_overrun;
  const std::lock_guard guard(all.mutex);
  all.cqs[verbs] = std::move(cq);
  return verbs;
}

ibv_cq* checked_create_cq(ibv_context* context, int cqe, void* cq_context,
                          ibv_comp_channel* channel, int comp_vector) {
  return note_cq(made(next().control.create_cq(context, cqe, cq_context, channel, comp_vector),
                      Type::kCq, {context, channel}));
}

ibv_cq_ex* checked_create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init) {
  ibv_cq_ex* made_queue =
      made(next().create_cq_ex(context, init), Type::kCq, {context, init->channel});
  if (made_queue != nullptr) note_cq(ibv_cq_ex_to_cq(made_queue));
  return made_queue;
}

int checked_destroy_cq(ibv_cq* verbs) {
  if (is_live(verbs) && as_cq(verbs).users.load() == 0) {
    check_acknowledged("ibv_destroy_cq", "ibv_ack_cq_events() for each ibv_get_cq_event()",
                       [&] { return as_cq(verbs).completion_events.is_settled(); });
  }
  State& all = *state();
  const std::shared_ptr<CqRecord> cq = take_out<CqRecord, ibv_cq>(all, all.cqs, verbs);
  const int error =
      destroyed(verbs, "ibv_destroy_cq", [&] { return next().control.destroy_cq(verbs); });
  if (error != 0 && cq != nullptr) {
    const std::lock_guard guard(all.mutex);
    all.cqs[verbs] = cq;
  }
  return error;
}

ibv_srq* note_srq(ibv_srq* verbs) {
  if (verbs == nullptr) return verbs;
  State& all = *state();
  auto srq = std::make_shared<SrqRecord>();
  srq->verbs = verbs;
  srq->process = this_process();
  const std::lock_guard guard(all.mutex);
  all.srqs[verbs] = std::move(srq);
  return verbs;
}

ibv_srq* checked_create_srq(ibv_pd* domain, ibv_srq_init_attr* init) {
  return note_srq(made(next().control.create_srq(domain, init), Type::kSrq, {domain}));
}
ibv_srq* checked_create_srq_ex(ibv_context* context, ibv_srq_init_attr_ex* init) {
  ibv_srq* verbs = next().create_srq_ex(context, init);
  if (verbs == nullptr) return nullptr;
  const XrcQueue* xrc = as_srq(verbs).xrc.get();
  if (xrc == nullptr) return note_srq(made(verbs, Type::kSrq, {init->pd}));
  note_srq(made(verbs, Type::kSrq, {init->pd, init->cq, init->xrcd}));
  State& all = *state();
  const std::lock_guard guard(all.mutex);
  if (const auto cq = all.cqs.find(init->cq); cq != all.cqs.end()) {
    const auto srq = all.srqs.find(verbs);
    srq->second->cq = cq->second;
    srq->second->users = 1;
  }
  return verbs;
}

ibv_xrcd* checked_open_xrcd(ibv_context* context, ibv_xrcd_init_attr* init) {
  return made(next().open_xrcd(context, init), Type::kXrcDomain, {context});
}
int checked_close_xrcd(ibv_xrcd* domain) {
  return destroyed(domain, "ibv_close_xrcd", [&] { return next().close_xrcd(domain); });
}

int checked_destroy_srq(ibv_srq* verbs) {
  State& all = *state();
  if (is_live(verbs) && as_srq(verbs).users.load() == 0) {
    check_acknowledged("ibv_destroy_srq", kAckAsync,
                       [&] { return as_srq(verbs).events.is_settled(); });
  }
  const std::shared_ptr<SrqRecord> srq = take_out<SrqRecord, ibv_srq>(all, all.srqs, verbs);
  const int error =
      destroyed(verbs, "ibv_destroy_srq", [&] { return next().control.destroy_srq(verbs); });
  if (srq == nullptr) return error;
  const std::lock_guard guard(all.mutex);
  if (error != 0) {
    all.srqs[verbs] = srq;
    return error;
  }
  for (const ReceiveRecord& receive : srq->receives) {
    State::forget_pieces(all.receives, receive.pieces);
  }
  return error;
}

// --- queue pairs ---

ibv_qp* note_qp(ibv_qp* verbs) {
  if (verbs == nullptr) return verbs;
  State& all = *state();
  auto qp = std::make_shared<QpRecord>();
  qp->verbs = verbs;
  qp->number = verbs->qp_num;
  qp->type = verbs->qp_type;
  qp->all_signaled = as_qp(verbs).init.sq_sig_all != 0;
  qp->process = this_process();
  const std::lock_guard guard(all.mutex);
  const auto send_cq = all.cqs.find(verbs->send_cq);
  const auto recv_cq = all.cqs.find(verbs->recv_cq);
  // Made before anything was checked, or of XRC_RECV, which posts and completes nothing.
  const bool only_sends = verbs->qp_type == IBV_QPT_XRC_SEND;
  if (send_cq == all.cqs.end() || (!only_sends && recv_cq == all.cqs.end())) return verbs;
  qp->send_cq = send_cq->second;
  if (!only_sends) qp->recv_cq = recv_cq->second;
  if (const auto srq = all.srqs.find(verbs->srq); verbs->srq != nullptr && srq != all.srqs.end()) {
    qp->srq = srq->second;
    ++qp->srq->users;
  }
  all.qps_by_number[qp->number] = qp;
  all.qps[verbs] = std::move(qp);
  return verbs;
}

ibv_qp* checked_create_qp(ibv_pd* domain, ibv_qp_init_attr* init) {
  ibv_qp* verbs = next().control.create_qp(domain, init);
  if (verbs == nullptr) return nullptr;
  if (init->qp_type == IBV_QPT_XRC_SEND) {
    return note_qp(made(verbs, Type::kQp, {domain, init->send_cq}));
  }
  return note_qp(made(verbs, Type::kQp, {domain, init->send_cq, init->recv_cq, init->srq}));
}
// Of fields that are not said to be there, nothing is known.
std::vector<const void*> used_by(const ibv_qp_init_attr_ex& init) {
  if (init.qp_type == IBV_QPT_XRC_RECV) return {init.xrcd};
  if (init.qp_type == IBV_QPT_XRC_SEND) return {init.pd, init.send_cq};
  return {init.pd, init.send_cq, init.recv_cq, init.srq};
}

ibv_qp* checked_create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init) {
  ibv_qp* verbs = next().create_qp_ex(context, init);
  if (verbs == nullptr) return nullptr;
  return note_qp(made(verbs, Type::kQp, used_by(*init)));
}

int checked_modify_qp(ibv_qp* verbs, ibv_qp_attr* attributes, int mask) {
  State& all = *state();
  const std::shared_ptr<QpRecord> qp = all.find(all.qps, static_cast<const ibv_qp*>(verbs));
  if (qp == nullptr) report_gone(all, verbs, "ibv_modify_qp", find_caller().place);
  take_releases_now(all);
  const int error = next().control.modify_qp(verbs, attributes, mask);
  if (error != 0 || qp == nullptr || (mask & IBV_QP_STATE) == 0) return error;
  const std::lock_guard guard(all.mutex);
  qp->failed = false;  // the program knows
  if (attributes->qp_state == IBV_QPS_RESET) all.forget_work(*qp);
  return error;
}

// Waits for those who look into it.
void set_gone(QpRecord* qp, bool gone) {
  // In a child process, the thread that held the lock may be the parent's.
  if (qp == nullptr || qp->process != this_process()) return;
  const std::lock_guard guard(qp->use);
  qp->gone = gone;
}

int checked_destroy_qp(ibv_qp* verbs) {
  State& all = *state();
  take_releases_now(all);
  if (is_live(verbs)) {
    check_acknowledged("ibv_destroy_qp", kAckAsync,
                       [&] { return as_qp(verbs).events.is_settled(); });
  }
  const std::shared_ptr<QpRecord> qp = take_out<QpRecord, ibv_qp>(all, all.qps, verbs);
  set_gone(qp.get(), true);
  const int error =
      destroyed(verbs, "ibv_destroy_qp", [&] { return next().control.destroy_qp(verbs); });
  if (qp == nullptr) return error;
  if (error != 0) set_gone(qp.get(), false);
  const std::lock_guard guard(all.mutex);
  if (error != 0) {
    all.qps[verbs] = qp;
    return error;
  }
  all.forget_work(*qp);
  if (qp->srq != nullptr) --qp->srq->users;
  const auto numbered = all.qps_by_number.find(qp->number);
  if (numbered != all.qps_by_number.end() && numbered->second == qp) {
    all.qps_by_number.erase(numbered);
  }
  return error;
}

// --- contexts ---

ibv_context* checked_open_device(ibv_device* device) {
  return made(next().rnic.open_device(device), Type::kContext, {});
}
int checked_close_device(ibv_context* context) {
  return destroyed(context, "ibv_close_device", [&] { return next().rnic.close_device(context); });
}

}  // namespace

void replace_objects(verbs_context& verbs) {
  verbs.create_qp_ex = checked_create_qp_ex;
  verbs.create_cq_ex = checked_create_cq_ex;
  verbs.create_srq_ex = checked_create_srq_ex;
  verbs.open_xrcd = checked_open_xrcd;
  verbs.close_xrcd = checked_close_xrcd;
  verbs.alloc_parent_domain = checked_alloc_parent_domain;
  verbs.alloc_td = checked_alloc_td;
  verbs.dealloc_td = checked_dealloc_td;
  verbs.alloc_dm = checked_alloc_dm;
  verbs.free_dm = checked_free_dm;
  verbs.reg_dm_mr = checked_reg_dm_mr;
  verbs.alloc_null_mr = checked_alloc_null_mr;
  verbs.context.ops.alloc_mw = checked_alloc_mw;
  verbs.context.ops.dealloc_mw = checked_dealloc_mw;
}

void replace_control(SoftRnic& rnic) {
  static VerbsControl control = next().control;
  control.alloc_pd = checked_alloc_pd;
  control.dealloc_pd = checked_dealloc_pd;
  control.reg_mr = checked_registration<&VerbsControl::reg_mr>;
  control.reg_mr_in_place = checked_registration<&VerbsControl::reg_mr_in_place>;
  control.reg_mr_unasked = checked_registration<&VerbsControl::reg_mr_unasked>;
  control.dereg_mr = checked_dereg_mr;
  control.create_comp_channel = checked_create_comp_channel;
  control.destroy_comp_channel = checked_destroy_comp_channel;
  control.create_cq = checked_create_cq;
  control.destroy_cq = checked_destroy_cq;
  control.get_cq_event = get_cq_event;
  control.create_srq = checked_create_srq;
  control.destroy_srq = checked_destroy_srq;
  control.create_qp = checked_create_qp;
  control.modify_qp = checked_modify_qp;
  control.destroy_qp = checked_destroy_qp;
  control.create_ah = checked_create_ah;
  control.destroy_ah = checked_destroy_ah;
  static ExtendedControl extended = next().extended;
  extended.rereg_mr = checked_rereg_mr;
  static DatagramVerbs datagrams = next().datagrams;
  datagrams.create_ah = checked_create_ah;
  datagrams.destroy_ah = checked_destroy_ah;
  rnic.control = &control;
  rnic.extended = &extended;
  rnic.datagrams = &datagrams;
  rnic.open_device = checked_open_device;
  rnic.close_device = checked_close_device;
  rnic.pages_released = pages_released;
}

}  // namespace verbena::soft::check
