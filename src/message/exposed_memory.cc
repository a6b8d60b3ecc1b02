#include "src/message/exposed_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/message/pieces.h"

namespace verbena {
namespace {

// Keys that the table chooses have this bit, and those of callers seldom do.
constexpr uint64_t kOwnKeys = uint64_t{1} << 63;

Status refuse_exposure(std::string why) {
  return Status(StatusCode::kInvalidArgument, std::move(why));
}

}  // namespace

ExposedMemory::ExposedMemory() : table_(std::make_unique<Table>()) {}
ExposedMemory::~ExposedMemory() = default;

Result<uint64_t> ExposedMemory::expose(const ExposeRequest& request) {
  if (request.pieces.size() > message::kMaxPieces) {
    return refuse_exposure(fmt::format("memory has {} pieces; expose at most {} with one key",
                                       request.pieces.size(), message::kMaxPieces));
  }
  if (request.access == 0 || (request.access & ~uint32_t{kMemoryReadWrite}) != 0) {
    return refuse_exposure("access is neither reading nor writing nor both");
  }
  Table::Region region;
  region.access = request.access;
  region.address = request.address;
  for (const iovec& piece : request.pieces) {
    if (piece.iov_len > ~uint64_t{0} - region.bytes) {
      return refuse_exposure("memory has more bytes than there are addresses");
    }
    region.bytes += piece.iov_len;
    region.pieces[region.count++] = piece;
  }
  if (region.bytes > 0 && region.address > ~uint64_t{0} - (region.bytes - 1)) {
    return refuse_exposure("memory reaches beyond the last address; give it a lower one");
  }
  uint64_t key = request.key;
  if (!request.has_key) {
    do {
      key = kOwnKeys | ++table_->next_key;
    } while (table_->regions.contains(key));
  }
  if (!table_->regions.try_emplace(key, region).second) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("key {:#x} is in use; revoke it first, or choose another one", key));
  }
  return key;
}

bool ExposedMemory::revoke(uint64_t key) {
  const auto found = table_->regions.find(key);
  if (found == table_->regions.end()) return true;
  found->second.revoked = true;
  if (found->second.uses > 0) return false;
  if (found->second.is_counted) --table_->counted;
  table_->regions.erase(found);
  return true;
}

const MemoryCounts* ExposedMemory::count(uint64_t key) {
  Table::Region* const region = table_->find(key);
  if (region == nullptr) return nullptr;
  if (!std::exchange(region->is_counted, true)) ++table_->counted;
  return &region->counts;
}

void ExposedMemory::Table::note(std::span<const RemoteRange> ranges, bool modifies) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    // Once, whatever ranges of it the operation has.
    const auto has_same_key = [&](const RemoteRange& one) { return one.key == ranges[i].key; };
    if (std::ranges::any_of(ranges.first(i), has_same_key)) continue;
    // Also of one that was revoked meanwhile.
    const auto found = regions.find(ranges[i].key);
    if (found == regions.end()) continue;
    MemoryCounts& counts = found->second.counts;
    ++(modifies ? counts.writes : counts.reads);
  }
}

void ExposedMemory::Table::release(uint64_t key) {
  Region& region = regions.at(key);
  VERBENA_ASSERT(region.uses > 0);
  --region.uses;
}

MessageOutcome ExposedMemory::Table::resolve(std::span<const RemoteRange> ranges, uint32_t access,
                                             Places* places) {
  for (const RemoteRange& range : ranges) {
    const Region* const region = find(range.key);
    if (region == nullptr) return MessageOutcome::kUnknownKey;
    if ((access & ~region->access) != 0) return MessageOutcome::kNotPermitted;
    if (range.address < region->address) return MessageOutcome::kOutOfRange;
    uint64_t at = range.address - region->address;
    if (at > region->bytes || range.bytes > region->bytes - at) return MessageOutcome::kOutOfRange;
    uint64_t left = range.bytes;
    for (uint32_t i = 0; left > 0; ++i) {
      VERBENA_ASSERT(i < region->count);
      const iovec& piece = region->pieces[i];
      if (at >= piece.iov_len) {
        at -= piece.iov_len;
        continue;
      }
      const uint64_t some = std::min(left, piece.iov_len - at);
      VERBENA_ASSERT(places->count < Places::kMax);
      // Not as a pointer: a region of all memory begins at null.
      const uint64_t address = reinterpret_cast<uint64_t>(piece.iov_base) + at;
      places->pieces[places->count++] = {reinterpret_cast<void*>(address), some};
      left -= some;
      at = 0;
    }
  }
  return MessageOutcome::kOk;
}

}  // namespace verbena
