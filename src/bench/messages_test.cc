#include "src/bench/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/wire.h"

namespace verbena::bench {
namespace {

constexpr int64_t kTimeoutNs = 10'000'000'000;

class Messages : public testing::Test {
 protected:
  void SetUp() override {
    const JobSecret secret = JobSecret::random();
    Result<ControlListener> listener = ControlListener::listen("127.0.0.1", 0, secret);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    Thread thread = start_thread("requester", [&] {
      Result<ControlConnection> control =
          ControlConnection::connect("127.0.0.1", listener->port(), secret, kTimeoutNs);
      if (control.ok()) requester_.emplace(std::move(*control));
    });
    Result<ControlConnection> control = listener->accept(kTimeoutNs);
    thread.join();
    ASSERT_TRUE(control.ok() && requester_.has_value());
    responder_.emplace(std::move(*control));
  }

  Result<Message> pass(const Message& message) {
    EXPECT_TRUE(send_message(*requester_, message).ok());
    return receive_message(*responder_, kTimeoutNs);
  }
  Status refusal_of(const WireWriter& writer) {
    EXPECT_TRUE(requester_->send(writer.bytes()).ok());
    return receive_message(*responder_, kTimeoutNs).status();
  }

  std::optional<ControlConnection> requester_;
  std::optional<ControlConnection> responder_;
};

TEST_F(Messages, ArriveAsTheyWereSent) {
  const Point point{.protocol = Protocol::kSendWrite,
                    .layout = MarkLayout::kHeadTail,
                    .request_bytes = 5,
                    .response_bytes = kMaxMessageBytes,
                    .pending = kMaxPending};
  Result<Message> message =
      pass({.kind = MessageKind::kSetup, .setup = {.point = point, .run_key = 77}});
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->kind, MessageKind::kSetup);
  EXPECT_EQ(message->setup.point.protocol, Protocol::kSendWrite);
  EXPECT_EQ(message->setup.point.layout, MarkLayout::kHeadTail);
  EXPECT_EQ(message->setup.point.request_bytes, 5u);
  EXPECT_EQ(message->setup.point.response_bytes, kMaxMessageBytes);
  EXPECT_EQ(message->setup.point.pending, kMaxPending);
  EXPECT_EQ(message->setup.run_key, 77u);

  message = pass({.kind = MessageKind::kPhase,
                  .phase = {.kind = PhaseKind::kTimed, .verify = true, .number = 3}});
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->phase.kind, PhaseKind::kTimed);
  EXPECT_TRUE(message->phase.verify);
  EXPECT_EQ(message->phase.number, 3u);

  message = pass(
      {.kind = MessageKind::kReport,
       .report = {.requests = 9, .mismatches = 1, .cost = CpuCost{CpuUnit::kInstructions, 12.5}}});
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->report.requests, 9u);
  EXPECT_EQ(message->report.mismatches, 1u);
  ASSERT_TRUE(message->report.cost.has_value());
  EXPECT_EQ(message->report.cost->unit, CpuUnit::kInstructions);
  EXPECT_EQ(message->report.cost->per_message, 12.5);

  message = pass({.kind = MessageKind::kReport});
  ASSERT_TRUE(message.ok());
  EXPECT_FALSE(message->report.cost.has_value());
}

TEST_F(Messages, AFailureIsTheFailureOfWhoWaits) {
  ASSERT_TRUE(send_failure(*requester_, Status(StatusCode::kLimitExceeded, "no room")).ok());
  const Result<Message> message = expect_message(*responder_, MessageKind::kReady, kTimeoutNs);
  ASSERT_FALSE(message.ok());
  EXPECT_EQ(message.status().code(), StatusCode::kLimitExceeded);
  EXPECT_EQ(message.status().message(), "no room");

  ASSERT_TRUE(send_message(*requester_, {.kind = MessageKind::kDone}).ok());
  EXPECT_EQ(expect_message(*responder_, MessageKind::kReady, kTimeoutNs).status().code(),
            StatusCode::kProtocolViolation);
}

TEST_F(Messages, ImpossibleOnesAreRefused) {
  const auto begin = [](uint16_t version, MessageKind kind) {
    WireWriter writer;
    writer.u16(version);
    writer.u8(static_cast<uint8_t>(kind));
    return writer;
  };
  const auto setup = [&](uint8_t protocol, uint8_t layout, uint32_t request_bytes,
                         uint32_t pending) {
    WireWriter writer = begin(1, MessageKind::kSetup);
    writer.u8(protocol);
    writer.u8(layout);
    writer.u32(request_bytes);
    writer.u32(64);
    writer.u32(pending);
    writer.u64(0);
    return writer;
  };
  EXPECT_EQ(refusal_of(setup(0, 0, 64, 1)).code(), StatusCode::kOk);
  EXPECT_EQ(refusal_of(setup(5, 0, 64, 1)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup(0, 4, 64, 1)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup(0, 0, kMaxMessageBytes + 1, 1)).code(),
            StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup(0, 0, 64, 0)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup(0, 0, 64, kMaxPending + 1)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(begin(2, MessageKind::kDone)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(begin(1, static_cast<MessageKind>(99))).code(),
            StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(WireWriter()).code(), StatusCode::kProtocolViolation);
  WireWriter longer = begin(1, MessageKind::kDone);
  longer.u8(0);
  EXPECT_EQ(refusal_of(longer).code(), StatusCode::kProtocolViolation);
}

TEST_F(Messages, AWaitEndsWithTimeOrPeer) {
  EXPECT_EQ(receive_message(*responder_, 0).status().code(), StatusCode::kTimeout);
  requester_.reset();
  EXPECT_EQ(receive_message(*responder_, kTimeoutNs).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace verbena::bench
