#include "tests/soft_model/objects.h"

#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft_library.h"

namespace verbena::soft_model {
namespace {

constexpr unsigned kAllRights = test::kAllAccess | IBV_ACCESS_MW_BIND;

const soft::SoftRnic& rnic() { return *test::must(load_soft_rnic()); }

void check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s: errno %d, %s\n", what, errno, rnic().control->last_error());
  std::abort();
}

// A stopped peer may be in the middle of an access.
template <typename Call>
void until_not_busy(Call&& call, const char* what) {
  int error;
  while ((error = call()) == EBUSY) sched_yield();
  check(error == 0, what);
}

}  // namespace

Objects::Objects(const Life& life, uint32_t member)
    : life_(life), member_(member), ends_(life.ends.size()) {
  void* pages = mmap(nullptr, life.members[member].arena_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(pages != MAP_FAILED, "mmap");
  arena_ = static_cast<std::byte*>(pages);
  make_queues();
  ibv_port_attr port{};
  check(node_.control().query_port(node_.device.get(), 1, &port) == 0, "query_port");
  lid_ = port.lid;
  ibv_ah_attr address{};
  address.port_num = 1;
  address.dlid = lid_;
  handle_ = rnic().datagrams->create_ah(node_.domain.get(), &address);
  check(handle_ != nullptr, "create_ah");
  word_ = register_bytes(kWordAt, sizeof(uint64_t), test::kAllAccess);
  shared_receives_ =
      register_bytes(life.members[member].shared_receives, uint64_t{kSharedDepth} * life.slot_bytes,
                     IBV_ACCESS_LOCAL_WRITE);
  for (uint32_t i = 0; i < ends_.size(); ++i) {
    if (is_own(i)) make_end(i);
  }
}

Objects::~Objects() {
  const VerbsControl& control = node_.control();
  for (EndObjects& end : ends_) {
    if (end.qp == nullptr) continue;
    until_not_busy([&] { return control.destroy_qp(end.qp); }, "destroy_qp");
    if (end.window != nullptr) {
      until_not_busy([&] { return ibv_dealloc_mw(end.window); }, "dealloc_mw");
    }
    for (ibv_mr* region : {end.source, end.landing, end.tickets, end.receives, end.target,
                           end.read_only, end.write_only}) {
      deregister(region);
    }
  }
  deregister(word_);
  deregister(shared_receives_);
  check(rnic().datagrams->destroy_ah(handle_) == 0, "destroy_ah");
  check(control.destroy_srq(srq_) == 0, "destroy_srq");
  for (ibv_cq* cq : cqs_) check(control.destroy_cq(cq) == 0, "destroy_cq");
  if (channel_ != nullptr) check(control.destroy_comp_channel(channel_) == 0, "destroy_channel");
  munmap(arena_, life_.members[member_].arena_bytes);
}

void Objects::make_queues() {
  const MemberPlan& plan = life_.members[member_];
  const VerbsControl& control = node_.control();
  if (plan.sleeps) {
    channel_ = control.create_comp_channel(node_.device.get());
    check(channel_ != nullptr, "create_comp_channel");
  }
  uint32_t depth = 16;
  for (const EndPlan& end : life_.ends) depth += end.send_depth;
  for (const bool extended : plan.extended_cqs) {
    ibv_cq_init_attr_ex init{};
    init.cqe = depth;
    init.channel = channel_;
    init.wc_flags = IBV_WC_STANDARD_FLAGS & ~uint64_t{IBV_WC_EX_WITH_DLID_PATH_BITS};
    cqs_.push_back(extended ? ibv_cq_ex_to_cq(ibv_create_cq_ex(node_.device.get(), &init))
                            : control.create_cq(node_.device.get(), static_cast<int>(depth),
                                                nullptr, channel_, 0));
    check(cqs_.back() != nullptr, "create_cq");
  }
  ibv_srq_init_attr shared{};
  shared.attr = {.max_wr = kSharedDepth, .max_sge = kMaxPieces, .srq_limit = 0};
  srq_ = control.create_srq(node_.domain.get(), &shared);
  check(srq_ != nullptr, "create_srq");
}

void Objects::make_end(uint32_t index) {
  const EndPlan& plan = life_.ends[index];
  EndObjects& end = ends_[index];
  ibv_qp_init_attr_ex init{};
  init.qp_type = plan.type;
  init.send_cq = cqs_[plan.send_cq];
  init.recv_cq = cqs_[plan.recv_cq];
  init.srq = plan.shared_receives ? srq_ : nullptr;
  init.sq_sig_all = plan.signal_all ? 1 : 0;
  init.cap = {.max_send_wr = plan.send_depth,
              .max_recv_wr = plan.shared_receives ? 0 : life_.receive_depth,
              .max_send_sge = kMaxPieces,
              .max_recv_sge = plan.shared_receives ? 0 : kMaxPieces,
              .max_inline_data = plan.max_inline_bytes};
  if (plan.extended) {
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = node_.domain.get();
    init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    if (plan.type != IBV_QPT_UD) {
      init.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    }
    if (plan.type == IBV_QPT_RC) {
      init.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                             IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV |
                             IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
                             soft::kAtomicWriteOperation;
    }
    end.qp = ibv_create_qp_ex(node_.device.get(), &init);
    end.batch = reinterpret_cast<ibv_qp_ex*>(end.qp);  // its first member is the queue pair
  } else {
    end.qp =
        node_.control().create_qp(node_.domain.get(), reinterpret_cast<ibv_qp_init_attr*>(&init));
  }
  check(end.qp != nullptr, "create_qp");
  const Places& places = plan.places;
  // A source that nobody may write to is read by another way.
  end.source = register_bytes(places.source, life_.area_bytes,
                              index % 2 == 0 ? 0u : unsigned{IBV_ACCESS_LOCAL_WRITE});
  end.landing = register_bytes(places.landing, life_.area_bytes, IBV_ACCESS_LOCAL_WRITE);
  end.tickets = register_bytes(places.tickets, kTickets * sizeof(uint64_t), IBV_ACCESS_LOCAL_WRITE);
  end.receives = register_bytes(places.receives, uint64_t{life_.receive_depth} * life_.slot_bytes,
                                IBV_ACCESS_LOCAL_WRITE);
  end.read_only = register_bytes(places.target, life_.area_bytes, IBV_ACCESS_REMOTE_READ);
  end.write_only = register_bytes(places.target, life_.area_bytes,
                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  register_target(index);
  ibv_mr* gone = register_bytes(places.target, life_.area_bytes, kAllRights);
  end.gone_key = gone->rkey;
  deregister(gone);
  if (plan.type == IBV_QPT_RC) {
    end.window = ibv_alloc_mw(node_.domain.get(), IBV_MW_TYPE_2);
    check(end.window != nullptr, "alloc_mw");
    end.window_key = end.window->rkey;
  }
}

ibv_mr* Objects::register_bytes(uint64_t offset, uint64_t length_bytes, unsigned access) {
  std::byte* at = arena_ + offset;
  ibv_mr* region = node_.control().reg_mr(node_.domain.get(), at, length_bytes,
                                          reinterpret_cast<uint64_t>(at), access);
  check(region != nullptr, "reg_mr");
  return region;
}

void Objects::deregister(ibv_mr* region) {
  until_not_busy([&] { return node_.control().dereg_mr(region); }, "dereg_mr");
}

void Objects::register_target(uint32_t end) {
  ibv_mr*& target = ends_[end].target;
  if (target != nullptr) deregister(target);
  target = register_bytes(life_.ends[end].places.target, life_.area_bytes, kAllRights);
}

void Objects::describe(Notice& notice) const {
  notice.arena = reinterpret_cast<uint64_t>(arena_);
  for (uint32_t i = 0; i < ends_.size(); ++i) {
    if (!is_own(i)) continue;
    const EndObjects& end = ends_[i];
    notice.ends[i].number = end.qp->qp_num;
    uint32_t* keys = notice.ends[i].keys;
    keys[static_cast<int>(Key::kTarget)] = end.target->rkey;
    keys[static_cast<int>(Key::kWindow)] = end.window_key;
    keys[static_cast<int>(Key::kReadOnly)] = end.read_only->rkey;
    keys[static_cast<int>(Key::kWriteOnly)] = end.write_only->rkey;
    keys[static_cast<int>(Key::kGone)] = end.gone_key;
    keys[static_cast<int>(Key::kWord)] = word_->rkey;
  }
}

uint32_t Objects::local_key(uint32_t index, const Piece& piece) const {
  const Places& places = life_.ends[index].places;
  const EndObjects& end = ends_[index];
  if (piece.offset >= places.receives) return end.receives->lkey;
  if (piece.offset >= places.tickets) return end.tickets->lkey;
  return piece.offset >= places.landing ? end.landing->lkey : end.source->lkey;
}

// ---- states ----

void Objects::modify(ibv_qp* qp, ibv_qp_attr attributes, int mask) {
  until_not_busy([&] { return node_.control().modify_qp(qp, &attributes, mask | IBV_QP_STATE); },
                 "modify_qp");
}

void Objects::connect(uint32_t end, uint32_t peer_number) {
  const EndPlan& plan = life_.ends[end];
  ibv_qp* qp = ends_[end].qp;
  const bool is_reliable = plan.type == IBV_QPT_RC;
  const bool is_datagram = plan.type == IBV_QPT_UD;
  ibv_qp_attr attributes{};
  attributes.port_num = 1;
  attributes.qkey = kQkey;
  attributes.qp_access_flags = is_reliable ? test::kAllAccess : unsigned{IBV_ACCESS_REMOTE_WRITE};
  attributes.path_mtu = IBV_MTU_4096;
  attributes.dest_qp_num = peer_number;
  attributes.max_dest_rd_atomic = attributes.max_rd_atomic = 16;
  attributes.min_rnr_timer = 1;
  attributes.rnr_retry = attributes.retry_cnt = 7;  // without end
  attributes.timeout = 0;                           // the same
  attributes.ah_attr.dlid = lid_;
  attributes.ah_attr.port_num = 1;
  attributes.qp_state = IBV_QPS_INIT;
  modify(qp, attributes,
         IBV_QP_PKEY_INDEX | IBV_QP_PORT | (is_datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  attributes.qp_state = IBV_QPS_RTR;
  modify(qp, attributes,
         (is_datagram ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN) |
             (is_reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0));
  attributes.qp_state = IBV_QPS_RTS;
  modify(qp, attributes,
         IBV_QP_SQ_PSN | (is_reliable ? IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RNR_RETRY |
                                            IBV_QP_RETRY_CNT | IBV_QP_TIMEOUT
                                      : 0));
}

void Objects::to_state(ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr attributes{};
  attributes.qp_state = state;
  modify(qp, attributes, 0);
}

void Objects::to_error(uint32_t end) { to_state(ends_[end].qp, IBV_QPS_ERR); }

void Objects::reset(uint32_t index) {
  EndObjects& end = ends_[index];
  to_state(end.qp, IBV_QPS_RESET);
  until_not_busy([&] { return ibv_dealloc_mw(end.window); }, "dealloc_mw");
  end.window = ibv_alloc_mw(node_.domain.get(), IBV_MW_TYPE_2);
  check(end.window != nullptr, "alloc_mw");
  end.window_key = end.window->rkey;
}

}  // namespace verbena::soft_model
