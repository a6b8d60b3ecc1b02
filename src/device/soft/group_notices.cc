#include "src/device/soft/group_notices.h"

#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/device/soft/peer.h"
#include "src/device/soft/rnic.h"

namespace verbena::soft {

bool GroupNotices::tell(uint32_t slot) {
  if (slot == rnic_.slot()) return true;
  const Result<std::shared_ptr<Peer>> peer = rnic_.attach(slot);
  if (peer.ok()) {
    if (!(*peer)->is_self()) (*peer)->raise_group_epoch();
    return true;
  }
  // Another that cannot be reached sends nothing that could be received here.
  return peer.status().code() != StatusCode::kLimitExceeded;
}

void GroupNotices::tell_later(const std::bitset<kMaxProcesses>& slots) {
  if (slots.none()) return;
  const std::lock_guard guard(mutex_);
  untold_ |= slots;
  pending_.store(true, std::memory_order_relaxed);
}

void GroupNotices::tell_all() {
  rnic_.header().group_epoch.fetch_add(1);
  const Result<std::vector<uint32_t>> slots = rnic_.registry().slots();
  std::bitset<kMaxProcesses> untold;
  if (slots.ok()) {
    for (const uint32_t slot : *slots) {
      if (!tell(slot)) untold.set(slot);
    }
    tell_later(untold);
  } else {
    const std::lock_guard guard(mutex_);
    any_untold_ = true;
    pending_.store(true, std::memory_order_relaxed);
  }
  if (!pending()) return;
  if (!said_.exchange(true)) {
    log_warning(
        "soft0: not all processes know of a change of a multicast group yet: no file descriptors "
        "are left to tell them; raise the limit of open files (ulimit -n)");
  }
  // It may sleep for ever otherwise.
  rnic_.wake();
}

void GroupNotices::tell_again() {
  std::bitset<kMaxProcesses> untold;
  bool any = false;
  {
    const std::lock_guard guard(mutex_);
    untold = std::exchange(untold_, {});
    any = std::exchange(any_untold_, false);
    pending_.store(false, std::memory_order_relaxed);
  }
  if (any) {
    const Result<std::vector<uint32_t>> slots = rnic_.registry().slots();
    if (slots.ok()) {
      for (const uint32_t slot : *slots) untold.set(slot);
    } else {
      const std::lock_guard guard(mutex_);
      any_untold_ = true;
      pending_.store(true, std::memory_order_relaxed);
    }
  }
  std::bitset<kMaxProcesses> again;
  for (uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
    if (untold.test(slot) && !tell(slot)) again.set(slot);
  }
  tell_later(again);
}

}  // namespace verbena::soft
