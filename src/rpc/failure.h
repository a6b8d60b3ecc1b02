// Turns what stopped a channel into one line for people.
#pragma once

#include <string>

#include "src/channel/channel_error.h"
#include "verbena/status.h"

namespace verbena::rpc {

// `peer` as in "the responder 192.0.2.7:7471".
Status explain_failure(const channel::ChannelError& error, const std::string& peer);
// The peer's control connection ended.
Status peer_is_gone(const std::string& peer);
// The user closed the connection.
Status connection_closed(const std::string& peer);

}  // namespace verbena::rpc
