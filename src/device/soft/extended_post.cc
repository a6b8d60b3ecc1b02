// Queue pairs with ibv_wr_start(): requests are built in place (send_batch.h) and posted as a list.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/layers/layers.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/refusal.h"

namespace verbena::soft {
namespace {

constexpr uint64_t kOperations =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
    IBV_QP_EX_WITH_SEND_WITH_INV | kAtomicWriteOperation;
constexpr uint64_t kDatagramOperations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
constexpr uint64_t kUnreliableOperations =
    kDatagramOperations | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
constexpr uint32_t kInitFields = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
                                 IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

uint64_t operations_of(ibv_qp_type type) {
  if (type == IBV_QPT_UD) return kDatagramOperations;
  if (type == IBV_QPT_RAW_PACKET) return IBV_QP_EX_WITH_SEND;
  if (type == IBV_QPT_XRC_RECV) return 0;
  return type == IBV_QPT_UC ? kUnreliableOperations : kOperations;
}

SendBatch& batch_of(ibv_qp_ex* qp) { return *as_qp(&qp->qp_base).batch; }

void wr_start(ibv_qp_ex* qp) { batch_of(qp).start(); }

int wr_complete(ibv_qp_ex* verbs) {
  Qp& qp = as_qp(&verbs->qp_base);
  SendBatch& batch = *qp.batch;
  if (!batch.started()) [[unlikely]]
    return EINVAL;
  int error = batch.error();
  if (error == 0) [[likely]]
    error = post_batch(qp, batch.requests(), batch.count());
  batch.end();
  if (error != 0) [[unlikely]]
    log_refused_batch(qp, error);
  return error;
}

void wr_abort(ibv_qp_ex* qp) {
  if (batch_of(qp).started()) batch_of(qp).end();
}

void wr_rdma(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint64_t operation, uint32_t rkey,
             uint64_t address) {
  ibv_send_wr& wr = batch_of(qp).begin(*qp, opcode, operation);
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
}
void wr_rdma_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  wr_rdma(qp, IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE, rkey, address);
}
void wr_rdma_read(ibv_qp_ex* qp, uint32_t rkey, uint64_t address) {
  wr_rdma(qp, IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ, rkey, address);
}
void wr_rdma_write_imm(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, __be32 immediate) {
  ibv_send_wr& wr =
      batch_of(qp).begin(*qp, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
  wr.imm_data = immediate;
  wr.wr.rdma.remote_addr = address;
  wr.wr.rdma.rkey = rkey;
}

void wr_atomic(ibv_qp_ex* qp, ibv_wr_opcode opcode, uint64_t operation, uint32_t rkey,
               uint64_t address, uint64_t compare_add, uint64_t swap) {
  ibv_send_wr& wr = batch_of(qp).begin(*qp, opcode, operation);
  wr.wr.atomic = {.remote_addr = address, .compare_add = compare_add, .swap = swap, .rkey = rkey};
}
void wr_atomic_cmp_swp(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t compare,
                       uint64_t swap) {
  wr_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, rkey, address,
            compare, swap);
}
void wr_atomic_fetch_add(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, uint64_t add) {
  wr_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, rkey, address,
            add, 0);
}

void wr_atomic_write(ibv_qp_ex* qp, uint32_t rkey, uint64_t address, const void* value) {
  uint64_t word = 0;
  std::memcpy(&word, value, sizeof(word));
  make_atomic_write(batch_of(qp).begin(*qp, kAtomicWrite, kAtomicWriteOperation), rkey, address,
                    word);
}

template <typename Extended>
void set_atomic_write(Extended& verbs, void (*call)(ibv_qp_ex*, uint32_t, uint64_t, const void*)) {
  if constexpr (HasAtomicWrite<Extended>) verbs.wr_atomic_write = call;
}

