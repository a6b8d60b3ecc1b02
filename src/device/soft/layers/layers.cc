#include "src/device/soft/layers/layers.h"

#include "src/device/soft/check/check_layer.h"
#include "src/device/soft/faults/faults_layer.h"
#include "src/device/soft/observe/observe.h"

namespace verbena::soft {

void add_layers(ibv_context& verbs) {
  faults::add_layer(verbs);
  observe::add_layer(verbs);
  check::add(verbs);
}

void add_layers(ibv_qp_ex& qp) {
  faults::add_layer(qp);
  observe::add_layer(qp);
  check::add(qp);
}

void add_layers(ibv_cq_ex& cq) {
  faults::add_layer(cq);
  observe::add_layer(cq);
  check::add(cq);
}

void add_layers(SoftRnic& rnic) { check::add(rnic); }

}  // namespace verbena::soft
