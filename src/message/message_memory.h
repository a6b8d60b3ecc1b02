// Registrations of users' memory, for whatever of a messenger goes from it or into it without a
// copy.
//
//   PieceMemory source{};
//   if (!memory.take(pieces, kReadableAccess, &source)) ... memory.error()
//   ... post with source.lkey(0), or tell a peer source.rkey(0) ...
//   MessageMemory::give_back(&source);    once no device touches it any more
//
// What is given back stays registered in the messenger's cache (memory/registration_cache.h), which
// answers with it the next time: without allocation and lock, and without a system call where the
// device follows the program's addresses. What a peer was told of stays within its reach so long.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "src/memory/registration_cache.h"
#include "src/message/message_header.h"
#include "verbena/status.h"

namespace verbena::message {

// One access for each use, so that all uses of the same memory find the same region.
inline constexpr unsigned kSourceAccess = 0;                         // this side's posts read it
inline constexpr unsigned kReadableAccess = IBV_ACCESS_REMOTE_READ;  // and peers
// This side's READs and peers' WRITEs fill it. What only the former do is
// MessageMemory::read_target_access().
inline constexpr unsigned kTargetAccess =
    unsigned{IBV_ACCESS_LOCAL_WRITE} | unsigned{IBV_ACCESS_REMOTE_WRITE};

// References to the registrations of a message's pieces. Plain data for tables: zeros are none. It
// is given back, or moved by copying it and forgetting the original.
struct PieceMemory {
  internal::CachedRegion* regions[kMaxPieces];

  // Of a piece that is not empty.
  uint32_t lkey(uint32_t piece) const { return regions[piece]->lkey; }
  uint32_t rkey(uint32_t piece) const { return regions[piece]->rkey; }
  bool has(uint32_t piece) const { return regions[piece] != nullptr; }
  bool any() const { return has(0) || has(1) || has(2) || has(3); }
};

class MessageMemory {
 public:
  // `domain` outlives it. At most so much stays registered without being in use; 0 bytes: nothing.
  // What peers READ is left in place at first where the device can do that, at these costs.
  static Result<MessageMemory> create(const ProtectionDomain& domain, uint64_t max_bytes,
                                      uint32_t max_regions,
                                      const std::optional<InPlaceCosts>& in_place = std::nullopt);

  // Of memory that this side's READs alone fill. On an RNIC that is as what peers WRITE to, since
  // some need that; soft0 then need not let peers reach it.
  unsigned read_target_access() const { return read_target_access_; }

  // References for all pieces that have bytes, if all are registered already. Registers nothing.
  bool find(std::span<const iovec> pieces, unsigned access, PieceMemory* found);
  // References for all pieces that have bytes. False: none was taken, see error().
  bool take(std::span<const iovec> pieces, unsigned access, PieceMemory* taken);
  // One piece. Null: see error().
  internal::CachedRegion* take(const void* address, uint64_t length_bytes, unsigned access);
  static void give_back(PieceMemory* taken) {
    for (internal::CachedRegion*& region : taken->regions) give_back(&region);
  }
  // Forgotten last: a simulated node may crash before that, and is then cleaned up by others.
  static void give_back(internal::CachedRegion** taken) {
    if (*taken == nullptr) return;
    Registration::adopt(*taken).release();
    *taken = nullptr;
  }

  // The same of memory that a peer can reach who is lost, or that is still being filled: it is
  // deregistered with the last reference, and so out of reach before the operation completes.
  void withdraw(PieceMemory* taken) {
    for (internal::CachedRegion*& region : taken->regions) withdraw(&region);
  }
  void withdraw(internal::CachedRegion** taken) {
    if (*taken != nullptr) cache_->forget(**taken);
    give_back(taken);
  }

  // Why take() failed: kInvalidArgument where the memory is not there.
  const Status& error() const { return error_; }
  // Of what was registered so far.
  const RegistrationCacheStatistics& counted() const { return counted_; }
  RegistrationCache& cache() { return *cache_; }
  RegistrationLookup& lookup() { return *lookup_; }

 private:
  MessageMemory() = default;

  // At fixed addresses, which regions and the table refer to.
  std::unique_ptr<RegistrationCache> cache_;
  std::unique_ptr<RegistrationLookup> lookup_;
  unsigned read_target_access_ = kTargetAccess;
  RegistrationCacheStatistics counted_;
  Status error_;
};

}  // namespace verbena::message
