#include "src/ofi/memory_region.h"

#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "src/ofi/endpoint.h"
#include "src/ofi/wait_point.h"

namespace verbena::ofi {
namespace {

// Busy: a device still moves bytes of a peer's long operation there.
int close_memory(fid* handle) {
  auto& memory = object_of<RegisteredMemory>(handle);
  {
    const std::lock_guard guard(memory.domain.lock);
    if (memory.counts != nullptr) memory.count_remote();
    if (memory.exposed && !memory.domain.exposed->revoke(memory.key)) return -FI_EBUSY;
    std::erase(memory.domain.counted, &memory);
    for (Counter* const counter : {memory.reads, memory.writes}) {
      if (counter != nullptr) --counter->memories;
    }
  }
  --memory.domain.users;
  delete &memory;
  return 0;
}

int bind_to_counter(RegisteredMemory& memory, Counter& counter, uint64_t flags) {
  if (&counter.domain != &memory.domain)
    return refuse_other_domain("fi_mr_bind", "the counter", "the memory");
  constexpr uint64_t kBoth = FI_REMOTE_READ | FI_REMOTE_WRITE;
  if ((flags & kBoth) == 0 || (flags & ~kBoth) != 0) return -FI_EINVAL;
  const std::lock_guard guard(memory.domain.lock);
  for (const auto& [flag, place] :
       {std::pair{FI_REMOTE_READ, &memory.reads}, {FI_REMOTE_WRITE, &memory.writes}}) {
    if ((flags & flag) != 0 && *place != nullptr) return -FI_EINVAL;
  }
  // Nobody reaches memory that only sends and receives.
  if (!memory.exposed) return 0;
  if (memory.counts == nullptr) {
    memory.counts = memory.domain.exposed->count(memory.key);
    if (memory.counts == nullptr) return -FI_EINVAL;
    memory.domain.counted.push_back(&memory);
  }
  memory.count_remote();
  for (const auto& [flag, place] :
       {std::pair{FI_REMOTE_READ, &memory.reads}, {FI_REMOTE_WRITE, &memory.writes}}) {
    if ((flags & flag) == 0) continue;
    *place = &counter;
    ++counter.memories;
  }
  // Who waits for the counter already waits for other endpoints from now on.
  WaitPoint::notify_all(memory.domain);
  return 0;
}

// To an endpoint, as who asks for FI_MR_ENDPOINT does: all of the domain have it.
int bind_memory(fid* handle, fid* other, uint64_t flags) {
  if (other->fclass == FI_CLASS_CNTR)
    return bind_to_counter(object_of<RegisteredMemory>(handle), object_of<Counter>(other), flags);
  if (other->fclass != FI_CLASS_EP) return -FI_EINVAL;
  if (&object_of<Endpoint>(other).domain != &object_of<RegisteredMemory>(handle).domain)
    return refuse_other_domain("fi_mr_bind", "the endpoint", "the memory");
  return 0;
}

int control_memory(fid* /*handle*/, int command, void* /*argument*/) {
  return command == FI_ENABLE || command == FI_REFRESH ? 0 : -FI_ENOSYS;
}

fi_ops memory_object_calls = object_calls(close_memory, bind_memory, control_memory);

int register_pieces_of(fid* handle, const iovec* pieces, size_t count, uint64_t access,
                       uint64_t requested_key, fid_mr** memory, void* context) {
  auto& domain = object_of<Domain>(handle);
  const bool exposed = (access & (FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0;
  uint64_t key = FI_KEY_NOTAVAIL;
  if (exposed) {
    ExposeRequest request{
        .pieces = {pieces, count}, .has_key = !domain.chooses_keys, .key = requested_key};
    if ((access & FI_REMOTE_READ) != 0) request.access |= kMemoryRead;
    if ((access & FI_REMOTE_WRITE) != 0) request.access |= kMemoryWrite;
    if (domain.virtual_addresses && count > 0)
      request.address = reinterpret_cast<uint64_t>(pieces[0].iov_base);
    const std::lock_guard guard(domain.lock);
    const Result<uint64_t> made = domain.exposed->expose(request);
    if (!made.ok())
      return made.status().code() == StatusCode::kUnavailable ? -FI_ENOKEY : -FI_EINVAL;
    key = *made;
  }
  auto* made = new (std::nothrow) RegisteredMemory(domain, exposed, key, context);
  if (made == nullptr) return -FI_ENOMEM;
  ++domain.users;
  *memory = made;
  return 0;
}

int register_one(fid* domain, const void* buffer, size_t size_bytes, uint64_t access,
                 uint64_t /*offset*/, uint64_t requested_key, uint64_t /*flags*/, fid_mr** memory,
                 void* context) {
  const iovec piece{const_cast<void*>(buffer), size_bytes};
  return register_pieces_of(domain, &piece, 1, access, requested_key, memory, context);
}

int register_several(fid* domain, const iovec* pieces, size_t count, uint64_t access,
                     uint64_t /*offset*/, uint64_t requested_key, uint64_t /*flags*/,
                     fid_mr** memory, void* context) {
  return register_pieces_of(domain, pieces, count, access, requested_key, memory, context);
}

int register_by_attributes(fid* domain, const fi_mr_attr* attributes, uint64_t /*flags*/,
                           fid_mr** memory) {
  return register_pieces_of(domain, attributes->mr_iov, attributes->iov_count, attributes->access,
                            attributes->requested_key, memory, attributes->context);
}

}  // namespace

RegisteredMemory::RegisteredMemory(Domain& of, bool is_exposed, uint64_t its_key, void* context)
    : fid_mr{}, domain(of), exposed(is_exposed) {
  fid = {.fclass = FI_CLASS_MR, .context = context, .ops = &memory_object_calls};
  mem_desc = this;
  key = its_key;
}

void RegisteredMemory::count_remote() {
  const MemoryCounts now = *counts;
  if (reads != nullptr && now.reads != counted.reads) reads->add(now.reads - counted.reads);
  if (writes != nullptr && now.writes != counted.writes) writes->add(now.writes - counted.writes);
  counted = now;
}

void count_remote(Domain& domain) {
  for (RegisteredMemory* const memory : domain.counted) memory->count_remote();
}

fi_ops_mr registration_calls = {
    .size = sizeof(fi_ops_mr),
    .reg = register_one,
    .regv = register_several,
    .regattr = register_by_attributes,
};

}  // namespace verbena::ofi
