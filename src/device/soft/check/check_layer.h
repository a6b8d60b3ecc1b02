// `verbena run --check`: reports what programs do that verbs do not allow, and that soft0 or an
// RNIC often forgives. The program goes on as without it.
//
//   caller          who made a call
//   report          what is printed, once for each place, and the exit code
//   buffer_sum      whether a buffer has changed
//   ranges          which memory work requests use
//   records         the objects of the program, and the work requests that are under way
//   access          why a key did not give access
//   sends, receives what is posted
//   polls           what completes, and who sleeps
//   control_calls   what is made, changed and destroyed
//   releases        memory that is given back
//   at_exit         what is left
//
// Control calls and posts take one lock, and allocate. Everything is bounded by what the program
// has posted or made.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/soft/soft_rnic.h"

namespace verbena::soft::check {

// Each does nothing unless VERBENA_CHECK is set.
void add(ibv_context& verbs);
void add(ibv_qp_ex& qp);
void add(ibv_cq_ex& cq);
void add(SoftRnic& rnic);

}  // namespace verbena::soft::check
