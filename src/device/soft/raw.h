// Raw packets: queue pairs that send and receive whole Ethernet frames. The software RNICs of a
// user's processes are the ports of one switch, whose rules are the flows (ibv_create_flow()) of
// all queue pairs: a frame reaches those with a flow that matches it and is of the best priority,
// never the one that sent it. No frame leaves the machine, so no privilege is needed.
//
//   raw_frame.cc  what flows look at in a frame, and what a flow asks for
//   raw_flows.cc  flows, in memory that senders read
//   raw_send.cc   SEND
//
// Frames arrive in the ring of datagrams (ud_receive.cc).
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/device/soft/layout.h"
#include "src/device/soft/objects.h"

namespace verbena::soft {

// The fields of a frame that flows can name, in network order; what the frame does not have is
// zero.
struct FrameFields {
  uint8_t destination_mac[6];
  uint8_t source_mac[6];
  uint16_t ether_type;
  uint16_t vlan_tag;  // of the outer tag
  uint8_t ip_version;
  uint8_t protocol;
  uint8_t traffic_class;  // of IPv4: TOS
  uint8_t hop_limit;      // of IPv4: TTL
  uint32_t flow_label;
  uint8_t source_ip[16];  // of IPv4: the first 4
  uint8_t destination_ip[16];
  uint16_t source_port;
  uint16_t destination_port;
  uint8_t ip_flags;  // of IPv4: 2: not to be fragmented, 4: fragments follow
  uint8_t reserved[3];
};
static_assert(sizeof(FrameFields) == FlowShared::kWords * sizeof(uint64_t));

inline constexpr uint32_t kEthernetHeaderBytes = 14;
// What is behind these bytes of a frame, no flow looks at.
inline constexpr uint32_t kParsedBytes = 128;

// `bytes` is the frame, or its first kParsedBytes; at least kEthernetHeaderBytes.
FrameFields parse_frame(const std::byte* bytes, size_t size_bytes);

// Which of several flows that match gets a frame: the lowest. Sniffers get each in addition.
enum FlowRank : uint32_t {
  kFirstRank = 1,  // plus the flow's priority, 16 bits
  kMulticastDefaultRank = 1u << 17,
  kAllDefaultRank,
  kSnifferRank,
};

// What a flow asks for: the frames that have `value` in the bits of `mask`.
struct FlowRule {
  uint32_t rank = 0;
  FrameFields value{};
  FrameFields mask{};
};
// Nothing with last_error() if soft0 has no such flows.
std::optional<FlowRule> rule_of(const ibv_flow_attr& attributes);

// What the flows of a queue pair say of a frame.
struct FlowMatch {
  uint32_t rank = ~0u;  // the best of those that match but for sniffers; ~0: there is none
  bool sniffs = false;
};
FlowMatch match_flows(const FlowShared* flows, const FrameFields& frame);

// An ibv_flow.
struct Flow {
  static constexpr const char* kName = "flow";
  ibv_flow verbs{};
  Validity validity;
  Qp* qp = nullptr;
  uint32_t place = 0;  // in the queue pair's flows
};

ibv_flow* create_flow(ibv_qp*, ibv_flow_attr*);
int destroy_flow(ibv_flow*);

// The group of those that have flows, which no multicast address names.
ibv_gid raw_group();

// Carries out what was posted at `position`. Holds send_lock.
void raw_post(Qp& qp, const ibv_send_wr& wr, uint32_t position);

}  // namespace verbena::soft
