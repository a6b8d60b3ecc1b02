// The public interface: names, and requesters and responders made for a choice at run time.
#include "verbena/rpc.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/rpc/design_choice.h"
#include "src/rpc/designs.h"
#include "src/rpc/requester_control.h"

namespace verbena {
namespace {

constexpr Protocol kProtocols[] = {Protocol::kSendSend, Protocol::kSendWrite, Protocol::kWriteSend,
                                   Protocol::kWriteWrite, Protocol::kRead};
constexpr MarkLayout kLayouts[] = {MarkLayout::kLastBit, MarkLayout::kLengthMarkers,
                                   MarkLayout::kHeadTail, MarkLayout::kImmediate,
                                   MarkLayout::kDense};
constexpr ReceiveQueues kReceiveQueues[] = {ReceiveQueues::kShared, ReceiveQueues::kPerConnection};
constexpr Transport kTransports[] = {Transport::kRc, Transport::kUc, Transport::kUd};

template <typename T, size_t N, typename Name>
Result<T> parse(std::string_view text, const char* what, const T (&values)[N], Name&& name) {
  std::string names;
  for (const T value : values) {
    if (text == name(value)) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(value));
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("no {} '{}'; there are {}", what, text, names));
}

}  // namespace

std::span<const Protocol> all_protocols() { return kProtocols; }
std::span<const MarkLayout> all_mark_layouts() { return kLayouts; }

const char* protocol_name(Protocol protocol) {
  switch (protocol) {
    case Protocol::kSendSend:
      return "send/send";
    case Protocol::kSendWrite:
      return "send/write";
    case Protocol::kWriteSend:
      return "write/send";
    case Protocol::kWriteWrite:
      return "write/write";
    case Protocol::kRead:
      return "read";
    case Protocol::kAutomatic:
      return "automatic";
  }
  VERBENA_ASSERT(false && "not a protocol");
  return "";
}

const char* mark_layout_name(MarkLayout layout) {
  switch (layout) {
    case MarkLayout::kLastBit:
      return "last-bit";
    case MarkLayout::kLengthMarkers:
      return "length-markers";
    case MarkLayout::kHeadTail:
      return "head-tail";
    case MarkLayout::kImmediate:
      return "immediate";
    case MarkLayout::kDense:
      return "dense";
    case MarkLayout::kAutomatic:
      return "automatic";
  }
  VERBENA_ASSERT(false && "not a mark layout");
  return "";
}

std::span<const ReceiveQueues> all_receive_queues() { return kReceiveQueues; }

const char* receive_queues_name(ReceiveQueues queues) {
  return queues == ReceiveQueues::kShared ? "shared" : "per-connection";
}

Result<ReceiveQueues> parse_receive_queues(std::string_view name) {
  return parse(name, "kind of receive queues", kReceiveQueues, receive_queues_name);
}

std::span<const Transport> all_transports() { return kTransports; }

const char* transport_name(Transport transport) {
  switch (transport) {
    case Transport::kRc:
      return "rc";
    case Transport::kUc:
      return "uc";
    case Transport::kUd:
      return "ud";
  }
  VERBENA_ASSERT(false && "not a transport");
  return "";
}

Result<Transport> parse_transport(std::string_view name) {
  return parse(name, "transport", kTransports, transport_name);
}

Result<Protocol> parse_protocol(std::string_view name) {
  return parse(name, "protocol", kProtocols, protocol_name);
}

Result<MarkLayout> parse_mark_layout(std::string_view name) {
  return parse(name, "mark layout", kLayouts, mark_layout_name);
}

bool uses_mark_layout(Protocol protocol) {
  return protocol != Protocol::kSendSend && protocol != Protocol::kRead;
}

namespace rpc {

Result<std::unique_ptr<Requester>> connect_requester(const Device& device,
                                                     const ProtectionDomain& domain,
                                                     ControlConnection& control,
                                                     const RequesterOptions& options,
                                                     const DesignAgreement& agreed) {
  return with_transport(agreed.transport, agreed.protocol, agreed.layout,
                        [&]<typename Design>() -> Result<std::unique_ptr<Requester>> {
                          VERBENA_ASSIGN_OR_RETURN(
                              std::unique_ptr<Requester> requester,
                              Design::Requester::connect(device, domain, control, options, agreed));
                          return requester;
                        });
}

}  // namespace rpc

Result<std::unique_ptr<Requester>> make_requester(Protocol protocol, MarkLayout layout,
                                                  const Device& device,
                                                  const ProtectionDomain& domain,
                                                  ControlConnection& control,
                                                  const RequesterOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const rpc::DesignAgreement agreed,
                           rpc::request_design(protocol, layout, device, control, options));
  return rpc::connect_requester(device, domain, control, options, agreed);
}

Result<std::unique_ptr<Responder>> make_responder(Protocol protocol, MarkLayout layout,
                                                  const Device& device,
                                                  const ProtectionDomain& domain,
                                                  const ResponderOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(rpc::ChosenDesign chosen,
                           rpc::choose_design(protocol, layout, device.info(), options));
  return rpc::with_transport(
      options.transport, chosen.protocol, chosen.layout, options.receive_queues,
      [&]<typename Design>() -> Result<std::unique_ptr<Responder>> {
        VERBENA_ASSIGN_OR_RETURN(auto responder,
                                 Design::Responder::create(device, domain, options));
        responder->set_reason(std::move(chosen.why));
        return std::unique_ptr<Responder>(std::move(responder));
      });
}

}  // namespace verbena
