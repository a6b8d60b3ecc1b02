#include "src/rpc/requester_control.h"

#include <fmt/format.h>

#include "src/rpc/design_choice.h"
#include "src/rpc/options.h"

namespace verbena::rpc {

Result<DesignAgreement> request_design(Protocol protocol, MarkLayout layout, const Device& device,
                                       ControlConnection& control,
                                       const RequesterOptions& options) {
  VERBENA_RETURN_IF_ERROR(check_sizes(options.request_max_bytes, options.response_max_bytes,
                                      options.pending, options.post_batch));
  VERBENA_RETURN_IF_ERROR(check_transport(protocol, options.transport));
  DesignRequest wanted;
  wanted.transport = options.transport;
  wanted.protocol = protocol;
  wanted.writes_in_order = device.info().writes_in_order;
  // Messages that are sent again are told by their immediates.
  wanted.layout = options.transport == Transport::kRc
                      ? usable_layout(layout, wanted.writes_in_order)
                      : MarkLayout::kImmediate;
  wanted.request_max_bytes = options.request_max_bytes;
  wanted.response_max_bytes = options.response_max_bytes;
  wanted.pending = options.pending;
  VERBENA_ASSIGN_OR_RETURN(const DesignRequest agreed,
                           request_design(control, wanted, options.handshake_timeout_ns));
  if (is_automatic(protocol, layout)) return DesignAgreement{agreed, MarkLayout::kAutomatic};
  const bool asked_for_layout = uses_mark_layout(protocol) && options.transport == Transport::kRc;
  return DesignAgreement{agreed, asked_for_layout ? layout : agreed.layout};
}

Status check_built_for(Transport built_for, Transport asked) {
  if (built_for == asked) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("the options ask for the transport {}, but this design is compiled for "
                            "{}; leave the option as it is, or use make_requester() and "
                            "make_responder()",
                            transport_name(asked), transport_name(built_for)));
}

Status check_layout(Protocol protocol, MarkLayout layout, const DesignRequest& agreed) {
  VERBENA_RETURN_IF_ERROR(check_built_for(Transport::kRc, agreed.transport));
  if (!uses_mark_layout(protocol) || layout == agreed.layout) return Status::ok_status();
  return Status(StatusCode::kUnsupported,
                fmt::format("a device of this connection does not place the bytes of a WRITE in "
                            "order: the mark layout {} cannot be used, {} can",
                            mark_layout_name(layout), mark_layout_name(agreed.layout)));
}

EndOptions end_options(const RequesterOptions& options) {
  EndOptions end;
  end.outgoing_max_bytes = options.request_max_bytes;
  end.incoming_max_bytes = options.response_max_bytes;
  end.pending = options.pending;
  end.inline_bytes = options.inline_bytes;
  end.signal_interval = options.signal_interval;
  end.post_batch = options.post_batch;
  end.huge_pages = options.huge_pages;
  end.receive_slack = options.receive_slack;
  return end;
}

Status misused_post(uint32_t slot, uint32_t bytes, uint32_t pending, uint32_t max_bytes) {
  return Status(StatusCode::kInvalidArgument,
                fmt::format("a request of {} bytes was posted in slot {}; this requester has {} "
                            "slots of {} bytes",
                            bytes, slot, pending, max_bytes));
}

}  // namespace verbena::rpc
