// `verbena app shuffle`: the distributed shuffle ("memsem" IV-C).
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& shuffle_workload();

}  // namespace verbena::bench
