#include "src/device/path_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace verbena {
namespace {

using testing::HasSubstr;

class PathSettingsTest : public testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    for (const char* variable :
         {"VERBENA_GID_INDEX", "VERBENA_ACK_TIMEOUT", "VERBENA_SERVICE_LEVEL",
          "VERBENA_TRAFFIC_CLASS", "VERBENA_PKEY_INDEX"}) {
      unsetenv(variable);
    }
  }
};

TEST_F(PathSettingsTest, NothingIsSetByDefault) {
  const Result<PathSettings> settings = path_settings();
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_FALSE(settings->gid_index.has_value());
  EXPECT_FALSE(settings->ack_timeout.has_value());
  EXPECT_EQ(settings->service_level, 0);
  EXPECT_EQ(settings->traffic_class, 0);
  EXPECT_EQ(settings->pkey_index, 0);
}

TEST_F(PathSettingsTest, TakesWhatIsSet) {
  setenv("VERBENA_GID_INDEX", "3", 1);
  setenv("VERBENA_ACK_TIMEOUT", "18", 1);
  setenv("VERBENA_SERVICE_LEVEL", "5", 1);
  setenv("VERBENA_TRAFFIC_CLASS", "106", 1);
  setenv("VERBENA_PKEY_INDEX", "2", 1);
  const Result<PathSettings> settings = path_settings();
  ASSERT_TRUE(settings.ok()) << settings.status().message();
  EXPECT_EQ(settings->gid_index, 3);
  EXPECT_EQ(settings->ack_timeout, 18);
  EXPECT_EQ(settings->service_level, 5);
  EXPECT_EQ(settings->traffic_class, 106);
  EXPECT_EQ(settings->pkey_index, 2);
}

TEST_F(PathSettingsTest, WhatIsNoNumberInRangeIsNamed) {
  for (const char* wrong : {"256", "-1", "three", "3 ", "0x3"}) {
    setenv("VERBENA_GID_INDEX", wrong, 1);
    const Result<PathSettings> settings = path_settings();
    ASSERT_FALSE(settings.ok()) << wrong;
    EXPECT_EQ(settings.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(settings.status().message(),
                HasSubstr("VERBENA_GID_INDEX is '" + std::string(wrong) + "'"));
    EXPECT_THAT(settings.status().message(), HasSubstr("0 to 255"));
  }
  unsetenv("VERBENA_GID_INDEX");
  setenv("VERBENA_ACK_TIMEOUT", "0", 1);  // the encoding of "wait for ever"
  EXPECT_FALSE(path_settings().ok());
}

TEST_F(PathSettingsTest, TheAckTimeoutCoversTheDevicesDelay) {
  EXPECT_EQ(ack_timeout_for(14, 0), 14);
  EXPECT_EQ(ack_timeout_for(14, 12), 14);
  EXPECT_EQ(ack_timeout_for(14, 13), 15);
  EXPECT_EQ(ack_timeout_for(14, 14), 15);
  EXPECT_EQ(ack_timeout_for(14, 15), 16);
  EXPECT_EQ(ack_timeout_for(14, 16), 16);
  EXPECT_EQ(ack_timeout_for(31, 31), 31);
}

TEST_F(PathSettingsTest, AWaitWithoutEndStaysOne) {
  EXPECT_EQ(ack_timeout_for(0, 0), 0);
  EXPECT_EQ(ack_timeout_for(0, 15), 0);
}

}  // namespace
}  // namespace verbena
