// The keys and values of the hashtable's loads. A key is a number in print; a value says which key
// and which version it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "src/base/assert.h"

namespace verbena::bench {

inline constexpr uint32_t kLeastKeyBytes = 11;
inline constexpr uint32_t kLeastValueBytes = 16;

// A one-to-one function of 64 bits whose results look random (the last step of SplitMix64).
inline uint64_t scrambled(uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  return number ^ (number >> 31);
}

// Makes printable keys: neighbouring numbers have keys that differ everywhere, as those of YCSB.
class KeyText {
 public:
  explicit KeyText(uint32_t size_bytes) : text_(size_bytes, 'k') {
    VERBENA_ASSERT(size_bytes >= kLeastKeyBytes);
  }

  // Valid until the next call.
  std::string_view of(uint64_t number) {
    constexpr const char* kDigits =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
    uint64_t rest = scrambled(number);
    char* digit = text_.data() + text_.size() - kLeastKeyBytes;
    for (uint32_t i = 0; i < kLeastKeyBytes; ++i, rest >>= 6) *digit++ = kDigits[rest % 64];
    return {text_.data(), text_.size()};
  }

 private:
  std::vector<char> text_;
};

// Begins with its version; all words behind it follow from key and version. So a value of another
// key, or one that is made of two versions, is noticed.
class DescribedValue {
 public:
  static void fill(std::span<char> value, uint64_t key, uint64_t version) {
    std::memcpy(value.data(), &version, sizeof(version));
    uint64_t word = scrambled(key ^ scrambled(version));
    for (size_t at = sizeof(word); at < value.size(); at += sizeof(word), word += kStep) {
      std::memcpy(value.data() + at, &word, std::min(sizeof(word), value.size() - at));
    }
  }
  // Of one that matches.
  static uint64_t version(std::span<const char> value) {
    uint64_t version = 0;
    std::memcpy(&version, value.data(), sizeof(version));
    return version;
  }
  static bool matches(std::span<const char> value, uint64_t key) {
    uint64_t version = 0;
    if (value.size() < kLeastValueBytes) return false;
    std::memcpy(&version, value.data(), sizeof(version));
    uint64_t word = scrambled(key ^ scrambled(version));
    for (size_t at = sizeof(word); at < value.size(); at += sizeof(word), word += kStep) {
      if (std::memcmp(value.data() + at, &word, std::min(sizeof(word), value.size() - at)) != 0) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;  // odd, and all its bytes in use
};

}  // namespace verbena::bench
