#include "src/rpc/handshake.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/wire.h"

namespace verbena::rpc {
namespace {

constexpr uint32_t kMagic = 0x43505256;  // "VRPC"
constexpr size_t kMaxReasonBytes = 1024;

enum class Step : uint8_t { kTerms = 1, kVerdict = 2, kEndpoint = 3, kReady = 4 };

// Every frame begins with these, and with how the sender fared: ok, or a reason to stop.
void begin(WireWriter& writer, Step step, const Status& fared) {
  writer.u32(kMagic);
  writer.u16(kRpcVersion);
  writer.u8(static_cast<uint8_t>(step));
  writer.u8(static_cast<uint8_t>(fared.code()));
  writer.string(fared.message().substr(0, kMaxReasonBytes));
}

// A peer's words, fit for a terminal.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

Status refused_by(const ControlConnection& control, uint8_t code, std::string reason) {
  // An unknown code is from a later release; its words still help.
  const auto known = code <= static_cast<uint8_t>(StatusCode::kInternal)
                         ? static_cast<StatusCode>(code)
                         : StatusCode::kUnavailable;
  return Status(known, fmt::format("refused by the peer {}: {}", control.peer_name(),
                                   printable(std::move(reason))));
}

// Reads the beginning. An error is the peer's own, or what is wrong with its frame.
Status check_beginning(const ControlConnection& control, WireReader& reader, Step expected) {
  const uint32_t magic = reader.u32();
  const uint16_t version = reader.u16();
  const uint8_t step = reader.u8();
  const uint8_t code = reader.u8();
  std::string reason = reader.string(kMaxReasonBytes);
  if (reader.failed() || magic != kMagic) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format("the peer {} sent what is not a request/response handshake; make sure "
                    "that one side makes a requester where the other calls connect()",
                    control.peer_name()));
  }
  if (version != kRpcVersion) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer {} speaks version {} of the request/response handshake, "
                              "this is version {}; run the same release on both sides",
                              control.peer_name(), version, kRpcVersion));
  }
  if (code != 0) return refused_by(control, code, std::move(reason));
  if (step != static_cast<uint8_t>(expected)) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format("the peer {} sent step {} of the handshake where step {} was due; two "
                    "requesters or two responders cannot connect",
                    control.peer_name(), step, static_cast<int>(expected)));
  }
  return Status::ok_status();
}

void put_terms(WireWriter& writer, const Terms& terms) {
  writer.u8(static_cast<uint8_t>(terms.protocol));
  writer.u8(static_cast<uint8_t>(terms.layout));
  writer.u8(terms.writes_in_order ? 1 : 0);
  writer.u32(terms.request_max_bytes);
  writer.u32(terms.response_max_bytes);
  writer.u32(terms.pending);
}

// The enumerators are checked by agree(), which compares them with the own ones.
Terms get_terms(WireReader& reader) {
  Terms terms;
  terms.protocol = static_cast<Protocol>(reader.u8());
  terms.layout = static_cast<MarkLayout>(reader.u8());
  terms.writes_in_order = reader.u8() != 0;
  terms.request_max_bytes = reader.u32();
  terms.response_max_bytes = reader.u32();
  terms.pending = reader.u32();
  return terms;
}

void put_endpoint(WireWriter& writer, const EndpointTerms& terms) {
  writer.u32(terms.address.queue_pair_number);
  writer.u32(terms.address.packet_sequence_number);
  writer.u16(terms.address.lid);
  writer.raw(std::as_bytes(std::span(terms.address.gid)));
  writer.u8(terms.address.has_gid);
  writer.u8(terms.address.mtu);
  writer.u32(terms.connection);
  writer.u64(terms.slots_address);
  writer.u64(terms.slots_bytes);
  writer.u32(terms.slots_rkey);
  writer.u64(terms.signals_address);
  writer.u64(terms.signals_bytes);
  writer.u32(terms.signals_rkey);
  writer.u64(terms.readable_address);
  writer.u64(terms.readable_bytes);
  writer.u32(terms.readable_rkey);
  writer.u8(terms.max_outstanding_reads);
}

EndpointTerms get_endpoint(WireReader& reader) {
  EndpointTerms terms;
  terms.address.queue_pair_number = reader.u32();
  terms.address.packet_sequence_number = reader.u32();
  terms.address.lid = reader.u16();
  const std::span<const std::byte> gid = reader.raw(sizeof(terms.address.gid));
  std::copy(gid.begin(), gid.end(), std::as_writable_bytes(std::span(terms.address.gid)).begin());
  terms.address.has_gid = reader.u8();
  terms.address.mtu = reader.u8();
  terms.connection = reader.u32();
  terms.slots_address = reader.u64();
  terms.slots_bytes = reader.u64();
  terms.slots_rkey = reader.u32();
  terms.signals_address = reader.u64();
  terms.signals_bytes = reader.u64();
  terms.signals_rkey = reader.u32();
  terms.readable_address = reader.u64();
  terms.readable_bytes = reader.u64();
  terms.readable_rkey = reader.u32();
  terms.max_outstanding_reads = reader.u8();
  return terms;
}

Status check_size(const char* what, uint32_t wanted, uint32_t offered, const char* option) {
  if (wanted <= offered) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("the requester wants {} {}, the responder offers {}; raise the "
                            "responder's {} or lower the requester's",
                            wanted, what, offered, option));
}

std::string name_of(Protocol protocol) {
  return protocol <= Protocol::kRead ? protocol_name(protocol)
                                     : fmt::format("protocol {}", static_cast<int>(protocol));
}

std::string name_of(MarkLayout layout) {
  return layout <= kLastMarkLayout ? mark_layout_name(layout)
                                   : fmt::format("layout {}", static_cast<int>(layout));
}

