#include "src/rpc/design_cost.h"

#include <gtest/gtest.h>

#include "src/rpc/designs.h"

namespace verbena::rpc {
namespace {

constexpr channel::CostInputs kInputs = {
    .inline_limit_bytes = 128, .signal_interval = 16, .post_batch = 1};

DesignCost cost_of(Protocol protocol, MarkLayout layout, uint32_t response_bytes) {
  return with_design_point(protocol, layout, [&]<typename Design>() {
    EXPECT_EQ(Design::kProtocol, protocol);
    if (uses_mark_layout(protocol)) {
      EXPECT_EQ(Design::kLayout, layout);
    }
    return Design::cost(64, response_bytes, kInputs, kInputs);
  });
}

// What distinguishes the protocols on either side ("msgproto" 4: SEND costs a receive).
TEST(DesignCostTest, ReceivesAreOnTheSideThatASendReaches) {
  for (Protocol protocol : all_protocols()) {
    const DesignCost cost = cost_of(protocol, MarkLayout::kLastBit, 64);
    const bool send_request = protocol == Protocol::kSendSend || protocol == Protocol::kSendWrite;
    const bool send_response = protocol == Protocol::kSendSend || protocol == Protocol::kWriteSend;
    EXPECT_EQ(cost.responder().receives, send_request ? 1 : 0) << protocol_name(protocol);
    EXPECT_EQ(cost.requester().receives, send_response ? 1 : 0) << protocol_name(protocol);
    EXPECT_EQ(cost.requester().work_requests, 1) << protocol_name(protocol);
  }
}

TEST(DesignCostTest, ReadTakesNothingOfTheRespondersCpu) {
  const DesignCost cost = cost_of(Protocol::kRead, MarkLayout::kImmediate, 64);
  EXPECT_EQ(cost.responder().work_requests + cost.responder().completions +
                cost.responder().polled_lines + cost.responder().receives,
            0);
  EXPECT_EQ(cost.responder().device_reads, 1);
  EXPECT_EQ(cost.requester().completions, 1);
}

TEST(DesignCostTest, SelectiveSignalingLeavesFewCompletions) {
  const DesignCost cost = cost_of(Protocol::kWriteWrite, MarkLayout::kLastBit, 64);
  EXPECT_DOUBLE_EQ(cost.requester().completions, 1.0 / 16);
  EXPECT_DOUBLE_EQ(cost.responder().completions, 1.0 / 16);
}

TEST(DesignCostTest, PayloadBeyondTheInlineLimitIsReadByTheDevice) {
  EXPECT_EQ(cost_of(Protocol::kWriteWrite, MarkLayout::kLastBit, 64).responder().device_reads, 0);
  EXPECT_EQ(cost_of(Protocol::kWriteWrite, MarkLayout::kLastBit, 4096).responder().device_reads, 1);
}

TEST(DesignCostTest, OnlyLengthMarkersClearTheWholeMessage) {
  EXPECT_EQ(cost_of(Protocol::kWriteWrite, MarkLayout::kLastBit, 4096).requester().cleared_bytes,
            8);
  EXPECT_EQ(cost_of(Protocol::kWriteWrite, MarkLayout::kHeadTail, 4096).requester().cleared_bytes,
            8);
  EXPECT_GT(
      cost_of(Protocol::kWriteWrite, MarkLayout::kLengthMarkers, 4096).requester().cleared_bytes,
      4096);
}

TEST(DesignCostTest, ImmediateTurnsAWriteIntoSomethingThatCostsAReceive) {
  const DesignCost cost = cost_of(Protocol::kWriteWrite, MarkLayout::kImmediate, 64);
  EXPECT_EQ(cost.responder().receives, 1);
  EXPECT_EQ(cost.requester().receives, 1);
}

}  // namespace
}  // namespace verbena::rpc
