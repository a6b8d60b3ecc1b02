// Registrations that outlive their use, so that memory that is used again is registered already.
//
// Registering costs tens of microseconds and the pages; a look-up in this cache costs some ten
// nanoseconds. One cache serves all threads of a process that use a protection domain; each thread
// has a RegistrationLookup of its own:
//
//   auto cache = RegistrationCache::create(domain);        // Result<std::unique_ptr<...>>
//   RegistrationLookup lookup(**cache);                    // one per thread
//   Result<Registration> source = lookup.get(buffer, bytes, 0);
//   if (!source.ok()) ...                                  // e.g. kLimitExceeded: ulimit -l
//   ... post with source->lkey(), keep *source until the completion ...
//
// A Registration is a reference: as long as it lives, so do its keys. The end of the last one
// deregisters nothing ("bufreuse" 3.1, lazy deregistration); that happens when room is needed, to
// the region that was used longest ago and is in nobody's hands, or when its memory has gone.
//
// **It never answers with a registration of pages that the program no longer has there.** How it
// knows depends on the device (VerbsControl::region_memory), region by region:
//
// | the device reaches the memory              | as do                    | the cache            |
// |---|---|---|
// | by the program's own addresses             | soft0, sources (access   | has nothing to check |
// |                                            | 0); simulated RNICs      |                      |
// | by the same, since it was left in place    | soft0, see below         | asks on every hit    |
// | by pages, and can tell whose they are      | soft0, all else          | asks on every hit    |
// | by pages that it has pinned                | RNICs                    | follows userfaultfd  |
// |                                            |                          | events, asks whether |
// |                                            |                          | one is under way     |
// | the same, and there is no userfaultfd, or  |                          | keeps nothing:       |
// | the memory is shared, of a file, or watched|                          | registers each time  |
// | by another cache or library                |                          |                      |
//
// The pages that soft0 shares for the cache are locked, so that the kernel refuses MADV_DONTNEED,
// which would not zero them, with EINVAL.
//
// No function of the C library is replaced. What is not seen is of pinned memory: shmat(SHM_REMAP)
// over it and madvise(MADV_GUARD_INSTALL), of which the kernel reports nothing (a program that uses
// them on memory that it sends from says forget(), or sets use_events to false); and mprotect(),
// after which a hit does not notice that writing is no longer allowed, but the pages are the same.
// And a program must not discard memory while one of its threads has it registered: which pages
// that registration gets is anybody's guess, with or without a cache.
//
// **What is used little stays where it is** (RegistrationCacheOptions::in_place). soft0 moves the
// pages of a region into shared memory, which takes as long as many messages. Memory that peers
// only READ is therefore left in place at first: they copy it through the kernel, which costs more
// for each byte. Once these have cost as much as the move, the memory is registered anew, with
// shared pages; the former region goes with its last user. So in all it never costs twice of what
// it would have with the use known beforehand. Where the program has replaced shared pages since,
// as with memory that is mapped for each message at the same address, the next ones there have to
// be used twice as much before. A copy is taken for each get(), of as many bytes as it names.
//
// A region never covers a page that the caller who made it did not name, not even between two that
// were: such pages may be on their way back to the system. So nothing is joined in advance; but one
// get() of a longer range replaces the regions within it.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/shared_memory.h"
#include "src/memory/memory_events.h"
#include "verbena/data_path.h"
#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena {

class RegistrationCache;
class RegistrationLookup;

// Beside ibv_access_flags, with IBV_ACCESS_LOCAL_WRITE alone: nothing but requests that are posted
// on this side fills the memory, so a device need not make it reachable: no receives, no peers.
inline constexpr unsigned kOwnRequests = 1u << 31;

// What a device charges for memory that was left in place, and to share it.
struct InPlaceCosts {
  double use_ns = 0;  // of each use more than shared
  double use_byte_ns = 0;
  double share_ns = 0;
  double share_page_ns = 0;  // for each page of 4 KiB
};

struct RegistrationCacheOptions {
  // What the cache keeps, whether in use or not. What does not fit (all of it is in use, or it is
  // larger than the cache) is registered for the use at hand.
  uint64_t max_bytes = uint64_t{1} << 30;
  uint32_t max_regions = 8192;
  // False: as if there were no userfaultfd.
  bool use_events = true;
  // Where the device can: what peers only READ is left in place until that has cost more.
  std::optional<InPlaceCosts> in_place = std::nullopt;
  // For tests: as if the device pinned pages.
  bool assume_pinned = false;
};

