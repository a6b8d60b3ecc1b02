#include "src/connect/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/base/runtime.h"

namespace verbena::connect {
namespace {

constexpr size_t kMaxReasonBytes = 1024;

enum Step : uint8_t { kEndpoint = 1, kReady = 2 };
static_assert(kReady < kFirstStepOfLayer);

Status refused_by(const ControlConnection& control, uint8_t code, const std::string& reason) {
  // An unknown code is from a later release; its words still help.
  const auto known = code <= static_cast<uint8_t>(StatusCode::kInternal)
                         ? static_cast<StatusCode>(code)
                         : StatusCode::kUnavailable;
  return Status(known, fmt::format("refused by the peer {}: {}", control.peer_name(), reason));
}

// What a side tells of its queue pair.
struct QueuePairEnd {
  QueuePairAddress address;
  uint8_t max_outstanding_reads = 0;
};

void put(WireWriter& writer, const QueuePairEnd& end) {
  writer.u32(end.address.queue_pair_number);
  writer.u32(end.address.packet_sequence_number);
  writer.u16(end.address.lid);
  writer.raw(std::as_bytes(std::span(end.address.gid)));
  writer.u8(end.address.has_gid);
  writer.u8(end.address.mtu);
  writer.u8(end.max_outstanding_reads);
}

QueuePairEnd get(WireReader& reader) {
  QueuePairEnd end;
  end.address.queue_pair_number = reader.u32();
  end.address.packet_sequence_number = reader.u32();
  end.address.lid = reader.u16();
  const std::span<const std::byte> gid = reader.raw(sizeof(end.address.gid));
  std::copy(gid.begin(), gid.end(), std::as_writable_bytes(std::span(end.address.gid)).begin());
  end.address.has_gid = reader.u8();
  end.address.mtu = reader.u8();
  end.max_outstanding_reads = reader.u8();
  return end;
}

Status check(const QueuePairAddress& address) {
  constexpr uint32_t kMax24Bits = (1u << 24) - 1;
  const auto wrong = [](const char* what) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer's {}; run the same release on both sides", what));
  };
  if (address.queue_pair_number > kMax24Bits || address.packet_sequence_number > kMax24Bits) {
    return wrong("queue pair number or packet sequence number has more than 24 bits");
  }
  if (address.mtu < IBV_MTU_256 || address.mtu > IBV_MTU_4096) {
    return wrong("MTU is not one of 256 to 4096 bytes");
  }
  return Status::ok_status();
}

// Receives the peer's frame of a step. After an own failure too: the frame must not stay in the
// connection, whose next user would take it for an answer.
Result<std::vector<std::byte>> trade(ControlConnection& control, const WireWriter& mine,
                                     const Status& fared, int64_t timeout_ns,
                                     const Wanted& wanted) {
  VERBENA_RETURN_IF_ERROR(control.send(mine.bytes(), timeout_ns));
  Result<std::vector<std::byte>> frame = receive_while(control, timeout_ns, wanted);
  VERBENA_RETURN_IF_ERROR(fared);
  return frame;
}

// Tells the peer whether this side is ready, and waits until the peer is.
Status confirm(ControlConnection& control, const Layer& layer, const Status& mine,
               int64_t timeout_ns, const Wanted& wanted) {
  WireWriter writer;
  begin_step(writer, layer, kReady, mine);
  VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> frame,
                           trade(control, writer, mine, timeout_ns, wanted));
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(check_step(control, layer, reader, kReady));
  return reader.finish("last step of the peer's handshake");
}

// What join() has of its own side.
struct OwnSide {
  const QueuePair* queue_pair = nullptr;
  uint8_t max_outstanding_reads = 0;
  std::function<Status(const QueuePairEnd& theirs)> connect;
};

Status join_sides(ControlConnection& control, const Layer& layer, const OwnSide& own,
                  const Result<std::vector<std::byte>>& mine,
                  const std::function<Status(WireReader& theirs)>& accept, int64_t timeout_ns,
                  const Wanted& wanted) {
  VERBENA_ASSERT(own.queue_pair != nullptr || !mine.ok());
  Status fared = mine.status();
  QueuePairEnd end;
  if (fared.ok()) {
    end.max_outstanding_reads = own.max_outstanding_reads;
    Result<QueuePairAddress> address = own.queue_pair->address();
    fared = address.status();
    if (fared.ok()) end.address = *address;
  }
  WireWriter writer;
  begin_step(writer, layer, kEndpoint, fared);
  if (fared.ok()) {
    put(writer, end);
    writer.raw(*mine);
  }
  VERBENA_ASSIGN_OR_RETURN(const std::vector<std::byte> frame,
                           trade(control, writer, fared, timeout_ns, wanted));
  WireReader reader(frame);
  VERBENA_RETURN_IF_ERROR(check_step(control, layer, reader, kEndpoint));
  const QueuePairEnd theirs = get(reader);

  const Status connected = [&] {
    const Status accepted = accept(reader);
    VERBENA_RETURN_IF_ERROR(reader.finish("description of the peer's endpoint"));
    VERBENA_RETURN_IF_ERROR(check(theirs.address));
    VERBENA_RETURN_IF_ERROR(accepted);
    return own.connect(theirs);
  }();
  return confirm(control, layer, connected, timeout_ns, wanted);
}

}  // namespace