// Until ibv_wr_set_ud_addr(), a datagram has no address, and not the one of a former request.
void wr_send(ibv_qp_ex* qp) {
  batch_of(qp).begin(*qp, IBV_WR_SEND, IBV_QP_EX_WITH_SEND).wr.ud.ah = nullptr;
}
void wr_send_imm(ibv_qp_ex* qp, __be32 immediate) {
  ibv_send_wr& wr = batch_of(qp).begin(*qp, IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM);
  wr.imm_data = immediate;
  wr.wr.ud.ah = nullptr;
}
void wr_send_inv(ibv_qp_ex* qp, uint32_t rkey) {
  batch_of(qp).begin(*qp, IBV_WR_SEND_WITH_INV, IBV_QP_EX_WITH_SEND_WITH_INV).invalidate_rkey =
      rkey;
}
void wr_local_inv(ibv_qp_ex* qp, uint32_t rkey) {
  batch_of(qp).begin(*qp, IBV_WR_LOCAL_INV, IBV_QP_EX_WITH_LOCAL_INV).invalidate_rkey = rkey;
}
void wr_bind_mw(ibv_qp_ex* qp, ibv_mw* window, uint32_t rkey, const ibv_mw_bind_info* info) {
  ibv_send_wr& wr = batch_of(qp).begin(*qp, IBV_WR_BIND_MW, IBV_QP_EX_WITH_BIND_MW);
  wr.bind_mw.mw = window;
  wr.bind_mw.rkey = rkey;
  wr.bind_mw.bind_info = *info;
}
// Nobody can ask for this operation when the queue pair is made.
void wr_send_tso(ibv_qp_ex* qp, void*, uint16_t, uint16_t) { batch_of(qp).set_error(EOPNOTSUPP); }

void wr_set_xrc_srqn(ibv_qp_ex* qp, uint32_t number) {
  if (as_qp(&qp->qp_base).transport != Transport::kXrcSend) return batch_of(qp).set_error(EINVAL);
  ibv_send_wr* wr = batch_of(qp).current();
  if (wr != nullptr) wr->qp_type.xrc.remote_srqn = number;
}

void wr_set_ud_addr(ibv_qp_ex* qp, ibv_ah* handle, uint32_t number, uint32_t key) {
  ibv_send_wr* wr = batch_of(qp).current();
  if (wr == nullptr) return;
  wr->wr.ud = {.ah = handle, .remote_qpn = number, .remote_qkey = key};
}

void wr_set_sge(ibv_qp_ex* qp, uint32_t lkey, uint64_t address, uint32_t length_bytes) {
  batch_of(qp).set_sge({.addr = address, .length = length_bytes, .lkey = lkey});
}
void wr_set_sge_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
  batch_of(qp).set_sges(count, list);
}
void wr_set_inline_data(ibv_qp_ex* qp, void* address, size_t length_bytes) {
  const ibv_data_buf buffer{.addr = address, .length = length_bytes};
  batch_of(qp).set_inline_data(1, &buffer);
}
void wr_set_inline_data_list(ibv_qp_ex* qp, size_t count, const ibv_data_buf* list) {
  batch_of(qp).set_inline_data(count, list);
}

