// One registered allocation, carved into the pieces of a connection.
//
// Registering is slow and takes a key and translation entries on the device, so everything that
// belongs to one connection (slots, receive buffers) lies in one region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/assert.h"
#include "verbena/device.h"
#include "verbena/sockets.h"
#include "verbena/status.h"

namespace verbena {

inline constexpr uint64_t kCacheLineBytes = 64;

// `value` rounded up to a multiple of `unit`, a power of two.
template <typename T>
constexpr T round_up(T value, T unit) {
  return (value + unit - 1) & ~(unit - 1);
}

// Owns the memory and its registration; released when destroyed. Movable: the memory stays where it
// is. Control path.
class RegisteredArena {
 public:
  // `size_bytes` (rounded up to whole pages) of zeros, page-aligned, registered with the given
  // ibv_access_flags. Relaxed ordering is refused: the memory is polled. Where the device lets
  // regions share pages, a small one takes whole cache lines instead.
  // `huge_pages`: in 2 MiB pages where the system has some to give.
  // `socket`: where whole pages are to lie; kAnySocket: on the device's socket. Where that cannot
  // be done, they lie elsewhere, and the log says so in one line, once per process.
  //   kLimitExceeded  the machine has not that much memory, or the locked-memory limit is lower
  static Result<RegisteredArena> create(const ProtectionDomain& domain, uint64_t size_bytes,
                                        unsigned access, bool huge_pages = false,
                                        int socket = kAnySocket);

  char* data() const { return memory_.get(); }
  uint64_t size_bytes() const { return memory_.get_deleter().size_bytes; }
  uint32_t lkey() const { return region_.lkey(); }
  uint32_t rkey() const { return region_.rkey(); }
  // Moves with the arena.
  const MemoryRegion& region() const { return region_; }

  // The next `size_bytes` bytes that nobody has, at the start of a cache line. The caller knows
  // that they fit: the arena was made for the sum of its pieces.
  char* carve(uint64_t size_bytes) {
    const uint64_t start = round_up(carved_bytes_, kCacheLineBytes);
    VERBENA_ASSERT(size_bytes <= this->size_bytes() && start <= this->size_bytes() - size_bytes);
    carved_bytes_ = start + size_bytes;
    return data() + start;
  }

 private:
  struct Release {
    uint64_t size_bytes = 0;
    bool mapped = true;
    void operator()(char* memory) const;
  };
  using Memory = std::unique_ptr<char, Release>;

  static Memory allocate(uint64_t size_bytes);
  static Memory map(uint64_t size_bytes, bool huge_pages);

  RegisteredArena(Memory memory, MemoryRegion region)
      : memory_(std::move(memory)), region_(std::move(region)) {}

  Memory memory_;
  MemoryRegion region_;  // destroyed before the memory
  uint64_t carved_bytes_ = 0;
};

}  // namespace verbena
