// Protection domains and memory regions.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>

#include "src/base/log.h"
#include "src/device/soft/control.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/of_process.h"
#include "src/device/soft/page_probe.h"
#include "src/device/soft/region_memory.h"

namespace verbena::soft {
namespace {

std::atomic<uint32_t> next_domain{0};

constexpr unsigned kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
// Relaxed ordering and all other optional flags may be ignored by definition. Huge pages are a
// hint. Memory is paged in any case, so on-demand regions are as all others.
constexpr unsigned kIgnored = unsigned{IBV_ACCESS_HUGETLB} | unsigned{IBV_ACCESS_ON_DEMAND} |
                              unsigned{IBV_ACCESS_OPTIONAL_RANGE};
constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                            IBV_ACCESS_ZERO_BASED | IBV_ACCESS_MW_BIND | kIgnored;

// Refused where a kernel refuses it, and with the same error.
Status check_access(unsigned access) {
  if ((access & ~kKnown) != 0) {
    return {StatusCode::kUnsupported,
            fmt::format("soft0: access flags {:#x} are not supported; supported are {:#x}",
                        access & ~kKnown, kKnown)};
  }
  if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    return {StatusCode::kInvalidArgument,
            "soft0: remote write or atomic access needs IBV_ACCESS_LOCAL_WRITE too"};
  }
  return {};
}

// Peers reach the memory of a region in the memory file.
void use_shared_pages(Rnic& rnic, NewRegion& region) {
  region.sharing = Sharing::kMapped;
  if (const std::byte* alias = rnic.self().map(region.address, region.length_bytes)) {
    region.alias = reinterpret_cast<uint64_t>(alias);
  }
}

// Whether this process may not copy even its own memory: a filter, which peers mostly have, too.
bool refuses_copies() {
  char from = 0;
  char to = 0;
  const iovec source{&from, sizeof(from)};
  const iovec target{&to, sizeof(to)};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) < 0 &&
         (errno == EPERM || errno == ENOSYS);
}

// Whether peers can copy from memory that is left as it is, now.
bool allows_copies(const Rnic& rnic) {
  return rnic.header().copies_refused.load(std::memory_order_relaxed) == 0 &&
         prctl(PR_GET_DUMPABLE) == 1;
}

constexpr uint64_t kTouchedBytes = 128 * 1024;

bool is_readable_only(unsigned access) { return access == IBV_ACCESS_REMOTE_READ; }

// Whether the pages of a region can stay as they are.
bool can_be_left(const Rnic& rnic, const NewRegion& region) {
  if (region.length_bytes == 0) return false;
  if (region.access == IBV_ACCESS_LOCAL_WRITE) return true;
  return is_readable_only(region.access) && allows_copies(rnic) && !refuses_copies();
}

// Who knows of a registration, and what is to become of the pages.
enum class Keeping { kAsked, kUnasked, kInPlace };

// Decides how peers reach the memory of a region, and makes it so.
Status make_reachable(Rnic& rnic, NewRegion& region, Keeping keeping) {
  void* const address = reinterpret_cast<void*>(region.address);
  const bool writes = (region.access & IBV_ACCESS_LOCAL_WRITE) != 0;
  const bool in_place = keeping == Keeping::kInPlace;
  // Also where nothing is reached: peers try out whether they may when they attach this process,
  // which may be before memory is left in place.
  if (in_place && is_readable_only(region.access)) allow_peers_to_copy();
  if (region.length_bytes == 0) return {};
  const bool leave = in_place && can_be_left(rnic, region);
  const auto discards = keeping == Keeping::kAsked ? PageShare::Discards::kMayBeLost
                                                   : PageShare::Discards::kDoneOrRefused;
  const bool own_requests_only = leave && writes;
  // Often all is shared already: then one pass over the mappings is enough.
  if (Rnic::reached_by_peers(region.access) && !own_requests_only &&
      rnic.pages().share_again(address, region.length_bytes, writes, discards)) {
    use_shared_pages(rnic, region);
    return {};
  }
  VERBENA_ASSIGN_OR_RETURN(const Segment segment, check_mapped_memory(rnic.pages(), region.address,
                                                                      region.length_bytes, writes));
  region.sharing = Sharing::kForeign;
  // Memory that only this side reads (sources of sends) is never touched by a peer, so it may stay
  // as it is.
  if (!Rnic::reached_by_peers(region.access)) return {};
  if (own_requests_only || (leave && !segment.found)) {
    region.access |= kLeftAccess;
    return {};
  }
  if (segment.found) {
    region.sharing = Sharing::kSegment;
    region.segment_id = segment.id;
    region.segment_offset_bytes = segment.offset_bytes;
    allow_peers_to_copy();  // those who cannot attach it
    return {};
  }
  VERBENA_ASSIGN_OR_RETURN(const PageShare::Outcome shared,
                           rnic.pages().share(address, region.length_bytes, discards));
  if (shared.sharing == PageShare::Sharing::kShared) {
    use_shared_pages(rnic, region);
    return {};
  }
  if (refuses_copies()) {
    log_warning(
        "soft0: peers cannot reach {} bytes at {}: {}; and a filter for system calls refuses the "
        "other way, process_vm_readv: allow one of both",
        region.length_bytes, address, shared.reason);
    return {};
  }
  log_info("soft0: peers reach {} bytes at {} through the kernel{}: {}", region.length_bytes,
           address,
           (region.access & IBV_ACCESS_REMOTE_ATOMIC) != 0
               ? ", where remote atomics are atomic among each other only"
               : "",
           shared.reason);
  allow_peers_to_copy();
  return {};
}

}  // namespace

