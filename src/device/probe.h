// What only a queue pair can tell about its device.
#pragma once

#include <cstdint>

#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena {

struct QueuePairProbe {
  uint32_t max_inline_bytes = 0;
  bool writes_in_order = false;
};

// Makes and destroys reliable queue pairs of depth 1 until it knows. Cost: about 20 queue pairs.
Result<QueuePairProbe> probe_queue_pair(const ProtectionDomain& domain);

}  // namespace verbena
