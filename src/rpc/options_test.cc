#include "src/rpc/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/rpc/negotiation.h"
#include "src/rpc/responder_control.h"

namespace verbena::rpc {
namespace {

using testing::HasSubstr;

TEST(OptionsTest, OptionsOutOfRangeAreNamed) {
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

TEST(DeviceLayoutTest, MarksNeedADeviceThatWritesInOrder) {
  DeviceInfo device;
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
