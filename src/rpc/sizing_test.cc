#include "src/rpc/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/rpc/responder_control.h"

namespace verbena::rpc {
namespace {

using testing::HasSubstr;

DeviceInfo device_with(uint32_t max_wrs) {
  DeviceInfo device;
  device.name = "test0";
  device.max_queue_pair_wrs = max_wrs;
  device.max_inline_bytes = 220;
  return device;
}

// Posting must never wait for a completion that only a later post would ask for.
TEST(SizingTest, SendQueueHoldsAllPendingBesideAnInterval) {
  for (uint32_t max_wrs : {64u, 100u, 16384u}) {
    for (uint32_t pending : {1u, 2u, 31u, 63u, 64u, 1000u, 4096u}) {
      for (uint32_t interval : {0u, 1u, 2u, 60u, 5000u}) {
        const auto sizes = size_send_queue(device_with(max_wrs), pending, interval, 1);
        if (!sizes.ok()) {
          EXPECT_GT(pending + std::max(interval, 1u), max_wrs);
          continue;
        }
        EXPECT_LE(sizes->depth_wrs, max_wrs);
        EXPECT_GE(sizes->signal_interval, 1u);
        EXPECT_GE(sizes->depth_wrs, pending + sizes->signal_interval);
        if (interval != 0) {
          EXPECT_EQ(sizes->signal_interval, interval);
        }
      }
    }
  }
}

TEST(SizingTest, SendQueueBeyondTheDeviceNamesBothNumbers) {
  const auto sizes = size_send_queue(device_with(64), 100, 28, 1);
  ASSERT_FALSE(sizes.ok());
  EXPECT_EQ(sizes.status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(sizes.status().message(), HasSubstr("128"));
  EXPECT_THAT(sizes.status().message(), HasSubstr("test0 has 64"));
}

TEST(SizingTest, BatchFitsTheQueue) {
  const auto sizes = size_send_queue(device_with(16384), 1, 0, 200);
  ASSERT_TRUE(sizes.ok());
  EXPECT_GE(sizes->depth_wrs, 200u);
}

TEST(SizingTest, ReceiveQueueBeyondTheDeviceNamesBothNumbers) {
  EXPECT_TRUE(size_receive_queue(100, "receive queue", 64, 0, 64).ok());
  EXPECT_TRUE(size_receive_queue(100, "receive queue", 1000, 100, 64).ok())
      << "fewer is the user's wish";
  const auto sizes = size_receive_queue(100, "shared receive queue", 100, 0, 64);
  ASSERT_FALSE(sizes.ok());
  EXPECT_EQ(sizes.status().code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(sizes.status().message(), HasSubstr("shared receive queue of 108"));
}

TEST(SizingTest, OptionsOutOfRangeAreNamed) {
  EXPECT_TRUE(check_sizes(0, 0, 1, 1).ok());
  EXPECT_TRUE(check_sizes(kMaxMessageBytes, kMaxMessageBytes, kMaxPending, 256).ok());
  EXPECT_THAT(check_sizes(kMaxMessageBytes + 1, 0, 1, 1).message(), HasSubstr("request_max_bytes"));
  EXPECT_THAT(check_sizes(0, kMaxMessageBytes + 1, 1, 1).message(),
              HasSubstr("response_max_bytes"));
  EXPECT_THAT(check_sizes(0, 0, 0, 1).message(), HasSubstr("pending is 0"));
  EXPECT_THAT(check_sizes(0, 0, kMaxPending + 1, 1).message(), HasSubstr("pending"));
  EXPECT_THAT(check_sizes(0, 0, 1, 0).message(), HasSubstr("post_batch"));
  ResponderOptions options;
  options.max_connections = 0;
  EXPECT_THAT(check_responder_options(options).message(), HasSubstr("max_connections is 0"));
}

TEST(SizingTest, InlineLimitIsTheDevicesAtMost) {
  EXPECT_EQ(inline_limit_bytes(device_with(1), kDeviceInlineLimit), 220u);
  EXPECT_EQ(inline_limit_bytes(device_with(1), 0), 0u);
  EXPECT_EQ(inline_limit_bytes(device_with(1), 64), 64u);
}

TEST(DeviceLayoutTest, MarksNeedADeviceThatWritesInOrder) {
  DeviceInfo device = device_with(1);
  device.writes_in_order = false;
  for (MarkLayout layout : all_mark_layouts()) {
    const bool marked = layout != MarkLayout::kImmediate && layout != MarkLayout::kDense;
    EXPECT_EQ(usable_layout(layout, false), marked ? MarkLayout::kImmediate : layout);
    EXPECT_EQ(usable_layout(layout, true), layout);
    EXPECT_EQ(check_device_layout(Protocol::kWriteWrite, layout, device).ok(), !marked);
    EXPECT_TRUE(check_device_layout(Protocol::kSendSend, layout, device).ok());
  }
  EXPECT_THAT(check_device_layout(Protocol::kSendWrite, MarkLayout::kHeadTail, device).message(),
              HasSubstr("use immediate"));
}

}  // namespace
}  // namespace verbena::rpc
