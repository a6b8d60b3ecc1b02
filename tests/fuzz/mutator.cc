#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

namespace verbena::fuzz {
namespace {

constexpr std::array<uint64_t, 12> kLimits = {0,
                                              1,
                                              0x7f,
                                              0x80,
                                              0xff,
                                              0x7fff,
                                              0xffff,
                                              0x7fff'ffff,
                                              0x8000'0000,
                                              0xffff'ffff,
                                              0x7fff'ffff'ffff'ffff,
                                              0xffff'ffff'ffff'ffff};

// A part of `bytes`, mostly a short one: begin and length.
std::pair<size_t, size_t> some_part(const Bytes& bytes, Random& random) {
  const size_t begin = random.below(bytes.size());
  const size_t most = random.below(4) == 0 ? bytes.size() - begin : 16;
  return {begin, std::min(1 + random.below(most), bytes.size() - begin)};
}

void put_number(Bytes& bytes, Random& random) {
  const size_t width = size_t{1} << random.below(4);
  if (bytes.size() < width) return;
  uint64_t value = kLimits[random.below(kLimits.size())];
  if (random.below(4) == 0) value = 0 - value;
  if (random.below(4) == 0) value = random.next();
  std::memcpy(bytes.data() + random.below(bytes.size() - width + 1), &value, width);
}

void insert(Bytes& bytes, std::span<const std::byte> what, Random& random) {
  const auto at = bytes.begin() + static_cast<ptrdiff_t>(random.below(bytes.size() + 1));
  bytes.insert(at, what.begin(), what.end());
}

void change(Bytes& bytes, std::span<const Bytes> seeds, Random& random) {
  const Bytes& other = seeds[random.below(seeds.size())];
  switch (bytes.empty() ? 5 : random.below(8)) {
    case 0:
      bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1u << random.below(8));
      break;
    case 1:
      bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
      break;
    case 2:
      put_number(bytes, random);
      break;
    case 3: {
      const auto [begin, length] = some_part(bytes, random);
      bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(begin),
                  bytes.begin() + static_cast<ptrdiff_t>(begin + length));
      break;
    }
    case 4: {
      const auto [begin, length] = some_part(bytes, random);
      const Bytes part(bytes.begin() + static_cast<ptrdiff_t>(begin),
                       bytes.begin() + static_cast<ptrdiff_t>(begin + length));
      for (uint64_t times = 1 + random.below(random.below(8) == 0 ? 64 : 2); times > 0; --times) {
        insert(bytes, part, random);
      }
      break;
    }
    case 5:
      for (uint64_t count = 1 + random.below(8); count > 0; --count) {
        const auto foreign = static_cast<std::byte>(random.next());
        insert(bytes, {&foreign, 1}, random);
      }
      break;
    case 6:
      if (!other.empty()) {
        const auto [begin, length] = some_part(other, random);
        insert(bytes, std::span(other).subspan(begin, length), random);
      }
      break;
    default:
      bytes.resize(random.below(bytes.size() + 1));
      break;
  }
}

}  // namespace

Bytes mutated(std::span<const Bytes> seeds, Random& random, size_t max_bytes) {
  Bytes bytes = seeds[random.below(seeds.size())];
  for (uint64_t changes = 1 + random.below(8); changes > 0; --changes) {
    change(bytes, seeds, random);
  }
  if (bytes.size() > max_bytes) bytes.resize(max_bytes);
  return bytes;
}

}  // namespace verbena::fuzz