void begin_step(WireWriter& writer, const Layer& layer, uint8_t step, const Status& fared) {
  writer.u32(layer.magic);
  writer.u16(layer.version);
  writer.u8(step);
  writer.u8(static_cast<uint8_t>(fared.code()));
  writer.string(fared.message().substr(0, kMaxReasonBytes));
}

Status check_step(const ControlConnection& control, const Layer& layer, WireReader& reader,
                  uint8_t step) {
  const uint32_t magic = reader.u32();
  const uint16_t version = reader.u16();
  const uint8_t peer_step = reader.u8();
  const uint8_t code = reader.u8();
  const std::string reason = reader.string(kMaxReasonBytes);
  if (reader.failed() || magic != layer.magic) {
    return Status(
        StatusCode::kProtocolViolation,
        fmt::format("the peer {} sent something other than a {} handshake; both sides must open "
                    "the same kind of connection",
                    control.peer_name(), layer.name));
  }
  if (version != layer.version) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer {} speaks version {} of the {} handshake, this is version "
                              "{}; run the same release on both sides",
                              control.peer_name(), version, layer.name, layer.version));
  }
  if (code != 0) return refused_by(control, code, reason);
  if (peer_step != step) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("the peer {} sent step {} of the {} handshake instead of step {}; "
                              "two sides with the same role cannot connect",
                              control.peer_name(), peer_step, layer.name, step));
  }
  return Status::ok_status();
}

Result<std::vector<std::byte>> receive_while(ControlConnection& control, int64_t timeout_ns,
                                             const Wanted& wanted) {
  if (!wanted) return control.receive(timeout_ns);
  constexpr int64_t kLookNs = 50'000'000;
  const uint64_t start_ns = now_ns();
  for (int64_t left_ns = timeout_ns;;) {
    if (!wanted()) return Status(StatusCode::kUnavailable, "it was closed before it had connected");
    const bool last = left_ns >= 0 && left_ns <= kLookNs;
    Result<std::vector<std::byte>> frame = control.receive(last ? left_ns : kLookNs);
    if (last || frame.ok() || frame.status().code() != StatusCode::kTimeout) return frame;
    if (left_ns >= 0) {
      const auto passed_ns = static_cast<int64_t>(now_ns() - start_ns);
      left_ns = std::max<int64_t>(timeout_ns - passed_ns, 0);
    }
  }
}

Status join(ControlConnection& control, const Layer& layer, Endpoint* endpoint,
            const Result<std::vector<std::byte>>& mine,
            const std::function<Status(WireReader& theirs)>& accept, int64_t timeout_ns,
            const Wanted& wanted) {
  OwnSide own;
  if (endpoint != nullptr) {
    own.queue_pair = &endpoint->queue_pair;
    own.max_outstanding_reads = endpoint->max_outstanding_reads;
  }
  own.connect = [&](const QueuePairEnd& theirs) {
    ReliabilityOptions reliability;
    reliability.max_outstanding_reads =
        std::min(own.max_outstanding_reads, theirs.max_outstanding_reads);
    return endpoint->queue_pair.connect(theirs.address, reliability);
  };
  return join_sides(control, layer, own, mine, accept, timeout_ns, wanted);
}

Status join(ControlConnection& control, const Layer& layer, const QueuePair* queue_pair,
            DatagramPeer* peer, const Result<std::vector<std::byte>>& mine,
            const std::function<Status(WireReader& theirs)>& accept, int64_t timeout_ns) {
  OwnSide own;
  own.queue_pair = queue_pair;
  own.connect = [&](const QueuePairEnd& theirs) {
    VERBENA_ASSIGN_OR_RETURN(*peer, queue_pair->datagram_peer(theirs.address));
    return Status::ok_status();
  };
  return join_sides(control, layer, own, mine, accept, timeout_ns, /*wanted=*/{});
}

}  // namespace verbena::connect
