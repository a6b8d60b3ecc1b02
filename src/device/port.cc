#include "src/device/port.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>

#include "src/device/explain.h"
#include "src/device/hardware/gid_choice.h"
#include "src/device/path_settings.h"

namespace verbena {

namespace {

// Ethernet has no LIDs, and an InfiniBand subnet may ask for global routing.
bool needs_gid(const ibv_port_attr& attributes) {
  return attributes.link_layer == IBV_LINK_LAYER_ETHERNET ||
         (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
}

// The entry that the user asked for.
Status take_port_gid(ibv_context* context, const VerbsControl& control, uint8_t index, Port* port) {
  // One that is down has no addresses; whoever connects is told that it is down.
  if (!port->active()) return {};
  if (index >= port->attributes.gid_tbl_len ||
      control.query_gid(context, port->number, index, &port->gid) != 0 || is_zero(port->gid)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("VERBENA_GID_INDEX is {}, but port {} of {} has no such GID; 'ibv_devinfo "
                        "-v' lists those there are",
                        index, port->number, context->device->name)};
  }
  port->gid_index = index;
  return {};
}

Status choose_port_gid(ibv_context* context, const VerbsControl& control, Port* port) {
  if (&control == &hardware_control()) {
    VERBENA_ASSIGN_OR_RETURN(const PathSettings settings, path_settings());
    if (settings.gid_index) return take_port_gid(context, control, *settings.gid_index, port);
  }
  if (&control == &hardware_control() && port->attributes.link_layer == IBV_LINK_LAYER_ETHERNET) {
    std::optional<ibv_gid_entry> entry = choose_hardware_gid(context, port->number);
    if (entry.has_value()) {
      port->gid_index = static_cast<int>(entry->gid_index);
      port->gid = entry->gid;
    }
    // A port that is down has no addresses, which is not an error before somebody connects.
    return {};
  }
  const int error = control.query_gid(context, port->number, 0, &port->gid);
  if (error != 0) {
    return verbs_error(control, fmt::format("cannot read the GID of port {}", port->number),
                       error < 0 ? errno : error);
  }
  port->gid_index = 0;
  return {};
}

}  // namespace

Result<Port> query_port(ibv_context* context, const VerbsControl& control, uint8_t number) {
  Port port;
  port.number = number;
  const int error = control.query_port(context, number, &port.attributes);
  if (error != 0) {
    return verbs_error(
        control, fmt::format("cannot query port {} of {}", number, context->device->name), error);
  }
  if (needs_gid(port.attributes)) {
    VERBENA_RETURN_IF_ERROR(choose_port_gid(context, control, &port));
  }
  return port;
}

Result<Port> choose_port(ibv_context* context, const VerbsControl& control) {
  ibv_device_attr attributes{};
  const int error = control.query_device(context, &attributes);
  if (error != 0) {
    return verbs_error(control, fmt::format("cannot query {}", context->device->name), error);
  }
  // What an active port lacks is told, rather than that another one is down.
  Status lacking;
  for (uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
    Result<Port> port = query_port(context, control, number);
    if (port.ok() && port->active()) return port;
    ibv_port_attr state{};
    if (!port.ok() && lacking.ok() && control.query_port(context, number, &state) == 0 &&
        state.state == IBV_PORT_ACTIVE) {
      lacking = port.status();
    }
    if (number == UINT8_MAX) break;
  }
  if (!lacking.ok()) return lacking;
  return query_port(context, control, 1);
}

const char* port_state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_NOP:
      return "no state change";
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "init";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "active, deferred";
  }
  return "unknown";
}

const char* link_layer_name(uint8_t link_layer) {
  switch (link_layer) {
    case IBV_LINK_LAYER_INFINIBAND:
      return "InfiniBand";
    case IBV_LINK_LAYER_ETHERNET:
      return "Ethernet";
    default:
      return "unspecified";
  }
}

uint32_t mtu_bytes(ibv_mtu mtu) {
  if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096) return 0;
  return 128u << mtu;
}

}  // namespace verbena
