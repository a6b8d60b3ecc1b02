// Requests and responses by a protocol: what `verbena bench` measures.
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& request_response_workload();

}  // namespace verbena::bench
