#include "log/crc32c.h"

#include <array>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace verbena::log_app {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  constexpr uint32_t kReversedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_by_instruction(uint32_t crc, const char* bytes,
                                                                 size_t size_bytes) {
  uint64_t sum = ~crc;
  for (; size_bytes >= sizeof(uint64_t); size_bytes -= sizeof(uint64_t)) {
    uint64_t word = 0;
    __builtin_memcpy(&word, bytes, sizeof(word));  // a load, where addresses are not aligned
    sum = _mm_crc32_u64(sum, word);
    bytes += sizeof(uint64_t);
  }
  auto rest = static_cast<uint32_t>(sum);
  for (; size_bytes > 0; --size_bytes) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(*bytes++));
  return ~rest;
}
const bool has_instruction = __builtin_cpu_supports("sse4.2");
#elif defined(__ARM_FEATURE_CRC32)
uint32_t crc32c_by_instruction(uint32_t crc, const char* bytes, size_t size_bytes) {
  crc = ~crc;
  for (; size_bytes >= sizeof(uint64_t); size_bytes -= sizeof(uint64_t)) {
    uint64_t word = 0;
    __builtin_memcpy(&word, bytes, sizeof(word));
    crc = __crc32cd(crc, word);
    bytes += sizeof(uint64_t);
  }
  for (; size_bytes > 0; --size_bytes) crc = __crc32cb(crc, static_cast<uint8_t>(*bytes++));
  return ~crc;
}
constexpr bool has_instruction = true;
#else
uint32_t crc32c_by_instruction(uint32_t crc, const char* bytes, size_t size_bytes) {
  return crc32c_by_table(crc, bytes, size_bytes);
}
constexpr bool has_instruction = false;
#endif

}  // namespace

uint32_t crc32c_by_table(uint32_t crc, const void* bytes, size_t size_bytes) {
  const auto* at = static_cast<const uint8_t*>(bytes);
  crc = ~crc;
  for (; size_bytes > 0; --size_bytes) crc = crc >> 8 ^ kTable[(crc ^ *at++) & 0xff];
  return ~crc;
}

uint32_t crc32c(uint32_t crc, const void* bytes, size_t size_bytes) {
  return has_instruction ? crc32c_by_instruction(crc, static_cast<const char*>(bytes), size_bytes)
                         : crc32c_by_table(crc, bytes, size_bytes);
}

}  // namespace verbena::log_app
