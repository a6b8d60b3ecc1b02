// Keys to memory: the checks that every access to registered memory passes.
#pragma once

#include "src/device/soft/null_region.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/page_probe.h"

namespace verbena::soft {

// Where this process reaches a region of its own; null if `key` names none that holds [address,
// address + length) with `access` in `domain`. `flags` is what the entry has of them, and of those
// that are no rights.
[[gnu::always_inline]] inline std::byte* find_own_memory(const RegionEntry* regions,
                                                         uint32_t domain, uint64_t address,
                                                         uint32_t length_bytes, uint32_t key,
                                                         uint32_t access, uint32_t& flags) {
  const uint32_t index = region_index(key);
  if (index >= kMaxMemoryRegions) return nullptr;
  const RegionEntry& entry = regions[index];
  const uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  flags = entry.access.load(std::memory_order_relaxed) &
          (access | kWindowAccess | kOwnAddressAccess | kLeftAccess);
  const uint64_t offset = address - entry.iova.load(std::memory_order_relaxed);
  const uint64_t size = entry.length_bytes.load(std::memory_order_relaxed);
  if (static_cast<uint32_t>(stamp) != key || stamp == 0 || offset > size ||
      length_bytes > size - offset || entry.domain.load(std::memory_order_relaxed) != domain)
      [[unlikely]] {
    return find_null_memory(entry, key, domain, access);
  }
  return reinterpret_cast<std::byte*>(entry.alias.load(std::memory_order_relaxed) + offset);
}

// As an address only: the program may have unmapped or protected what is there.
inline std::byte* own_memory(const RegionEntry* regions, uint32_t domain, uint64_t address,
                             uint32_t length_bytes, uint32_t key, uint32_t access) {
  uint32_t flags = 0;
  std::byte* bytes = find_own_memory(regions, domain, address, length_bytes, key, access, flags);
  // A window's key is none here.
  return (flags & ~(kOwnAddressAccess | kLeftAccess)) == access ? bytes : nullptr;
}

// For use now, of at least one byte: null also where the program has taken away memory that this
// process reaches at the program's address only.
[[gnu::always_inline]] inline std::byte* usable_memory(const RegionEntry* regions, uint32_t domain,
                                                       uint64_t address, uint32_t length_bytes,
                                                       uint32_t key, uint32_t access) {
  uint32_t flags = 0;
  std::byte* bytes = find_own_memory(regions, domain, address, length_bytes, key, access, flags);
  if (flags == access) [[likely]]
    return bytes;
  if (bytes == nullptr || (flags & ~kLeftAccess) != (access | kOwnAddressAccess)) [[unlikely]]
    return nullptr;
  return is_there(bytes, length_bytes, (access & IBV_ACCESS_LOCAL_WRITE) != 0) ? bytes : nullptr;
}

// Whoever deregisters memory waits for so much to be copied at most.
inline constexpr uint32_t kCopyAtOnceBytes = 1u << 20;

// Fills `view` from the peer's entry, mapping it on first use. Null if the entry changed meanwhile
// or cannot be mapped.
const RegionView* refresh_view(Qp& qp, const RegionEntry& entry, uint64_t stamp, RegionView& view);

// A region of the connected peer that holds [address, address + length) with `access` in its
// `domain`. Holds send_lock.
inline const RegionView* peer_region(Qp& qp, uint64_t address, uint64_t length_bytes, uint32_t key,
                                     uint32_t access, uint32_t domain) {
  const uint32_t index = region_index(key);
  if (index >= kMaxMemoryRegions) [[unlikely]]
    return nullptr;
  const RegionEntry& entry = qp.peer.regions[index];
  const uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  if (static_cast<uint32_t>(stamp) != key || stamp == 0) [[unlikely]]
    return nullptr;
  RegionView& slot = qp.peer.views[index % PeerQp::kViews];
  const RegionView* view = &slot;
  if (slot.stamp != stamp) [[unlikely]] {
    view = refresh_view(qp, entry, stamp, slot);
    if (view == nullptr) return nullptr;
  }
  const uint64_t offset = address - view->iova;
  if (offset > view->length_bytes || length_bytes > view->length_bytes - offset ||
      (view->access & access) != access) [[unlikely]] {
    return nullptr;
  }
  // A window of type 2 is open to this queue pair only; by XRC none is.
  if (view->domain != domain &&
      (is_xrc(qp.transport) ||
       view->domain != window_domain(static_cast<uint32_t>(qp.peer.gate_ready >> 32))))
      [[unlikely]] {
    return nullptr;
  }
  return view;
}

}  // namespace verbena::soft
