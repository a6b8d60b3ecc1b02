#include "src/device/soft/region_view.h"

namespace verbena::soft {

const RegionView* refresh_view(Qp& qp, const RegionEntry& entry, uint64_t stamp, RegionView& view) {
  view.stamp = 0;
  view.iova = entry.iova.load(std::memory_order_relaxed);
  view.address = entry.address.load(std::memory_order_relaxed);
  view.length_bytes = entry.length_bytes.load(std::memory_order_relaxed);
  view.access = entry.access.load(std::memory_order_relaxed);
  // What only its owner's requests fill is no place for a SEND.
  if ((view.access & kLeftAccess) != 0) view.access &= ~uint32_t{IBV_ACCESS_LOCAL_WRITE};
  view.domain = entry.domain.load(std::memory_order_relaxed);
  const Sharing sharing = entry.sharing.load(std::memory_order_relaxed);
  const int32_t segment_id = entry.segment_id.load(std::memory_order_relaxed);
  const uint64_t segment_offset = entry.segment_offset_bytes.load(std::memory_order_relaxed);
  // The fields belong together only if the stamp is still the same after they were read.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.stamp.load(std::memory_order_relaxed) != stamp) return nullptr;
  view.base = nullptr;
  view.segment.reset();
  view.locked_atomics = false;
  switch (sharing) {
    case Sharing::kMapped:
      view.base = qp.peer.memory->map(view.address, view.length_bytes);
      if (view.base == nullptr) return nullptr;
      break;
    case Sharing::kSegment: {
      const uint64_t end = segment_offset + view.length_bytes;
      if (end >= segment_offset) view.segment = qp.peer.memory->attach_segment(segment_id, end);
      // Else through the kernel, but for atomics, which others carry out directly.
      if (view.segment != nullptr) view.base = view.segment.get() + segment_offset;
      break;
    }
    default:
      view.locked_atomics = true;
      break;
  }
  view.at_once_bytes = view.base != nullptr ? kCopyAtOnceBytes : 0;
  view.stamp = stamp;
  return &view;
}

}  // namespace verbena::soft
