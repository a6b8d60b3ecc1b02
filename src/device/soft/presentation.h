// What the devices present of themselves: names, GUIDs, and a port with its LID or its GIDs.
//
// All devices of a process are one RNIC with one set of queue pairs: which device a queue pair was
// made on changes its addresses, and nothing on the data path. A process chooses its presentation,
// and those with InfiniBand and those with Ethernet reach each other by GIDs.
//
//   InfiniBand   LID 1 + index; one GID, fe80:: and the node's GUID
//   Ethernet     no LID, addresses need a GID. Of the table's entries, the first are fe80:: with
//                the MAC address and 127.0.0.(1 + index), each for RoCE version 1 and 2
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <optional>

#include "src/base/device_settings.h"

namespace verbena::soft {

inline constexpr uint32_t kEthernetGids = 8;      // entries of the table, with the empty ones
inline constexpr uint8_t kEthernetIpv4Index = 3;  // 127.0.0.1 and so on, of RoCE version 2
// The network interface of an Ethernet port: it is always there, and has all of 127.0.0.0/8.
inline constexpr const char* kNetworkInterface = "lo";

// Devices 0 to kMostSoftDevices - 1, of which device_count() are listed; never freed, made on first
// use. They have zeroed space behind their public part, because some libraries look there.
ibv_device* device(uint32_t index = 0);
// What the environment said at the first call; 1 where it is wrong, which open_device() says.
uint32_t device_count();
// Its index, if it is one of these.
std::optional<uint32_t> device_index(const ibv_device*);
// Of a context that is valid.
uint32_t device_index(const ibv_context*);
LinkLayer link_layer_of(const ibv_context*);

__be64 node_guid(uint32_t index);
uint16_t lid_of(uint32_t index);
ibv_port_attr describe_port(uint32_t index, LinkLayer);
// An entry of the GID table: false behind its end; where it is empty, its GID is zero.
bool describe_gid(uint32_t index, LinkLayer, uint32_t gid_index, ibv_gid_entry*);

// Whether an address is a device's, in either presentation.
bool is_own_gid(const ibv_gid&);
bool is_own_lid(uint16_t);
// FF00::/8, and for RoCE the groups of IPv4.
bool is_multicast(const ibv_gid&);
bool is_zero_gid(const ibv_gid&);

// What an Ethernet port needs in the address of a queue pair's peer: 0, or EINVAL with a line.
int check_peer_address(const ibv_context*, const ibv_ah_attr&);

// Verbs: an entry of the GID table with its type; ENODATA where it is empty.
int query_gid_entry(ibv_context*, uint32_t port, uint32_t gid_index, ibv_gid_entry*);

}  // namespace verbena::soft
