// The simulated RNIC's front: devices "sim:PROFILE" as verbs objects.
#pragma once

#include <infiniband/verbs.h>

#include <string_view>

#include "src/device/verbs_control.h"
#include "verbena/status.h"

namespace verbena::sim {

const VerbsControl& control();

// Keeps why the calling thread's call is refused (VerbsControl::last_error). Returns `error`, which
// errno is, too.
int refuse(int error, std::string_view text);

// Opens the RNIC of the node where the caller is. kUnavailable outside of a simulation,
// kInvalidArgument if the node has another RNIC.
Result<ibv_context*> open_device(std::string_view name);
int close_device(ibv_context* context);
// Waits in virtual time for an event of the channel; false after `timeout_ns` (negative: for ever).
bool wait_for_event(ibv_comp_channel* channel, int64_t timeout_ns);

}  // namespace verbena::sim
