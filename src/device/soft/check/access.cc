#include "src/device/soft/check/access.h"

#include <fmt/format.h>

#include "src/device/soft/atomic_write.h"
#include "src/device/soft/null_region.h"
#include "src/device/soft/objects.h"

namespace verbena::soft::check {
namespace {

std::string flag_names(uint32_t access) {
  std::string names;
  const auto add = [&](uint32_t flag, const char* name) {
    if ((access & flag) != 0) names.append(names.empty() ? "" : " and ").append(name);
  };
  add(IBV_ACCESS_LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE");
  add(IBV_ACCESS_REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE");
  add(IBV_ACCESS_REMOTE_READ, "IBV_ACCESS_REMOTE_READ");
  add(IBV_ACCESS_REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC");
  return names;
}

// By how much [address, address + length) misses the region.
std::string explain_range(uint64_t address, uint64_t length_bytes, uint64_t begin,
                          uint64_t size_bytes) {
  const uint64_t end = begin + size_bytes;
  const std::string region =
      fmt::format("the region is [{:#x}, {:#x}), {} bytes", begin, end, size_bytes);
  if (address < begin) {
    return fmt::format("{}: the access begins {} bytes before it", region, begin - address);
  }
  if (address - begin > size_bytes) {
    return fmt::format("{}: the access begins {} bytes behind its end", region, address - end);
  }
  return fmt::format("{}: the access ends {} bytes behind its end", region,
                     length_bytes - (end - address));
}

}  // namespace

bool is_null_key(const RegionEntry* regions, uint32_t key, uint32_t domain) {
  const uint32_t index = region_index(key);
  return index < kMaxMemoryRegions && is_null_region(regions[index], key, domain);
}

uint64_t program_address(const RegionEntry* regions, uint64_t address, uint32_t key) {
  const uint32_t index = region_index(key);
  if (index >= kMaxMemoryRegions) return address;
  const RegionEntry& entry = regions[index];
  const uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  if (stamp == 0 || static_cast<uint32_t>(stamp) != key) return address;
  return entry.address.load(std::memory_order_relaxed) +
         (address - entry.iova.load(std::memory_order_relaxed));
}

std::string explain_region(const RegionEntry* regions, uint64_t address, uint64_t length_bytes,
                           uint32_t key, uint32_t access, uint32_t domain) {
  const uint32_t index = region_index(key);
  if (index >= kMaxMemoryRegions) return fmt::format("{:#x} is the key of no region", key);
  const RegionEntry& entry = regions[index];
  const uint64_t stamp = entry.stamp.load(std::memory_order_acquire);
  if (stamp == 0 || static_cast<uint32_t>(stamp) != key) {
    return fmt::format("{:#x} is the key of no region: it was deregistered, or never was one", key);
  }
  const uint64_t begin = entry.iova.load(std::memory_order_relaxed);
  const uint64_t size_bytes = entry.length_bytes.load(std::memory_order_relaxed);
  const uint64_t offset = address - begin;
  if (offset > size_bytes || length_bytes > size_bytes - offset) {
    return explain_range(address, length_bytes, begin, size_bytes);
  }
  if (const uint32_t missing = access & ~entry.access.load(std::memory_order_relaxed)) {
    return fmt::format("the region was registered without {}", flag_names(missing));
  }
  const uint32_t owner = entry.domain.load(std::memory_order_relaxed);
  if (domain != 0 && owner != domain && owner >> 31 == 0) {
    return "the region is of another protection domain than the queue pair";
  }
  return "";
}

std::string explain_local(const RegionEntry* regions, const std::vector<Piece>& pieces,
                          uint32_t access, uint32_t domain) {
  for (const Piece& piece : pieces) {
    if (piece.length_bytes == 0) continue;
    const std::string wrong =
        explain_region(regions, piece.address, piece.length_bytes, piece.lkey, access, domain);
    if (!wrong.empty()) {
      return fmt::format("lkey {:#x}, {} bytes at {:#x}: {}", piece.lkey, piece.length_bytes,
                         piece.address, wrong);
    }
  }
  return "";
}

uint32_t remote_access_of(ibv_wr_opcode opcode) {
  if (opcode == kAtomicWrite) return IBV_ACCESS_REMOTE_WRITE;
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_ACCESS_REMOTE_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_ACCESS_REMOTE_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_ACCESS_REMOTE_ATOMIC;
    default:
      return 0;
  }
}

std::string explain_remote(ibv_qp* verbs, const SendRecord& send, uint64_t length_bytes) {
  Qp& qp = as_qp(verbs);
  const uint32_t access = remote_access_of(send.opcode);
  const OwnerLock::Guard guard(qp.send_lock);
  if (qp.peer.regions == nullptr || qp.peer.shared == nullptr || access == 0) return "";
  const uint32_t granted = qp.peer.shared->access.load(std::memory_order_relaxed);
  if ((granted & access) != access) {
    return fmt::format("the peer's queue pair was modified to INIT without {} (qp_access_flags)",
                       flag_names(access & ~granted));
  }
  return explain_region(qp.peer.regions, send.remote_address, length_bytes, send.rkey, access,
                        qp.peer.domain);
}

}  // namespace verbena::soft::check
