// READs and atomics whose response finds no place at the initiator: what the responder says of the
// request comes first, and a word has changed.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

using verbena::test::SendRequest;

constexpr uint64_t kBefore = 2;
constexpr uint64_t kAfter = 3;
constexpr uint32_t kNoKey = 0x100;  // turns a key into that of no region

class ResponseTest : public testing::Test {
 protected:
  ibv_wc_status status_of(const SendRequest& request) {
    initiator_.emplace(node_);
    responder_.emplace(node_);
    verbena::test::connect(*initiator_, *responder_);
    remote_.at<uint64_t>(0) = kBefore;
    local_.at<uint64_t>(0) = 7;
    EXPECT_EQ(post(initiator_->qp(), request), 0);
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(initiator_->cq(), 1, &wc), 1);
    return wc.status;
  }
  SendRequest request(ibv_wr_opcode opcode) const {
    ibv_sge sge = local_.sge(0, 8);
    sge.lkey ^= kNoKey;
    return {.opcode = opcode,
            .sges = {sge},
            .remote_address = remote_.address(),
            .rkey = remote_.key(),
            .compare_add = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? kAfter - kBefore : kBefore,
            .swap = kAfter};
  }
  ibv_qp_state state(const verbena::test::End& end) {
    ibv_qp_attr now{};
    ibv_qp_init_attr made{};
    EXPECT_EQ(node_.control().query_qp(end.qp(), &now, IBV_QP_STATE, &made), 0);
    return now.qp_state;
  }

  verbena::test::Node node_;
  verbena::test::Buffer local_{node_, 4096};
  verbena::test::Buffer remote_{node_, 4096};
  std::optional<verbena::test::End> initiator_;
  std::optional<verbena::test::End> responder_;
};

TEST_F(ResponseTest, WithoutAPlaceFailsItsInitiatorAlone) {
  EXPECT_EQ(status_of(request(IBV_WR_RDMA_READ)), IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state(*responder_), IBV_QPS_RTS);
  for (const auto opcode : {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    EXPECT_EQ(status_of(request(opcode)), IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(remote_.at<uint64_t>(0), kAfter);
    EXPECT_EQ(local_.at<uint64_t>(0), 7u);
    EXPECT_EQ(state(*responder_), IBV_QPS_RTS);
  }
}

TEST_F(ResponseTest, IsAnErrorBeforeItsPlaceMatters) {
  for (const auto opcode :
       {IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    SendRequest refused = request(opcode);
    refused.rkey ^= kNoKey;
    EXPECT_EQ(status_of(refused), IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(remote_.at<uint64_t>(0), kBefore);
  }
  SendRequest unaligned = request(IBV_WR_ATOMIC_CMP_AND_SWP);
  unaligned.remote_address += 4;
  EXPECT_EQ(status_of(unaligned), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(remote_.at<uint64_t>(0), kBefore);
}

// Who has seen the initiator's completion sees the responder's state, too.
TEST_F(ResponseTest, ThatIsAnErrorShowsAtBothEndsAtOnce) {
  for (int round = 0; round < 50; ++round) {
    SendRequest unaligned = request(IBV_WR_ATOMIC_CMP_AND_SWP);
    unaligned.sges = {local_.sge(0, 8)};
    unaligned.remote_address += 1;
    ASSERT_EQ(status_of(unaligned), IBV_WC_REM_INV_REQ_ERR);
    ASSERT_EQ(state(*responder_), IBV_QPS_ERR);
    ASSERT_EQ(state(*initiator_), IBV_QPS_ERR);
  }
}

}  // namespace
}  // namespace verbena::soft
