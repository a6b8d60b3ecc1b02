#include "src/rpc/responder_control.h"

#include <fmt/format.h>

#include <utility>

#include "src/connect/sizing.h"
#include "src/rpc/options.h"
#include "src/rpc/requester_control.h"

namespace verbena::rpc {

Status check_responder_options(const ResponderOptions& options, Transport built_for) {
  VERBENA_RETURN_IF_ERROR(check_built_for(built_for, options.transport));
  if (options.max_connections < 1 || options.max_connections > kMaxConnections) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("max_connections is {}; choose 1 to {}", options.max_connections,
                              kMaxConnections));
  }
  return check_sizes(options.request_max_bytes, options.response_max_bytes, options.pending,
                     options.post_batch);
}

Status check_device_layout(Protocol protocol, MarkLayout layout, const DeviceInfo& device) {
  if (!uses_mark_layout(protocol) || device.writes_in_order || !needs_writes_in_order(layout)) {
    return Status::ok_status();
  }
  return Status(
      StatusCode::kUnsupported,
      fmt::format("{} does not guarantee that the bytes of a WRITE land in order, so the "
                  "mark layout {} cannot tell when a message is whole; use {}",
                  device.name, mark_layout_name(layout), mark_layout_name(MarkLayout::kImmediate)));
}

DesignRequest offered_design(Protocol protocol, MarkLayout layout, const Device& device,
                             const ResponderOptions& options) {
  DesignRequest offered;
  offered.protocol = protocol;
  offered.layout = layout;
  offered.transport = options.transport;
  offered.writes_in_order = device.info().writes_in_order;
  offered.request_max_bytes = options.request_max_bytes;
  offered.response_max_bytes = options.response_max_bytes;
  offered.pending = options.pending;
  return offered;
}

EndOptions end_options(const ResponderOptions& options, const DesignRequest& agreed) {
  EndOptions end;
  end.outgoing_max_bytes = agreed.response_max_bytes;
  end.incoming_max_bytes = agreed.request_max_bytes;
  end.pending = agreed.pending;
  end.inline_bytes = options.inline_bytes;
  end.signal_interval = options.signal_interval;
  end.post_batch = options.post_batch;
  end.huge_pages = options.huge_pages;
  return end;
}

EndOptions shared_end_options(const Device& device, const ResponderOptions& options) {
  EndOptions end = end_options(
      options, offered_design(Protocol::kSendSend, MarkLayout::kImmediate, device, options));
  end.sharers = options.max_connections;
  end.receive_depth = options.receive_depth;
  end.receives_any_length = true;  // it would end the connections of all
  return end;
}

Status bad_answer(uint32_t bytes, uint32_t max_bytes, const std::string& peer) {
  if (bytes == kBreakConnection) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("{} sent a malformed request; run the same release on "
                              "both sides",
                              peer));
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("the handler returned {} bytes, the response buffer has {}; the "
                            "connection was ended",
                            bytes, max_bytes));
}

Status too_many_requests(uint32_t pending, const std::string& peer) {
  return Status(StatusCode::kProtocolViolation,
                fmt::format("{} goes on sending requests without taking responses; {} pending ones "
                            "were agreed",
                            peer, pending));
}

Status too_many_connections(uint32_t max_connections) {
  return Status(StatusCode::kLimitExceeded,
                fmt::format("the responder serves {} connections already, as many as "
                            "max_connections allows; raise it",
                            max_connections));
}

Result<channel::ReceivePoolSizes> size_inbox(const DeviceInfo& info,
                                             const ResponderOptions& options, bool with_buffers) {
  if (info.max_shared_receive_queues == 0) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} has no shared receive queues; use ReceiveQueues::kPerConnection "
                              "or a protocol whose requests are WRITEs",
                              info.name));
  }
  const uint64_t messages = uint64_t{options.max_connections} * options.pending;
  return connect::size_receive_queue(info.max_shared_receive_queue_wrs, "shared receive queue",
                                     static_cast<uint32_t>(messages), options.receive_depth,
                                     with_buffers ? options.request_max_bytes : 0);
}

Result<std::unique_ptr<RequestInbox>> make_inbox(const Device& device,
                                                 const ProtectionDomain& domain,
                                                 const ResponderOptions& options, bool with_buffers,
                                                 const CompletionChannel* events) {
  VERBENA_ASSIGN_OR_RETURN(const channel::ReceivePoolSizes sizes,
                           size_inbox(device.info(), options, with_buffers));

  auto inbox = std::make_unique<RequestInbox>();
  inbox->receives = sizes.receives;
  channel::ReceiveBuffers buffers;
  if (with_buffers) {
    VERBENA_ASSIGN_OR_RETURN(
        inbox->arena,
        RegisteredArena::create(
            domain,
            channel::ReceiveBuffers::size_bytes(options.request_max_bytes, sizes.receives) +
                kCacheLineBytes,
            IBV_ACCESS_LOCAL_WRITE, connect::wants_huge_pages(device, options.huge_pages)));
    buffers.base = inbox->arena->data();
    buffers.buffer_bytes = options.request_max_bytes;
    buffers.lkey = inbox->arena->lkey();
  }
  // A receive yields one completion; a queue pair that fails may yield one more.
  VERBENA_ASSIGN_OR_RETURN(
      inbox->completions,
      CompletionQueue::create(
          device, {.depth_cqes = sizes.receives + options.max_connections, .channel = events}));
  VERBENA_ASSIGN_OR_RETURN(inbox->queue,
                           SharedReceiveQueue::create(domain, {.depth_wrs = sizes.receives}));
  inbox->inbox =
      channel::SharedInbox(inbox->queue->get(), inbox->completions->get(), buffers, sizes);
  const int error = inbox->inbox.post_receives();
  if (error != 0) return receives_refused(error);
  return inbox;
}

}  // namespace verbena::rpc
