// Raw packets between processes: a flow of another process brings it the frames that it names.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "src/device/soft/control.h"
#include "src/device/soft/raw.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr uint8_t kChildMac[6] = {2, 0, 0, 0, 0, 7};
constexpr size_t kFrameBytes = 1000;

// A queue pair of raw packets in RTS.
class RawProcessEnd {
 public:
  explicit RawProcessEnd(const Node& node)
      : cq_(soft::create_cq(node.domain.get()->context, 16, nullptr, nullptr, 0)) {
    ibv_qp_init_attr init{};
    init.send_cq = cq_;
    init.recv_cq = cq_;
    init.cap.max_send_wr = init.cap.max_recv_wr = 8;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    init.qp_type = IBV_QPT_RAW_PACKET;
    qp_ = soft::create_qp(node.domain.get(), &init);
    if (qp_ == nullptr) std::abort();
    for (const ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
      ibv_qp_attr attributes{};
      attributes.qp_state = state;
      attributes.port_num = 1;
      const int port = state == IBV_QPS_INIT ? IBV_QP_PORT : 0;
      if (soft::modify_qp(qp_, &attributes, IBV_QP_STATE | port) != 0) std::abort();
    }
  }
  RawProcessEnd(const RawProcessEnd&) = delete;
  RawProcessEnd& operator=(const RawProcessEnd&) = delete;
  ~RawProcessEnd() {
    soft::destroy_qp(qp_);
    soft::destroy_cq(cq_);
  }
  ibv_qp* qp() const { return qp_; }
  ibv_cq* cq() const { return cq_; }

 private:
  ibv_cq* cq_;
  ibv_qp* qp_ = nullptr;
};

VERBENA_TEST_CHILD(raw_receiver) {
  const Node node;
  Buffer buffer(node.domain, 4096);
  const RawProcessEnd end(node);
  if (post_receive(end.qp(), 1, {buffer.sge(0, 4096)}) != 0) return 1;
  struct {
    ibv_flow_attr attributes;
    ibv_flow_spec_eth spec;
  } flow{};
  flow.attributes.num_of_specs = 1;
  flow.attributes.port = 1;
  flow.spec.type = IBV_FLOW_SPEC_ETH;
  flow.spec.size = sizeof(flow.spec);
  memcpy(flow.spec.val.dst_mac, kChildMac, sizeof(kChildMac));
  memset(flow.spec.mask.dst_mac, 0xff, sizeof(kChildMac));
  ibv_flow* const made = soft::create_flow(end.qp(), &flow.attributes);
  if (made == nullptr) return 2;
  link.put(true);
  const ibv_wc wc = wait_for_one(end.cq());
  link.put(wc.status == IBV_WC_SUCCESS ? wc.byte_len : 0u);
  link.put_bytes(buffer.data(), kFrameBytes);
  return soft::destroy_flow(made) == 0 ? 0 : 3;
}

TEST(RawProcessTest, FramesReachTheFlowsOfOtherProcesses) {
  const Node node;
  Buffer buffer(node.domain, 4096);
  const RawProcessEnd end(node);
  Child child("raw_receiver");
  ASSERT_TRUE(child.link().get<bool>());
  fill_pattern(buffer.data(), 4096, 5);
  // The first is for somebody else: the second must take the one receive.
  for (const bool wanted : {false, true}) {
    memcpy(buffer.data(), kChildMac, sizeof(kChildMac));
    if (!wanted) buffer.data()[5] = std::byte{8};
    ASSERT_EQ(post(end.qp(), {.sges = {buffer.sge(0, kFrameBytes)}}), 0);
    ASSERT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(child.link().get<uint32_t>(), kFrameBytes);
  std::byte got[kFrameBytes];
  child.link().get_bytes(got, kFrameBytes);
  EXPECT_EQ(memcmp(got, buffer.data(), kFrameBytes), 0);
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace verbena::soft_test
