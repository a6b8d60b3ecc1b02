#include "src/control/preface.h"

#include <gtest/gtest.h>

#include <cstring>

namespace verbena {
namespace {

// In this version and all others, or they could not tell each other that they differ.
TEST(PrefaceTest, TheLayoutIsFixed) {
  Preface preface{.version = 0x0201,
                  .kind = PrefaceKind::kRefusal,
                  .refusal = Refusal::kWrongSecret,
                  .body = {}};
  for (size_t i = 0; i < preface.body.size(); ++i) preface.body[i] = static_cast<std::byte>(i);
  const EncodedPreface bytes = encode_preface(preface);
  EncodedPreface expected{};
  std::memcpy(expected.data(), "VERBENA\n\x01\x02\x03\x00\x03\x00\x00\x00", 16);
  for (size_t i = 0; i < 32; ++i) expected[16 + i] = static_cast<std::byte>(i);
  EXPECT_EQ(bytes, expected);

  Preface decoded;
  ASSERT_TRUE(decode_preface(bytes, &decoded));
  EXPECT_EQ(decoded, preface);
  for (size_t i = 0; i < kPrefaceMagic.size(); ++i) {
    EncodedPreface altered = bytes;
    altered[i] ^= std::byte{1};
    EXPECT_FALSE(decode_preface(altered, &decoded));
  }
}

TEST(PrefaceTest, ARefusalHasItsReasonInWords) {
  const EncodedPreface bytes = encode_refusal(7, Refusal::kNotAPeer);
  Preface preface;
  ASSERT_TRUE(decode_preface(bytes, &preface));
  EXPECT_EQ(preface.version, 7);
  EXPECT_EQ(preface.kind, PrefaceKind::kRefusal);
  EXPECT_EQ(preface.refusal, Refusal::kNotAPeer);
  EXPECT_STREQ(reinterpret_cast<const char*>(preface.body.data()), "not a Verbena peer\r\n");
}

}  // namespace
}  // namespace verbena
