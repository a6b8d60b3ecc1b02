// A sender that was in flight when its peer's queue pair went to the error state publishes its
// packet late. Its stores are done by hand here.
#include "src/device/soft/arrivals.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"
#include "verbena/device.h"

namespace verbena::soft {
namespace {

using test::connect;
using test::End;
using test::must;

class LatePacketTest : public testing::Test {
 protected:
  static constexpr uint64_t kReceives = 4;

  void SetUp() override {
    connect(sender_, receiver_);
    for (uint64_t id = 0; id < kReceives; ++id) {
      const ibv_sge sge = {reinterpret_cast<uint64_t>(memory_.data()) + id * 64, 64,
                           region_.lkey()};
      ASSERT_EQ(test::post_receive(receiver_.qp(), id, {sge}), 0);
    }
  }
  void fail_receiver() { fail_queue_pair(as_qp(receiver_.qp()), IBV_WC_WR_FLUSH_ERR, kNoEvent); }
  // What publish_packet() does.
  void publish(uint32_t number) {
    Packet& packet = as_qp(receiver_.qp()).arrivals.packet(number);
    packet.byte_count = 0;
    packet.receive_index = 0;
    packet.kind = kPacketSend;
    packet.inline_bytes = 0;
    packet.mark.store(number + 1);
  }
  // Of all receives, in their order.
  std::vector<ibv_wc_status> poll_all(int at_once) {
    std::vector<ibv_wc_status> statuses;
    ibv_wc wc[kReceives];
    for (int count; (count = ibv_poll_cq(receiver_.cq(), at_once, wc)) > 0;) {
      for (int i = 0; i < count; ++i) {
        EXPECT_EQ(wc[i].wr_id, next_id_++);
        statuses.push_back(wc[i].status);
      }
    }
    return statuses;
  }

  test::Node node_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(64 * kReceives);
  MemoryRegion region_ =
      must(MemoryRegion::create(node_.domain, memory_.data(), memory_.size(), test::kAllAccess));
  End sender_{node_};
  End receiver_{node_};
  uint64_t next_id_ = 0;
};

TEST_F(LatePacketTest, BeforeTheFirstFlushItMeetsItsReceive) {
  publish(0);
  fail_receiver();
  publish(1);
  EXPECT_EQ(poll_all(1), (std::vector{IBV_WC_SUCCESS, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR,
                                      IBV_WC_WR_FLUSH_ERR}));
}

TEST_F(LatePacketTest, AfterItTheReceiveOfAnotherMessageIsLeftAlone) {
  fail_receiver();
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(receiver_.cq(), 1, &wc), 1);
  ASSERT_EQ(wc.wr_id, next_id_++);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  publish(0);
  EXPECT_EQ(poll_all(1), std::vector(kReceives - 1, IBV_WC_WR_FLUSH_ERR));
}

}  // namespace
}  // namespace verbena::soft
