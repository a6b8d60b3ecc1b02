// Control connections from each sender of a shuffle to each receiver. A shuffle is over with the
// end of its records, so each phase has connections of its own.
#pragma once

#include <vector>

#include "src/bench/run/node_job.h"
#include "verbena/apps/shuffle.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::bench {

// Where a receiver is reached, for as long as the point lasts.
Result<ControlListener> listen_for_senders(const NodeJob& job);
// To each receiver, in their order. They have to accept meanwhile.
Result<std::vector<ControlConnection>> reach_receivers(const NodeJob& job);
// Takes in all senders. Returns early, without all of them, if the point ends.
Status accept_senders(const NodeJob& job, ControlListener& listener, ShuffleReceiver& receiver);

}  // namespace verbena::bench
