#include "src/remote/region_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "src/base/wire.h"

namespace verbena::remote {
namespace {

using testing::HasSubstr;

constexpr RegionDescription kRegion = {.role = Role::kBackEnd,
                                       .address = 0x7f0000001000,
                                       .size_bytes = 4096,
                                       .rkey = 17,
                                       .writable = true,
                                       .atomics = false};

Status decode_all(const std::vector<std::byte>& bytes, Role mine, RegionDescription* description) {
  WireReader reader(bytes);
  const Status decoded = decode(reader, mine, description);
  VERBENA_RETURN_IF_ERROR(reader.finish("description of a region"));
  return decoded;
}

TEST(RegionDescriptionTest, ArrivesAsItWasSent) {
  RegionDescription found;
  ASSERT_TRUE(decode_all(encode(kRegion), Role::kFrontEnd, &found).ok());
  EXPECT_EQ(found.address, kRegion.address);
  EXPECT_EQ(found.size_bytes, kRegion.size_bytes);
  EXPECT_EQ(found.rkey, kRegion.rkey);
  EXPECT_TRUE(found.writable);
  EXPECT_FALSE(found.atomics);
  ASSERT_TRUE(decode_all(encode({.role = Role::kFrontEnd}), Role::kBackEnd, &found).ok());
}

TEST(RegionDescriptionTest, TwoOfTheSameRoleAreTold) {
  RegionDescription found;
  const Status exposes = decode_all(encode(kRegion), Role::kBackEnd, &found);
  EXPECT_EQ(exposes.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(exposes.message(), HasSubstr("one side must call open_region()"));
  const Status opens = decode_all(encode({.role = Role::kFrontEnd}), Role::kFrontEnd, &found);
  EXPECT_THAT(opens.message(), HasSubstr("one side must call expose_region()"));
}

TEST(RegionDescriptionTest, WhatCannotBeIsAViolation) {
  RegionDescription empty = kRegion;
  empty.size_bytes = 0;
  RegionDescription too_far = kRegion;
  too_far.address = ~uint64_t{0} - 4000;
  std::vector<std::byte> unknown_flag = encode(kRegion);
  unknown_flag.back() = std::byte{4};
  std::vector<std::byte> unknown_role = encode(kRegion);
  unknown_role.front() = std::byte{3};
  for (const std::vector<std::byte>& bytes :
       {encode(empty), encode(too_far), unknown_flag, unknown_role}) {
    RegionDescription found;
    const Status decoded = decode_all(bytes, Role::kFrontEnd, &found);
    EXPECT_EQ(decoded.code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(decoded.message(), HasSubstr("run the same release on both sides"));
  }
  // A frame that is cut short, at every place, or too long.
  std::vector<std::byte> bytes = encode(kRegion);
  bytes.push_back(std::byte{0});
  RegionDescription found;
  EXPECT_FALSE(decode_all(bytes, Role::kFrontEnd, &found).ok());
  for (bytes = encode(kRegion); !bytes.empty();) {
    bytes.pop_back();
    EXPECT_FALSE(decode_all(bytes, Role::kFrontEnd, &found).ok()) << bytes.size();
  }
  std::vector<std::byte> nonsense(1, std::byte{9});
  EXPECT_FALSE(decode_all(nonsense, Role::kBackEnd, &found).ok()) << "a role that there is not";
}

}  // namespace
}  // namespace verbena::remote
