// Sending a frame: the sender's thread asks the flows of all that have some, and fills the rings of
// those that get it.
#include <algorithm>
#include <array>

#include "src/device/soft/flight.h"
#include "src/device/soft/raw.h"
#include "src/device/soft/ud.h"

namespace verbena::soft {
namespace {

FrameFields fields_of(const Pieces& pieces) {
  std::array<std::byte, kParsedBytes> start;
  size_t got_bytes = 0;
  for (uint32_t i = 0; i < pieces.count && got_bytes < start.size(); ++i) {
    const size_t part = std::min<size_t>(pieces.list[i].size_bytes, start.size() - got_bytes);
    std::copy_n(pieces.list[i].bytes, part, start.data() + got_bytes);
    got_bytes += part;
  }
  return parse_frame(start.data(), got_bytes);
}

// False where this side's memory is gone.
bool deliver_frame(Qp& qp, const DatagramMessage& message, RequestMemory& own) {
  FrameFields frame;
  {
    const Flight flight(qp);
    if (!own.is_there()) return false;
    frame = fields_of(message.pieces);
  }
  bool is_there = true;
  Destinations& known = *qp.destinations;
  const auto for_each_match = [&](auto&& use) {
    for (const uint32_t number : known.members(*qp.rnic, raw_group(), 0)) {
      // A switch sends no frame back by the port that it came by.
      if (number == qp.number) continue;
      Destination* destination = known.find(*qp.rnic, number);
      if (destination != nullptr && destination->flows != nullptr)
        use(*destination, match_flows(destination->flows, frame));
    }
  };
  uint32_t best = ~0u;
  for_each_match([&](Destination&, const FlowMatch& match) { best = std::min(best, match.rank); });
  for_each_match([&](Destination& destination, const FlowMatch& match) {
    // A flow that was just made may match better than all that were there.
    if (match.sniffs || (match.rank != ~0u && match.rank <= best))
      is_there &= deliver_datagram(qp, destination, message, own) != Delivery::kNotHere;
  });
  return is_there;
}

}  // namespace

void raw_post(Qp& qp, const ibv_send_wr& wr, uint32_t position) {
  DatagramMessage message;
  const uint64_t ended = qp.rnic->regions().ended();
  if (!collect(qp, wr, 0, message.pieces))
    return fail_datagram(qp, wr, position, IBV_WC_LOC_PROT_ERR);
  if (message.pieces.size_bytes < kEthernetHeaderBytes ||
      message.pieces.size_bytes > kMaxFrameBytes) {
    return fail_datagram(qp, wr, position, IBV_WC_LOC_LEN_ERR);
  }
  RequestMemory own(qp, wr, message.pieces, ended);
  if (!deliver_frame(qp, message, own)) return fail_datagram(qp, wr, position, IBV_WC_LOC_PROT_ERR);
  qp.counters->bytes += message.pieces.size_bytes;
  complete_send(qp, wr, position, IBV_WC_SUCCESS, message.pieces.size_bytes);
}

}  // namespace verbena::soft
