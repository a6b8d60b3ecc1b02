// What a queue pair without reliability may be told when it changes its state.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/sim/objects.h"

namespace verbena::sim {

// 0, or an errno value with refuse()'s reason: attributes are missing, or are those of reliable
// connections (IBTA volume 1, 11.2.5.2).
int check_transition(const QueuePair& qp, const ibv_qp_attr& attributes, int mask);

}  // namespace verbena::sim
