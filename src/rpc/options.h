// What the options of requesters and responders have in common. Control path.
#pragma once

#include <cstdint>

#include "verbena/status.h"

namespace verbena::rpc {

// kInvalidArgument for the first that is out of range, with the range.
Status check_sizes(uint32_t request_max_bytes, uint32_t response_max_bytes, uint32_t pending,
                   uint32_t post_batch);

}  // namespace verbena::rpc
