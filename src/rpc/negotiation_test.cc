#include "src/rpc/negotiation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/wire.h"
#include "src/rpc/layer.h"

namespace verbena::rpc {
namespace {

using testing::HasSubstr;

constexpr int64_t kTimeoutNs = 120'000'000'000;

DesignRequest design() {
  DesignRequest design;
  design.protocol = Protocol::kWriteWrite;
  design.layout = MarkLayout::kLastBit;
  design.writes_in_order = true;
  design.request_max_bytes = 64;
  design.response_max_bytes = 4096;
  design.pending = 16;
  return design;
}

// --- negotiate() ---

TEST(NegotiateTest, TheRequesterGetsTheSizesItWants) {
  DesignRequest wanted = design();
  wanted.request_max_bytes = 10;
  wanted.pending = 1;
  const auto agreed = negotiate(wanted, design());
  ASSERT_TRUE(agreed.ok()) << agreed.status().message();
  EXPECT_EQ(agreed->request_max_bytes, 10u);
  EXPECT_EQ(agreed->response_max_bytes, 4096u);
  EXPECT_EQ(agreed->pending, 1u);
}

TEST(NegotiateTest, BothSidesNeedTheSameTransport) {
  DesignRequest wanted = design();
  wanted.protocol = Protocol::kSendSend;
  DesignRequest offered = wanted;
  offered.transport = Transport::kUd;
  EXPECT_EQ(negotiate(wanted, offered).status().message(),
            "the requester wants the transport rc, the responder uses ud; start both with the same "
            "one");
  wanted.transport = static_cast<Transport>(7);
  EXPECT_THAT(negotiate(wanted, offered).status().message(), HasSubstr("transport 7"));
  wanted.transport = Transport::kUd;
  const auto agreed = negotiate(wanted, offered);
  ASSERT_TRUE(agreed.ok()) << agreed.status().message();
  EXPECT_EQ(agreed->transport, Transport::kUd);
}

TEST(NegotiateTest, WhatIsSentAgainGoesOverALossyTransport) {
  for (const Protocol protocol : all_protocols()) {
    EXPECT_TRUE(check_transport(protocol, Transport::kRc).ok());
    const bool sends = protocol == Protocol::kSendSend;
    EXPECT_EQ(check_transport(protocol, Transport::kUd).ok(), sends);
    EXPECT_EQ(check_transport(protocol, Transport::kUc).ok(),
              sends || protocol == Protocol::kWriteWrite);
  }
  EXPECT_EQ(check_transport(Protocol::kRead, Transport::kUd).code(), StatusCode::kUnsupported);
  EXPECT_THAT(check_transport(Protocol::kRead, Transport::kUd).message(),
              HasSubstr("read over ud: only send/send sends again"));
  EXPECT_THAT(check_transport(Protocol::kRead, Transport::kUc).message(),
              HasSubstr("read over uc: only send/send and write/write send again"));
}

// Whoever leaves the choice to a responder does not get what it cannot be.
TEST(NegotiateTest, AResponderCannotOfferWhatATransportDoesNotCarry) {
  DesignRequest wanted = design();
  wanted.protocol = Protocol::kAutomatic;
  wanted.transport = Transport::kUd;
  DesignRequest offered = design();
  offered.transport = Transport::kUd;
  offered.protocol = Protocol::kSendSend;
  EXPECT_TRUE(negotiate(wanted, offered).ok());
  offered.protocol = Protocol::kWriteSend;
  EXPECT_EQ(negotiate(wanted, offered).status().code(), StatusCode::kUnsupported);
}

TEST(NegotiateTest, SizesBeyondTheOfferAreRefusedWithBothNumbers) {
  DesignRequest wanted = design();
  wanted.response_max_bytes = 4097;
  auto agreed = negotiate(wanted, design());
  ASSERT_EQ(agreed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(agreed.status().message(), HasSubstr("4097"));
  EXPECT_THAT(agreed.status().message(), HasSubstr("offers 4096"));
  wanted = design();
  wanted.pending = 17;
  EXPECT_EQ(negotiate(wanted, design()).status().code(), StatusCode::kInvalidArgument);
  wanted.pending = 0;
  EXPECT_EQ(negotiate(wanted, design()).status().code(), StatusCode::kProtocolViolation);
  wanted = design();
  wanted.request_max_bytes = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(negotiate(wanted, design()).status().code(), StatusCode::kInvalidArgument);
}

TEST(NegotiateTest, DifferentProtocolsAreRefusedByName) {
  DesignRequest wanted = design();
  wanted.protocol = Protocol::kSendSend;
  EXPECT_THAT(negotiate(wanted, design()).status().message(),
              HasSubstr("wants send/send, the responder serves write/write"));
  wanted.protocol = static_cast<Protocol>(99);  // of a later release, or nonsense
  EXPECT_THAT(negotiate(wanted, design()).status().message(), HasSubstr("protocol 99"));
}

TEST(NegotiateTest, DifferentLayoutsAreRefusedByName) {
  DesignRequest wanted = design();
  wanted.layout = MarkLayout::kHeadTail;
  EXPECT_THAT(negotiate(wanted, design()).status().message(), HasSubstr("head-tail"));
  wanted.layout = static_cast<MarkLayout>(77);
  EXPECT_THAT(negotiate(wanted, design()).status().message(), HasSubstr("layout 77"));
  DesignRequest offered = design();
  offered.layout = MarkLayout::kImmediate;
  EXPECT_FALSE(negotiate(wanted, offered).ok()) << "an unknown layout is no layout";
}

TEST(NegotiateTest, LayoutsDoNotMatterToProtocolsWithoutAWrite) {
  DesignRequest wanted = design();
  DesignRequest offered = design();
  wanted.protocol = offered.protocol = Protocol::kSendSend;
  wanted.layout = MarkLayout::kHeadTail;
  EXPECT_TRUE(negotiate(wanted, offered).ok());
}

TEST(NegotiateTest, TheResponderMayFallBackToImmediates) {
  DesignRequest offered = design();
  offered.writes_in_order = false;
  offered.layout = MarkLayout::kImmediate;
  const auto agreed = negotiate(design(), offered);
  ASSERT_TRUE(agreed.ok());
  EXPECT_EQ(agreed->layout, MarkLayout::kImmediate);
}

TEST(NegotiateTest, ARequesterThatCannotUseMarksIsToldWhatToDo) {
  DesignRequest wanted = design();
  wanted.writes_in_order = false;
  wanted.layout = MarkLayout::kImmediate;
  const auto agreed = negotiate(wanted, design());
  EXPECT_EQ(agreed.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(agreed.status().message(), HasSubstr("start the responder with immediate"));
}

TEST(NegotiateTest, AutomaticTakesTheRespondersDesign) {
  DesignRequest wanted = design();
  wanted.protocol = Protocol::kAutomatic;
  wanted.layout = MarkLayout::kAutomatic;
  for (const Protocol protocol : all_protocols()) {
    for (const MarkLayout layout : all_mark_layouts()) {
      DesignRequest offered = design();
      offered.protocol = protocol;
      offered.layout = layout;
      const auto agreed = negotiate(wanted, offered);
      ASSERT_EQ(agreed.ok(), protocol != Protocol::kRead) << agreed.status().message();
      if (!agreed.ok()) continue;
      EXPECT_EQ(agreed->protocol, protocol);
      EXPECT_EQ(agreed->layout, layout);
    }
  }
  // One half may be named.
  wanted.protocol = Protocol::kWriteWrite;
  EXPECT_TRUE(negotiate(wanted, design()).ok());
  wanted.protocol = Protocol::kSendSend;
  EXPECT_THAT(negotiate(wanted, design()).status().message(), HasSubstr("wants send/send"));
}

TEST(NegotiateTest, AutomaticTakesNothingThatTheRequesterCannotUse) {
  DesignRequest wanted = design();
  wanted.protocol = Protocol::kAutomatic;
  wanted.layout = MarkLayout::kAutomatic;
  DesignRequest offered = design();
  offered.protocol = Protocol::kRead;
  EXPECT_THAT(negotiate(wanted, offered).status().message(),
              HasSubstr("start the requester with read"));
  // A responder of a later release, or nonsense.
  offered.protocol = static_cast<Protocol>(99);
  EXPECT_THAT(negotiate(wanted, offered).status().message(),
              HasSubstr("wants automatic, the responder serves protocol 99"));
  offered = design();
  offered.layout = static_cast<MarkLayout>(77);
  EXPECT_THAT(negotiate(wanted, offered).status().message(), HasSubstr("layout 77"));
  offered.layout = MarkLayout::kAutomatic;
  EXPECT_FALSE(negotiate(wanted, offered).ok()) << "a responder has to decide";
  offered = design();
  offered.protocol = Protocol::kAutomatic;
  EXPECT_FALSE(negotiate(wanted, offered).ok()) << "a responder has to decide";

  wanted.writes_in_order = false;
  EXPECT_THAT(negotiate(wanted, design()).status().message(),
              HasSubstr("start the responder with immediate"));
  offered = design();
  offered.layout = MarkLayout::kDense;
  EXPECT_TRUE(negotiate(wanted, offered).ok());
}

// --- over a connection ---

class NegotiationTest : public testing::Test {
 protected:
  NegotiationTest() {
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    EXPECT_TRUE(listener.ok()) << listener.status().message();
    Thread connecting = start_thread("connect", [&, port = listener->port()] {
      auto connection = ControlConnection::connect("127.0.0.1", port, secret_, kTimeoutNs);
      if (connection.ok()) requester_.emplace(std::move(*connection));
    });
    auto connection = listener->accept(kTimeoutNs);
    EXPECT_TRUE(connection.ok()) << connection.status().message();
    responder_.emplace(std::move(*connection));
    connecting.join();
  }

  // Both functions at once, the first in a thread of its own.
  template <typename Requester, typename Responder>
  void both(Requester&& requester, Responder&& responder) {
    ASSERT_TRUE(requester_ && responder_);
    Thread thread = start_thread("requester", requester);
    responder();
    thread.join();
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<ControlConnection> requester_;
  std::optional<ControlConnection> responder_;
};

TEST_F(NegotiationTest, BothLearnWhatTheyAgreedOn) {
  both(
      [&] {
        DesignRequest wanted = design();
        wanted.pending = 3;
        const auto agreed = request_design(*requester_, wanted, kTimeoutNs);
        ASSERT_TRUE(agreed.ok()) << agreed.status().message();
        EXPECT_EQ(agreed->pending, 3u);
      },
      [&] {
        const auto agreed = accept_design(*responder_, design(), kTimeoutNs);
        ASSERT_TRUE(agreed.ok()) << agreed.status().message();
        EXPECT_EQ(agreed->pending, 3u);
        EXPECT_EQ(agreed->response_max_bytes, 4096u);
      });
}

TEST_F(NegotiationTest, ARefusedRequesterLearnsTheReason) {
  both(
      [&] {
        DesignRequest wanted = design();
        wanted.pending = 1000;
        const auto agreed = request_design(*requester_, wanted, kTimeoutNs);
        EXPECT_EQ(agreed.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(agreed.status().message(), HasSubstr("refused by the peer 127.0.0.1"));
        EXPECT_THAT(agreed.status().message(), HasSubstr("wants 1000 pending requests"));
      },
      [&] {
        EXPECT_EQ(accept_design(*responder_, design(), kTimeoutNs).status().code(),
                  StatusCode::kInvalidArgument);
      });
}

TEST_F(NegotiationTest, TwoRequestersOrTwoRespondersAreToldApart) {
  both(
      [&] {
        EXPECT_EQ(request_design(*requester_, design(), kTimeoutNs).status().code(),
                  StatusCode::kProtocolViolation);
      },
      [&] {
        const auto agreed = request_design(*responder_, design(), kTimeoutNs);
        EXPECT_EQ(agreed.status().code(), StatusCode::kProtocolViolation);
        EXPECT_THAT(agreed.status().message(), HasSubstr("same role"));
      });
}

TEST_F(NegotiationTest, GarbageAndOtherVersionsAreRefused) {
  const auto frame = [](uint32_t magic, uint16_t version) {
    WireWriter writer;
    writer.u32(magic);
    writer.u16(version);
    writer.u8(connect::kFirstStepOfLayer);
    writer.u8(0);
    writer.string("");
    return writer;
  };
  std::vector<WireWriter> frames;
  frames.push_back(frame(kLayer.magic, kLayer.version + 1));
  frames.push_back(frame(0x12345678, kLayer.version));
  frames.push_back(frame(kLayer.magic, kLayer.version));  // cut short
  frames.emplace_back();                                  // empty
  const char* reasons[] = {"version 6", "other than a request/response handshake", "cut short",
                           "other than a request/response handshake"};
  for (size_t i = 0; i < frames.size(); ++i) {
    ASSERT_TRUE(requester_->send(frames[i].bytes()).ok());
    const auto agreed = accept_design(*responder_, design(), kTimeoutNs);
    EXPECT_EQ(agreed.status().code(), StatusCode::kProtocolViolation) << i;
    EXPECT_THAT(agreed.status().message(), HasSubstr(reasons[i]));
  }
}

TEST_F(NegotiationTest, RandomFramesNeverPass) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 500; ++round) {
    // A genuine beginning, then anything: what follows must not be believed.
    WireWriter writer;
    writer.u32(kLayer.magic);
    writer.u16(kLayer.version);
    writer.u8(connect::kFirstStepOfLayer);
    writer.u8(0);
    writer.string("");
    const uint64_t size = random.below(40);
    for (uint64_t i = 0; i < size; ++i) writer.u8(static_cast<uint8_t>(random.next()));
    ASSERT_TRUE(requester_->send(writer.bytes()).ok());
    const auto agreed = accept_design(*responder_, design(), kTimeoutNs);
    ASSERT_TRUE(requester_->receive(kTimeoutNs).ok()) << "a verdict in any case";
    if (agreed.ok()) {
      EXPECT_TRUE(negotiate(*agreed, design()).ok());
    }
  }
}

TEST_F(NegotiationTest, APeerThatLeavesIsReported) {
  requester_.reset();
  EXPECT_EQ(accept_design(*responder_, design(), kTimeoutNs).status().code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace verbena::rpc
