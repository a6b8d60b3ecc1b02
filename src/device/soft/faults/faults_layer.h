// The operations of a context with a network, in place of those of soft0 alone.
#pragma once

#include <infiniband/verbs.h>

namespace verbena::soft::faults {

// Nothing changes for objects of contexts without one.
void add_layer(ibv_context& verbs);
void add_layer(ibv_qp_ex& qp);
void add_layer(ibv_cq_ex& cq);

}  // namespace verbena::soft::faults
