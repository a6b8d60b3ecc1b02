#include "src/message/message_memory.h"

#include <utility>

#include "src/device/verbs_control.h"

namespace verbena::message {

Result<MessageMemory> MessageMemory::create(const ProtectionDomain& domain, uint64_t max_bytes,
                                            uint32_t max_regions,
                                            const std::optional<InPlaceCosts>& in_place) {
  MessageMemory memory;
  VERBENA_ASSIGN_OR_RETURN(
      memory.cache_,
      RegistrationCache::create(
          domain, {.max_bytes = max_bytes, .max_regions = max_regions, .in_place = in_place}));
  if (domain.control().reg_mr_in_place != nullptr)
    memory.read_target_access_ = unsigned{IBV_ACCESS_LOCAL_WRITE} | kOwnRequests;
  memory.lookup_ = std::make_unique<RegistrationLookup>(*memory.cache_);
  return memory;
}

internal::CachedRegion* MessageMemory::take(const void* address, uint64_t length_bytes,
                                            unsigned access) {
  const uint64_t hits = lookup_->hits();
  Result<Registration> found = lookup_->get(address, length_bytes, access);
  if (lookup_->hits() == hits) [[unlikely]]
    counted_ = cache_->statistics();
  if (!found.ok()) [[unlikely]] {
    error_ = found.status();
    return nullptr;
  }
  return found->detach();
}

bool MessageMemory::find(std::span<const iovec> pieces, unsigned access, PieceMemory* found) {
  *found = {};
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].iov_len == 0) continue;
    const uint64_t hits = lookup_->hits();
    found->regions[i] = lookup_->find(pieces[i].iov_base, pieces[i].iov_len, access).detach();
    // It may have been registered anew.
    if (found->regions[i] != nullptr && lookup_->hits() == hits) counted_ = cache_->statistics();
    if (found->regions[i] == nullptr) {
      give_back(found);
      return false;
    }
  }
  return true;
}

bool MessageMemory::take(std::span<const iovec> pieces, unsigned access, PieceMemory* taken) {
  *taken = {};
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].iov_len == 0) continue;
    taken->regions[i] = take(pieces[i].iov_base, pieces[i].iov_len, access);
    if (taken->regions[i] == nullptr) [[unlikely]] {
      give_back(taken);
      return false;
    }
  }
  return true;
}

}  // namespace verbena::message
