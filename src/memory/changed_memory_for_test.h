// Memory of tests that change it under the eyes of a registration cache.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "src/memory/memory_events.h"

namespace verbena::test {

inline constexpr uint64_t kPageBytes = 4096;

// Anonymous memory, written to; at `address`, in place of what is there, unless that is null.
// Addresses far below those that the system gives away: what a test unmaps there nobody else gets,
// so it stays unmapped until the test maps it again.
inline void* addresses_of_ones_own(uint64_t pages) {
  constexpr uint64_t kFarBytes = uint64_t{256} << 30;  // beyond what simulated clusters reserve
  static std::atomic<uint64_t> next{[] {
    void* const near = mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(near, kPageBytes);
    return reinterpret_cast<uint64_t>(near) - kFarBytes;
  }()};
  return reinterpret_cast<void*>(next.fetch_add((pages + 1) * kPageBytes));
}

inline char* map_pages_at(void* address, int flags, uint64_t pages, int protection) {
  void* const memory =
      mmap(address, pages * kPageBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::abort();
  }
  if ((protection & PROT_WRITE) != 0) std::memset(memory, 1, pages * kPageBytes);
  return static_cast<char*>(memory);
}

// In place of what is at `address`; without one, at addresses that nobody else gets.
inline char* map_pages(uint64_t pages, void* address = nullptr,
                       int protection = PROT_READ | PROT_WRITE) {
  return address != nullptr
             ? map_pages_at(address, MAP_FIXED, pages, protection)
             : map_pages_at(addresses_of_ones_own(pages), MAP_FIXED_NOREPLACE, pages, protection);
}

// Where the system likes: it gives addresses that were just unmapped to the next who asks.
inline char* map_pages_anywhere(uint64_t pages) {
  return map_pages_at(nullptr, 0, pages, PROT_READ | PROT_WRITE);
}

inline uint64_t as_address(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

// Why changes of memory cannot be followed here; empty if they can.
inline const std::string& why_no_events() {
  static const std::string reason = [] {
    uint64_t epoch = 2;
    const auto events = MemoryEvents::create(&epoch);
    return events.ok() ? std::string() : events.status().message();
  }();
  return reason;
}

}  // namespace verbena::test
