// Turns what stopped a channel into one line for people.
#pragma once

#include <string>

#include "src/channel/channel_error.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::connect {

// `peer` as in "the responder 192.0.2.7:7471".
Status explain_failure(const channel::ChannelError& error, const std::string& peer);
// The cause, where sending, receiving or both have failed: a peer that broke the protocol; one that
// is gone; else the first error, of which those that only say "flushed" are consequences.
Status diagnose(const channel::ChannelError& sending, const channel::ChannelError& receiving,
                const ControlConnection& control, const std::string& peer);
// The peer's control connection ended.
Status peer_is_gone(const std::string& peer);
// The user closed the connection.
Status connection_closed(const std::string& peer);

}  // namespace verbena::connect
