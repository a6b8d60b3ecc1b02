#include "tests/soft_model/posting.h"

#include <array>
#include <vector>

#include "src/device/soft/atomic_write.h"

namespace verbena::soft_model {
namespace {

constexpr size_t kMostAtOnce = 4;
constexpr uint32_t kNoKey = 0xabcdef00;

uint64_t address_of(const Objects& objects, uint64_t offset) {
  return reinterpret_cast<uint64_t>(objects.arena()) + offset;
}

// A request with its gather list, as ibv_post_send() takes it.
struct Built {
  ibv_send_wr wr = {};
  std::vector<ibv_sge> sges = {};
};

void build(const Life& life, const Objects& objects, const Notices& notices, uint32_t end,
           const Request& request, uint64_t id, Built& built) {
  const EndPlan& plan = life.ends[end];
  for (const Piece& piece : request.pieces) {
    const uint32_t key = request.wrong_lkey ? kNoKey : objects.local_key(end, piece);
    built.sges.push_back({address_of(objects, piece.offset), piece.length_bytes, key});
  }
  ibv_send_wr& wr = built.wr;
  wr.wr_id = id;
  wr.sg_list = built.sges.data();
  wr.num_sge = static_cast<int>(built.sges.size());
  wr.opcode = request.opcode;
  wr.send_flags = request.flags;
  wr.imm_data = request.immediate;
  if (plan.type == IBV_QPT_UD) {
    wr.wr.ud.ah = objects.handle();
    wr.wr.ud.remote_qpn = notices[life.ends[request.to].member].ends[request.to].number;
    wr.wr.ud.remote_qkey = request.wrong_qkey ? kQkey + 1 : kQkey;
    return;
  }
  const Notice& peer = notices[life.ends[plan.peer].member];
  const uint64_t remote = peer.arena + request.remote;
  const uint32_t* keys = peer.ends[plan.peer].keys;
  const uint32_t key = keys[static_cast<int>(request.key)];
  if (request.opcode == IBV_WR_SEND_WITH_INV) {
    wr.invalidate_rkey = keys[static_cast<int>(Key::kWindow)];
  } else if (request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
             request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
             request.opcode == soft::kAtomicWrite) {
    wr.wr.atomic = {.remote_addr = remote,
                    .compare_add = request.compare_add,
                    .swap = request.swap,
                    .rkey = key};
  } else {
    wr.wr.rdma = {.remote_addr = remote, .rkey = key};
  }
}

template <typename Extended>
void write_atomically(Extended* batch, const ibv_send_wr& wr) {
  if constexpr (soft::HasAtomicWrite<Extended>) {
    batch->wr_atomic_write(batch, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr,
                           &wr.wr.atomic.compare_add);
  }
}

void call_opcode(ibv_qp_ex* batch, const ibv_send_wr& wr) {
  switch (wr.opcode) {
    case IBV_WR_SEND:
      return ibv_wr_send(batch);
    case IBV_WR_SEND_WITH_IMM:
      return ibv_wr_send_imm(batch, wr.imm_data);
    case IBV_WR_SEND_WITH_INV:
      return ibv_wr_send_inv(batch, wr.invalidate_rkey);
    case IBV_WR_RDMA_WRITE:
      return ibv_wr_rdma_write(batch, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return ibv_wr_rdma_write_imm(batch, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr, wr.imm_data);
    case IBV_WR_RDMA_READ:
      return ibv_wr_rdma_read(batch, wr.wr.rdma.rkey, wr.wr.rdma.remote_addr);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return ibv_wr_atomic_cmp_swp(batch, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr,
                                   wr.wr.atomic.compare_add, wr.wr.atomic.swap);
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return ibv_wr_atomic_fetch_add(batch, wr.wr.atomic.rkey, wr.wr.atomic.remote_addr,
                                     wr.wr.atomic.compare_add);
    case IBV_WR_LOCAL_INV:
      return ibv_wr_local_inv(batch, wr.invalidate_rkey);
    case IBV_WR_BIND_MW:
      return ibv_wr_bind_mw(batch, wr.bind_mw.mw, wr.bind_mw.rkey, &wr.bind_mw.bind_info);
    default:
      return write_atomically(batch, wr);
  }
}

void add_to_batch(ibv_qp_ex* batch, const ibv_send_wr& wr) {
  batch->wr_id = wr.wr_id;
  batch->wr_flags = wr.send_flags & ~unsigned{IBV_SEND_INLINE};
  call_opcode(batch, wr);
  const auto count = static_cast<size_t>(wr.num_sge);
  if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
    std::array<ibv_data_buf, kMaxPieces> buffers;
    for (size_t i = 0; i < count; ++i) {
      buffers[i] = {reinterpret_cast<void*>(wr.sg_list[i].addr), wr.sg_list[i].length};
    }
    ibv_wr_set_inline_data_list(batch, count, buffers.data());
  } else if (wr.opcode != soft::kAtomicWrite && wr.opcode != IBV_WR_LOCAL_INV &&
             wr.opcode != IBV_WR_BIND_MW) {
    ibv_wr_set_sge_list(batch, count, wr.sg_list);
  }
  if (batch->qp_base.qp_type == IBV_QPT_UD) {
    ibv_wr_set_ud_addr(batch, wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey);
  }
}

// Of a list of requests: how many are taken.
size_t post_list(EndObjects& end, ibv_send_wr* first, size_t count) {
  if (end.batch != nullptr) {
    ibv_wr_start(end.batch);
    for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) add_to_batch(end.batch, *wr);
    const int error = ibv_wr_complete(end.batch);
    if (error != 0 && error != ENOMEM) test::must(Status(StatusCode::kInternal, "ibv_wr_complete"));
    return error == 0 ? count : 0;
  }
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(end.qp, first, &bad);
  if (error == 0) return count;
  if (error != ENOMEM) test::must(Status(StatusCode::kInternal, "ibv_post_send"));
  size_t taken = 0;
  for (ibv_send_wr* wr = first; wr != bad; wr = wr->next) ++taken;
  return taken;
}

}  // namespace