bool lies_in_address_space(uint64_t address, uint64_t size_bytes) {
  return address != 0 && address + size_bytes >= address;
}

}  // namespace

Result<Terms> agree(const Terms& wanted, const Terms& offered) {
  if (wanted.protocol != offered.protocol) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("the requester wants {}, the responder serves {}; start both with the "
                    "same protocol",
                    name_of(wanted.protocol), name_of(offered.protocol)));
  }
  Terms agreed = wanted;
  if (uses_mark_layout(offered.protocol) && wanted.layout != offered.layout) {
    if (offered.layout == MarkLayout::kImmediate && wanted.layout <= kLastMarkLayout) {
      // The responder's device does not write in order; every requester can do without marks.
    } else if (wanted.layout == MarkLayout::kImmediate && !wanted.writes_in_order) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("the requester's device does not place the bytes of a WRITE in "
                                "order, so the mark layout {} cannot tell when a message is whole; "
                                "start the responder with {}",
                                name_of(offered.layout), name_of(MarkLayout::kImmediate)));
    } else {
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

Result<Terms> propose(ControlConnection& control, const Terms& wanted, int64_t timeout_ns) {
  WireWriter writer;
  begin(writer, Step::kTerms, Status::ok_status());
  put_terms(writer, wanted);
  VERBENA_RETURN_IF_ERROR(control.send(writer.bytes(), timeout_ns));

  VERBENA_ASSIGN_OR_RETURN(std::vector<std::byte> frame, control.receive(timeout_ns));
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(check_beginning(control, reader, Step::kVerdict));
  const Terms offered = get_terms(reader);
  VERBENA_RETURN_IF_ERROR(reader.finish("responder's terms"));
  return agree(wanted, offered);
}

Result<Terms> consider(ControlConnection& control, const Terms& offered, int64_t timeout_ns) {
  VERBENA_ASSIGN_OR_RETURN(std::vector<std::byte> frame, control.receive(timeout_ns));
  WireReader reader(frame);
  Result<Terms> agreed = [&]() -> Result<Terms> {
    VERBENA_RETURN_IF_ERROR(check_beginning(control, reader, Step::kTerms));
    const Terms wanted = get_terms(reader);
    VERBENA_RETURN_IF_ERROR(reader.finish("requester's terms"));
    return agree(wanted, offered);
  }();
  WireWriter writer;
  begin(writer, Step::kVerdict, agreed.status());
  put_terms(writer, offered);
  VERBENA_RETURN_IF_ERROR(control.send(writer.bytes(), timeout_ns));
  return agreed;
}

Status check_endpoint(const EndpointTerms& terms, const EndpointNeeds& needs) {
  constexpr uint32_t kMax24Bits = (1u << 24) - 1;
  const auto wrong = [](const char* what) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer's {}; do both sides run the same release?", what));
  };
  if (terms.address.queue_pair_number > kMax24Bits ||
      terms.address.packet_sequence_number > kMax24Bits) {
    return wrong("queue pair number or sequence number has more than 24 bits");
  }
  if (terms.address.mtu < IBV_MTU_256 || terms.address.mtu > IBV_MTU_4096) {
    return wrong("MTU is none of 256 to 4096 bytes");
  }
  if (terms.connection >= kMaxConnections) return wrong("connection number is out of range");
  if (needs.slots_bytes > 0 && (terms.slots_bytes < needs.slots_bytes ||
                                !lies_in_address_space(terms.slots_address, terms.slots_bytes))) {
    return wrong("slots are smaller than agreed or lie at an impossible address");
  }
  if (needs.signals_bytes > 0 &&
      (terms.signals_bytes < needs.signals_bytes ||
       !lies_in_address_space(terms.signals_address, terms.signals_bytes))) {
    return wrong("signals are fewer than agreed or lie at an impossible address");
  }
  if (needs.readable && !lies_in_address_space(terms.readable_address, terms.readable_bytes)) {
    return wrong("readable memory lies at an impossible address");
  }
  return Status::ok_status();
}

Result<EndpointTerms> exchange_endpoints(ControlConnection& control,
                                         const Result<EndpointTerms>& mine, int64_t timeout_ns) {
  WireWriter writer;
  begin(writer, Step::kEndpoint, mine.status());
  if (mine.ok()) put_endpoint(writer, *mine);
  VERBENA_RETURN_IF_ERROR(control.send(writer.bytes(), timeout_ns));
  // Also after an own failure: the peer's frame must not stay in the connection.
  Result<std::vector<std::byte>> frame = control.receive(timeout_ns);
  if (!mine.ok()) return mine.status();
  VERBENA_RETURN_IF_ERROR(frame.status());
  WireReader reader(*frame);
  VERBENA_RETURN_IF_ERROR(check_beginning(control, reader, Step::kEndpoint));
  const EndpointTerms theirs = get_endpoint(reader);
  VERBENA_RETURN_IF_ERROR(reader.finish("peer's endpoint"));
  return theirs;
}

Status confirm(ControlConnection& control, const Status& mine, int64_t timeout_ns) {
  WireWriter writer;
  begin(writer, Step::kReady, mine);
  VERBENA_RETURN_IF_ERROR(control.send(writer.bytes(), timeout_ns));
  Result<std::vector<std::byte>> frame = control.receive(timeout_ns);
  VERBENA_RETURN_IF_ERROR(mine);
  VERBENA_RETURN_IF_ERROR(frame.status());
  WireReader reader(*frame);
  VERBENA_RETURN_IF_ERROR(check_beginning(control, reader, Step::kReady));
  return reader.finish("peer's last step");
}

}  // namespace verbena::rpc
