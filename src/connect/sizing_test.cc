#include "src/connect/sizing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace verbena::connect {
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

TEST(SizingTest, InlineLimitIsTheDevicesAtMost) {
  EXPECT_EQ(inline_limit_bytes(device_with(1), ~0u), 220u);
  EXPECT_EQ(inline_limit_bytes(device_with(1), 0), 0u);
  EXPECT_EQ(inline_limit_bytes(device_with(1), 64), 64u);
}

}  // namespace
}  // namespace verbena::connect
