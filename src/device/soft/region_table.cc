#include "src/device/soft/region_table.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "src/base/assert.h"

namespace verbena::soft {
namespace {

constexpr size_t kTableBytes = sizeof(Header::regions);

void store_entry(RegionEntry& entry, const NewRegion& region, uint64_t stamp) {
  entry.iova.store(region.iova, std::memory_order_relaxed);
  entry.address.store(region.address, std::memory_order_relaxed);
  entry.length_bytes.store(region.length_bytes, std::memory_order_relaxed);
  entry.access.store(region.access, std::memory_order_relaxed);
  entry.domain.store(region.domain, std::memory_order_relaxed);
  entry.sharing.store(region.sharing, std::memory_order_relaxed);
  entry.segment_id.store(region.segment_id, std::memory_order_relaxed);
  entry.segment_offset_bytes.store(region.segment_offset_bytes, std::memory_order_relaxed);
  entry.alias.store(region.alias, std::memory_order_relaxed);
  // Release: whoever sees the stamp sees the fields.
  entry.stamp.store(stamp, std::memory_order_release);
}

}  // namespace

RegionTable::~RegionTable() {
  if (own_ != nullptr) munmap(own_, kTableBytes);
}

Status RegionTable::open(RegionEntry* published) {
  void* own = mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (own == MAP_FAILED) {
    return {StatusCode::kLimitExceeded,
            fmt::format("soft0: cannot map {} bytes for tables: {}; raise ulimit -v", kTableBytes,
                        strerror(errno))};
  }
  own_ = static_cast<RegionEntry*>(own);
  published_ = published;
  life_.assign(kMaxMemoryRegions, 0);
  used_.assign(kMaxMemoryRegions, false);
  return {};
}

void RegionTable::store(uint32_t place, uint32_t key, const NewRegion& region) {
  const uint64_t stamp = static_cast<uint64_t>(++next_stamp_) << 32 | key;
  NewRegion own = region;
  if (own.alias == own.address && (own.access & kWindowAccess) == 0)
    own.access |= kOwnAddressAccess;
  store_entry(own_[place], own, stamp);
  store_entry(published_[place], region, stamp);
}

Result<uint32_t> RegionTable::enter(const NewRegion& region) {
  const std::lock_guard guard(mutex_);
  VERBENA_ASSIGN_OR_RETURN(const uint32_t key, take_place());
  store(region_index(key), key, region);
  return key;
}

void RegionTable::enter_again(uint32_t key, const NewRegion& region) {
  const uint32_t place = region_index(key);
  const std::lock_guard guard(mutex_);
  VERBENA_ASSERT(place < kMaxMemoryRegions && used_[place]);
  VERBENA_ASSERT(own_[place].stamp.load(std::memory_order_relaxed) == 0);
  store(place, key, region);
}

Result<uint32_t> RegionTable::take_place() {
  for (uint32_t step = 0; step < kMaxMemoryRegions; ++step) {
    const uint32_t place = (next_place_ + step) % kMaxMemoryRegions;
    if (place == 0 || used_[place]) continue;
    VERBENA_ASSERT(own_[place].stamp.load(std::memory_order_relaxed) == 0);
    used_[place] = true;
    next_place_ = place + 1;
    if (++life_[place] == 0) life_[place] = 1;
    return place << 8 | life_[place];
  }
  return Status(
      StatusCode::kLimitExceeded,
      fmt::format(
          "soft0: all {} memory regions of this process are in use; register fewer, larger ones",
          kMaxMemoryRegions - 1));
}

bool RegionTable::invalidate(uint32_t key) {
  const uint32_t place = region_index(key);
  const std::lock_guard guard(mutex_);
  VERBENA_ASSERT(place < kMaxMemoryRegions && used_[place]);
  const auto stamped = static_cast<uint32_t>(own_[place].stamp.load(std::memory_order_relaxed));
  VERBENA_ASSERT(stamped == 0 || stamped == key);
  if (windows_of_region_.contains(place)) return false;
  own_[place].stamp.store(0, std::memory_order_release);
  published_[place].stamp.store(0, std::memory_order_release);
  // Release: who sees it finds the key invalid.
  ended_.fetch_add(1, std::memory_order_release);
  return true;
}

void RegionTable::free_place(uint32_t key) {
  const uint32_t place = region_index(key);
  const std::lock_guard guard(mutex_);
  VERBENA_ASSERT(place < kMaxMemoryRegions && used_[place]);
  VERBENA_ASSERT(own_[place].stamp.load(std::memory_order_relaxed) == 0);
  used_[place] = false;
}

}  // namespace verbena::soft
