#include "src/bench/request_response/readable_memory.h"

namespace verbena::bench {

namespace {

constexpr uint64_t kPageBytes = 4096;

}  // namespace

ReadableMemory::ReadableMemory(const Point& point, uint64_t memory_key)
    : size_bytes_(ReadableLayout(point).size_bytes()) {
  const uint64_t allocated_bytes = (size_bytes_ + kPageBytes - 1) / kPageBytes * kPageBytes;
  memory_.reset(static_cast<char*>(std::aligned_alloc(kPageBytes, allocated_bytes)));
  if (memory_ != nullptr) readable_pattern(memory_key).fill(bytes());
}

}  // namespace verbena::bench
