#include "src/rpc/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/wire.h"

namespace verbena::rpc {
namespace {

using testing::HasSubstr;

constexpr int64_t kTimeoutNs = 20'000'000'000;

Terms terms() {
  Terms terms;
  terms.protocol = Protocol::kWriteWrite;
  terms.layout = MarkLayout::kLastBit;
  terms.writes_in_order = true;
  terms.request_max_bytes = 64;
  terms.response_max_bytes = 4096;
  terms.pending = 16;
  return terms;
}

// --- agree() ---

TEST(AgreeTest, TheRequesterGetsTheSizesItWants) {
  Terms wanted = terms();
  wanted.request_max_bytes = 10;
  wanted.pending = 1;
  const auto agreed = agree(wanted, terms());
  ASSERT_TRUE(agreed.ok()) << agreed.status().message();
  EXPECT_EQ(agreed->request_max_bytes, 10u);
  EXPECT_EQ(agreed->response_max_bytes, 4096u);
  EXPECT_EQ(agreed->pending, 1u);
}

TEST(AgreeTest, SizesBeyondTheOfferAreRefusedWithBothNumbers) {
  Terms wanted = terms();
  wanted.response_max_bytes = 4097;
  auto agreed = agree(wanted, terms());
  ASSERT_EQ(agreed.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(agreed.status().message(), HasSubstr("4097"));
  EXPECT_THAT(agreed.status().message(), HasSubstr("offers 4096"));
  wanted = terms();
  wanted.pending = 17;
  EXPECT_EQ(agree(wanted, terms()).status().code(), StatusCode::kInvalidArgument);
  wanted.pending = 0;
  EXPECT_EQ(agree(wanted, terms()).status().code(), StatusCode::kProtocolViolation);
  wanted = terms();
  wanted.request_max_bytes = std::numeric_limits<uint32_t>::max();
  EXPECT_EQ(agree(wanted, terms()).status().code(), StatusCode::kInvalidArgument);
}

TEST(AgreeTest, DifferentProtocolsAreRefusedByName) {
  Terms wanted = terms();
  wanted.protocol = Protocol::kSendSend;
  EXPECT_THAT(agree(wanted, terms()).status().message(),
              HasSubstr("wants send/send, the responder serves write/write"));
  wanted.protocol = static_cast<Protocol>(99);  // of a later release, or nonsense
  EXPECT_THAT(agree(wanted, terms()).status().message(), HasSubstr("protocol 99"));
}

TEST(AgreeTest, DifferentLayoutsAreRefusedByName) {
  Terms wanted = terms();
  wanted.layout = MarkLayout::kHeadTail;
  EXPECT_THAT(agree(wanted, terms()).status().message(), HasSubstr("head-tail"));
  wanted.layout = static_cast<MarkLayout>(77);
  EXPECT_THAT(agree(wanted, terms()).status().message(), HasSubstr("layout 77"));
  Terms offered = terms();
  offered.layout = MarkLayout::kImmediate;
  EXPECT_FALSE(agree(wanted, offered).ok()) << "an unknown layout is no layout";
}

TEST(AgreeTest, LayoutsDoNotMatterToProtocolsWithoutAWrite) {
  Terms wanted = terms();
  Terms offered = terms();
  wanted.protocol = offered.protocol = Protocol::kSendSend;
  wanted.layout = MarkLayout::kHeadTail;
  EXPECT_TRUE(agree(wanted, offered).ok());
}

TEST(AgreeTest, TheResponderMayFallBackToImmediates) {
  Terms offered = terms();
  offered.writes_in_order = false;
  offered.layout = MarkLayout::kImmediate;
  const auto agreed = agree(terms(), offered);
  ASSERT_TRUE(agreed.ok());
  EXPECT_EQ(agreed->layout, MarkLayout::kImmediate);
}

TEST(AgreeTest, ARequesterThatCannotUseMarksIsToldWhatToDo) {
  Terms wanted = terms();
  wanted.writes_in_order = false;
  wanted.layout = MarkLayout::kImmediate;
  const auto agreed = agree(wanted, terms());
  EXPECT_EQ(agreed.status().code(), StatusCode::kUnsupported);
  EXPECT_THAT(agreed.status().message(), HasSubstr("start the responder with immediate"));
}

// --- check_endpoint() ---

EndpointTerms endpoint() {
  EndpointTerms endpoint;
  endpoint.address.queue_pair_number = 0xffffff;
  endpoint.address.packet_sequence_number = 5;
  endpoint.address.lid = 3;
  endpoint.address.gid[15] = 9;
  endpoint.address.has_gid = 1;
  endpoint.address.mtu = IBV_MTU_4096;
  endpoint.connection = 7;
  endpoint.slots_address = 0x10000;
  endpoint.slots_bytes = 8192;
  endpoint.slots_rkey = 11;
  endpoint.readable_address = 0x20000;
  endpoint.readable_bytes = 1;
  endpoint.readable_rkey = 12;
  endpoint.max_outstanding_reads = 16;
  return endpoint;
}

TEST(CheckEndpointTest, ImpossibleNumbersAreViolations) {
  const EndpointNeeds needs = {.slots_bytes = 8192, .readable = true};
  EXPECT_TRUE(check_endpoint(endpoint(), needs).ok());

  std::vector<EndpointTerms> wrong(9, endpoint());
  wrong[0].address.queue_pair_number = 1u << 24;
  wrong[1].address.packet_sequence_number = 1u << 24;
  wrong[2].address.mtu = 0;
  wrong[3].address.mtu = 6;
  wrong[4].connection = kMaxConnections;
  wrong[5].slots_bytes = 8191;
  wrong[6].slots_address = std::numeric_limits<uint64_t>::max() - 8190;
  wrong[7].slots_address = 0;
  wrong[8].readable_bytes = std::numeric_limits<uint64_t>::max();
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_EQ(check_endpoint(wrong[i], needs).code(), StatusCode::kProtocolViolation) << i;
  }
  wrong[5].slots_bytes = 0;
  wrong[5].slots_address = 0;
  EXPECT_TRUE(check_endpoint(wrong[5], {.readable = true}).ok()) << "slots nobody needs";
}

// --- over a connection ---

class HandshakeTest : public testing::Test {
 protected:
  HandshakeTest() {
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

TEST_F(HandshakeTest, BothLearnTheAgreedTermsAndEachOthersEndpoint) {
  both(
      [&] {
        const auto agreed = propose(*requester_, terms(), kTimeoutNs);
        ASSERT_TRUE(agreed.ok()) << agreed.status().message();
        EXPECT_EQ(agreed->pending, 16u);
        const auto peer = exchange_endpoints(*requester_, EndpointTerms{}, kTimeoutNs);
        ASSERT_TRUE(peer.ok()) << peer.status().message();
        EXPECT_EQ(peer->address.queue_pair_number, 0xffffffu);
        EXPECT_EQ(peer->address.gid[15], 9);
        EXPECT_EQ(peer->connection, 7u);
        EXPECT_EQ(peer->slots_address, 0x10000u);
        EXPECT_EQ(peer->readable_rkey, 12u);
        EXPECT_EQ(peer->max_outstanding_reads, 16);
        EXPECT_TRUE(confirm(*requester_, Status::ok_status(), kTimeoutNs).ok());
      },
      [&] {
        const auto agreed = consider(*responder_, terms(), kTimeoutNs);
        ASSERT_TRUE(agreed.ok()) << agreed.status().message();
        EXPECT_TRUE(exchange_endpoints(*responder_, endpoint(), kTimeoutNs).ok());
        EXPECT_TRUE(confirm(*responder_, Status::ok_status(), kTimeoutNs).ok());
      });
}

TEST_F(HandshakeTest, ARefusedRequesterLearnsTheReason) {
  both(
      [&] {
        Terms wanted = terms();
        wanted.pending = 1000;
        const auto agreed = propose(*requester_, wanted, kTimeoutNs);
        EXPECT_EQ(agreed.status().code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(agreed.status().message(), HasSubstr("refused by the peer 127.0.0.1"));
        EXPECT_THAT(agreed.status().message(), HasSubstr("wants 1000 pending requests"));
      },
      [&] {
        EXPECT_EQ(consider(*responder_, terms(), kTimeoutNs).status().code(),
                  StatusCode::kInvalidArgument);
      });
}

TEST_F(HandshakeTest, AFailureOnOneSideReachesTheOtherAndLeavesNoFrameBehind) {
  const Status failure(StatusCode::kLimitExceeded, "out of slots\n\x1b[31m");
  both(
      [&] {
        const auto peer = exchange_endpoints(*requester_, endpoint(), kTimeoutNs);
        EXPECT_EQ(peer.status().code(), StatusCode::kLimitExceeded);
        EXPECT_THAT(peer.status().message(), HasSubstr("out of slots??[31m")) << "printable";
        const Status ready = confirm(*requester_, Status::ok_status(), kTimeoutNs);
        EXPECT_EQ(ready.code(), StatusCode::kUnavailable);
        EXPECT_TRUE(requester_->send_value(1, 42, kTimeoutNs).ok());
      },
      [&] {
        EXPECT_EQ(exchange_endpoints(*responder_, failure, kTimeoutNs).status().message(),
                  failure.message());
        EXPECT_EQ(confirm(*responder_, Status(StatusCode::kUnavailable, "no"), kTimeoutNs).code(),
                  StatusCode::kUnavailable);
        const auto value = responder_->receive_value<int>(1, kTimeoutNs);
        ASSERT_TRUE(value.ok()) << value.status().message();
        EXPECT_EQ(*value, 42);
      });
}

TEST_F(HandshakeTest, TwoRequestersOrTwoRespondersAreToldApart) {
  both(
      [&] {
        EXPECT_EQ(propose(*requester_, terms(), kTimeoutNs).status().code(),
                  StatusCode::kProtocolViolation);
      },
      [&] {
        const auto agreed = propose(*responder_, terms(), kTimeoutNs);
        EXPECT_EQ(agreed.status().code(), StatusCode::kProtocolViolation);
        EXPECT_THAT(agreed.status().message(), HasSubstr("two requesters"));
      });
}

TEST_F(HandshakeTest, GarbageAndOtherVersionsAreRefused) {
  const auto frame = [](uint32_t magic, uint16_t version) {
    WireWriter writer;
    writer.u32(magic);
    writer.u16(version);
    writer.u8(1);
    writer.u8(0);
    writer.string("");
    return writer;
  };
  std::vector<WireWriter> frames;
  frames.push_back(frame(0x43505256, kRpcVersion + 1));
  frames.push_back(frame(0x12345678, kRpcVersion));
  frames.push_back(frame(0x43505256, kRpcVersion));  // cut short
  frames.emplace_back();                             // empty
  const char* reasons[] = {"version 2", "not a request/response handshake", "cut short",
                           "not a request/response handshake"};
  for (size_t i = 0; i < frames.size(); ++i) {
    ASSERT_TRUE(requester_->send(frames[i].bytes()).ok());
    const auto agreed = consider(*responder_, terms(), kTimeoutNs);
    EXPECT_EQ(agreed.status().code(), StatusCode::kProtocolViolation) << i;
    EXPECT_THAT(agreed.status().message(), HasSubstr(reasons[i]));
  }
}

TEST_F(HandshakeTest, RandomFramesNeverPass) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 500; ++round) {
    // A genuine beginning, then anything: what follows must not be believed.
    WireWriter writer;
    writer.u32(0x43505256);
    writer.u16(kRpcVersion);
    writer.u8(1);
    writer.u8(0);
    writer.string("");
    const uint64_t size = random.below(40);
    for (uint64_t i = 0; i < size; ++i) writer.u8(static_cast<uint8_t>(random.next()));
    ASSERT_TRUE(requester_->send(writer.bytes()).ok());
    const auto agreed = consider(*responder_, terms(), kTimeoutNs);
    ASSERT_TRUE(requester_->receive(kTimeoutNs).ok()) << "a verdict in any case";
    if (agreed.ok()) {
      EXPECT_TRUE(agree(*agreed, terms()).ok());
    }
  }
}

TEST_F(HandshakeTest, APeerThatLeavesIsReported) {
  requester_.reset();
  EXPECT_EQ(consider(*responder_, terms(), kTimeoutNs).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace verbena::rpc
