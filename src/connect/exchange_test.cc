#include "src/connect/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"

namespace verbena::connect {
namespace {

using testing::HasSubstr;

constexpr int64_t kTimeoutNs = 120'000'000'000;
constexpr Layer kLayer = {.name = "test", .magic = 0x74736574, .version = 7};

class ExchangeTest : public testing::Test {
 protected:
  ExchangeTest() {
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    EXPECT_TRUE(listener.ok()) << listener.status().message();
    Thread connecting = start_thread("connect", [&, port = listener->port()] {
      auto connection = ControlConnection::connect("127.0.0.1", port, secret_, kTimeoutNs);
      if (connection.ok()) left_.emplace(std::move(*connection));
    });
    auto connection = listener->accept(kTimeoutNs);
    EXPECT_TRUE(connection.ok()) << connection.status().message();
    right_.emplace(std::move(*connection));
    connecting.join();
    auto device = Device::open("soft0");
    EXPECT_TRUE(device.ok()) << device.status().message();
    device_.emplace(std::move(*device));
    auto domain = ProtectionDomain::create(*device_);
    EXPECT_TRUE(domain.ok()) << domain.status().message();
    domain_.emplace(std::move(*domain));
  }

  Endpoint endpoint(uint8_t max_outstanding_reads = 4) {
    EndpointPlan plan;
    plan.arena_bytes = 4096;
    plan.arena_access = IBV_ACCESS_REMOTE_WRITE;
    plan.send_depth_wrs = 4;
    plan.max_outstanding_reads = max_outstanding_reads;
    auto endpoint = make_endpoint(*device_, *domain_, plan);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().message();
    return std::move(*endpoint);
  }

  static std::vector<std::byte> word(uint32_t value) {
    WireWriter writer;
    writer.u32(value);
    return {writer.bytes().begin(), writer.bytes().end()};
  }

  // One side's join() with `mine`; what the peer's layer told goes into `theirs`.
  Status join_with(ControlConnection& control, Endpoint& end, uint32_t mine, uint32_t* theirs) {
    return join(
        control, kLayer, &end, word(mine),
        [&](WireReader& reader) {
          *theirs = reader.u32();
          return *theirs == 0 ? Status(StatusCode::kProtocolViolation, "0 is not allowed")
                              : Status::ok_status();
        },
        kTimeoutNs);
  }

  // Both functions at once, the first in a thread of its own.
  template <typename Left, typename Right>
  void both(Left&& left, Right&& right) {
    ASSERT_TRUE(left_ && right_);
    Thread thread = start_thread("left", left);
    right();
    thread.join();
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<ControlConnection> left_;
  std::optional<ControlConnection> right_;
  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
};

TEST_F(ExchangeTest, BothLearnTheLayersWordsAndCanSend) {
  Endpoint left = endpoint();
  Endpoint right = endpoint();
  uint32_t left_heard = 0;
  uint32_t right_heard = 0;
  both([&] { EXPECT_TRUE(join_with(*left_, left, 11, &left_heard).ok()); },
       [&] { EXPECT_TRUE(join_with(*right_, right, 22, &right_heard).ok()); });
  EXPECT_EQ(left_heard, 22u);
  EXPECT_EQ(right_heard, 11u);
  EXPECT_EQ(left.queue_pair.get()->state, IBV_QPS_RTS);
  EXPECT_EQ(right.queue_pair.get()->state, IBV_QPS_RTS);
}

TEST_F(ExchangeTest, TheLowerNumberOfOutstandingReadsHolds) {
  Endpoint left = endpoint(16);
  Endpoint right = endpoint(3);
  uint32_t heard = 0;
  uint32_t unused = 0;
  both([&] { EXPECT_TRUE(join_with(*left_, left, 1, &unused).ok()); },
       [&] { EXPECT_TRUE(join_with(*right_, right, 1, &heard).ok()); });
  for (const Endpoint* end : {&left, &right}) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(device_->control().query_qp(end->queue_pair.get(), &attributes,
                                          IBV_QP_MAX_QP_RD_ATOMIC, &init),
              0);
    EXPECT_EQ(attributes.max_rd_atomic, 3);
  }
}

TEST_F(ExchangeTest, AFailureOnOneSideReachesTheOtherAndLeavesNoFrameBehind) {
  const Status failure(StatusCode::kLimitExceeded, "out of slots\n\x1b[31m");
  Endpoint left = endpoint();
  both(
      [&] {
        uint32_t heard = 0;
        const Status joined = join_with(*left_, left, 1, &heard);
        EXPECT_EQ(joined.code(), StatusCode::kLimitExceeded);
        EXPECT_THAT(joined.message(), HasSubstr("out of slots??[31m")) << "printable";
        EXPECT_TRUE(left_->send_value(1, 42, kTimeoutNs).ok());
      },
      [&] {
        const Status joined = join(
            *right_, kLayer, nullptr, failure, [](WireReader&) { return Status(); }, kTimeoutNs);
        EXPECT_EQ(joined.message(), failure.message());
        const auto value = right_->receive_value<int>(1, kTimeoutNs);
        ASSERT_TRUE(value.ok()) << value.status().message();
        EXPECT_EQ(*value, 42);
      });
}

TEST_F(ExchangeTest, WhatTheLayerRefusesIsToldToBoth) {
  Endpoint left = endpoint();
  Endpoint right = endpoint();
  both(
      [&] {
        uint32_t heard = 0;
        EXPECT_THAT(join_with(*left_, left, 0, &heard).message(), HasSubstr("0 is not allowed"));
      },
      [&] {
        uint32_t heard = 1;
        EXPECT_EQ(join_with(*right_, right, 1, &heard).message(), "0 is not allowed");
      });
  EXPECT_NE(right.queue_pair.get()->state, IBV_QPS_RTS);
}

// A frame of step 1 with one number changed, from a peer that is not ours.
struct Frame {
  uint32_t magic = kLayer.magic;
  uint16_t version = kLayer.version;
  uint8_t step = 1;
  uint32_t queue_pair_number = 5;
  uint32_t packet_sequence_number = 6;
  uint8_t mtu = IBV_MTU_1024;
  uint32_t surplus_bytes = 0;
  bool cut = false;

