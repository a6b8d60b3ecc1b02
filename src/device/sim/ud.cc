#include <endian.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <type_traits>

#include "src/device/sim/control.h"
#include "src/device/sim/datagrams.h"
#include "src/device/sim/opcode.h"
#include "src/device/sim/packet_headers.h"
#include "src/device/sim/rnic.h"
#include "src/device/sim/simulated_node.h"
#include "src/device/sim/simulation.h"

namespace verbena::sim {

namespace {

static_assert(std::is_trivially_copyable_v<DatagramAddress>);
static_assert(sizeof(ibv_grh) == 40);

constexpr uint16_t kFirstMulticastLid = 0xc000;
constexpr uint8_t kMulticastGid = 0xff;  // its first byte
constexpr uint8_t kMaxServiceLevel = 15;
constexpr uint32_t kFlowLabelMask = 0xfffff;
// IBTA volume 1, 8.3: version 6, and BTH as the next header.
constexpr uint32_t kGrhVersion = 6;
constexpr uint8_t kGrhNextHeader = 0x1b;
// What a GRH counts as its payload beside that of the packet.
constexpr uint64_t kTransportBytes = kBaseHeaderBytes + kDatagramHeaderBytes + kInvariantCrcBytes;
constexpr uint32_t kOwnQkeyBit = 1u << 31;
constexpr uint32_t kQueuePairMask = 0xffffff;

bool is_group(const ibv_ah_attr& attributes) {
  return (attributes.dlid >= kFirstMulticastLid && attributes.dlid != UINT16_MAX) ||
         (attributes.is_global != 0 && attributes.grh.dgid.raw[0] == kMulticastGid);
}

// LIDs are the nodes' numbers, from 1.
Node* find_port(Simulation& simulation, const ibv_ah_attr& attributes) {
  const bool global = attributes.is_global != 0;
  for (size_t number = 0; global && attributes.dlid == 0 && number < simulation.nodes(); ++number) {
    const ibv_gid gid = gid_of(simulation.node(number));
    if (std::memcmp(&gid, &attributes.grh.dgid, sizeof(gid)) == 0) return &simulation.node(number);
  }
  const size_t number = attributes.dlid - size_t{1};
  if (number >= simulation.nodes()) return nullptr;
  Node& node = simulation.node(number);
  const ibv_gid gid = gid_of(node);
  const bool fits = !global || std::memcmp(&gid, &attributes.grh.dgid, sizeof(gid)) == 0;
  return fits ? &node : nullptr;
}

DatagramAddress address_of(QueuePair& qp, uint64_t number) {
  DatagramAddress address;
  std::memcpy(&address, qp.wqes.address(number), sizeof(address));
  return address;
}

}  // namespace

ibv_gid gid_of(const Node& node) {
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  const uint32_t number = node.number + 1;
  std::memcpy(&gid.raw[12], &number, sizeof(number));
  return gid;
}

// ---- address handles ----

ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes) {
  const auto refused = [](int error, std::string_view text) {
    refuse(error, text);
    return nullptr;
  };
  if (attributes->port_num != 1) {
    return refused(EINVAL, fmt::format("an address handle for port {}; a simulated RNIC has one "
                                       "port, number 1",
                                       attributes->port_num));
  }
  if (attributes->sl > kMaxServiceLevel) {
    return refused(EINVAL, fmt::format("an address handle of service level {}; the last is {}",
                                       attributes->sl, kMaxServiceLevel));
  }
  if (is_group(*attributes)) {
    return refused(EOPNOTSUPP, "simulated devices have no multicast groups; send to each member");
  }
  if (attributes->dlid == 0 && attributes->is_global == 0) {
    return refused(EINVAL, "an address handle has neither a LID nor a GID (is_global)");
  }
  const ibv_global_route& route = attributes->grh;
  if (attributes->is_global != 0 && (route.sgid_index != 0 || route.flow_label > kFlowLabelMask)) {
    return refused(EINVAL,
                   "an address handle from another GID than index 0, or with a flow label of more "
                   "than 20 bits");
  }
  Node& node = *as_context(pd->context).node;
  auto handle = std::make_unique<Ah>();
  handle->verbs.context = pd->context;
  handle->verbs.pd = pd;
  ++as_pd(pd).users;
  handle->node = find_port(node.simulation, *attributes);
  handle->service_level = attributes->sl;
  handle->has_grh = attributes->is_global != 0;
  if (handle->has_grh) {
    handle->grh = {.version_tclass_flow = htobe32(
                       kGrhVersion << 28 | uint32_t{route.traffic_class} << 20 | route.flow_label),
                   .paylen = 0,
                   .next_hdr = kGrhNextHeader,
                   .hop_limit = route.hop_limit,
                   .sgid = gid_of(node),
                   .dgid = route.dgid};
  }
  return &handle.release()->verbs;
}

