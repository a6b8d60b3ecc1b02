// The attributes of queue pairs, and the steps between their states, by transport.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/soft/layout.h"

namespace verbena::soft {

const char* state_name(ibv_qp_state state);

// What of `mask` concerns a queue pair of this transport. As with a kernel's devices, XRC ones
// ignore what belongs to the other half of a connection: programs give them all that RC has.
int concerning(Transport transport, int mask);

// Whether ibv_modify_qp() may go `from` one state `to` another with the attributes in `mask`, and
// whether their values are possible. 0, or an errno value as from fail().
int check_transition(Transport transport, ibv_qp_state from, ibv_qp_state to, int mask);
int check_values(const ibv_qp_attr& attributes, int mask);
void copy_attributes(ibv_qp_attr& kept, const ibv_qp_attr& given, int mask);

}  // namespace verbena::soft