ibv_pd* alloc_pd(ibv_context* context) {
  if (check_valid_context(context) != 0) return nullptr;
  if (!count_in(as_context(context).rnic->domain_count, kMaxDomains, Domain::kName)) return nullptr;
  auto* domain = new Domain;
  domain->verbs.context = context;
  domain->id = next_domain.fetch_add(1, std::memory_order_relaxed) + 1;
  domain->verbs.handle = domain->id;
  as_context(context).users.fetch_add(1);
  make_valid(*domain, context);
  return &domain->verbs;
}

int dealloc_pd(ibv_pd* verbs) {
  if (const int error = check_valid<Domain>(verbs); error != 0) return error;
  Domain& domain = as_domain(verbs);
  if (const uint32_t users = domain.users.load(); users != 0) {
    return fail(EBUSY,
                fmt::format("soft0: the protection domain still has {} objects; destroy them first",
                            users));
  }
  if (domain.parent != nullptr) end_use(domain.parent->users);
  if (domain.threads != nullptr) end_use(domain.threads->users);
  Context& context = as_context(verbs->context);
  end_use(context.users);
  end_use(context.rnic->domain_count);
  retire(&domain);
  return 0;
}

namespace {

// The whole address space, whatever is there when it is used.
bool is_implicit(const void* address, size_t length_bytes, unsigned access) {
  return address == nullptr && length_bytes == SIZE_MAX && (access & IBV_ACCESS_ON_DEMAND) != 0;
}

// Nothing is pinned or shared: this process touches what it uses before it uses it, and peers copy
// through the kernel, which refuses where nothing is mapped.
int prepare_implicit_region(Rnic& rnic, const Domain& domain, unsigned access, NewRegion& wanted) {
  if (const Status status = check_access(access); !status.ok()) return fail(status);
  if ((access & (unsigned{IBV_ACCESS_ZERO_BASED} | unsigned{IBV_ACCESS_MW_BIND})) != 0) {
    return fail(EINVAL,
                "soft0: a region of the whole address space is neither zero-based nor of windows");
  }
  wanted = {.length_bytes = kImplicitRegionBytes,
            .access = access & ~kIgnored,
            .domain = domain.id,
            .sharing = Sharing::kForeign};
  if (Rnic::reached_by_peers(access)) {
    if (refuses_copies()) {
      return fail(EPERM,
                  "soft0: a filter for system calls refuses process_vm_readv, by which peers reach "
                  "regions of the whole address space: allow it, or register the memory itself");
    }
    allow_peers_to_copy();
    rnic.pages().hold_everything(kImplicitRegionBytes);
  }
  handle_probe_faults();
  return 0;
}

// Checks what a region is to be of, and lets peers reach it. 0, or an errno value as from fail().
int prepare_region(Rnic& rnic, const Domain& domain, const void* address, size_t length_bytes,
                   uint64_t iova, unsigned access, Keeping keeping, NewRegion& wanted) {
  if (is_implicit(address, length_bytes, access))
    return prepare_implicit_region(rnic, domain, access, wanted);
  if (length_bytes > kMaxRegionBytes) {
    return fail(
        EINVAL,
        fmt::format("soft0: a region of {} bytes exceeds the limit of {}; register its parts",
                    length_bytes, kMaxRegionBytes));
  }
  const auto start = reinterpret_cast<uint64_t>(address);
  if (start + length_bytes < start) {
    return fail(EINVAL, fmt::format("soft0: cannot register {} bytes at {}; the memory must be "
                                    "within the address space",
                                    length_bytes, address));
  }
  if (const Status status = check_access(access); !status.ok()) return fail(status);
  wanted = {.address = start,
            .length_bytes = length_bytes,
            .iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova,
            .access = access & ~kIgnored,
            .domain = domain.id,
            .alias = start};
  if (const Status status = make_reachable(rnic, wanted, keeping); !status.ok()) {
    const int error = fail(status);
    return status.code() == StatusCode::kInvalidArgument ? errno = EFAULT : error;
  }
  if (wanted.alias == start) handle_probe_faults();
  return 0;
}

ibv_mr* register_memory(ibv_pd* verbs, void* address, size_t length_bytes, uint64_t iova,
                        unsigned access, Keeping keeping) {
  if (check_valid<Domain>(verbs) != 0) return nullptr;
  Domain& domain = as_domain(verbs);
  Rnic& rnic = *as_context(verbs->context).rnic;
  NewRegion wanted;
  if (prepare_region(rnic, domain, address, length_bytes, iova, access, keeping, wanted) != 0) {
    return nullptr;
  }
  Result<uint32_t> key = rnic.register_region(wanted);
  if (!key.ok()) {
    rnic.stop_sharing(wanted.address, wanted.length_bytes, wanted.access, wanted.sharing);
    fail(key.status());
    return nullptr;
  }
  return &make_region(verbs, *key, address, length_bytes).verbs;
}

}  // namespace

