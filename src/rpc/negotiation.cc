#include "src/rpc/negotiation.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "src/base/wire.h"
#include "src/rpc/layer.h"

namespace verbena::rpc {
namespace {

enum Step : uint8_t { kRequest = connect::kFirstStepOfLayer, kAccept };

void put_request(WireWriter& writer, const DesignRequest& request) {
  writer.u8(static_cast<uint8_t>(request.protocol));
  writer.u8(static_cast<uint8_t>(request.layout));
  writer.u8(static_cast<uint8_t>(request.transport));
  writer.u8(request.writes_in_order ? 1 : 0);
  writer.u32(request.request_max_bytes);
  writer.u32(request.response_max_bytes);
  writer.u32(request.pending);
}

// The enumerators are checked by negotiate(), which compares them with the own ones.
DesignRequest get_request(WireReader& reader) {
  DesignRequest request;
  request.protocol = static_cast<Protocol>(reader.u8());
  request.layout = static_cast<MarkLayout>(reader.u8());
  request.transport = static_cast<Transport>(reader.u8());
  request.writes_in_order = reader.u8() != 0;
  request.request_max_bytes = reader.u32();
  request.response_max_bytes = reader.u32();
  request.pending = reader.u32();
  return request;
}

Status check_size(const char* what, uint32_t wanted, uint32_t offered, const char* option) {
  if (wanted <= offered) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("the requester wants {} {}, the responder offers {}; raise the "
                            "responder's {} or lower the requester's",
                            wanted, what, offered, option));
}

std::string name_of(Protocol protocol) {
  if (protocol == Protocol::kAutomatic) return protocol_name(protocol);
  return protocol <= Protocol::kRead ? protocol_name(protocol)
                                     : fmt::format("protocol {}", static_cast<int>(protocol));
}

std::string name_of(MarkLayout layout) {
  if (layout == MarkLayout::kAutomatic) return mark_layout_name(layout);
  return layout <= kLastMarkLayout ? mark_layout_name(layout)
                                   : fmt::format("layout {}", static_cast<int>(layout));
}

std::string name_of(Transport transport) {
  return transport <= Transport::kUd ? transport_name(transport)
                                     : fmt::format("transport {}", static_cast<int>(transport));
}

}  // namespace

Status check_transport(Protocol protocol, Transport transport) {
  if (transport == Transport::kRc || protocol == Protocol::kSendSend ||
      protocol == Protocol::kAutomatic ||
      (transport == Transport::kUc && protocol == Protocol::kWriteWrite)) {
    return Status::ok_status();
  }
  const std::string resending =
      transport == Transport::kUc
          ? fmt::format("only {} and {} send again what {} loses; use one of them",
                        protocol_name(Protocol::kSendSend), protocol_name(Protocol::kWriteWrite),
                        name_of(transport))
          : fmt::format("only {} sends again what {} loses; use that protocol",
                        protocol_name(Protocol::kSendSend), name_of(transport));
  return Status(StatusCode::kUnsupported,
                fmt::format("{} over {}: {}, or the transport {}", name_of(protocol),
                            name_of(transport), resending, transport_name(Transport::kRc)));
}

Result<DesignRequest> negotiate(const DesignRequest& wanted, const DesignRequest& offered) {
  const bool any_protocol = wanted.protocol == Protocol::kAutomatic;
  if (any_protocol && offered.protocol == Protocol::kRead) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("the responder serves {}, whose requests are of another kind; start "
                              "the requester with {} instead of {}",
                              name_of(offered.protocol), name_of(offered.protocol),
                              name_of(wanted.protocol)));
  }
  if (any_protocol ? offered.protocol > Protocol::kRead : wanted.protocol != offered.protocol) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("the requester wants {}, the responder serves {}; start both with the "
                    "same protocol",
                    name_of(wanted.protocol), name_of(offered.protocol)));
  }
  if (wanted.transport != offered.transport) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("the requester wants the transport {}, the responder uses {}; start both with "
                    "the same one",
                    name_of(wanted.transport), name_of(offered.transport)));
  }
  DesignRequest agreed = wanted;
  agreed.protocol = offered.protocol;
  VERBENA_RETURN_IF_ERROR(check_transport(agreed.protocol, agreed.transport));
  if (uses_mark_layout(offered.protocol) &&
      (wanted.layout != offered.layout || offered.layout > kLastMarkLayout)) {
    const bool any_layout = wanted.layout == MarkLayout::kAutomatic;
    if (offered.layout == MarkLayout::kImmediate &&
        (any_layout || wanted.layout <= kLastMarkLayout)) {
      // The responder's device does not write in order; every requester can do without marks.
    } else if ((any_layout || wanted.layout == MarkLayout::kImmediate) && !wanted.writes_in_order &&
               needs_writes_in_order(offered.layout)) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("the requester's device does not place the bytes of a WRITE in "
                                "order, so the mark layout {} cannot tell when a message is whole; "
                                "start the responder with {}",
                                name_of(offered.layout), name_of(MarkLayout::kImmediate)));
    } else if (!any_layout || offered.layout > kLastMarkLayout) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("the requester wants the mark layout {}, the responder uses {}; "
                                "start both with the same one",
                                name_of(wanted.layout), name_of(offered.layout)));
    }
  }
  agreed.layout = offered.layout;
  VERBENA_RETURN_IF_ERROR(check_size("bytes per request", wanted.request_max_bytes,
                                     offered.request_max_bytes, "request_max_bytes"));
  VERBENA_RETURN_IF_ERROR(check_size("bytes per response", wanted.response_max_bytes,
                                     offered.response_max_bytes, "response_max_bytes"));
  VERBENA_RETURN_IF_ERROR(
      check_size("pending requests", wanted.pending, offered.pending, "pending"));
  if (wanted.pending == 0) {
    return Status(StatusCode::kProtocolViolation, "the requester wants 0 pending requests");
  }
  return agreed;
}

Result<DesignRequest> request_design(ControlConnection& control, const DesignRequest& wanted,
                                     int64_t timeout_ns) {
  WireWriter writer;
  connect::begin_step(writer, kLayer, kRequest, Status::ok_status());
  put_request(writer, wanted);
  VERBENA_RETURN_IF_ERROR(control.send(writer.bytes(), timeout_ns));

  VERBENA_ASSIGN_OR_RETURN(std::vector<std::byte> frame, control.receive(timeout_ns));
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(connect::check_step(control, kLayer, reader, kAccept));
  const DesignRequest offered = get_request(reader);
  VERBENA_RETURN_IF_ERROR(reader.finish("responder's design"));
  return negotiate(wanted, offered);
}

Result<DesignRequest> accept_design(ControlConnection& control, const DesignRequest& offered,
                                    int64_t timeout_ns) {
  VERBENA_ASSIGN_OR_RETURN(std::vector<std::byte> frame, control.receive(timeout_ns));
  WireReader reader(frame);
  Result<DesignRequest> agreed = [&]() -> Result<DesignRequest> {
    VERBENA_RETURN_IF_ERROR(connect::check_step(control, kLayer, reader, kRequest));
    const DesignRequest wanted = get_request(reader);
    VERBENA_RETURN_IF_ERROR(reader.finish("requester's design"));
    return negotiate(wanted, offered);
  }();
  WireWriter writer;
  connect::begin_step(writer, kLayer, kAccept, agreed.status());
  put_request(writer, offered);
  VERBENA_RETURN_IF_ERROR(control.send(writer.bytes(), timeout_ns));
  return agreed;
}

}  // namespace verbena::rpc
