#include "src/base/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/runtime.h"

namespace verbena {
namespace {

TEST(WireTest, WritesLittleEndianWithoutPadding) {
  WireWriter writer;
  writer.u8(0x01);
  writer.u16(0x0302);
  writer.u32(0x07060504);
  writer.u64(0x0f0e0d0c0b0a0908);
  writer.string("ab");
  const std::span<const std::byte> bytes = writer.bytes();
  ASSERT_EQ(bytes.size(), 21u);
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(bytes[i], static_cast<std::byte>(i + 1));
  EXPECT_EQ(bytes[15], std::byte{2});
  EXPECT_EQ(bytes[16], std::byte{0});
  EXPECT_EQ(bytes[19], std::byte{'a'});
}

TEST(WireTest, ReadsBackWhatWasWritten) {
  WireWriter writer;
  writer.u64(UINT64_MAX);
  writer.u32(UINT32_MAX);
  writer.u16(UINT16_MAX);
  writer.u8(UINT8_MAX);
  writer.string("");
  writer.string(std::string("with\0zero", 9));
  writer.raw(std::as_bytes(std::span("xyz", 3)));
  WireReader reader(writer.bytes());
  EXPECT_EQ(reader.u64(), UINT64_MAX);
  EXPECT_EQ(reader.u32(), UINT32_MAX);
  EXPECT_EQ(reader.u16(), UINT16_MAX);
  EXPECT_EQ(reader.u8(), UINT8_MAX);
  EXPECT_EQ(reader.string(0), "");
  EXPECT_EQ(reader.string(9), std::string("with\0zero", 9));
  EXPECT_EQ(reader.rest_bytes(), 3u);
  EXPECT_EQ(reader.raw(3)[2], std::byte{'z'});
  EXPECT_TRUE(reader.finish("message").ok());
}

TEST(WireTest, EveryTruncationIsNoticed) {
  WireWriter writer;
  writer.u16(1);
  writer.string("some text");
  writer.u64(2);
  for (size_t size = 0; size < writer.bytes().size(); ++size) {
    WireReader reader(writer.bytes().first(size));
    reader.u16();
    reader.string(100);
    reader.u64();
    const Status status = reader.finish("hello");
    EXPECT_EQ(status.code(), StatusCode::kProtocolViolation) << size;
    EXPECT_THAT(status.message(), testing::HasSubstr("hello"));
  }
}

TEST(WireTest, AfterAFailureEverythingIsZero) {
  WireWriter writer;
  writer.u32(1000);
  writer.u32(7);
  WireReader reader(writer.bytes());
  EXPECT_EQ(reader.string(2000), "");
  EXPECT_TRUE(reader.failed());
  EXPECT_EQ(reader.u32(), 0u);
  EXPECT_TRUE(reader.raw(1).empty());
}

TEST(WireTest, AStringBeyondItsLimitIsAFailureThoughItsBytesAreThere) {
  WireWriter writer;
  writer.string("12345");
  WireReader reader(writer.bytes());
  EXPECT_EQ(reader.string(4), "");
  EXPECT_FALSE(reader.finish("name").ok());
}

TEST(WireTest, BytesLeftOverAreAFailure) {
  WireWriter writer;
  writer.u32(1);
  writer.u8(2);
  WireReader reader(writer.bytes());
  reader.u32();
  const Status status = reader.finish("hello");
  EXPECT_EQ(status.code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(status.message(), testing::HasSubstr("1 bytes too many"));
}

TEST(WireTest, RandomBytesAreSurvived) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 10'000; ++round) {
    // Of exactly this size, so that a sanitizer sees any step beyond it.
    std::vector<std::byte> bytes(random.below(64));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(32));
    WireReader reader(bytes);
    size_t read = 0;
    while (!reader.failed() && reader.rest_bytes() > 0) {
      const size_t before = reader.rest_bytes();
      switch (random.below(5)) {
        case 0:
          reader.u8();
          break;
        case 1:
          reader.u16();
          break;
        case 2:
          reader.u64();
          break;
        case 3:
          reader.string(16);
          break;
        default:
          reader.raw(1 + random.below(16));
          break;
      }
      read += before - reader.rest_bytes();
    }
    ASSERT_EQ(read + reader.rest_bytes(), bytes.size());
  }
}

}  // namespace
}  // namespace verbena
