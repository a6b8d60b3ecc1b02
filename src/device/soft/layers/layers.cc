#include "src/device/soft/layers/layers.h"

#include "src/device/soft/faults/faults_layer.h"

namespace verbena::soft {

void add_layers(ibv_context& verbs) { faults::add_layer(verbs); }

void add_layers(ibv_qp_ex& qp) { faults::add_layer(qp); }

void add_layers(ibv_cq_ex& cq) { faults::add_layer(cq); }

}  // namespace verbena::soft