  WireWriter written() const {
    WireWriter writer;
    writer.u32(magic);
    writer.u16(version);
    writer.u8(step);
    writer.u8(0);
    writer.string("");
    if (cut) return writer;
    writer.u32(queue_pair_number);
    writer.u32(packet_sequence_number);
    writer.u16(0);
    for (int i = 0; i < 16; ++i) writer.u8(0);
    writer.u8(0);
    writer.u8(mtu);
    writer.u8(1);
    writer.u32(9);  // the layer's word
    for (uint32_t i = 0; i < surplus_bytes; ++i) writer.u8(0);
    return writer;
  }
};

TEST_F(ExchangeTest, FramesThatCannotBeAreRefusedWithTheReason) {
  const std::pair<Frame, const char*> frames[] = {
      {{.magic = 1}, "other than a test handshake"},
      {{.version = 8}, "version 8"},
      {{.step = 2}, "step 2"},
      {{.queue_pair_number = 1u << 24}, "24 bits"},
      {{.packet_sequence_number = 1u << 24}, "24 bits"},
      {{.mtu = 0}, "MTU"},
      {{.mtu = 6}, "MTU"},
      {{.surplus_bytes = 3}, "3 bytes too many"},
      {{.cut = true}, "cut short"},
  };
  for (const auto& [frame, reason] : frames) {
    Endpoint right = endpoint();
    both(
        [&, &written = frame] {
          EXPECT_TRUE(left_->send(written.written().bytes(), kTimeoutNs).ok());
          EXPECT_TRUE(left_->receive(kTimeoutNs).ok());
          // Where the numbers were wrong, the reason comes too; else the peer has given up.
          if (written.magic == kLayer.magic && written.version == kLayer.version &&
              written.step == 1) {
            WireWriter ready;
            begin_step(ready, kLayer, 2, Status::ok_status());
            EXPECT_TRUE(left_->send(ready.bytes(), kTimeoutNs).ok());
            EXPECT_TRUE(left_->receive(kTimeoutNs).ok());
          }
        },
        [&, &expected = reason] {
          uint32_t heard = 0;
          const Status joined = join_with(*right_, right, 1, &heard);
          EXPECT_EQ(joined.code(), StatusCode::kProtocolViolation);
          EXPECT_THAT(joined.message(), HasSubstr(expected));
        });
  }
}

TEST_F(ExchangeTest, APeerThatLeavesIsReported) {
  Endpoint right = endpoint();
  left_.reset();
  uint32_t heard = 0;
  EXPECT_EQ(join_with(*right_, right, 1, &heard).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace verbena::connect
