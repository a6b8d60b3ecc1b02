#include "src/device/soft/layers/layers.h"

#include "src/device/soft/check/check.h"

namespace verbena::soft {

void add_layers(ibv_context& verbs) { check::add(verbs); }

void add_layers(ibv_qp_ex& qp) { check::add(qp); }

void add_layers(ibv_cq_ex& cq) { check::add(cq); }

void add_layers(SoftRnic& rnic) { check::add(rnic); }

}  // namespace verbena::soft