int destroy_ah(ibv_ah* verbs) {
  leave_domain(*as_context(verbs->context).node, verbs->pd);
  delete &as_ah(verbs);
  return 0;
}

// ---- sending ----

bool is_unreliable_request(const QueuePair& qp, const ibv_send_wr& request) {
  if (!qp.sends_datagrams()) {
    return is_send(request.opcode) || request.opcode == IBV_WR_RDMA_WRITE ||
           request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  }
  return is_send(request.opcode) && request.wr.ud.ah != nullptr &&
         request.wr.ud.ah->pd == qp.verbs.pd;
}

uint64_t datagram_address_bytes(const QueuePair& qp) {
  return qp.sends_datagrams() ? qp.node->profile.datagram_address_bytes : 0;
}

void set_datagram_address(QueuePair& qp, uint64_t number, const ibv_send_wr& request) {
  const Ah& handle = as_ah(request.wr.ud.ah);
  const uint32_t qkey = request.wr.ud.remote_qkey;
  const DatagramAddress address{
      .node = handle.node,
      .queue_pair = request.wr.ud.remote_qpn & kQueuePairMask,
      // With the highest bit it means the sender's own one (IBTA volume 1, 10.2.5).
      .qkey = (qkey & kOwnQkeyBit) != 0 ? qp.own.chosen.qkey : qkey,
      .service_level = handle.service_level,
      .has_grh = handle.has_grh,
      .grh = handle.grh};
  std::memcpy(qp.wqes.address(number), &address, sizeof(address));
}

bool Rnic::is_too_long(const QueuePair& qp, const Wqe& wqe) {
  return qp.sends_datagrams() && wqe.length_bytes > qp.own.chosen.mtu_bytes;
}

void Rnic::address_datagram(QueuePair& qp, Packet& packet) {
  const DatagramAddress address = address_of(qp, packet.message);
  packet.datagram = true;
  packet.to = address.node;
  packet.rkey = address.qkey;
  packet.service_level = address.service_level;
  if (address.node != nullptr) {
    packet.target = address.node->rnic.find_queue_pair(address.queue_pair);
    packet.target_generation = packet.target != nullptr ? packet.target->generation : 0;
  }
  if (!address.has_grh) return;
  packet.grh_bytes = sizeof(ibv_grh);
  ibv_grh grh = address.grh;
  const uint64_t immediate_bytes = packet.opcode == IBV_WR_SEND_WITH_IMM ? kImmediateBytes : 0;
  grh.paylen = htobe16(static_cast<uint16_t>(kTransportBytes + immediate_bytes +
                                             padded_bytes(packet.payload_bytes)));
  simulation_.fabric().hold_payload(packet);
  std::memcpy(packet.bytes, &grh, sizeof(grh));
}

// ---- receiving ----

// A receive begins with room for a GRH, which is written where one has come.
bool Rnic::take_datagram(Packet* packet) {
  QueuePair& qp = *packet->target;
  if (packet->rkey != qp.own.chosen.qkey) return false;
  const Receive receive = take_receive(qp, packet);
  if (receive != Receive::kReady) return receive == Receive::kFetching;
  const uint32_t length_bytes = static_cast<uint32_t>(sizeof(ibv_grh)) + packet->length_bytes;
  if (length_bytes > qp.receive_queue().receives[qp.current_receive].length_bytes) {
    // It vanishes, and the receive stays (IBTA volume 1, errors of the responder, class D), or any
    // stranger could end the queue pair; a shared receive is taken already (class E).
    if (qp.srq() == nullptr) {
      --qp.receive_queue().consumed;
      return false;
    }
    complete_receive(qp, qp.current_receive, IBV_WC_LOC_LEN_ERR);
    fail(qp, IBV_WC_WR_FLUSH_ERR);
    return false;
  }
  ibv_wc& completion = packet->entry.completion;
  completion.opcode = IBV_WC_RECV;
  completion.byte_len = length_bytes;
  completion.slid = static_cast<uint16_t>(packet->from->number + 1);
  completion.sl = packet->service_level;
  if (packet->grh_bytes != 0) completion.wc_flags |= IBV_WC_GRH;
  packet->entry.message = qp.current_receive;
  packet->offset = sizeof(ibv_grh) - packet->grh_bytes;
  packet->payload_bytes += packet->grh_bytes;
  if (!may_fill_receive(qp, *packet)) {
    complete_receive(qp, qp.current_receive, IBV_WC_LOC_PROT_ERR);
    fail(qp, IBV_WC_WR_FLUSH_ERR);
    return false;
  }
  packet->cq = qp.recv_cq();
  land(qp, packet, nullptr);
  return true;
}

}  // namespace verbena::sim
