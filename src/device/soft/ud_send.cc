// Sending a datagram: the sender's thread takes a position of the receiver's ring, fills it and
// publishes it.
#include "src/device/soft/flight.h"
#include "src/device/soft/gather_list.h"
#include "src/device/soft/peer_receives.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

// Learns the position behind the last that may be taken now; the result is that of the first that
// the receiver is not done with.
uint32_t look_at_limit(Destination& destination) {
  const QpShared& shared = *destination.shared;
  // Acquire: positions of the lap before are done with.
  const uint32_t retired = shared.datagram.retired.load(std::memory_order_acquire);
  const uint32_t room = retired + destination.mask + 1;
  if (destination.srq != nullptr) {
    // An upper bound: the receiver's poll takes them, when the datagram's turn comes.
    const uint64_t posted = destination.srq->tail.load(std::memory_order_acquire) -
                            destination.srq->head.load(std::memory_order_acquire);
    destination.known_limit =
        posted < destination.mask + 1 ? retired + static_cast<uint32_t>(posted) : room;
    return retired;
  }
  const uint32_t voided = shared.datagram.voided.load(std::memory_order_relaxed);
  const uint32_t limit =
      voided + static_cast<uint32_t>(shared.connection.credits.load(std::memory_order_acquire));
  destination.known_limit = static_cast<int32_t>(limit - room) < 0 ? limit : room;
  return retired;
}

bool ring_before(uint32_t position, uint32_t limit) {
  return static_cast<int32_t>(limit - position) > 0;
}

// Takes a position of the ring for `taker`. False if no receive is posted.
bool take_ring_position(Destination& destination, uint32_t taker, uint32_t* taken) {
  DatagramShared& shown = destination.shared->datagram;
  const uint32_t hint = shown.next_hint.load(std::memory_order_relaxed);
  uint32_t position = ring_before(destination.next, hint) ? hint : destination.next;
  if (!ring_before(position, destination.known_limit)) {
    const uint32_t retired = look_at_limit(destination);
    // Senders stop at the limit: what lies behind it is the hint of a broken one. One that is too
    // old is that of a sender that was away.
    if (ring_before(destination.known_limit, position) || ring_before(position, retired))
      position = retired;
  }
  // Each step that fails is another sender's success, but for broken ones, and for those of at most
  // a lap that was over before.
  for (uint32_t step = 0; step <= 2 * destination.mask + 16; ++step) {
    if (!ring_before(position, destination.known_limit) || destination.srq != nullptr) {
      const uint32_t retired = look_at_limit(destination);
      if (ring_before(position, retired)) position = retired;
      if (!ring_before(position, destination.known_limit)) break;
    }
    std::atomic<uint64_t>& word = destination.claims[position & destination.mask];
    uint64_t claim = word.load(std::memory_order_acquire);
    if (claimed_position(claim) == position - destination.mask - 1 &&
        word.compare_exchange_strong(claim, make_datagram_claim(position, taker),
                                     std::memory_order_acq_rel)) {
      destination.next = position + 1;
      shown.next_hint.store(position + 1, std::memory_order_relaxed);
      *taken = position;
      return true;
    }
    ++position;
  }
  destination.next = position;
  return false;
}

// What is the same for each datagram, beside its bytes, which are there. Its `size_bytes` are
// without the GRH.
void publish_datagram(const Qp& qp, Destination& destination, uint32_t position,
                      uint32_t size_bytes, uint32_t immediate, uint8_t flags, uint8_t origin) {
  Datagram& datagram = destination.datagrams[position & destination.mask];
  datagram.receiver_generation = destination.generation();
  datagram.source_qp = qp.number;
  datagram.immediate = immediate;
  datagram.size_bytes = static_cast<uint16_t>(size_bytes);
  datagram.flags = flags;
  datagram.origin = origin;
  // Release: a receiver that sees the mark sees the datagram.
  datagram.mark.store(position + 1, std::memory_order_release);
  announce(*destination.process, destination.cq, (flags & kDatagramSolicited) != 0);
}

