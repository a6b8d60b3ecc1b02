// Operations on remote memory that are more than single verbs: what `verbena remote` measures.
#pragma once

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

const Workload& remote_workload();

}  // namespace verbena::bench
