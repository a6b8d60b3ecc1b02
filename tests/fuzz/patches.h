// Memory that somebody else writes, as an input: a list of words and where they go. So an input can
// change any word to any value, and those of the seeds meet at other places.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "tests/fuzz/fuzz_target.h"

namespace verbena::fuzz {

struct Patch {
  uint16_t word;  // its number in the memory
  uint64_t value;
};
inline constexpr size_t kPatchBytes = sizeof(uint16_t) + sizeof(uint64_t);

inline void add_patch(Bytes& input, uint16_t word, uint64_t value) {
  const size_t at = input.size();
  input.resize(at + kPatchBytes);
  std::memcpy(input.data() + at, &word, sizeof(word));
  std::memcpy(input.data() + at + sizeof(word), &value, sizeof(value));
}
// One patch for each word of a part, with the value that it has.
inline Bytes patches_of(std::span<const char> memory, size_t first_word, size_t words) {
  Bytes input;
  for (size_t i = first_word; i < first_word + words; ++i) {
    uint64_t value = 0;
    std::memcpy(&value, memory.data() + i * sizeof(value), sizeof(value));
    add_patch(input, static_cast<uint16_t>(i), value);
  }
  return input;
}
// Calls use(const Patch&) for each that is whole.
template <typename Use>
void for_each_patch(std::span<const std::byte> input, size_t memory_words, Use&& use) {
  for (; input.size() >= kPatchBytes; input = input.subspan(kPatchBytes)) {
    Patch patch{};
    std::memcpy(&patch.word, input.data(), sizeof(patch.word));
    std::memcpy(&patch.value, input.data() + sizeof(patch.word), sizeof(patch.value));
    patch.word = static_cast<uint16_t>(patch.word % memory_words);
    use(patch);
  }
}
inline void apply_patch(const Patch& patch, std::span<char> memory) {
  std::memcpy(memory.data() + patch.word * sizeof(uint64_t), &patch.value, sizeof(patch.value));
}

}  // namespace verbena::fuzz
