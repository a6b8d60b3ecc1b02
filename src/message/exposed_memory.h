// The table behind ExposedMemory: which memory a key stands for, and who may do what with it.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <unordered_map>

#include "src/message/message_header.h"
#include "verbena/message.h"

namespace verbena {

struct ExposedMemory::Table {
  struct Region {
    iovec pieces[message::kMaxPieces] = {};
    uint32_t count = 0;
    uint32_t access = 0;
    uint64_t address = 0;  // of the first byte, as peers call it
    uint64_t bytes = 0;
    uint32_t uses = 0;  // by devices
    bool revoked = false;
    bool is_counted = false;
    MemoryCounts counts;
  };

  // Where ranges of peers lie here.
  struct Places {
    static constexpr uint32_t kMax = message::kMaxPieces * message::kMaxPieces;
    iovec pieces[kMax];
    uint32_t count = 0;
  };

  // Null: unknown.
  Region* find(uint64_t key) {
    const auto found = regions.find(key);
    return found == regions.end() || found->second.revoked ? nullptr : &found->second;
  }
  // kOk, or why not; then nothing of `places` means anything.
  MessageOutcome resolve(std::span<const RemoteRange> ranges, uint32_t access, Places* places);
  // A device moves bytes there from now on, until release().
  void use(uint64_t key) { ++regions.at(key).uses; }
  void release(uint64_t key);
  bool counts() const { return counted > 0; }
  // An operation was carried out on these.
  void note(std::span<const RemoteRange> ranges, bool modifies);

  std::unordered_map<uint64_t, Region> regions;
  uint64_t next_key = 0;
  uint32_t counted = 0;  // regions
};

}  // namespace verbena
