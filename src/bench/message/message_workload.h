// `verbena bench message`: tagged messages between ranks ("mpiiba" 6, "bufreuse" 5).
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& message_workload();

}  // namespace verbena::bench
