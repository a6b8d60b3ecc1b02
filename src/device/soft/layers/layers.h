// What stands between a program and soft0's operations where it is asked for: layers that replace
// function pointers and call what stood there before, so that nothing costs where nothing is asked
// for. From the device outwards: a network that loses, delays and shapes (faults/), observation
// (observe/), checks (check/).
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
