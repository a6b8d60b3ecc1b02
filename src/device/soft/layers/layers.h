// What stands between a program and soft0's operations where it is asked for: each layer replaces
// function pointers and calls what was there before, so it costs nothing where it is not.
//
// From the device outwards: what is observed (observe/).
#pragma once

#include <infiniband/verbs.h>

namespace verbena::soft {

// At the end of the creation of each.
void add_layers(ibv_context& verbs);
void add_layers(ibv_qp_ex& qp);
void add_layers(ibv_cq_ex& cq);

}  // namespace verbena::soft
