#include "src/bench/load/payload_pattern.h"

#include <cstring>

#include "src/base/assert.h"
#include "src/base/runtime.h"

namespace verbena::bench {

namespace {

constexpr size_t kWordBytes = 8;

}  // namespace

PayloadPattern::PayloadPattern(uint64_t run_key, Direction direction, uint32_t slot,
                               uint64_t sequence) {
  // Drawn from all four, so that none of them can make up for another one.
  uint64_t key = Random(run_key + static_cast<uint64_t>(direction)).next();
  key = Random(key ^ slot).next();
  key_ = Random(key ^ sequence).next();
}

void PayloadPattern::fill(std::span<char> bytes, uint64_t first_byte) const {
  VERBENA_DEBUG_ASSERT(first_byte % kWordBytes == 0);
  uint64_t value = word(first_byte / kWordBytes);
  char* at = bytes.data();
  const size_t words = bytes.size() / kWordBytes;
  for (size_t i = 0; i < words; ++i, at += kWordBytes, value += kStep) {
    std::memcpy(at, &value, kWordBytes);
  }
  std::memcpy(at, &value, bytes.size() % kWordBytes);
}

bool PayloadPattern::matches(std::span<const char> bytes, uint64_t first_byte) const {
  VERBENA_DEBUG_ASSERT(first_byte % kWordBytes == 0);
  uint64_t value = word(first_byte / kWordBytes);
  const char* at = bytes.data();
  const size_t words = bytes.size() / kWordBytes;
  // Collects the differences instead of leaving at the first one: branches would make it slow.
  uint64_t difference = 0;
  for (size_t i = 0; i < words; ++i, at += kWordBytes, value += kStep) {
    uint64_t found;
    std::memcpy(&found, at, kWordBytes);
    difference |= found ^ value;
  }
  return difference == 0 && std::memcmp(at, &value, bytes.size() % kWordBytes) == 0;
}

}  // namespace verbena::bench