// Of a cache since it was made, and now.
struct RegistrationCacheStatistics {
  uint64_t registrations = 0;  // of regions
  uint64_t not_kept = 0;       // of these, for one use
  uint64_t in_place = 0;       // of these, with the pages left where they were
  uint64_t shared_later = 0;   // of those, registered anew since they were used much
  uint64_t locked_hits = 0;    // found, but not by the thread's own table
  uint64_t evictions = 0;      // to make room
  uint64_t outdated = 0;       // whose memory the program had changed
  uint64_t regions = 0;        // kept
  uint64_t kept_bytes = 0;
  uint64_t outdated_in_use = 0;  // not kept, and yet to be deregistered by the end of their use
  uint64_t refused = 0;  // not kept or used, but the device cannot end them yet: a peer is stopped
};

namespace internal {

// One registration. Its place is used again, never freed while the cache lives.
struct alignas(64) CachedRegion {
  enum class Follow : uint8_t { kNothing, kDevice, kEvents, kInPlace };

  // Number of this use of the place << 32 | outdated << 31 | references.
  static constexpr uint64_t kOutdated = uint64_t{1} << 31;
  static constexpr uint64_t kReferences = kOutdated - 1;
  uint64_t state = kOutdated;
  uint64_t last_used = 0;  // by the cache's clock; any thread that uses it stores that

  // Constant from before the number is known until after the last reference is gone.
  RegistrationCache* cache = nullptr;
  AddressRange pages;
  unsigned access = 0;
  uint32_t lkey = 0;
  uint32_t rkey = 0;
  Follow follow = Follow::kNothing;
  uint64_t serial = 0;

  // kInPlace: what its uses may yet cost before it is shared. Any thread that uses it stores that,
  // and one that stores at the same time may be lost.
  int64_t left_ps = 0;

  // Under the cache's lock.
  bool shared_later = false;  // in the place of one that was left in place
  uint64_t filed_under = 0;   // the `last_used` under which it is in the order of eviction
  std::optional<MemoryRegion> region;

  uint32_t use_number() const { return static_cast<uint32_t>(load_relaxed(&state) >> 32); }
};

}  // namespace internal

// A reference to a registration, empty or not. Movable. Any thread may let go of it.
class Registration {
 public:
  Registration() = default;
  Registration(Registration&& other) noexcept : region_(std::exchange(other.region_, nullptr)) {}
  Registration& operator=(Registration&& other) noexcept {
    if (this != &other) {
      release();
      region_ = std::exchange(other.region_, nullptr);
    }
    return *this;
  }
  ~Registration() { release(); }

  explicit operator bool() const { return region_ != nullptr; }
  uint32_t lkey() const { return region_->lkey; }
  uint32_t rkey() const { return region_->rkey; }
  // What is registered: the pages of the range that was asked for, or more. Addresses of work
  // requests are the program's.
  AddressRange pages() const { return region_->pages; }
  // Of this registration alone, in this cache.
  uint64_t serial() const { return region_->serial; }

  inline void release();

  // For tables of plain data: the reference as a pointer, which adopt() makes one of again.
  internal::CachedRegion* detach() { return std::exchange(region_, nullptr); }
  static Registration adopt(internal::CachedRegion* detached) { return Registration(detached); }

 private:
  friend class RegistrationLookup;
  friend class RegistrationCache;
  explicit Registration(internal::CachedRegion* region) : region_(region) {}
  internal::CachedRegion* region_ = nullptr;
};

class RegistrationCache {
 public:
  // The domain must outlive the cache. Makes a thread when the first pinned region is registered,
  // which sleeps until the program changes watched memory.
  static Result<std::unique_ptr<RegistrationCache>> create(
      const ProtectionDomain& domain, const RegistrationCacheOptions& options = {});
  // Deregisters all. No Registration and no lookup is left.
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // For who knows more than the cache: the memory is about to change. What is in use stays
  // registered, but is found no more. Any thread.
  void forget(const void* address, uint64_t length_bytes);
  // The same of one region, of which the caller has a reference: deregistered with the last one.
  void forget(internal::CachedRegion& region);
  // Deregisters all that is not in use, as before a fork() that should copy little. Any thread.
  void clear();

