#include "src/memory/registration_cache.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/base/log.h"
#include "src/device/verbs_control.h"

namespace verbena {

namespace {

// How long a look-up waits for changes under way in other threads; then it registers for one use.
// Reading an event takes some 10 µs, but the reading thread may have to wait for a processor.
constexpr uint64_t kReadLimitNs = 1'000'000'000;

constexpr uint64_t kPageOfCostsBytes = 4096;

constexpr const char* kOfTheParent =
    "this registration cache belongs to the process that this one was forked from; open the device "
    "and make a cache in the child";

int64_t to_ps(double ns) { return static_cast<int64_t>(ns * 1000); }

}  // namespace

RegistrationLookup::RegistrationLookup(RegistrationCache& cache)
    : cache_(&cache), slots_(size_t{1} << kSlotBits) {}

void RegistrationLookup::remember(uint64_t address, Region& region) {
  slot_of(address, region.access) = {region.pages, &region, region.use_number(), region.access,
                                     region.follow};
}

Result<std::unique_ptr<RegistrationCache>> RegistrationCache::create(
    const ProtectionDomain& domain, const RegistrationCacheOptions& options) {
  std::unique_ptr<RegistrationCache> cache(new RegistrationCache(domain, options));
  cache->page_bytes_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  void* const page =
      mmap(nullptr, cache->page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || madvise(page, cache->page_bytes_, MADV_WIPEONFORK) != 0) {
    const int error = errno;
    if (page != MAP_FAILED) munmap(page, cache->page_bytes_);
    return Status(StatusCode::kLimitExceeded,
                  fmt::format("cannot make a registration cache: it needs a page that children of "
                              "this process get empty: {}; free memory, or use Linux 4.14 or newer",
                              std::strerror(error)));
  }
  cache->shared_ = new (page) Shared{.epoch = 2, .clock = 1};
  if (options.in_place.has_value()) {
    cache->use_ps_ = to_ps(options.in_place->use_ns);
    cache->use_byte_ps_ = to_ps(options.in_place->use_byte_ns);
    // Tells the device, before peers connect, that memory will be left in place.
    if (domain.control().reg_mr_in_place != nullptr) {
      static_cast<void>(MemoryRegion::create_in_place(domain, nullptr, 0, IBV_ACCESS_REMOTE_READ));
    }
  }
  return cache;
}

RegistrationCache::~RegistrationCache() {
  if (shared_ == nullptr) return;
  MemoryEvents* const events = events_.load();
  if (in_forked_child()) {
    // What it has is the parent's: no thread here would end, and no region may be deregistered.
    for (Region& place : places_) {
      if (place.region.has_value()) new MemoryRegion(std::move(*place.region));
    }
  } else {
    clear();
    VERBENA_ASSERT(statistics_.regions == 0 && statistics_.outdated_in_use == 0);
    delete events;
  }
  munmap(shared_, page_bytes_);
}

Result<Registration> RegistrationCache::look_up(RegistrationLookup& lookup, uint64_t address,
                                                uint64_t length_bytes, unsigned access,
                                                bool registers) {
  if (in_forked_child()) {
    return Status(StatusCode::kInvalidArgument, kOfTheParent);
  }
  if (length_bytes == 0 || address > UINT64_MAX - page_bytes_ ||
      length_bytes > UINT64_MAX - page_bytes_ - address) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot register {} bytes at {:#x}; the length must be positive and "
                              "the memory within the address space",
                              length_bytes, address));
  }
  const AddressRange pages{address & ~(page_bytes_ - 1),
                           (address + length_bytes + page_bytes_ - 1) & ~(page_bytes_ - 1)};
  // Changes that the caller can know of are read before the lock is taken: who is about to change
  // memory may hold a lock that a registration needs.
  MemoryEvents* const events = events_.load(std::memory_order_acquire);
  uint64_t epoch = load_acquire(&shared_->epoch);
  const bool all_read = events == nullptr || events->wait_until_read(kReadLimitNs, &epoch);

  Region* found = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const bool provable = all_read && events == events_.load(std::memory_order_relaxed);
    take_changes();
    if (provable) lookup.seen_epoch_ = epoch;
    if (provable) found = find(pages, access);
    const bool is_left = found != nullptr && found->follow == Region::Follow::kInPlace;
    const bool used_up = is_left && !use_in_place(*found, length_bytes);
    const bool hit = found != nullptr && !used_up;
    if (used_up) {
      VERBENA_ASSIGN_OR_RETURN(found, share(*found, pages, provable));
    } else if (hit) {
      ++statistics_.locked_hits;
    } else if (!registers) {
      return Registration();
    } else {
      VERBENA_ASSIGN_OR_RETURN(found, add(pages, access, provable, /*shared=*/false));
      if (found->follow == Region::Follow::kInPlace) use_in_place(*found, length_bytes);
    }
    if ((load_relaxed(&found->state) & Region::kOutdated) == 0) lookup.remember(address, *found);
    if (!hit) return Registration(found);
  }
  // Which regions the thread's own table has depends on addresses, so a simulation charges for both
  // ways of finding one the same. Other simulated threads may run meanwhile: not under the lock.
  internal::count_change(&found->state);
  return Registration(found);
}