Region& make_region(ibv_pd* verbs, uint32_t key, void* address, size_t length_bytes) {
  Domain& domain = as_domain(verbs);
  auto* region = new Region;
  region->verbs = {.context = verbs->context,
                   .pd = verbs,
                   .addr = address,
                   .length = length_bytes,
                   .handle = region_index(key),
                   .lkey = key,
                   .rkey = key};
  region->domain = &domain;
  region->key = key;
  domain.users.fetch_add(1);
  make_valid(*region, verbs->context);
  return *region;
}

ibv_mr* reg_mr(ibv_pd* verbs, void* address, size_t length_bytes, uint64_t iova, unsigned access) {
  return register_memory(verbs, address, length_bytes, iova, access, Keeping::kAsked);
}

ibv_mr* reg_mr_unasked(ibv_pd* verbs, void* address, size_t length_bytes, uint64_t iova,
                       unsigned access) {
  return register_memory(verbs, address, length_bytes, iova, access, Keeping::kUnasked);
}

ibv_mr* reg_mr_in_place(ibv_pd* verbs, void* address, size_t length_bytes, uint64_t iova,
                        unsigned access) {
  return register_memory(verbs, address, length_bytes, iova, access, Keeping::kInPlace);
}

int dereg_mr(ibv_mr* verbs) {
  if (const int error = check_valid<Region>(verbs); error != 0) return error;
  Region& region = as_region(verbs);
  if (verbs->lkey != region.key) return refuse_invalid(Region::kName);
  const Status taken = as_context(verbs->context).rnic->deregister_region(region.key);
  if (!taken.ok()) return fail(EBUSY, taken.message());
  end_use(region.domain->users);
  if (region.device_memory != nullptr) end_use(region.device_memory->users);
  retire(&region);
  return 0;
}

namespace {

struct OneAtATime {
  std::mutex mutex;
};

}  // namespace

