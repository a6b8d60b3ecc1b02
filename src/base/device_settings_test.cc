// How many software devices there are and what their ports are, as text.
#include "src/base/device_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace verbena {
namespace {

TEST(DeviceSettingsTest, LinkLayersHaveNames) {
  EXPECT_EQ(*parse_link_layer(""), LinkLayer::kInfiniBand);
  EXPECT_EQ(*parse_link_layer("infiniband"), LinkLayer::kInfiniBand);
  EXPECT_EQ(*parse_link_layer("ethernet"), LinkLayer::kEthernet);
  for (const char* wrong : {"Ethernet", "roce", "ethernet ", "1"}) {
    const Result<LinkLayer> parsed = parse_link_layer(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(wrong), std::string::npos);
    EXPECT_NE(parsed.status().message().find("it can be infiniband, or ethernet"),
              std::string::npos);
  }
}

TEST(DeviceSettingsTest, DevicesAreCounted) {
  EXPECT_EQ(*parse_soft_devices(""), 1u);
  EXPECT_EQ(*parse_soft_devices("1"), 1u);
  EXPECT_EQ(*parse_soft_devices("8"), kMostSoftDevices);
  for (const char* wrong : {"0", "9", "-1", "2x", "two", " 2", "99999999999"}) {
    const Result<uint32_t> parsed = parse_soft_devices(wrong);
    ASSERT_FALSE(parsed.ok()) << wrong;
    EXPECT_NE(parsed.status().message().find("it can be 1 to 8 devices"), std::string::npos);
  }
}

TEST(DeviceSettingsTest, AWrongVariableIsNamed) {
  setenv(kLinkLayerVariable, "token-ring", 1);
  setenv(kDevicesVariable, "many", 1);
  const Result<LinkLayer> link_layer = link_layer_from_environment();
  const Result<uint32_t> devices = soft_devices_from_environment();
  unsetenv(kLinkLayerVariable);
  unsetenv(kDevicesVariable);
  ASSERT_FALSE(link_layer.ok());
  EXPECT_EQ(link_layer.status().message(),
            "soft0: VERBENA_SOFT_LINK_LAYER is 'token-ring'; it can be infiniband, or ethernet for "
            "RoCE");
  ASSERT_FALSE(devices.ok());
  EXPECT_EQ(devices.status().message(),
            "soft0: VERBENA_SOFT_DEVICES is 'many'; it can be 1 to 8 devices");
  EXPECT_EQ(*link_layer_from_environment(), LinkLayer::kInfiniBand);
  EXPECT_EQ(*soft_devices_from_environment(), 1u);
}

}  // namespace
}  // namespace verbena
