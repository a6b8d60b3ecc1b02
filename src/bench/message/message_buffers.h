// The buffers of a rank, and which of them its next message is sent from.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "src/bench/message/message_settings.h"

namespace verbena::bench {

inline constexpr uint64_t kBufferPageBytes = 4096;

// Of `count` buffers of one size.
class MessageBuffers {
 public:
  MessageBuffers() = default;
  // Zeros. Null where the machine has not so much memory: see is_there().
  MessageBuffers(uint32_t count, uint64_t size_bytes, BufferPlacement placement)
      : stride_bytes_(stride(size_bytes, placement)) {
    const uint64_t bytes = (count * stride_bytes_ + kBufferPageBytes) & ~(kBufferPageBytes - 1);
    memory_.reset(static_cast<char*>(std::aligned_alloc(kBufferPageBytes, bytes)));
    if (memory_ != nullptr) std::memset(memory_.get(), 0, bytes);
  }

  bool is_there() const { return memory_ != nullptr; }
  char* at(uint64_t number) const { return memory_.get() + number * stride_bytes_; }
  static uint64_t stride(uint64_t size_bytes, BufferPlacement placement) {
    const uint64_t unit = placement == BufferPlacement::kPages ? kBufferPageBytes : 8;
    return std::max((size_bytes + unit - 1) / unit, uint64_t{1}) * unit;
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  uint64_t stride_bytes_ = 0;
  std::unique_ptr<char, Free> memory_;
};

// Memory that is mapped for one message, and unmapped for the next one.
class FreshMemory {
 public:
  FreshMemory() = default;
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;
  ~FreshMemory() { unmap(); }

  // In place of the memory before. Null where the machine has not so much.
  char* next(uint64_t size_bytes) {
    unmap();
    void* const mapped =
        mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    size_bytes_ = size_bytes;
    return memory_ = static_cast<char*>(mapped);
  }
  char* get() const { return memory_; }

 private:
  void unmap() {
    if (memory_ != nullptr) munmap(memory_, size_bytes_);
    memory_ = nullptr;
  }
  char* memory_ = nullptr;
  uint64_t size_bytes_ = 0;
};

// The order in which buffers are used.
class BufferSequence {
 public:
  BufferSequence(uint32_t count, BufferReuse use) : count_(count), use_(use) {}

  uint32_t next() {
    const uint32_t number = at_;
    if (++at_ == count_) {
      // Of the spectrum: round k, from 0 on, has all from buffer k on.
      round_ = use_ == BufferReuse::kSpectrum && round_ + 1 < count_ ? round_ + 1 : 0;
      at_ = round_;
    }
    return number;
  }

 private:
  uint32_t count_;
  BufferReuse use_;
  uint32_t at_ = 0;
  uint32_t round_ = 0;
};

}  // namespace verbena::bench
