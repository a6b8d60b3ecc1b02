// Regions of ibv_alloc_null_mr(): requests of their owner read zeros from them, at any address, and
// what they or a peer's SENDs write is dropped. No key of theirs is for peers.
//
// Their entry has no bytes, so that it fails the check of the range that every access passes: only
// what fails there looks whether it is one of these.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/device/soft/layout.h"

namespace verbena::soft {

// Whether the key names such a region that is open to `domain`, in either table.
bool is_null_region(const RegionEntry& entry, uint32_t key, uint32_t domain);

// Of the owner's table: memory of zeros or, with IBV_ACCESS_LOCAL_WRITE in `access`, memory that
// nobody reads. Any message fits into it. Null if the key names no such region.
std::byte* find_null_memory(const RegionEntry& entry, uint32_t key, uint32_t domain,
                            uint32_t access);

}  // namespace verbena::soft