// With a reference for the caller.
RegistrationCache::Region* RegistrationCache::find(AddressRange pages, unsigned access) {
  const auto index = indexes_.find(access);
  if (index == indexes_.end()) return nullptr;
  auto at = index->second.upper_bound(pages.begin);
  if (at == index->second.begin()) return nullptr;
  Region& region = *std::prev(at)->second;
  if (region.pages.end < pages.end) return nullptr;
  if ((region.follow == Region::Follow::kDevice || region.follow == Region::Follow::kInPlace) &&
      !device_has_current(region)) {
    note_outdated(region);
    drop(region);
    return nullptr;
  }
  // Acquire: as for every reference.
  __atomic_fetch_add(&region.state, 1, __ATOMIC_ACQUIRE);
  store_relaxed(&region.last_used, shared_->clock);
  return &region;
}

Result<MemoryRegion> RegistrationCache::register_memory(AddressRange pages, unsigned access,
                                                        bool in_place) const {
  const auto create = in_place ? MemoryRegion::create_in_place : MemoryRegion::create_unasked;
  return create(*domain_, reinterpret_cast<void*>(pages.begin), pages.bytes(),
                access & ~kOwnRequests);
}

// What sharing the pages costs, and thus what their uses may cost before.
int64_t RegistrationCache::worth_ps(AddressRange pages) const {
  const InPlaceCosts& costs = *options_.in_place;
  const int64_t once =
      to_ps(costs.share_ns) +
      static_cast<int64_t>(pages.bytes() / kPageOfCostsBytes) * to_ps(costs.share_page_ns);
  const auto lost = lost_.find(pages.begin);
  return lost == lost_.end() ? once : once << lost->second;
}

void RegistrationCache::note_outdated(const Region& region) {
  ++statistics_.outdated;
  if (!region.shared_later) return;
  if (lost_.size() >= kMostLost) lost_.clear();
  uint32_t& lost = lost_[region.pages.begin];
  lost = std::min(lost + 1, kMostDoubled);
}

// Instead of `found`, to which the caller has a reference, one with shared pages; with a reference.
// Who uses the other one goes on.
Result<RegistrationCache::Region*> RegistrationCache::share(Region& found, AddressRange pages,
                                                            bool provable) {
  const AddressRange all = found.pages;
  const unsigned access = found.access;
  // First, so that there is room for its successor.
  remove(found);
  __atomic_fetch_sub(&found.state, 1, __ATOMIC_RELEASE);
  Result<Region*> shared = add(all, access, provable, /*shared=*/true);
  let_go(found);
  if (shared.ok()) {
    ++statistics_.shared_later;
    return shared;
  }
  // Part of it may be gone.
  return add(pages, access, provable, /*shared=*/false);
}

// With a reference for the caller. `shared`: not left in place.
Result<RegistrationCache::Region*> RegistrationCache::add(AddressRange pages, unsigned access,
                                                          bool provable, bool shared) {
  end_refused();
  store_relaxed(&shared_->clock, shared_->clock + 1);
  bool kept = provable && make_room(pages.bytes());
  const bool own_requests = (access & kOwnRequests) != 0;
  const bool readable_only = access == IBV_ACCESS_REMOTE_READ;
  const bool in_place = !shared && asks_device() &&
                        (own_requests || (readable_only && options_.in_place.has_value()));
  const auto make = [&] {
    // Before the pages are pinned, so that no change is missed.
    if (!asks_device()) kept = kept && watch(pages);
    return register_memory(pages, access, in_place);
  };
  Result<MemoryRegion> made = make();
  if (!made.ok() && made.status().code() == StatusCode::kLimitExceeded && evict_one()) {
    // A limit of the system or the device, not of the cache: all that is kept for later goes.
    while (evict_one()) {
    }
    made = make();
  }
  if (!made.ok()) {
    if (kept && !asks_device()) unwatch(pages);
    return made.status();
  }
  ++statistics_.registrations;

  Region& region = new_place();
  region.cache = this;
  region.pages = pages;
  region.access = access;
  region.lkey = made->lkey();
  region.rkey = made->rkey();
  region.region = std::move(*made);
  region.serial = ++next_serial_;
  region.shared_later = shared;
  region.follow = Region::Follow::kEvents;
  if (asks_device()) {
    const RegionMemory memory = domain_->control().region_memory(region.region->get());
    region.follow = memory == RegionMemory::kFollows ? Region::Follow::kNothing
                    : memory == RegionMemory::kLeft  ? Region::Follow::kInPlace
                                                     : Region::Follow::kDevice;
    if (memory == RegionMemory::kLeft) region.left_ps = worth_ps(pages);
    if (in_place && (memory == RegionMemory::kLeft || own_requests)) ++statistics_.in_place;
  }
  const uint64_t number = uint64_t{region.use_number()} << 32;
  if (!kept) {
    ++statistics_.not_kept;
    ++statistics_.outdated_in_use;
    store_release(&region.state, number | Region::kOutdated | 1);
    return &region;
  }
  store_release(&region.state, number | 1);
  store_relaxed(&region.last_used, shared_->clock);
  region.filed_under = shared_->clock;

  Index& index = indexes_[access];
  // Those within it would never be found again.
  std::vector<Region*> within;
  for (auto at = index.lower_bound(pages.begin);
       at != index.end() && at->second->pages.end <= pages.end;) {
    within.push_back((at++)->second);
    remove(*within.back());
  }
  index.emplace(pages.begin, &region);
  by_use_.emplace(std::pair(region.filed_under, region.serial), &region);
  ++statistics_.regions;
  statistics_.kept_bytes += pages.bytes();
  // Not before: their end must not end the following of pages that this one has, too.
  for (Region* const one : within) let_go(*one);
  return &region;
}

