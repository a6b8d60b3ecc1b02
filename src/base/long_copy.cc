#include <cstddef>
#include <cstdint>
#include <cstring>

#include "verbena/data_path.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbena::internal {

#if defined(__x86_64__)

namespace {

constexpr size_t kLineBytes = 64;
constexpr uintptr_t kPageBytes = 4096;

__attribute__((target("avx2"))) void copy_lines(std::byte* to, const std::byte* from,
                                                size_t lines) {
  for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) {
    const auto* source = reinterpret_cast<const __m256i*>(from);
    auto* line = reinterpret_cast<__m256i*>(to);
    const __m256i first = _mm256_loadu_si256(source);
    const __m256i second = _mm256_loadu_si256(source + 1);
    _mm256_store_si256(line, first);
    _mm256_store_si256(line + 1, second);
  }
}

}  // namespace

void copy_long(void* to, const void* from, size_t bytes) {
  // Where memcpy() takes the instruction REP MOVSB, AMD's Zen 3 and Zen 4 need some 30 times as
  // long if the destination lies 1 to 15 bytes behind the source in its page, and twice as long
  // up to 31 bytes (glibc before 2.39). Both have AVX2.
  const auto ahead =
      (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPageBytes;
  if (ahead == 0 || ahead >= 32 || !__builtin_cpu_supports("avx2")) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* destination = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  const size_t lines = (bytes - head) / kLineBytes;
  std::memcpy(destination, source, head);
  destination += head;
  source += head;
  copy_lines(destination, source, lines);
  const size_t copied = lines * kLineBytes;
  std::memcpy(destination + copied, source + copied, bytes - head - copied);
}

#else

void copy_long(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace verbena::internal
