#include "src/device/soft/layers/layers.h"

#include "src/device/soft/observe/observe.h"

namespace verbena::soft {

void add_layers(ibv_context& verbs) { observe::add_layer(verbs); }

void add_layers(ibv_qp_ex& qp) { observe::add_layer(qp); }

void add_layers(ibv_cq_ex& cq) { observe::add_layer(cq); }

}  // namespace verbena::soft