bool RegistrationCache::asks_device() const {
  return domain_->control().region_memory != nullptr && !options_.assume_pinned;
}

// False: the pages are registered for one use.
bool RegistrationCache::watch(AddressRange pages) {
  if (events_.load(std::memory_order_relaxed) == nullptr) open_events();
  MemoryEvents* const events = events_.load(std::memory_order_relaxed);
  if (events == nullptr) return false;
  const std::string why_not = events->watch(pages);
  if (why_not.empty()) return true;
  if (!std::exchange(told_of_unwatched_, true)) {
    log_info("registrations of some memory are not kept, each use registers anew: {}", why_not);
  }
  return false;
}

void RegistrationCache::open_events() {
  if (!why_no_events_.empty()) return;
  if (!options_.use_events) {
    why_no_events_ = "userfaultfd is switched off";
    return;
  }
  Result<std::unique_ptr<MemoryEvents>> events = MemoryEvents::create(&shared_->epoch);
  if (events.ok()) {
    events_.store(events->release(), std::memory_order_release);
    return;
  }
  why_no_events_ = events.status().message();
  log_warning("registrations are not kept, each use registers anew: {}", why_no_events_);
}

bool RegistrationCache::make_room(uint64_t bytes) {
  if (bytes > options_.max_bytes || options_.max_regions == 0) return false;
  while (statistics_.kept_bytes + bytes > options_.max_bytes ||
         statistics_.regions >= options_.max_regions) {
    if (!evict_one()) return false;
    ++statistics_.evictions;
  }
  return true;
}

