#include "src/device/soft/observe/capture.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "src/device/soft/observe/pcap_file.h"
#include "src/device/soft/observe/roce_packet.h"
#include "src/device/soft/region_view.h"
#include "src/device/soft/ud.h"

namespace verbena::soft::observe {
namespace {

// Reads a request's bytes piece by piece, from where this process reaches them whatever the program
// does to its own mapping.
class Source {
 public:
  // False from valid() if some of it is not registered: then nothing leaves.
  Source(const RegionEntry* regions, uint32_t domain, const ibv_sge* list, uint32_t count,
         bool is_inline)
      : count_(std::min(count, kMaxSges)) {
    for (uint32_t i = 0; i < count_; ++i) {
      lengths_[i] = list[i].length;
      bytes_[i] = is_inline || list[i].length == 0
                      ? reinterpret_cast<std::byte*>(list[i].addr)
                      : own_memory(regions, domain, list[i].addr, list[i].length, list[i].lkey, 0);
      valid_ = valid_ && (lengths_[i] == 0 || bytes_[i] != nullptr);
      total_bytes_ += lengths_[i];
    }
  }
  bool valid() const { return valid_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // The next `size_bytes`, of which only the first `kept_bytes` are copied.
  void take(std::byte* to, uint32_t kept_bytes, uint32_t size_bytes) {
    while (size_bytes > 0 && piece_ < count_) {
      const uint32_t part = std::min(lengths_[piece_] - offset_, size_bytes);
      const uint32_t kept = std::min(part, kept_bytes);
      if (kept > 0 && valid_ && is_there(bytes_[piece_] + offset_, kept, false)) {
        std::memcpy(to, bytes_[piece_] + offset_, kept);
      } else if (kept > 0) {
        std::memset(to, 0, kept);
      }
      to += kept;
      kept_bytes -= kept;
      size_bytes -= part;
      offset_ += part;
      if (offset_ == lengths_[piece_]) {
        ++piece_;
        offset_ = 0;
      }
    }
  }

 private:
  std::byte* bytes_[kMaxSges];
  uint32_t lengths_[kMaxSges];
  uint32_t count_;
  bool valid_ = true;
  uint64_t total_bytes_ = 0;
  uint32_t piece_ = 0;
  uint32_t offset_ = 0;
};

void put_packet(const RocePacket& packet, uint64_t time_ns, SnapLength snap, Source* source,
                RecordRing& ring) {
  std::byte headers[kMostHeaderBytes];
  const uint32_t header_bytes = put_headers(packet, headers);
  const uint32_t padding = padding_bytes(packet.payload_bytes);
  const uint32_t wire_bytes = header_bytes + packet.payload_bytes + padding;
  const uint32_t captured_bytes = std::min(wire_bytes, snap.bytes);
  const uint32_t kept_headers = std::min(header_bytes, captured_bytes);
  const uint32_t kept_payload = std::min(packet.payload_bytes, captured_bytes - kept_headers);
  std::byte* to = ring.reserve(static_cast<uint32_t>(sizeof(PacketRecord)) + captured_bytes);
  if (to == nullptr) {
    if (source != nullptr) source->take(nullptr, 0, packet.payload_bytes);
    return;
  }
  const PacketRecord record{time_ns, wire_bytes, captured_bytes};
  std::memcpy(to, &record, sizeof(record));
  to += sizeof(record);
  std::memcpy(to, headers, kept_headers);
  to += kept_headers;
  if (source != nullptr) source->take(to, kept_payload, packet.payload_bytes);
  to += kept_payload;
  std::memset(to, 0, captured_bytes - kept_headers - kept_payload);
}

uint8_t transport_bits(Transport transport) {
  return is_reliable(transport)                ? kTransportReliable
         : transport == Transport::kUnreliable ? kTransportUnreliable
                                               : kTransportDatagram;
}

uint32_t mtu_bytes_of(const Qp& qp) {
  if (qp.transport == Transport::kDatagram) return kMaxDatagramBytes;
  const auto mtu = static_cast<uint32_t>(qp.attributes.path_mtu);
  return 128u << std::clamp(mtu, 1u, 5u);
}

// The queue pair is another one, or was reset.
void begin_anew(TrackedQueuePair& queue_pair, const Qp& qp) {
  queue_pair.transport = qp.transport;
  queue_pair.regions = qp.regions;
  queue_pair.domain = qp.domain;
  queue_pair.peer = qp.attributes.dest_qp_num;
  queue_pair.mtu_bytes = mtu_bytes_of(qp);
}

struct Kind {
  bool send = false;
  bool write = false;
  bool immediate = false;
  bool invalidate = false;
};

std::optional<Kind> kind_of(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
      return Kind{.send = true};
    case IBV_WR_SEND_WITH_IMM:
      return Kind{.send = true, .immediate = true};
    case IBV_WR_SEND_WITH_INV:
      return Kind{.send = true, .invalidate = true};
    case IBV_WR_RDMA_WRITE:
      return Kind{.write = true};
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return Kind{.write = true, .immediate = true};
    default:
      return std::nullopt;
  }
}

uint8_t opcode_of(const Kind& kind, bool first, bool last) {
  if (kind.send) {
    if (first && last) {
      return kind.immediate    ? kOpSendOnlyImmediate
             : kind.invalidate ? kOpSendOnlyInvalidate
                               : kOpSendOnly;
    }
    if (first) return kOpSendFirst;
    if (!last) return kOpSendMiddle;
    return kind.immediate    ? kOpSendLastImmediate
           : kind.invalidate ? kOpSendLastInvalidate
                             : kOpSendLast;
  }
  if (first && last) return kind.immediate ? kOpWriteOnlyImmediate : kOpWriteOnly;
  if (first) return kOpWriteFirst;
  if (!last) return kOpWriteMiddle;
  return kind.immediate ? kOpWriteLastImmediate : kOpWriteLast;
}

uint32_t packets_of(uint64_t length_bytes, uint32_t mtu_bytes) {
  return length_bytes == 0 ? 1 : static_cast<uint32_t>((length_bytes + mtu_bytes - 1) / mtu_bytes);
}

RocePacket from_requester(const TrackedQueuePair& queue_pair) {
  RocePacket packet;
  packet.source_slot = slot_of(queue_pair.number);
  packet.source_qp = queue_pair.number;
  packet.destination_slot = slot_of(queue_pair.peer);
  packet.destination_qp = queue_pair.peer;
  return packet;
}

RocePacket from_responder(const TrackedQueuePair& queue_pair) {
  RocePacket packet = from_requester(queue_pair);
  std::swap(packet.source_slot, packet.destination_slot);
  std::swap(packet.source_qp, packet.destination_qp);
  return packet;
}

void put_segments(TrackedQueuePair& queue_pair, const ibv_send_wr& wr, const Kind& kind,
                  RocePacket packet, Source& source, uint64_t time_ns, SnapLength snap,
                  RecordRing& ring) {
  const auto length_bytes = static_cast<uint32_t>(source.total_bytes());
  const uint32_t count = packets_of(length_bytes, queue_pair.mtu_bytes);
  const uint8_t transport = transport_bits(queue_pair.transport);
  packet.length_bytes = length_bytes;
  packet.immediate = kind.invalidate ? wr.invalidate_rkey : wr.imm_data;
  uint32_t left_bytes = length_bytes;
  for (uint32_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    packet.opcode = transport | opcode_of(kind, i == 0, last);
    packet.psn = queue_pair.next_psn++;
    packet.solicited = last && (wr.send_flags & IBV_SEND_SOLICITED) != 0;
    packet.asks_for_ack = last && is_reliable(queue_pair.transport);
    packet.payload_bytes = std::min(left_bytes, queue_pair.mtu_bytes);
    left_bytes -= packet.payload_bytes;
    put_packet(packet, time_ns, snap, &source, ring);
  }
}

void address_datagram(const Qp& qp, const ibv_send_wr& wr, RocePacket& packet) {
  const auto* handle = reinterpret_cast<const Ah*>(wr.wr.ud.ah);
  packet.destination_qp = wr.wr.ud.remote_qpn & 0xffffff;
  packet.destination_slot =
      handle->route == Ah::Route::kGroup ? kMulticastPort : slot_of(packet.destination_qp);
  packet.qkey = (wr.wr.ud.remote_qkey >> 31) != 0 ? qp.attributes.qkey : wr.wr.ud.remote_qkey;
}

// Whether what is posted leaves at all, as far as it can be said before.
bool may_leave(const Qp& qp, const ibv_send_wr& wr) {
  if (qp.state.load(std::memory_order_relaxed) != IBV_QPS_RTS) return false;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.init.cap.max_send_sge) {
    return false;
  }
  if (qp.transport == Transport::kDatagram) return ud_accepts(qp, wr);
  // Its frames are none of RoCE.
  if (qp.transport == Transport::kRawPacket) return false;
  return true;
}

uint8_t syndrome_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return kSyndromeAck;
    case IBV_WC_REM_INV_REQ_ERR:
      return kSyndromeInvalidRequest;
    case IBV_WC_REM_ACCESS_ERR:
      return kSyndromeRemoteAccess;
    case IBV_WC_REM_OP_ERR:
      return kSyndromeRemoteOperation;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return kSyndromeRnrNak;
    default:
      return 0;  // nothing came back
  }
}