  RegistrationCacheStatistics statistics() const;
  // One line for logs: what is kept, and how the cache knows that it is current.
  std::string explain() const;

 private:
  friend class Registration;
  friend class RegistrationLookup;
  using Region = internal::CachedRegion;

  // What every hit reads, in a page that is zero in a child of fork().
  struct Shared {
    uint64_t epoch;  // see MemoryEvents
    uint64_t clock;  // counts misses
  };

  RegistrationCache(const ProtectionDomain& domain, const RegistrationCacheOptions& options)
      : domain_(&domain), options_(options) {}

  Result<Registration> look_up(RegistrationLookup& lookup, uint64_t address, uint64_t length_bytes,
                               unsigned access, bool registers);
  // False: it is to be shared instead.
  bool use_in_place(Region& region, uint64_t length_bytes) const {
    const int64_t left_ps = load_relaxed(&region.left_ps);
    if (left_ps <= 0) return false;
    store_relaxed(&region.left_ps,
                  left_ps - use_ps_ - static_cast<int64_t>(length_bytes) * use_byte_ps_);
    return true;
  }
  void retire(Region& region);
  bool device_has_current(const Region& region) const;
  void drop_outdated(Region& region, uint32_t use_number);

  // All of these under the lock.
  Region* find(AddressRange pages, unsigned access);
  Result<Region*> add(AddressRange pages, unsigned access, bool provable, bool shared);
  Result<Region*> share(Region& region, AddressRange pages, bool provable);
  Result<MemoryRegion> register_memory(AddressRange pages, unsigned access, bool in_place) const;
  int64_t worth_ps(AddressRange pages) const;
  void note_outdated(const Region& region);
  void end_refused();
  void free_place(Region& region);
  bool asks_device() const;
  bool watch(AddressRange pages);
  void open_events();
  bool make_room(uint64_t bytes);
  bool evict_one();
  void take_changes();
  void drop_all(AddressRange range);
  void drop(Region& region);
  void remove(Region& region);
  void let_go(Region& region);
  void dispose(Region& region);
  void unwatch(AddressRange pages);
  Region& new_place();
  bool in_forked_child() const { return load_relaxed(&shared_->epoch) == 0; }

  const ProtectionDomain* const domain_;
  const RegistrationCacheOptions options_;
  Shared* shared_ = nullptr;
  uint64_t page_bytes_ = 0;
  int64_t use_ps_ = 0;  // RegistrationCacheOptions::in_place
  int64_t use_byte_ps_ = 0;

  mutable std::mutex mutex_;
  std::atomic<MemoryEvents*> events_{nullptr};
  std::string why_no_events_;
  bool told_of_unwatched_ = false;
  std::deque<Region> places_;
  std::vector<Region*> free_places_;
  std::vector<Region*> refused_;
  // The regions of each access by their beginnings. None lies within another one, so their ends
  // have the same order; and if any region covers a range, then the last one that does not begin
  // behind it does.
  using Index = std::map<uint64_t, Region*>;
  std::map<unsigned, Index> indexes_;
  // Eviction takes the first one that is not in use. Who uses a region does not move it here:
  // what has been used since it was filed is filed again before it is taken.
  std::map<std::pair<uint64_t, uint64_t>, Region*> by_use_;
  // By where the memory began: how often pages were shared that the program then replaced. So often
  // the uses that have to come before are doubled.
  static constexpr size_t kMostLost = 4096;
  static constexpr uint32_t kMostDoubled = 8;
  std::unordered_map<uint64_t, uint32_t> lost_;
  uint64_t next_serial_ = 0;
  RegistrationCacheStatistics statistics_;
};

// One thread's way into a cache: a table of its own of what it found last. Not for two threads at a
// time. About 20 KiB.
class RegistrationLookup {
 public:
  explicit RegistrationLookup(RegistrationCache& cache);

