// Unreliable connections: packets have sequence numbers, and nobody answers. A message is done when
// its last packet is on the link. At the responder the first packet of a message begins a new one,
// whatever came before; another one is taken only behind its predecessor, so a message that lost a
// packet is dropped with the rest of its packets (IBTA volume 1, 9.8.2). A receive that it took is
// the next message's.
#include "src/device/sim/opcode.h"
#include "src/device/sim/packet_payload.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

void Rnic::note_sent(QueuePair& qp, const Packet& packet, Time when) {
  if (!packet.last) return;
  simulation_.at(when, message_sent, &qp,
                 fetch_stamp(qp.generation, static_cast<uint32_t>(packet.message)));
}

void Rnic::message_sent(void* object, uint64_t stamp) {
  auto& qp = *static_cast<QueuePair*>(object);
  if (qp.generation != stamp >> 32 || qp.state() != IBV_QPS_RTS) return;
  // The number's lower half. One that is far behind has failed with the send queue meanwhile.
  const uint32_t behind = static_cast<uint32_t>(stamp) - static_cast<uint32_t>(qp.retired);
  if (behind > qp.own.chosen.depth) return;
  Rnic& rnic = qp.node->rnic;
  rnic.acknowledge(qp, qp.retired + behind + 1);
  rnic.retire(qp);
  rnic.schedule_requests(qp);  // what cannot be sent fails once all before it is done
}

void Rnic::fail_locally(QueuePair& qp, const Wqe& wqe) {
  if (qp.is_reliable()) return fail(qp, IBV_WC_LOC_PROT_ERR);
  fail_sends(qp, is_too_long(qp, wqe) ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
}

bool Rnic::take_unreliable(Packet* packet) {
  QueuePair& qp = *packet->target;
  if (packet->index == 0) {
    qp.expected_message = packet->message;
    qp.expected_packet = 0;
  } else if (packet->message != qp.expected_message || packet->index != qp.expected_packet) {
    return false;
  }
  return is_send(packet->opcode) ? take_send(qp, packet) : take_write(qp, packet);
}

}  // namespace verbena::sim
