#include "src/message/message_memory.h"

#include <utility>

namespace verbena::message {

Result<MessageMemory> MessageMemory::create(const ProtectionDomain& domain, uint64_t max_bytes,
                                            uint32_t max_regions) {
  MessageMemory memory;
  VERBENA_ASSIGN_OR_RETURN(
      memory.cache_,
      RegistrationCache::create(domain, {.max_bytes = max_bytes, .max_regions = max_regions}));
  memory.lookup_ = std::make_unique<RegistrationLookup>(*memory.cache_);
  return memory;
}

internal::CachedRegion* MessageMemory::take(const void* address, uint64_t length_bytes,
                                            unsigned access) {
  const uint64_t hits = lookup_->hits();
  Result<Registration> found = lookup_->get(address, length_bytes, access);
  if (lookup_->hits() == hits) [[unlikely]]
    registrations_ = cache_->statistics().registrations;
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
    found->regions[i] = lookup_->find(pieces[i].iov_base, pieces[i].iov_len, access).detach();
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
