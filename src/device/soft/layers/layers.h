// What stands between a program and soft0's operations where it was asked for: each layer replaces
// function pointers, so that it costs nothing elsewhere. From the device outwards:
//
//   faults/   a network that loses, delays and shapes what is sent
#pragma once

#include <infiniband/verbs.h>

namespace verbena::soft {

// At the end of the making of a context, of a queue pair with ibv_wr_start(), of a completion queue
// with ibv_start_poll().
void add_layers(ibv_context& verbs);
void add_layers(ibv_qp_ex& qp);
void add_layers(ibv_cq_ex& cq);

}  // namespace verbena::soft
