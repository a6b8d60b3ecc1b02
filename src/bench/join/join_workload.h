// `verbena app join`: the distributed join ("memsem" IV-D).
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& join_workload();

}  // namespace verbena::bench
