// Datagrams: a work request names its receiver by an address handle and a queue pair number, and
// the WQE has all that the RNIC needs of it. So one queue pair sends to any number of peers with
// one context. What cannot be delivered vanishes.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

#include "src/device/sim/objects.h"

namespace verbena::sim {

// An address handle. Multicast groups have none here.
struct Ah {
  ibv_ah verbs{};
  Node* node = nullptr;  // null: no port has this address
  uint8_t service_level = 0;
  bool has_grh = false;
  ibv_grh grh{};  // but for its payload's length
};
inline Ah& as_ah(ibv_ah* verbs) { return *reinterpret_cast<Ah*>(verbs); }

// What a WQE keeps: the handle may be destroyed as soon as the request is posted.
struct DatagramAddress {
  Node* node = nullptr;
  uint32_t queue_pair = 0;
  uint32_t qkey = 0;
  uint8_t service_level = 0;
  bool has_grh = false;
  ibv_grh grh{};
};

// With refuse()'s reason.
ibv_ah* create_ah(ibv_pd* pd, ibv_ah_attr* attributes);
int destroy_ah(ibv_ah* verbs);
ibv_gid gid_of(const Node& node);

// Whether a queue pair without reliability has the verb, and a datagram an address.
bool is_unreliable_request(const QueuePair& qp, const ibv_send_wr& request);
// Of the queue pair's WQEs: 0 if it is connected.
uint64_t datagram_address_bytes(const QueuePair& qp);
// Into the WQE.
void set_datagram_address(QueuePair& qp, uint64_t number, const ibv_send_wr& request);

}  // namespace verbena::sim
