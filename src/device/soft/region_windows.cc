// Memory windows in the region table.
#include <fmt/format.h>

#include "src/base/assert.h"
#include "src/device/soft/region_table.h"

namespace verbena::soft {
namespace {

constexpr uint32_t kRightsToWrite = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

}  // namespace

Result<uint32_t> RegionTable::reserve_window() {
  const std::lock_guard guard(mutex_);
  return take_place();
}

bool RegionTable::fits(const NewWindow& window) const {
  const uint32_t place = region_index(window.region_key);
  if (place >= kMaxMemoryRegions) return false;
  const RegionEntry& region = own_[place];
  const auto key = static_cast<uint32_t>(region.stamp.load(std::memory_order_relaxed));
  const uint32_t access = region.access.load(std::memory_order_relaxed);
  const uint64_t size = region.length_bytes.load(std::memory_order_relaxed);
  const uint64_t offset = window.address - region.iova.load(std::memory_order_relaxed);
  return key == window.region_key && key != 0 &&
         (access & (IBV_ACCESS_MW_BIND | kWindowAccess)) == IBV_ACCESS_MW_BIND &&
         ((window.access & kRightsToWrite) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0) &&
         region.domain.load(std::memory_order_relaxed) == window.region_domain && offset <= size &&
         window.length_bytes <= size - offset;
}

bool RegionTable::can_bind(const NewWindow& window) {
  const std::lock_guard guard(mutex_);
  return fits(window);
}

bool RegionTable::bind_window(const NewWindow& window) {
  const std::lock_guard guard(mutex_);
  const uint32_t place = region_index(window.key);
  VERBENA_ASSERT(place < kMaxMemoryRegions && used_[place]);
  // Bound already, which the key's owner has to end first.
  if (own_[place].stamp.load(std::memory_order_relaxed) != 0 || !fits(window)) return false;
  const uint32_t region_place = region_index(window.region_key);
  const RegionEntry& region = own_[region_place];
  const uint64_t offset = window.address - region.iova.load(std::memory_order_relaxed);
  const NewRegion part = {
      .address = region.address.load(std::memory_order_relaxed) + offset,
      .length_bytes = window.length_bytes,
      .iova = window.zero_based ? 0 : window.address,
      .access = window.access | kWindowAccess,
      .domain = window.domain,
      .sharing = region.sharing.load(std::memory_order_relaxed),
      .segment_id = region.segment_id.load(std::memory_order_relaxed),
      .segment_offset_bytes = region.segment_offset_bytes.load(std::memory_order_relaxed) + offset,
      .alias = region.alias.load(std::memory_order_relaxed) + offset};
  end_binding(place);
  store(place, window.key, part);
  // A region that gets the place later begins behind the keys that were the window's.
  life_[place] = static_cast<uint8_t>(window.key);
  region_of_window_[place] = region_place;
  ++windows_of_region_[region_place];
  return true;
}

bool RegionTable::unbind_window(uint32_t key, uint32_t domain) {
  const std::lock_guard guard(mutex_);
  const uint32_t place = region_index(key);
  if (place >= kMaxMemoryRegions) return false;
  const RegionEntry& own = own_[place];
  if (static_cast<uint32_t>(own.stamp.load(std::memory_order_relaxed)) != key || key == 0 ||
      (own.access.load(std::memory_order_relaxed) & kWindowAccess) == 0 ||
      own.domain.load(std::memory_order_relaxed) != domain) {
    return false;
  }
  end_binding(place);
  return true;
}

void RegionTable::unbind_place(uint32_t place) {
  const std::lock_guard guard(mutex_);
  VERBENA_ASSERT(place < kMaxMemoryRegions && used_[place]);
  end_binding(place);
}

void RegionTable::end_binding(uint32_t place) {
  own_[place].stamp.store(0, std::memory_order_release);
  published_[place].stamp.store(0, std::memory_order_release);
  const auto bound = region_of_window_.find(place);
  if (bound == region_of_window_.end()) return;
  const auto windows = windows_of_region_.find(bound->second);
  VERBENA_ASSERT(windows != windows_of_region_.end() && windows->second > 0);
  if (--windows->second == 0) windows_of_region_.erase(windows);
  region_of_window_.erase(bound);
}

}  // namespace verbena::soft
