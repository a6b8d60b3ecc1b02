// Memory of tests that change it under the eyes of a registration cache.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

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
inline char* map_pages(uint64_t pages, void* address = nullptr,
                       int protection = PROT_READ | PROT_WRITE) {
  void* const memory =
      mmap(address, pages * kPageBytes, protection,
           MAP_PRIVATE | MAP_ANONYMOUS | (address != nullptr ? MAP_FIXED : 0), -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    std::abort();
  }
  if ((protection & PROT_WRITE) != 0) std::memset(memory, 1, pages * kPageBytes);
  return static_cast<char*>(memory);
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
