#include <cstring>

#include "verbena/apps/shuffle.h"

namespace verbena {
namespace {

// Odd, with bits in no pattern: the fractions of the square roots of 2, 3 and 5.
constexpr uint64_t kFirst = 0x6a09e667f3bcc909u;
constexpr uint64_t kSecond = 0xbb67ae8584caa73bu;
constexpr uint64_t kThird = 0x3c6ef372fe94f82bu;

// Every bit of the product's halves depends on all bits below it, and on all above.
uint64_t fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Keys of 8 bytes are read by the CPU alone, which nothing has to count.
uint64_t word_at(const char* at, size_t bytes = sizeof(uint64_t)) {
  uint64_t word = 0;
  std::memcpy(&word, at, bytes);  // NOLINT(conventions): a load
  return word;
}

}  // namespace

uint64_t shuffle_hash(std::string_view key) {
  const char* at = key.data();
  size_t left = key.size();
  // Two chains, so that the multiplications of long keys overlap.
  uint64_t first = kFirst + left * kSecond;
  uint64_t second = kSecond;
  while (left >= 16) {
    first = fold(first ^ word_at(at), kThird);
    second = fold(second ^ word_at(at + 8), kFirst);
    at += 16;
    left -= 16;
  }
  if (left >= 8) {
    first = fold(first ^ word_at(at), kThird);
    at += 8;
    left -= 8;
  }
  if (left > 0) second = fold(second ^ word_at(at, left), kFirst);
  return fold(first ^ kSecond, fold(second ^ first, kThird) | 1);
}

}  // namespace verbena
