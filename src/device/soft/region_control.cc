// Protection domains and memory regions.
#include <fmt/format.h>

#include <cerrno>

#include "src/base/log.h"
#include "src/device/soft/control.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {
namespace {

std::atomic<uint32_t> next_domain{0};

constexpr unsigned kWritable = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                            IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                            IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;

}  // namespace

ibv_pd* alloc_pd(ibv_context* context) {
  auto* domain = new Domain;
  domain->verbs.context = context;
  domain->id = next_domain.fetch_add(1, std::memory_order_relaxed) + 1;
  domain->verbs.handle = domain->id;
  return &domain->verbs;
}

int dealloc_pd(ibv_pd* verbs) {
  Domain& domain = as_domain(verbs);
  if (const uint32_t users = domain.users.load(); users != 0) {
    return fail(EBUSY,
                fmt::format("soft0: the protection domain still has {} objects; destroy them first",
                            users));
  }
  delete &domain;
  return 0;
}

ibv_mr* reg_mr(ibv_pd* verbs, void* address, size_t length_bytes, uint64_t iova, unsigned access) {
  Domain& domain = as_domain(verbs);
  Rnic& rnic = *as_context(verbs->context).rnic;
  const auto start = reinterpret_cast<uint64_t>(address);
  if (length_bytes == 0 || start + length_bytes < start || (access & ~kKnown) != 0) {
    fail((access & ~kKnown) != 0 ? EOPNOTSUPP : EINVAL,
         fmt::format("soft0: cannot register {} bytes at {} with access {:#x}; the length must be "
                     "positive and the "
                     "access within {:#x} (no on-demand paging, no memory windows)",
                     length_bytes, address, access, kKnown));
    return nullptr;
  }
  if ((access & kWritable) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
    fail(EINVAL, "soft0: remote write or atomic access needs IBV_ACCESS_LOCAL_WRITE too");
    return nullptr;
  }
  // Memory that only this side reads (sources of sends) is never touched by a peer, so it may stay
  // as it is.
  Sharing sharing = Sharing::kForeign;
  if (Rnic::reached_by_peers(access)) {
    Result<PageShare::Outcome> shared = rnic.pages().share(address, length_bytes);
    if (!shared.ok()) {
      fail(shared.status());
      if (shared.status().code() == StatusCode::kInvalidArgument) errno = EFAULT;
      return nullptr;
    }
    if (shared->sharing == PageShare::Sharing::kShared) {
      sharing = Sharing::kMapped;
    } else if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0) {
      rnic.pages().release(address, length_bytes, PageShare::Sharing::kPrivate);
      fail(EOPNOTSUPP,
           fmt::format("soft0: remote atomics need memory that peers can map: {}", shared->reason));
      return nullptr;
    } else {
      log_info("soft0: peers reach {} bytes at {} through the kernel: {}", length_bytes, address,
               shared->reason);
      allow_peers_to_copy();
    }
  }
  Result<uint32_t> key =
      rnic.register_region(start, length_bytes, iova, access, domain.id, sharing);
  if (!key.ok()) {
    if (Rnic::reached_by_peers(access)) {
      rnic.pages().release(
          address, length_bytes,
          sharing == Sharing::kMapped ? PageShare::Sharing::kShared : PageShare::Sharing::kPrivate);
    }
    fail(key.status());
    return nullptr;
  }
  auto* region = new Region;
  region->verbs = {.context = verbs->context,
                   .pd = verbs,
                   .addr = address,
                   .length = length_bytes,
                   .handle = region_index(*key),
                   .lkey = *key,
                   .rkey = *key};
  domain.users.fetch_add(1);
  return &region->verbs;
}

int dereg_mr(ibv_mr* verbs) {
  Region& region = as_region(verbs);
  const Status taken = as_context(verbs->context).rnic->deregister_region(verbs->lkey);
  if (!taken.ok()) {
    // Said here, too: not everybody who destroys something looks at what that returns.
    log_warning("{}", taken.message());
    return fail(EBUSY, taken.message());
  }
  as_domain(verbs->pd).users.fetch_sub(1);
  delete &region;
  return 0;
}

}  // namespace verbena::soft
