// `verbena app log`: the distributed log ("memsem" IV-E).
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& log_workload();

}  // namespace verbena::bench
