// What a request and its response load each part with, in time: the counts of a design with the
// step times of a device.
#pragma once

#include <cstdint>

#include "src/channel/message_cost.h"
#include "src/device/step_costs.h"
#include "src/rpc/design_cost.h"

namespace verbena::rpc {

// Nanoseconds per request of the parts of one side. Those of an RNIC work at the same time.
struct SideLoad {
  double thread = 0;
  double send_unit = 0;
  double receive_unit = 0;
  double bus = 0;         // the busier direction
  double link = 0;        // out of this side
  double queue_pair = 0;  // the least time between two requests of one queue pair
};

struct DesignLoad {
  SideLoad requester;
  SideLoad responder;
  double round_trip_ns = 0;
};

struct LoadInputs {
  const StepCosts& steps;
  uint32_t mtu_bytes = 4096;
  bool shared_receives = false;  // at the responder
  // How long a round takes in which a thread finds nothing, and how much of that it spends per
  // request.
  double requester_round_ns = 0;
  double responder_round_ns = 0;
  double responder_rounds = 0;
  uint32_t hand_overs = 0;  // between the requesting thread and a dispatcher
};

DesignLoad load_of(const DesignCost& cost, const LoadInputs& inputs);

}  // namespace verbena::rpc