void put_read_response(const TrackedQueuePair& queue_pair, const Posted& posted, RocePacket packet,
                       Source& source, uint64_t time_ns, SnapLength snap, RecordRing& ring) {
  const uint32_t count = packets_of(posted.length_bytes, queue_pair.mtu_bytes);
  uint32_t left_bytes = posted.length_bytes;
  for (uint32_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    packet.opcode = i == 0 ? (last ? kOpReadResponseOnly : kOpReadResponseFirst)
                           : (last ? kOpReadResponseLast : kOpReadResponseMiddle);
    packet.psn = posted.first_psn + i;
    packet.payload_bytes = std::min(left_bytes, queue_pair.mtu_bytes);
    left_bytes -= packet.payload_bytes;
    put_packet(packet, time_ns, snap, &source, ring);
  }
}

}  // namespace

void capture_request(TrackedQueuePair& queue_pair, const Qp& qp, const ibv_send_wr& wr,
                     uint64_t time_ns, SnapLength snap, RecordRing& ring, Posted& posted) {
  posted.on_wire = false;
  if (!may_leave(qp, wr)) return;
  begin_anew(queue_pair, qp);
  const auto count = static_cast<uint32_t>(wr.num_sge);
  Source source(qp.regions, qp.domain, wr.sg_list, count, (wr.send_flags & IBV_SEND_INLINE) != 0);
  if (!source.valid() || source.total_bytes() > kMaxMessageBytes) return;
  if (qp.transport == Transport::kDatagram && source.total_bytes() > kMaxDatagramBytes) return;
  RocePacket packet = from_requester(queue_pair);
  posted.first_psn = queue_pair.next_psn;
  if (const std::optional<Kind> kind = kind_of(wr.opcode)) {
    if (qp.transport == Transport::kDatagram) {
      address_datagram(qp, wr, packet);
    } else {
      packet.address = wr.wr.rdma.remote_addr;
      packet.rkey = wr.wr.rdma.rkey;
    }
    put_segments(queue_pair, wr, *kind, packet, source, time_ns, snap, ring);
  } else {
    packet.asks_for_ack = true;
    packet.psn = queue_pair.next_psn;
    switch (wr.opcode) {
      case IBV_WR_RDMA_READ:
        packet.opcode = kOpReadRequest;
        packet.address = wr.wr.rdma.remote_addr;
        packet.rkey = wr.wr.rdma.rkey;
        packet.length_bytes = static_cast<uint32_t>(source.total_bytes());
        // The responses have the numbers that follow.
        queue_pair.next_psn += packets_of(source.total_bytes(), queue_pair.mtu_bytes);
        break;
      case IBV_WR_ATOMIC_CMP_AND_SWP:
      case IBV_WR_ATOMIC_FETCH_AND_ADD: {
        const bool swaps = wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
        packet.opcode = swaps ? kOpCompareSwap : kOpFetchAdd;
        packet.address = wr.wr.atomic.remote_addr;
        packet.rkey = wr.wr.atomic.rkey;
        packet.swap_or_add = swaps ? wr.wr.atomic.swap : wr.wr.atomic.compare_add;
        packet.compare = swaps ? wr.wr.atomic.compare_add : 0;
        ++queue_pair.next_psn;
        break;
      }
      default:
        return;  // on windows: nothing leaves
    }
    put_packet(packet, time_ns, snap, nullptr, ring);
    const uint32_t place = queue_pair.sends.next_place();
    std::copy_n(wr.sg_list, count, &queue_pair.sges[place * size_t{kMaxSges}]);
    posted.sge_count = static_cast<uint8_t>(count);
  }
  posted.last_psn = queue_pair.next_psn - 1;
  posted.on_wire = true;
}

