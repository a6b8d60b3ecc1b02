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

// Who copies between the same two buffers again finds their ends in the nearest cache, and more
// of them where it begins there. Shorter ones fit into that cache, and of longer ones it keeps too
// little.
constexpr size_t kFromEndBytesMin = 16 * 1024;
constexpr size_t kFromEndBytesMax = 512 * 1024;

struct LastCopy {
  const void* to;
  const void* from;
  size_t bytes;
  bool from_end;
};
__attribute__((tls_model("initial-exec"))) constinit thread_local LastCopy last_copy{};

// Whether to begin at the end. Buffers that are not used again are copied as memory is
// prefetched best.
bool begins_at_end(const void* to, const void* from, size_t bytes) {
  if (bytes <= kFromEndBytesMin || bytes > kFromEndBytesMax) return false;
  const bool again = to == last_copy.to && from == last_copy.from && bytes == last_copy.bytes;
  last_copy = {to, from, bytes, again && !last_copy.from_end};
  return last_copy.from_end;
}

__attribute__((target("avx2"))) inline void copy_line(std::byte* to, const std::byte* from) {
  const auto* source = reinterpret_cast<const __m256i*>(from);
  auto* line = reinterpret_cast<__m256i*>(to);
  const __m256i first = _mm256_loadu_si256(source);
  const __m256i second = _mm256_loadu_si256(source + 1);
  _mm256_store_si256(line, first);
  _mm256_store_si256(line + 1, second);
}

__attribute__((target("avx2"))) void copy_lines(std::byte* to, const std::byte* from, size_t lines,
                                                bool from_end) {
  if (from_end) {
    while (lines-- > 0) copy_line(to + lines * kLineBytes, from + lines * kLineBytes);
  } else {
    for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) copy_line(to, from);
  }
}

}  // namespace

void copy_long(void* to, const void* from, size_t bytes) {
  // Where memcpy() takes the instruction REP MOVSB, AMD's Zen 3 and Zen 4 need some 30 times as
  // long if the destination lies 1 to 15 bytes behind the source in its page, and twice as long
  // up to 31 bytes (glibc before 2.39). Both have AVX2.
  const auto ahead =
      (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPageBytes;
  const bool is_slow_for_memcpy = ahead > 0 && ahead < 32;
  const bool from_end = begins_at_end(to, from, bytes);
  if ((!is_slow_for_memcpy && !from_end) || !__builtin_cpu_supports("avx2")) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* destination = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  const size_t lines = (bytes - head) / kLineBytes;
  const size_t tail = head + lines * kLineBytes;
  std::memcpy(destination, source, head);
  copy_lines(destination + head, source + head, lines, from_end);
  std::memcpy(destination + tail, source + tail, bytes - tail);
}

#else

void copy_long(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace verbena::internal
