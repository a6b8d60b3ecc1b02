// Copies into memory that somebody may be polling: the last byte lands last.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "src/base/sanitizer.h"
#include "verbena/data_path.h"

namespace verbena::soft {

template <typename Word>
inline void copy_word(std::byte* destination, const std::byte* source) {
  Word word;
  memcpy(&word, source, sizeof(word));
  memcpy(destination, &word, sizeof(word));
}

// Up to one cache line or two without a call; sizes overlap instead of looping over bytes. Up to a
// line in words, as messages are put together: a load of what several stores have just written
// waits until they have reached the cache.
inline void copy_small(std::byte* destination, const std::byte* source, size_t size_bytes) {
  struct alignas(1) Block {
    std::byte bytes[16];
  };
  if (size_bytes >= 8 && size_bytes <= 64) {
    size_t at = 0;
    for (; at + 8 <= size_bytes; at += 8) copy_word<uint64_t>(destination + at, source + at);
    if (at < size_bytes) copy_word<uint64_t>(destination + size_bytes - 8, source + size_bytes - 8);
  } else if (size_bytes >= 16) {
    size_t at = 0;
    for (; at + 16 <= size_bytes; at += 16) copy_word<Block>(destination + at, source + at);
    if (at < size_bytes) copy_word<Block>(destination + size_bytes - 16, source + size_bytes - 16);
  } else if (size_bytes >= 4) {
    copy_word<uint32_t>(destination, source);
    copy_word<uint32_t>(destination + size_bytes - 4, source + size_bytes - 4);
  } else {
    for (size_t at = 0; at < size_bytes; ++at) destination[at] = source[at];
  }
}

inline constexpr size_t kSmallCopyBytes = 128;

inline void copy_bytes(std::byte* destination, const std::byte* source, size_t size_bytes) {
  if (size_bytes <= kSmallCopyBytes) {
    copy_small(destination, source, size_bytes);
  } else {
    internal::copy_uncounted(destination, source, size_bytes);
  }
}

// Asks for the cache lines of memory that is written next, all at once: those that another CPU has
// come while the first ones are written. Without it each store waits for its line, and the next
// ones behind it.
inline void prefetch_for_write(std::byte* destination, size_t size_bytes) {
#if defined(__x86_64__)
  constexpr size_t kLineBytes = 64;
  for (size_t at = 0; at < size_bytes; at += kLineBytes) {
    asm volatile("prefetchw %0" : : "m"(destination[at]));
  }
#else
  (void)destination;
  (void)size_bytes;
#endif
}

// ThreadSanitizer does not see streaming stores.
#if defined(__x86_64__) && !VERBENA_THREAD_SANITIZER
inline constexpr bool kCanStream = true;

// Past the caches, but for lines that are not whole. end_streaming() before anybody is told.
inline void stream_bytes(std::byte* destination, const std::byte* source, size_t size_bytes) {
  constexpr size_t kLineBytes = 64;
  const size_t head = -reinterpret_cast<uintptr_t>(destination) % kLineBytes;
  if (size_bytes < head + kLineBytes) return copy_bytes(destination, source, size_bytes);
  copy_small(destination, source, head);
  size_t at = head;
  for (; at + kLineBytes <= size_bytes; at += kLineBytes) {
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* line = reinterpret_cast<__m128i*>(destination + at);
    const __m128i first = _mm_loadu_si128(from);
    const __m128i second = _mm_loadu_si128(from + 1);
    const __m128i third = _mm_loadu_si128(from + 2);
    const __m128i fourth = _mm_loadu_si128(from + 3);
    _mm_stream_si128(line, first);
    _mm_stream_si128(line + 1, second);
    _mm_stream_si128(line + 2, third);
    _mm_stream_si128(line + 3, fourth);
  }
  copy_small(destination + at, source + at, size_bytes - at);
}
// Streaming stores are not ordered with what follows: without it a peer could find the last byte,
// or the packet, and old bytes in the message.
inline void end_streaming() { _mm_sfence(); }
// Until they have left this CPU.
inline void wait_for_stores() { _mm_mfence(); }
// As a store there would, but leaves what is there, whoever else writes it.
inline void take_line_of(std::byte* place) {
  asm volatile("lock orb $0, %0" : "+m"(*place) : : "memory", "cc");
}
#else
inline constexpr bool kCanStream = false;
inline void stream_bytes(std::byte* destination, const std::byte* source, size_t size_bytes) {
  copy_bytes(destination, source, size_bytes);
}
inline void end_streaming() {}
inline void wait_for_stores() {}
inline void take_line_of(std::byte*) {}
#endif

inline void copy_either(std::byte* destination, const std::byte* source, size_t size_bytes,
                        bool streams) {
  if (streams) {
    stream_bytes(destination, source, size_bytes);
  } else {
    copy_bytes(destination, source, size_bytes);
  }
}

// A release store of the last byte, and of up to seven bytes before it where one store can carry
// them all at once: a poller of the last byte then finds everything before it, and a poller of a
// whole small message never sees half.
inline void copy_last_byte_last(std::byte* destination, const std::byte* source, size_t size_bytes,
                                bool streams) {
  if (size_bytes == 0) return;
#if !VERBENA_THREAD_SANITIZER
  // Within a cache line, x86-64 stores are single even where they are not aligned; elsewhere only
  // aligned ones are.
  const auto last = reinterpret_cast<uintptr_t>(destination) + size_bytes - 8;
#if defined(__x86_64__)
  const bool single = (last & 63) <= 56;
#else
  const bool single = (last & 7) == 0;
#endif
  if (size_bytes >= 8 && single) {
    copy_either(destination, source, size_bytes - 8, streams);
    if (streams) end_streaming();
    std::atomic_thread_fence(std::memory_order_release);
    copy_word<uint64_t>(destination + size_bytes - 8, source + size_bytes - 8);
    return;
  }
#endif
  copy_either(destination, source, size_bytes - 1, streams);
  if (streams) end_streaming();
  __atomic_store_n(reinterpret_cast<unsigned char*>(destination) + size_bytes - 1,
                   static_cast<unsigned char>(source[size_bytes - 1]), __ATOMIC_RELEASE);
}

// The same of whole words at addresses that are multiples of 8.
inline void copy_last_word_last(std::byte* destination, const std::byte* source, size_t size_bytes,
                                bool streams) {
  const size_t last = size_bytes - 8;
  if (streams) {
    stream_bytes(destination, source, last);
    end_streaming();
  } else if (last <= kSmallCopyBytes) {
    for (size_t at = 0; at < last; at += 8) copy_word<uint64_t>(destination + at, source + at);
  } else {
    internal::copy_uncounted(destination, source, last);
  }
  uint64_t word;
  memcpy(&word, source + last, sizeof(word));
  __atomic_store_n(reinterpret_cast<uint64_t*>(destination + last), word, __ATOMIC_RELEASE);
}

}  // namespace verbena::soft