// BTH, DETH and CRC.
constexpr uint32_t kTransportBytes = 12 + 8 + 4;

// As of a queue key with its highest bit: the sender's own one instead.
uint32_t queue_key_of(const Qp& qp, const ibv_send_wr& wr) {
  return (wr.wr.ud.remote_qkey >> 31) != 0 ? qp.attributes.qkey : wr.wr.ud.remote_qkey;
}

bool has_queue_key(const Destination& destination, uint32_t qkey) {
  return destination.shared->datagram.qkey.load(std::memory_order_relaxed) == qkey;
}

}  // namespace

Delivery deliver_datagram(Qp& qp, Destination& destination, const DatagramMessage& message,
                          RequestMemory& own) {
  const Flight flight(qp);
  if (!own.is_there()) [[unlikely]]
    return Delivery::kNotHere;
  uint32_t position = 0;
  if (!take_ring_position(destination, qp.number, &position)) return Delivery::kDropped;
  const uint32_t index = position & destination.mask;
  Datagram& datagram = destination.datagrams[index];
  const uint32_t size_bytes = message.grh_bytes + message.pieces.size_bytes;
  std::byte* at = size_bytes <= kInlineDatagramBytes
                      ? datagram.bytes
                      : destination.payloads + index * kDatagramPayloadBytes;
  if (message.grh_bytes != 0) {
    copy_small(at, message.grh.data(), kGrhBytes);
    at += kGrhBytes;
  }
  const Pieces& pieces = message.pieces;
  if (pieces.size_bytes <= CopyChoice::kShortBytes) {
    copy_pieces(at, pieces, pieces.count, false);
  } else {
    qp.peer.copy_choice.copy(at, pieces.size_bytes, [&](bool streams) {
      copy_pieces(at, pieces, pieces.count, streams);
      if (streams) end_streaming();
    });
  }
  publish_datagram(qp, destination, position, message.pieces.size_bytes, message.immediate,
                   message.flags, message.origin);
  return Delivery::kDone;
}

namespace {

// False where this side's memory is gone.
bool send_to(Qp& qp, uint32_t number, uint32_t qkey, const DatagramMessage& message,
             RequestMemory& own) {
  Destination* destination = qp.destinations->find(*qp.rnic, number);
  const Delivery delivery = destination == nullptr || !has_queue_key(*destination, qkey)
                                ? Delivery::kDropped
                                : deliver_datagram(qp, *destination, message, own);
  if (delivery == Delivery::kDropped) ++qp.counters->dropped;
  return delivery != Delivery::kNotHere;
}

}  // namespace

void fail_datagram(Qp& qp, const ibv_send_wr& wr, uint32_t position, ibv_wc_status status) {
  fail_send_queue_locked(qp);
  ++qp.counters->errors;
  complete_send(qp, wr, position, status, 0);
}

