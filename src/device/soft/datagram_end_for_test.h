// UD queue pairs for tests, which look at soft0 from inside.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/control.h"
#include "src/device/soft/ud.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft::test {

using verbena::test::Buffer;
using verbena::test::Node;
using verbena::test::post_receive;

inline constexpr uint32_t kQkey = 0x11111111;

inline int move_to(ibv_qp* qp, ibv_qp_state state, int mask = 0, uint32_t qkey = kQkey) {
  ibv_qp_attr attributes{};
  attributes.qp_state = state;
  attributes.port_num = 1;
  attributes.qkey = qkey;
  return modify_qp(qp, &attributes, IBV_QP_STATE | mask);
}

// From RESET to `last`.
inline int start_datagrams(ibv_qp* qp, ibv_qp_state last = IBV_QPS_RTS) {
  int error = move_to(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  if (error == 0 && last >= IBV_QPS_RTR) error = move_to(qp, IBV_QPS_RTR);
  if (error == 0 && last >= IBV_QPS_RTS) error = move_to(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN);
  return error;
}

// A UD queue pair in RTS, with a completion queue of its own unless it gets one.
class DatagramEnd {
 public:
  explicit DatagramEnd(const Node& node, uint32_t recv_depth = 16, ibv_srq* srq = nullptr,
                       ibv_cq* cq = nullptr)
      : cq_(cq), owns_cq_(cq == nullptr) {
    if (owns_cq_) cq_ = create_cq(node.domain.get()->context, 4096, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = cq_;
    init.recv_cq = cq_;
    init.srq = srq;
    init.cap = {.max_send_wr = 64,
                .max_recv_wr = recv_depth,
                .max_send_sge = 4,
                .max_recv_sge = 4,
                .max_inline_data = 256};
    init.qp_type = IBV_QPT_UD;
    qp_ = create_qp(node.domain.get(), &init);
    if (qp_ == nullptr || start_datagrams(qp_) != 0) std::abort();
    ibv_ah_attr attributes{};
    attributes.port_num = 1;
    attributes.dlid = 1;
    handle_ = create_ah(node.domain.get(), &attributes);
  }
  DatagramEnd(const DatagramEnd&) = delete;
  DatagramEnd& operator=(const DatagramEnd&) = delete;
  ~DatagramEnd() {
    if (handle_ != nullptr) destroy_ah(handle_);
    destroy_qp(qp_);
    if (owns_cq_) destroy_cq(cq_);
  }

  ibv_qp* qp() const { return qp_; }
  ibv_cq* cq() const { return cq_; }
  Qp& inside() const { return as_qp(qp_); }
  uint32_t number() const { return qp_->qp_num; }
  ibv_ah* handle() const { return handle_; }

  struct Message {
    std::vector<ibv_sge> sges;
    uint32_t to = 0;
    ibv_ah* handle = nullptr;  // null: the own one
    uint32_t qkey = kQkey;
    unsigned flags = IBV_SEND_SIGNALED;
    ibv_wr_opcode opcode = IBV_WR_SEND;
    uint32_t immediate = 0;
  };
  int send(Message message) {
    ibv_send_wr wr{};
    wr.sg_list = message.sges.data();
    wr.num_sge = static_cast<int>(message.sges.size());
    wr.opcode = message.opcode;
    wr.send_flags = message.flags;
    wr.imm_data = message.immediate;
    wr.wr.ud = {.ah = message.handle != nullptr ? message.handle : handle_,
                .remote_qpn = message.to,
                .remote_qkey = message.qkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp_, &wr, &bad);
  }
  // The next completion; status -1 where none comes.
  ibv_wc take() {
    constexpr uint64_t kPatienceNs = 120'000'000'000;
    const uint64_t start_ns = now_ns();
    ibv_wc wc{};
    Waiter waiter;
    while (ibv_poll_cq(cq_, 1, &wc) == 0) {
      if (now_ns() - start_ns > kPatienceNs) {
        wc.status = static_cast<ibv_wc_status>(-1);
        return wc;
      }
      waiter.idle();
    }
    return wc;
  }
  bool is_empty() {
    constexpr int kPolls = 3000;  // some of them look behind unfinished datagrams
    ibv_wc wc;
    for (int i = 0; i < kPolls; ++i) {
      if (ibv_poll_cq(cq_, 1, &wc) != 0) return false;
    }
    return true;
  }

 private:
  ibv_cq* cq_ = nullptr;
  bool owns_cq_ = true;
  ibv_qp* qp_ = nullptr;
  ibv_ah* handle_ = nullptr;
};

}  // namespace verbena::soft::test
