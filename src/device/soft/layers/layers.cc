#include "src/device/soft/layers/layers.h"

#include "src/device/soft/check/check.h"
#include "src/device/soft/observe/observe.h"

namespace verbena::soft {

void add_layers(ibv_context& verbs) {
  observe::add_layer(verbs);
  check::add(verbs);
}

void add_layers(ibv_qp_ex& qp) {
  observe::add_layer(qp);
  check::add(qp);
}

void add_layers(ibv_cq_ex& cq) {
  observe::add_layer(cq);
  check::add(cq);
}

void add_layers(SoftRnic& rnic) { check::add(rnic); }

}  // namespace verbena::soft