void add_batches(Qp& qp, uint64_t operations) {
  const ibv_qp_cap& cap = qp.init.cap;
  qp.batch = std::make_unique<SendBatch>(qp.send_depth, std::max(cap.max_send_sge, 1u),
                                         cap.max_inline_data, operations);
  ibv_qp_ex& verbs = qp.extended;
  verbs.wr_atomic_cmp_swp = wr_atomic_cmp_swp;
  verbs.wr_atomic_fetch_add = wr_atomic_fetch_add;
  set_atomic_write(verbs, wr_atomic_write);
  verbs.wr_bind_mw = wr_bind_mw;
  verbs.wr_local_inv = wr_local_inv;
  verbs.wr_rdma_read = wr_rdma_read;
  verbs.wr_rdma_write = wr_rdma_write;
  verbs.wr_rdma_write_imm = wr_rdma_write_imm;
  verbs.wr_send = wr_send;
  verbs.wr_send_imm = wr_send_imm;
  verbs.wr_send_inv = wr_send_inv;
  verbs.wr_send_tso = wr_send_tso;
  verbs.wr_set_ud_addr = wr_set_ud_addr;
  verbs.wr_set_xrc_srqn = wr_set_xrc_srqn;
  verbs.wr_set_inline_data = wr_set_inline_data;
  verbs.wr_set_inline_data_list = wr_set_inline_data_list;
  verbs.wr_set_sge = wr_set_sge;
  verbs.wr_set_sge_list = wr_set_sge_list;
  verbs.wr_start = wr_start;
  verbs.wr_complete = wr_complete;
  verbs.wr_abort = wr_abort;
  add_layers(verbs);
}

}  // namespace

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* init) {
  if (check_valid_context(context) != 0) return nullptr;
  const auto refuse = [](int error, const std::string& message) {
    fail(error, message);
    return static_cast<ibv_qp*>(nullptr);
  };
  if ((init->comp_mask & ~kInitFields) != 0) {
    return refuse(EOPNOTSUPP, fmt::format("soft0: extended queue pairs with the fields {:#x} "
                                          "(comp_mask); it has {:#x}",
                                          init->comp_mask, kInitFields));
  }
  const bool receives_by_xrc = init->qp_type == IBV_QPT_XRC_RECV;
  if (receives_by_xrc) {
    if ((init->comp_mask & IBV_QP_INIT_ATTR_XRCD) == 0 || init->xrcd == nullptr) {
      return refuse(EINVAL, "soft0: a queue pair of type XRC_RECV needs its XRC domain");
    }
  } else if ((init->comp_mask & IBV_QP_INIT_ATTR_PD) == 0 || init->pd == nullptr) {
    return refuse(EINVAL, "soft0: an extended queue pair needs its protection domain");
  } else if (init->pd->context != context) {
    return refuse(EINVAL, "soft0: the queue pair's domain is of another context");
  }
  if ((init->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) != 0 && init->create_flags != 0) {
    return refuse(EOPNOTSUPP, fmt::format("soft0: has no queue pairs with the flags {:#x} "
                                          "(create_flags)",
                                          init->create_flags));
  }
  const bool batches = (init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  const uint64_t operations = operations_of(init->qp_type);
  if (batches && (init->send_ops_flags & ~operations) != 0) {
    return refuse(EOPNOTSUPP,
                  fmt::format("soft0: has no operations {:#x} (send_ops_flags) of queue pairs of "
                              "type {}; it has {:#x}",
                              init->send_ops_flags & ~operations, static_cast<int>(init->qp_type),
                              operations));
  }
  ibv_qp_init_attr basic{.qp_context = init->qp_context,
                         .send_cq = init->send_cq,
                         .recv_cq = init->recv_cq,
                         .srq = init->srq,
                         .cap = init->cap,
                         .qp_type = init->qp_type,
                         .sq_sig_all = init->sq_sig_all};
  // Inline data takes the place of one.
  if (batches) basic.cap.max_send_sge = std::max(basic.cap.max_send_sge, 1u);
  ibv_qp* verbs = receives_by_xrc ? create_xrc_receiver(context, init->xrcd, &basic)
                                  : create_qp(init->pd, &basic);
  if (verbs == nullptr) return nullptr;
  init->cap = basic.cap;
  if (receives_by_xrc && (init->comp_mask & IBV_QP_INIT_ATTR_PD) != 0) {
    // As libibverbs does; it may be closed before the queue pair.
    verbs->pd = init->pd;
    as_qp(verbs).shown_domain = init->pd;
  }
  if (batches) add_batches(as_qp(verbs), init->send_ops_flags);
  return verbs;
}

ibv_qp_ex* qp_to_qp_ex(ibv_qp* verbs) {
  if (check_valid<Qp>(verbs) != 0) return nullptr;
  Qp& qp = as_qp(verbs);
  return qp.batch != nullptr ? &qp.extended : nullptr;
}

namespace {

template <typename... Args>
constexpr auto kNothing = [](ibv_qp_ex*, Args...) {};

}  // namespace

void refuse_batches(ibv_qp_ex& shell) {
  shell.wr_atomic_cmp_swp = kNothing<uint32_t, uint64_t, uint64_t, uint64_t>;
  shell.wr_atomic_fetch_add = kNothing<uint32_t, uint64_t, uint64_t>;
  set_atomic_write(shell, kNothing<uint32_t, uint64_t, const void*>);
  shell.wr_bind_mw = kNothing<ibv_mw*, uint32_t, const ibv_mw_bind_info*>;
  shell.wr_local_inv = kNothing<uint32_t>;
  shell.wr_rdma_read = kNothing<uint32_t, uint64_t>;
  shell.wr_rdma_write = kNothing<uint32_t, uint64_t>;
  shell.wr_rdma_write_imm = kNothing<uint32_t, uint64_t, __be32>;
  shell.wr_send = kNothing<>;
  shell.wr_send_imm = kNothing<__be32>;
  shell.wr_send_inv = kNothing<uint32_t>;
  shell.wr_send_tso = kNothing<void*, uint16_t, uint16_t>;
  shell.wr_set_ud_addr = kNothing<ibv_ah*, uint32_t, uint32_t>;
  shell.wr_set_xrc_srqn = kNothing<uint32_t>;
  shell.wr_set_inline_data = kNothing<void*, size_t>;
  shell.wr_set_inline_data_list = kNothing<size_t, const ibv_data_buf*>;
  shell.wr_set_sge = kNothing<uint32_t, uint64_t, uint32_t>;
  shell.wr_set_sge_list = kNothing<size_t, const ibv_sge*>;
  shell.wr_start = kNothing<>;
  shell.wr_complete = [](ibv_qp_ex*) { return EINVAL; };
  shell.wr_abort = kNothing<>;
}

}  // namespace verbena::soft
