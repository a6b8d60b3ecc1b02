#include "src/device/soft/region_view.h"

namespace verbena::soft {

const RegionView* refresh_view(Qp& qp, const RegionEntry& entry, uint64_t stamp, RegionView& view) {
  view.stamp = 0;
  view.iova = entry.iova.load(std::memory_order_relaxed);
  view.address = entry.address.load(std::memory_order_relaxed);
  view.length_bytes = entry.length_bytes.load(std::memory_order_relaxed);
  view.access = entry.access.load(std::memory_order_relaxed);
  view.domain = entry.domain.load(std::memory_order_relaxed);
  const Sharing sharing = entry.sharing.load(std::memory_order_relaxed);
  // The fields belong together only if the stamp is still the same after they were read.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.stamp.load(std::memory_order_relaxed) != stamp) return nullptr;
  view.base = nullptr;
  view.at_once_bytes = 0;
  if (sharing == Sharing::kMapped) {
    view.base = qp.peer.process->map(view.address, view.length_bytes);
    if (view.base == nullptr) return nullptr;
    view.at_once_bytes = kCopyAtOnceBytes;
  }
  view.stamp = stamp;
  return &view;
}

}  // namespace verbena::soft