size_t post_requests(const Life& life, Objects& objects, const Notices& notices, uint32_t end,
                     const Request* requests, size_t count, uint64_t id) {
  std::array<Built, kMostAtOnce> built;
  if (count > kMostAtOnce) count = kMostAtOnce;
  for (size_t i = 0; i < count; ++i) {
    build(life, objects, notices, end, requests[i], id + i, built[i]);
    if (i > 0) built[i - 1].wr.next = &built[i].wr;
  }
  return post_list(objects.end(end), &built[0].wr, count);
}

int post_receive(Objects& objects, uint32_t end, const Receive& receive, uint64_t id) {
  const ibv_mr* region = end == kNobody ? objects.shared_receives() : objects.end(end).receives;
  std::vector<ibv_sge> sges;
  for (const Piece& piece : receive.pieces) {
    sges.push_back({address_of(objects, piece.offset), piece.length_bytes, region->lkey});
  }
  return end == kNobody ? test::post_receive(objects.srq(), id, sges)
                        : test::post_receive(objects.end(end).qp, id, sges);
}

bool post_invalidate(Objects& objects, uint32_t end, uint64_t id) {
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.opcode = IBV_WR_LOCAL_INV;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.invalidate_rkey = objects.end(end).window_key;
  return post_list(objects.end(end), &wr, 1) == 1;
}

bool post_bind(const Life& life, Objects& objects, uint32_t index, uint64_t id) {
  EndObjects& end = objects.end(index);
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.opcode = IBV_WR_BIND_MW;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.bind_mw.mw = end.window;
  wr.bind_mw.rkey = end.window_key = ibv_inc_rkey(end.window_key);
  wr.bind_mw.bind_info = {.mr = end.target,
                          .addr = address_of(objects, life.ends[index].places.target),
                          .length = life.area_bytes,
                          .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                             IBV_ACCESS_REMOTE_ATOMIC};
  return post_list(end, &wr, 1) == 1;
}

}  // namespace verbena::soft_model
