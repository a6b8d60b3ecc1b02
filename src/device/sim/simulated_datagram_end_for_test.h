// UD queue pairs of simulated nodes, for tests that send by address handles.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "src/device/sim/cluster_for_test.h"

namespace verbena::sim {

inline constexpr uint32_t kTestQkey = 0x11111111;

// In RTS, with kTestQkey.
class DatagramEnd : public End {
 public:
  explicit DatagramEnd(const Cluster::Member& node, EndOptions options = {})
      : End(node, with_datagrams(options)), node_(&node) {
    // End has initialized it with a key of its own.
    move_to(IBV_QPS_RTR, IBV_QP_QKEY);
    move_to(IBV_QPS_RTS, IBV_QP_SQ_PSN);
  }
  DatagramEnd(const DatagramEnd&) = delete;
  DatagramEnd& operator=(const DatagramEnd&) = delete;
  ~DatagramEnd() override {
    for (const auto& [number, handle] : handles_) node_->control().destroy_ah(handle);
  }

  int try_move_to(ibv_qp_state state, int mask) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    attributes.port_num = 1;
    attributes.qkey = kTestQkey;
    return node_->control().modify_qp(qp(), &attributes, IBV_QP_STATE | mask);
  }
  void move_to(ibv_qp_state state, int mask) {
    if (try_move_to(state, mask) != 0) std::abort();
  }

  // To the node with this number.
  ibv_ah* handle(uint32_t node) {
    ibv_ah*& made = handles_[node];
    ibv_ah_attr attributes{};
    attributes.port_num = 1;
    attributes.dlid = static_cast<uint16_t>(node + 1);
    if (made == nullptr) made = node_->control().create_ah(qp()->pd, &attributes);
    return made;
  }
  struct To {
    ibv_ah* handle = nullptr;
    uint32_t queue_pair = 0;
    uint32_t qkey = kTestQkey;
  };
  int send(SendRequest request, const To& to) {
    ibv_send_wr wr = test::to_wr(request);
    wr.wr.ud = {.ah = to.handle, .remote_qpn = to.queue_pair, .remote_qkey = to.qkey};
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp(), &wr, &bad);
  }

 private:
  static EndOptions with_datagrams(EndOptions options) {
    options.transport = Transport::kUd;
    return options;
  }

  const Cluster::Member* node_;
  std::map<uint32_t, ibv_ah*> handles_;
};

}  // namespace verbena::sim
