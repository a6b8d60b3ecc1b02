// The memory regions of this process by their keys.
//
// The table is there twice: published in the Header, where peers look up remote keys, and private,
// where no peer can write, for looking up own keys.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "src/device/soft/layout.h"
#include "verbena/status.h"

namespace verbena::soft {

struct NewRegion {
  uint64_t address = 0;
  uint64_t length_bytes = 0;
  uint64_t iova = 0;
  uint32_t access = 0;
  uint32_t domain = 0;
  Sharing sharing = Sharing::kForeign;
  int32_t segment_id = 0;
  uint64_t segment_offset_bytes = 0;
  uint64_t alias = 0;
};

// Thread-safe.
class RegionTable {
 public:
  RegionTable() = default;
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;
  ~RegionTable();

  // Makes the private table beside `published`, which has kMaxMemoryRegions entries.
  Status open(RegionEntry* published);

  // The private table.
  const RegionEntry* own() const { return own_; }

  // Enters a region in a free place; the result is its key.
  Result<uint32_t> enter(const NewRegion& region);
  // From now on the key names nothing; what the entry says besides stays readable. May be repeated.
  void invalidate(uint32_t key);
  // Gives back the place of an invalidated key, which may be used again.
  void free_place(uint32_t key);

 private:
  std::mutex mutex_;
  RegionEntry* published_ = nullptr;
  RegionEntry* own_ = nullptr;
  uint32_t next_place_ = 0;
  uint32_t next_stamp_ = 0;
  std::vector<uint8_t> life_;
  std::vector<bool> used_;  // also while it is deregistered
};

}  // namespace verbena::soft
