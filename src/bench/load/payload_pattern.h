// Payloads whose every byte is known: what `--verify` fills in and looks for.
//
// The byte at each position depends on the position, on the message's number and on the direction,
// so a message that is cut, shifted, stale, or somebody else's is noticed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::bench {

enum class Direction : uint8_t { kRequest, kResponse };

// The pattern of message number `sequence` of a slot. `run_key` is any number that differs between
// runs: memory that an earlier run left behind then does not pass.
class PayloadPattern {
 public:
  PayloadPattern(uint64_t run_key, Direction direction, uint32_t slot, uint64_t sequence);

  // Writes or checks the pattern's bytes from `first_byte` on, a multiple of 8. About as fast as a
  // copy. `bytes` may start anywhere.
  void fill(std::span<char> bytes, uint64_t first_byte = 0) const;
  bool matches(std::span<const char> bytes, uint64_t first_byte = 0) const;

 private:
  uint64_t word(uint64_t index) const { return key_ + index * kStep; }

  // Odd, so that 2^64 words pass before one repeats; its bytes are all in use, so that neighbouring
  // words differ in every byte.
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  uint64_t key_;
};

}  // namespace verbena::bench
