// `verbena app hashtable`: the disaggregated hashtable ("memsem" IV-B) under the mixes of YCSB.
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& hashtable_workload();

}  // namespace verbena::bench