bool ud_post_at_once(Qp& qp, const ibv_send_wr& wr) {
  constexpr unsigned kUsualFlags = IBV_SEND_INLINE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
  if (wr.opcode != IBV_WR_SEND || (wr.send_flags & ~kUsualFlags) != 0 || wr.num_sge != 1 ||
      qp.init.cap.max_send_sge == 0 || !ud_accepts(qp, wr)) [[unlikely]] {
    return false;
  }
  const auto& handle = *reinterpret_cast<const Ah*>(wr.wr.ud.ah);
  const ibv_sge& sge = wr.sg_list[0];
  const uint32_t size_bytes = sge.length;
  const bool with_grh = handle.attributes.is_global != 0;
  const uint32_t grh_bytes = with_grh ? kGrhBytes : 0;
  if (handle.route != Ah::Route::kPort || size_bytes == 0 ||
      size_bytes > kInlineDatagramBytes - grh_bytes) {
    return false;
  }
  const bool is_inline = (wr.send_flags & IBV_SEND_INLINE) != 0;
  if (is_inline && size_bytes > qp.init.cap.max_inline_data) return false;
  Destination* const destination = qp.destinations->find(*qp.rnic, wr.wr.ud.remote_qpn & 0xffffff);
  if (destination == nullptr || !has_queue_key(*destination, queue_key_of(qp, wr))) return false;
  const Flight flight(qp);
  const std::byte* const source = source_of(qp, sge, is_inline);
  uint32_t taken = 0;
  if (source == nullptr || !take_ring_position(*destination, qp.number, &taken)) return false;
  std::byte* const at = destination->datagrams[taken & destination->mask].bytes;
  if (with_grh) handle.header.write(kTransportBytes + (size_bytes + 3) / 4 * 4, at);
  copy_small(at + grh_bytes, source, size_bytes);
  const bool solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  publish_datagram(qp, *destination, taken, size_bytes, 0,
                   static_cast<uint8_t>((with_grh ? kDatagramWithGrh : 0) |
                                        (solicited ? kDatagramSolicited : 0)),
                   handle.origin);
  const uint32_t position = ++qp.send_posted;
  ++qp.counters->requests[wr.opcode];
  qp.counters->bytes += size_bytes;
  complete_send(qp, wr, position, IBV_WC_SUCCESS, size_bytes);
  return true;
}

void ud_post(Qp& qp, const ibv_send_wr& wr, uint32_t position) {
  const auto& handle = *reinterpret_cast<const Ah*>(wr.wr.ud.ah);
  DatagramMessage message;
  const uint64_t ended = qp.rnic->regions().ended();
  if (!collect(qp, wr, 0, message.pieces)) [[unlikely]]
    return fail_datagram(qp, wr, position, IBV_WC_LOC_PROT_ERR);
  if (message.pieces.size_bytes > kMaxDatagramBytes) [[unlikely]]
    return fail_datagram(qp, wr, position, IBV_WC_LOC_LEN_ERR);
  RequestMemory own(qp, wr, message.pieces, ended);
  message.immediate = wr.imm_data;
  message.origin = handle.origin;
  message.flags =
      static_cast<uint8_t>((wr.opcode == IBV_WR_SEND_WITH_IMM ? kDatagramWithImmediate : 0) |
                           ((wr.send_flags & IBV_SEND_SOLICITED) != 0 ? kDatagramSolicited : 0));
  if (handle.attributes.is_global != 0) {
    message.flags |= kDatagramWithGrh;
    message.grh_bytes = kGrhBytes;
    const uint32_t immediate_bytes = wr.opcode == IBV_WR_SEND_WITH_IMM ? 4 : 0;
    handle.header.write(kTransportBytes + immediate_bytes + (message.pieces.size_bytes + 3) / 4 * 4,
                        message.grh.data());
  }
  const uint32_t qkey = queue_key_of(qp, wr);
  bool is_there = true;
  switch (handle.route) {
    case Ah::Route::kPort:
      is_there = send_to(qp, wr.wr.ud.remote_qpn & 0xffffff, qkey, message, own);
      break;
    case Ah::Route::kGroup:
      if (wr.wr.ud.remote_qpn != kMulticastQpNumber) break;
      for (const uint32_t member :
           qp.destinations->members(*qp.rnic, handle.attributes.grh.dgid, handle.attributes.dlid)) {
        is_there = send_to(qp, member, qkey, message, own);
        if (!is_there) break;
      }
      break;
    case Ah::Route::kNowhere:
      ++qp.counters->dropped;
      break;
  }
  if (!is_there) [[unlikely]]
    return fail_datagram(qp, wr, position, IBV_WC_LOC_PROT_ERR);
  qp.counters->bytes += message.pieces.size_bytes;
  complete_send(qp, wr, position, IBV_WC_SUCCESS, message.pieces.size_bytes);
}

}  // namespace verbena::soft