// The one whose last use is longest ago, of those that are not in use. False: there is none.
bool RegistrationCache::evict_one() {
  for (auto at = by_use_.begin(); at != by_use_.end();) {
    Region& region = *at->second;
    const uint64_t used = load_relaxed(&region.last_used);
    if (used != region.filed_under) {
      at = by_use_.erase(at);
      region.filed_under = used;
      const auto filed = by_use_.emplace(std::pair(used, region.serial), &region).first;
      if (at == by_use_.end() || filed->first < at->first) at = filed;
      continue;
    }
    uint64_t idle = load_relaxed(&region.state) & ~Region::kReferences;
    // Acquire: what its last users did comes before the end of the registration.
    if (__atomic_compare_exchange_n(&region.state, &idle, idle | Region::kOutdated, false,
                                    __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
      remove(region);
      dispose(region);
      return true;
    }
    ++at;
  }
  return false;
}

void RegistrationCache::take_changes() {
  MemoryEvents* const events = events_.load(std::memory_order_relaxed);
  if (events == nullptr) return;
  const bool complete = events->take([this](const MemoryEvents::Change& change) {
    drop_all(change.range);
    if (change.kind != MemoryEvents::Change::Kind::kMoved) return;
    // What was there is gone, too; and the pages that came are watched for nobody.
    const AddressRange to{change.moved_to, change.moved_to + change.range.bytes()};
    drop_all(to);
    unwatch(to);
  });
  if (!complete) drop_all({0, UINT64_MAX});
}

// What the program has changed in the range.
void RegistrationCache::drop_all(AddressRange range) {
  for (auto& [access, index] : indexes_) {
    auto at = index.upper_bound(range.begin);
    // Ends have the order of beginnings.
    while (at != index.begin() && std::prev(at)->second->pages.end > range.begin) --at;
    while (at != index.end() && at->first < range.end) {
      Region& region = *(at++)->second;
      ++statistics_.outdated;
      drop(region);
    }
  }
}

// It is not found any more, and deregistered as soon as nobody uses it.
void RegistrationCache::drop(Region& region) {
  remove(region);
  let_go(region);
}

void RegistrationCache::let_go(Region& region) {
  const uint64_t before = __atomic_fetch_or(&region.state, Region::kOutdated, __ATOMIC_ACQ_REL);
  if ((before & Region::kReferences) == 0) {
    dispose(region);
  } else {
    ++statistics_.outdated_in_use;
  }
}

void RegistrationCache::remove(Region& region) {
  indexes_[region.access].erase(region.pages.begin);
  by_use_.erase({region.filed_under, region.serial});
  --statistics_.regions;
  statistics_.kept_bytes -= region.pages.bytes();
}

// Nobody has a reference, and nobody gets one.
void RegistrationCache::dispose(Region& region) {
  if (!region.region->deregister()) {
    log_info("a registration of {} bytes that nobody uses is ended later: {}", region.pages.bytes(),
             domain_->control().last_error());
    ++statistics_.refused;
    refused_.push_back(&region);
    return;
  }
  free_place(region);
}

// What could not be ended before.
void RegistrationCache::end_refused() {
  std::erase_if(refused_, [this](Region* region) {
    if (!region->region->deregister()) return false;
    --statistics_.refused;
    free_place(*region);
    return true;
  });
}

// Its registration has ended.
void RegistrationCache::free_place(Region& region) {
  region.region.reset();
  if (region.follow == Region::Follow::kEvents) unwatch(region.pages);
  const uint64_t next = uint64_t{region.use_number() + 1} << 32;
  store_release(&region.state, next | Region::kOutdated);
  free_places_.push_back(&region);
}

// Pages that no other kept region covers.
void RegistrationCache::unwatch(AddressRange pages) {
  MemoryEvents* const events = events_.load(std::memory_order_relaxed);
  if (events == nullptr) return;
  RangeSet left;
  left.add(pages);
  for (const auto& [access, index] : indexes_) {
    auto at = index.lower_bound(pages.end);
    while (at != index.begin() && (--at)->second->pages.end > pages.begin) {
      left.remove(at->second->pages);
    }
  }
  for (const AddressRange& range : left.all()) events->unwatch(range);
}

RegistrationCache::Region& RegistrationCache::new_place() {
  if (free_places_.empty()) return places_.emplace_back();
  Region& place = *free_places_.back();
  free_places_.pop_back();
  return place;
}

void RegistrationCache::retire(Region& region) {
  if (in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  --statistics_.outdated_in_use;
  dispose(region);
}

bool RegistrationCache::device_has_current(const Region& region) const {
  return domain_->control().region_memory(region.region->get()) != RegionMemory::kOther;
}

// Unless another thread has noticed meanwhile.
void RegistrationCache::drop_outdated(Region& region, uint32_t use_number) {
  const std::lock_guard lock(mutex_);
  if (region.use_number() != use_number || (load_relaxed(&region.state) & Region::kOutdated) != 0) {
    return;
  }
  note_outdated(region);
  drop(region);
}

void RegistrationCache::forget(const void* address, uint64_t length_bytes) {
  const auto begin = reinterpret_cast<uint64_t>(address);
  if (in_forked_child() || length_bytes == 0) return;
  const std::lock_guard lock(mutex_);
  take_changes();
  drop_all({begin, begin + std::min(length_bytes, UINT64_MAX - begin)});
}

void RegistrationCache::forget(internal::CachedRegion& region) {
  if (in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  if ((load_relaxed(&region.state) & Region::kOutdated) == 0) drop(region);
}

void RegistrationCache::clear() {
  if (in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  take_changes();
  end_refused();
  while (evict_one()) {
  }
}

RegistrationCacheStatistics RegistrationCache::statistics() const {
  if (in_forked_child()) return {};
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::string RegistrationCache::explain() const {
  if (in_forked_child()) return "keeps nothing here: " + std::string(kOfTheParent);
  const RegistrationCacheStatistics now = statistics();
  const char* how = "the device tells whether they are current";
  std::string kept =
      fmt::format("keeps up to {} regions of {} bytes together ({} of {} bytes now)",
                  options_.max_regions, options_.max_bytes, now.regions, now.kept_bytes);
  if (!asks_device()) {
    const std::lock_guard lock(mutex_);
    if (!why_no_events_.empty()) return "keeps no registrations: " + why_no_events_;
    how = "userfaultfd tells when the memory changes";
  }
  if (options_.in_place.has_value()) {
    kept += fmt::format(
        "; {} of {} registrations left their memory in place, {} were for such memory "
        "that had been used much",
        now.in_place, now.registrations, now.shared_later);
  }
  return kept + "; " + how;
}

}  // namespace verbena