  // A registration with exactly these ibv_access_flags (or kOwnRequests) of all pages of the range;
  // remote access thus covers what else is in the first and the last of them. A hit neither
  // allocates nor locks, and changes a line that is shared with those who use the same region. A
  // miss takes the cache's lock and registers; misses of several threads take turns.
  //   kInvalidArgument  the memory is not there, or the process is a child of the cache's one
  //   kLimitExceeded    the device or the system pins no more, although nothing is kept any more
  Result<Registration> get(const void* address, uint64_t length_bytes, unsigned access) {
    if (Registration hit = own_hit(address, length_bytes, access)) [[likely]]
      return hit;
    return cache_->look_up(*this, reinterpret_cast<uint64_t>(address), length_bytes, access, true);
  }
  // The same, but registers nothing new: empty if there is none.
  Registration find(const void* address, uint64_t length_bytes, unsigned access) {
    if (Registration hit = own_hit(address, length_bytes, access)) [[likely]]
      return hit;
    Result<Registration> found =
        cache_->look_up(*this, reinterpret_cast<uint64_t>(address), length_bytes, access, false);
    return found.ok() ? std::move(*found) : Registration();
  }

  // Answered by this table, without the cache's lock.
  uint64_t hits() const { return hits_; }

 private:
  friend class RegistrationCache;
  using Region = internal::CachedRegion;

  struct Slot {
    AddressRange pages;
    Region* region = nullptr;
    uint32_t use_number = 0;
    unsigned access = 0;
    Region::Follow follow = Region::Follow::kNothing;
  };
  static constexpr unsigned kSlotBits = 9;
  static constexpr unsigned kPageShift = 12;
  static constexpr unsigned kAccessShift = 61;

  // Multiplicative, so that buffers at a large stride do not meet; nor do the usual accesses of one
  // buffer, which is sent from and received into in turn.
  Slot& slot_of(uint64_t address, unsigned access) {
    const uint64_t hash = (address >> kPageShift) * 0x9e3779b97f4a7c15u;
    return slots_[(hash ^ uint64_t{access} << kAccessShift) >> (64 - kSlotBits)];
  }
  void remember(uint64_t address, Region& region);
  inline Registration own_hit(const void* address, uint64_t length_bytes, unsigned access);

  RegistrationCache* const cache_;
  uint64_t seen_epoch_ = 0;  // up to which changes have been taken
  uint64_t hits_ = 0;
  std::vector<Slot> slots_;
};

inline void Registration::release() {
  using internal::CachedRegion;
  CachedRegion* const region = std::exchange(region_, nullptr);
  if (region == nullptr) return;
  const uint64_t before = fetch_and_add_word(&region->state, ~uint64_t{0});
  // The last one of a region that is found no more.
  constexpr uint64_t kBoth = CachedRegion::kOutdated | CachedRegion::kReferences;
  if ((before & kBoth) == (CachedRegion::kOutdated | 1)) [[unlikely]]
    region->cache->retire(*region);
}

inline Registration RegistrationLookup::own_hit(const void* address, uint64_t length_bytes,
                                                unsigned access) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  Slot& slot = slot_of(begin, access);
  if (begin < slot.pages.begin || begin >= slot.pages.end || slot.access != access ||
      length_bytes - 1 >= slot.pages.end - begin) {
    return {};
  }
  Region* const region = slot.region;
  // Before the epoch is looked at: see MemoryEvents.
  if (slot.follow == Region::Follow::kEvents &&
      cache_->events_.load(std::memory_order_relaxed)->changing()) {
    return {};
  }
  const RegistrationCache::Shared& shared = *cache_->shared_;
  // Acquire: who is not late has all references to outdated regions refused.
  if (load_acquire(&shared.epoch) != seen_epoch_) return {};
  uint64_t seen = load_relaxed(&region->state);
  for (;;) {
    if ((seen >> 32) != slot.use_number || (seen & Region::kOutdated) != 0) return {};
    const uint64_t before = compare_and_swap_word(&region->state, seen, seen + 1);
    if (before == seen) break;
    seen = before;
  }
  Registration hit(region);
  if ((slot.follow == Region::Follow::kDevice || slot.follow == Region::Follow::kInPlace) &&
      !cache_->device_has_current(*region)) {
    cache_->drop_outdated(*region, slot.use_number);
    return {};
  }
  // Else whoever takes the cache's lock shares it.
  if (slot.follow == Region::Follow::kInPlace && !cache_->use_in_place(*region, length_bytes)) {
    return {};
  }
  // Only where it differs: the line may be shared.
  const uint64_t now = load_relaxed(&shared.clock);
  if (load_relaxed(&region->last_used) != now) store_relaxed(&region->last_used, now);
  ++hits_;
  return hit;
}

}  // namespace verbena
