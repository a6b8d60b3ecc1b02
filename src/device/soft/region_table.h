// The memory regions of this process by their keys.
//
// The table is there twice: published in the Header, where peers look up remote keys, and private,
// where no peer can write, for looking up own keys.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
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

// A memory window that is bound to part of a region.
struct NewWindow {
  uint32_t key = 0;
  uint32_t region_key = 0;
  uint64_t address = 0;  // as the region's iova
  uint64_t length_bytes = 0;
  uint32_t access = 0;
  bool zero_based = false;
  uint32_t region_domain = 0;  // that the region must have
  uint32_t domain = 0;         // that it is open to
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
  // False, and the key stays, if windows are bound to it.
  bool invalidate(uint32_t key);
  // How many invalidate() has ended so far: who looks a key up, and later finds this changed, looks
  // it up again.
  uint64_t ended() const { return ended_.load(std::memory_order_acquire); }
  // The key of an invalidated region names this one now.
  void enter_again(uint32_t key, const NewRegion& region);
  // Gives back the place of an invalidated key, which may be used again.
  void free_place(uint32_t key);

  // --- memory windows (region_windows.cc) ---
  // A place for a window, which is free_place()d as that of a region. The result is its first key;
  // others differ in the low byte.
  Result<uint32_t> reserve_window();
  // Whether the region holds it.
  bool can_bind(const NewWindow& window);
  // False if the region does not hold it, or the window is bound.
  bool bind_window(const NewWindow& window);
  // False if the key is not that of a window that is open to this domain.
  bool unbind_window(uint32_t key, uint32_t domain);
  // Whatever it is bound to, if it is.
  void unbind_place(uint32_t place);

 private:
  // All hold mutex_.
  Result<uint32_t> take_place();
  void store(uint32_t place, uint32_t key, const NewRegion& region);
  bool fits(const NewWindow& window) const;
  void end_binding(uint32_t place);

  std::mutex mutex_;
  std::atomic<uint64_t> ended_{0};
  RegionEntry* published_ = nullptr;
  RegionEntry* own_ = nullptr;
  uint32_t next_place_ = 0;
  uint32_t next_stamp_ = 0;
  std::vector<uint8_t> life_;
  std::vector<bool> used_;                                    // also while it is deregistered
  std::unordered_map<uint32_t, uint32_t> region_of_window_;   // places
  std::unordered_map<uint32_t, uint32_t> windows_of_region_;  // place, how many
};

}  // namespace verbena::soft
