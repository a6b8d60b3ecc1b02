#include "src/device/hardware/gid_choice.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <vector>

namespace verbena {
namespace {

ibv_gid_entry entry(uint32_t index, const char* address, ibv_gid_type type) {
  ibv_gid_entry made{};
  made.gid_index = index;
  made.port_num = 1;
  made.gid_type = type;
  EXPECT_EQ(inet_pton(AF_INET6, address, made.gid.raw), 1) << address;
  return made;
}

TEST(GidChoiceTest, PrefersRoceV2OverIpv4) {
  const std::vector<ibv_gid_entry> table = {
      entry(0, "fe80::1", IBV_GID_TYPE_ROCE_V1),
      entry(1, "fe80::1", IBV_GID_TYPE_ROCE_V2),
      entry(2, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1),
      entry(3, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2),
      entry(4, "2001:db8::1", IBV_GID_TYPE_ROCE_V2),
  };
  ASSERT_TRUE(choose_gid(table).has_value());
  EXPECT_EQ(choose_gid(table)->gid_index, 3u);
}

TEST(GidChoiceTest, FallsBackInOrder) {
  std::vector<ibv_gid_entry> table = {
      entry(0, "fe80::1", IBV_GID_TYPE_ROCE_V1),
      entry(1, "fe80::1", IBV_GID_TYPE_ROCE_V2),
      entry(4, "2001:db8::1", IBV_GID_TYPE_ROCE_V2),
  };
  EXPECT_EQ(choose_gid(table)->gid_index, 4u);
  table.pop_back();
  EXPECT_EQ(choose_gid(table)->gid_index, 1u);
  table.pop_back();
  EXPECT_EQ(choose_gid(table)->gid_index, 0u);
}

TEST(GidChoiceTest, TakesTheLowestIndexAmongEquals) {
  const std::vector<ibv_gid_entry> table = {
      entry(5, "::ffff:10.0.1.1", IBV_GID_TYPE_ROCE_V2),
      entry(3, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2),
      entry(7, "::ffff:10.0.2.1", IBV_GID_TYPE_ROCE_V2),
  };
  EXPECT_EQ(choose_gid(table)->gid_index, 3u);
}

TEST(GidChoiceTest, IgnoresEmptyEntries) {
  EXPECT_FALSE(choose_gid({}).has_value());
  const std::vector<ibv_gid_entry> table = {entry(0, "::", IBV_GID_TYPE_ROCE_V2)};
  EXPECT_FALSE(choose_gid(table).has_value());
}

}  // namespace
}  // namespace verbena
