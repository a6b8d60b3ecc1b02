// What ibv_start_poll() and its kind keep of the completion that they stand at.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "src/device/soft/owner_lock.h"

namespace verbena::soft {

struct ExtendedPoll {
  OwnerLock lock;  // from ibv_start_poll() to ibv_end_poll()
  bool as_owner = false;
  bool single_threaded = false;
  uint64_t fields = 0;  // ibv_create_cq_wc_flags; 0 too for queues of ibv_create_cq()
  ibv_wc wc{};
  uint64_t time_ns = 0;
  uint64_t wallclock_ns = 0;
};

}  // namespace verbena::soft