// The keys stay. What is not changed is as at the registration; so is the offset of addresses.
int rereg_mr(ibv_mr* verbs, int flags, ibv_pd* pd, void* address, size_t length_bytes, int access) {
  const auto refuse = [](int error, const std::string& message) {
    fail(error, message);
    return IBV_REREG_MR_ERR_INPUT;
  };
  const std::lock_guard one_at_a_time(of_process<OneAtATime>().mutex);
  if (check_valid<Region>(verbs) != 0) return IBV_REREG_MR_ERR_INPUT;
  Region& region = as_region(verbs);
  if (flags == 0 || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0) {
    return refuse(EINVAL, fmt::format("soft0: a region is registered anew with the flags {:#x}; "
                                      "there are {:#x}",
                                      flags, int{IBV_REREG_MR_FLAGS_SUPPORTED}));
  }
  if (region.device_memory != nullptr) {
    return refuse(EINVAL, "soft0: regions of device memory stay as they are; make another one");
  }
  if (region.is_null)
    return refuse(EINVAL, "soft0: a region of ibv_alloc_null_mr() stays as it is");
  Domain* domain = region.domain;
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
    if (check_valid<Domain>(pd) != 0) return IBV_REREG_MR_ERR_INPUT;
    if (pd->context != verbs->context) {
      return refuse(EINVAL, "soft0: the protection domain is of another context");
    }
    domain = &as_domain(pd);
  }
  Rnic& rnic = *as_context(verbs->context).rnic;
  const RegionEntry& own = rnic.own_regions()[region_index(region.key)];
  if (static_cast<uint32_t>(own.stamp.load(std::memory_order_relaxed)) != region.key) {
    return refuse(EINVAL, "soft0: the region is being deregistered");
  }
  auto start = own.address.load(std::memory_order_relaxed);
  uint64_t iova = own.iova.load(std::memory_order_relaxed);
  uint64_t size_bytes = own.length_bytes.load(std::memory_order_relaxed);
  unsigned rights = own.access.load(std::memory_order_relaxed) & ~(kOwnAddressAccess | kLeftAccess);
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    start = iova = reinterpret_cast<uint64_t>(address);
    size_bytes = length_bytes;
  }
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) rights = static_cast<unsigned>(access);
  NewRegion wanted;
  if (prepare_region(rnic, *domain, reinterpret_cast<void*>(start), size_bytes, iova, rights,
                     Keeping::kAsked, wanted) != 0) {
    return IBV_REREG_MR_ERR_INPUT;
  }
  if (const Status replaced = rnic.replace_region(region.key, wanted); !replaced.ok()) {
    rnic.stop_sharing(wanted.address, wanted.length_bytes, wanted.access, wanted.sharing);
    fail(EBUSY, replaced.message());
    const bool as_before =
        static_cast<uint32_t>(own.stamp.load(std::memory_order_relaxed)) == region.key;
    return as_before ? IBV_REREG_MR_ERR_INPUT : IBV_REREG_MR_ERR_CMD;
  }
  domain->users.fetch_add(1);
  end_use(region.domain->users);
  region.domain = domain;
  verbs->pd = &domain->verbs;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    verbs->addr = address;
    verbs->length = length_bytes;
  }
  return 0;
}

RegionMemory region_memory(const ibv_mr* verbs) {
  Rnic& rnic = *as_context(verbs->context).rnic;
  const RegionEntry& own =
      rnic.own_regions()[region_index(as_region(const_cast<ibv_mr*>(verbs)).key)];
  const uint64_t address = own.address.load(std::memory_order_relaxed);
  const uint64_t length_bytes = own.length_bytes.load(std::memory_order_relaxed);
  const uint32_t access = own.access.load(std::memory_order_relaxed);
  const bool writes = (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  // Sources are read where the program has them; what is left private, by way of the kernel.
  const Sharing sharing = own.sharing.load(std::memory_order_relaxed);
  if ((access & kLeftAccess) != 0) {
    auto* const bytes = reinterpret_cast<std::byte*>(address);
    // A system call takes as long as to touch some pages. That they may not be written is then
    // found by the requests that do.
    const bool is_here = length_bytes <= kTouchedBytes
                             ? is_there(bytes, length_bytes, /*writes=*/false)
                             : rnic.pages().is_mapped(bytes, length_bytes, writes);
    if (!is_here) return RegionMemory::kOther;
    if (writes) return RegionMemory::kSame;
    return allows_copies(rnic) ? RegionMemory::kLeft : RegionMemory::kOther;
  }
  if (sharing == Sharing::kForeign) return RegionMemory::kFollows;
  if (sharing == Sharing::kMapped) {
    return rnic.pages().in_place(reinterpret_cast<void*>(address), length_bytes, writes)
               ? RegionMemory::kSame
               : RegionMemory::kOther;
  }
  const Result<Segment> segment = check_mapped_memory(rnic.pages(), address, length_bytes, writes);
  const bool same =
      segment.ok() && segment->found &&
      segment->id == own.segment_id.load(std::memory_order_relaxed) &&
      segment->offset_bytes == own.segment_offset_bytes.load(std::memory_order_relaxed);
  return same ? RegionMemory::kSame : RegionMemory::kOther;
}

}  // namespace verbena::soft
