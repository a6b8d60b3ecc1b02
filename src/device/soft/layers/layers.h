// What stands between a program and the data path where it is asked for: layers that replace the
// functions of contexts, queue pairs and completion queues, and call those that stood there before.
// Where nothing is asked for, nothing is replaced, and nothing costs. From the device outwards:
// faults, observation, checks.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {

// Each is the last step of making the object.
void add_layers(ibv_context& verbs);
void add_layers(ibv_qp_ex& qp);
void add_layers(ibv_cq_ex& cq);
// The control calls, before anybody gets the table.
void add_layers(SoftRnic& rnic);

}  // namespace verbena::soft
