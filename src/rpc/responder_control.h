// What the responders of all protocols do before and beside the messages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "src/channel/completion_receiver.h"
#include "src/memory/arena.h"
#include "src/rpc/connection_end.h"
#include "src/rpc/negotiation.h"
#include "verbena/device.h"
#include "verbena/rpc.h"

namespace verbena::rpc {

// `built_for`: the transport that the responder's design is compiled for.
Status check_responder_options(const ResponderOptions& options,
                               Transport built_for = Transport::kRc);
// Whether a responder that was built for `layout` can work on this device.
Status check_device_layout(Protocol protocol, MarkLayout layout, const DeviceInfo& device);

// What a requester may ask for at most.
DesignRequest offered_design(Protocol protocol, MarkLayout layout, const Device& device,
                             const ResponderOptions& options);
EndOptions end_options(const ResponderOptions& options, const DesignRequest& agreed);
// Of the end that all connections share (datagram_responder.h): with the sizes that are offered.
EndOptions shared_end_options(const Device& device, const ResponderOptions& options);

// A handler returned more than fits, or kBreakConnection.
Status bad_answer(uint32_t bytes, uint32_t max_bytes, const std::string& peer);
Status too_many_requests(uint32_t pending, const std::string& peer);
Status too_many_connections(uint32_t max_connections);

// The receives that all connections of a responder share.
struct RequestInbox {
  std::optional<RegisteredArena> arena;  // the buffers, where messages land in them
  std::optional<CompletionQueue> completions;
  std::optional<SharedReceiveQueue> queue;
  channel::SharedInbox inbox;
  uint32_t receives = 0;
};
// How many receives that takes on a device.
Result<channel::ReceivePoolSizes> size_inbox(const DeviceInfo& info,
                                             const ResponderOptions& options, bool with_buffers);
// `with_buffers`: receives for SENDs; else they only take immediates.
Result<std::unique_ptr<RequestInbox>> make_inbox(const Device& device,
                                                 const ProtectionDomain& domain,
                                                 const ResponderOptions& options, bool with_buffers,
                                                 const CompletionChannel* events);

}  // namespace verbena::rpc
