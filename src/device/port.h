// The port a device's connections use: which one, and what its peers must know about it.
#pragma once

#include <infiniband/verbs.h>

#include "src/device/verbs_control.h"
#include "verbena/status.h"

namespace verbena {

struct Port {
  uint8_t number = 1;
  ibv_port_attr attributes{};
  int gid_index = -1;  // -1: the LID is enough, as within an InfiniBand subnet
  ibv_gid gid{};

  bool routed_by_gid() const { return gid_index >= 0; }
  bool active() const { return attributes.state == IBV_PORT_ACTIVE; }
};

// The first active port, else port 1.
Result<Port> choose_port(ibv_context* context, const VerbsControl& control);

Result<Port> query_port(ibv_context* context, const VerbsControl& control, uint8_t number);

const char* port_state_name(ibv_port_state state);
const char* link_layer_name(uint8_t link_layer);
uint32_t mtu_bytes(ibv_mtu mtu);

}  // namespace verbena
