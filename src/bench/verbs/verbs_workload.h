// Single verbs, which nobody answers: what `verbena verbs` measures.
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& verbs_workload();

}  // namespace verbena::bench
