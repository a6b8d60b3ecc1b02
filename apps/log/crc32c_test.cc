#include "log/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "src/base/runtime.h"

namespace verbena::log_app {
namespace {

TEST(Crc32cTest, IsTheOneOfTheStandard) {
  constexpr std::string_view kDigits = "123456789";  // RFC 3720 gives others, too
  EXPECT_EQ(crc32c(0, kDigits.data(), kDigits.size()), 0xe3069283u);
  EXPECT_EQ(crc32c_by_table(0, kDigits.data(), kDigits.size()), 0xe3069283u);
  const std::string zeroes(32, '\0');
  EXPECT_EQ(crc32c(0, zeroes.data(), zeroes.size()), 0x8a9136aau);
  EXPECT_EQ(crc32c(0, nullptr, 0), 0u);
}

TEST(Crc32cTest, IsTheSameByTableAndInParts) {
  Random random(1);
  std::string bytes(300, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.next());
  for (size_t from = 0; from < 16; ++from) {
    for (size_t size = 0; from + size <= bytes.size(); size += 7) {
      const char* const data = bytes.data() + from;
      const uint32_t whole = crc32c(0, data, size);
      EXPECT_EQ(whole, crc32c_by_table(0, data, size));
      const size_t part = size / 3;
      EXPECT_EQ(whole, crc32c(crc32c(0, data, part), data + part, size - part));
    }
  }
}

}  // namespace
}  // namespace verbena::log_app