void capture_answer(TrackedQueuePair& queue_pair, const Posted& posted, ibv_wc_status status,
                    bool acknowledged, uint64_t time_ns, SnapLength snap, RecordRing& ring) {
  if (!posted.on_wire || !is_reliable(queue_pair.transport)) return;
  const uint8_t syndrome = syndrome_of(status);
  if (syndrome == 0) return;
  RocePacket packet = from_responder(queue_pair);
  packet.syndrome = syndrome;
  if (syndrome == kSyndromeAck) ++queue_pair.message_number;
  packet.message_number = queue_pair.message_number;
  const bool atomic =
      posted.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || posted.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  const ibv_sge* list = queue_pair.sges == nullptr
                            ? nullptr
                            : &queue_pair.sges[queue_pair.sends.place(0) * size_t{kMaxSges}];
  if (syndrome == kSyndromeAck && (atomic || posted.opcode == IBV_WR_RDMA_READ)) {
    Source source(queue_pair.regions, queue_pair.domain, list, posted.sge_count, false);
    if (!atomic) {
      put_read_response(queue_pair, posted, packet, source, time_ns, snap, ring);
    } else {
      std::byte original[sizeof(packet.original)] = {};
      source.take(original, sizeof(original), sizeof(original));
      std::memcpy(&packet.original, original, sizeof(original));
      packet.opcode = kOpAtomicAcknowledge;
      packet.psn = posted.first_psn;
      put_packet(packet, time_ns, snap, nullptr, ring);
    }
    return;
  }
  if (syndrome == kSyndromeAck && !acknowledged) return;
  packet.opcode = kOpAcknowledge;
  packet.psn = syndrome == kSyndromeAck ? posted.last_psn : posted.first_psn;
  put_packet(packet, time_ns, snap, nullptr, ring);
}

}  // namespace verbena::soft::observe
