#include "src/device/soft/presentation.h"

#include <fmt/format.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "src/base/log.h"
#include "src/device/soft/control.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/soft_rnic.h"

namespace verbena::soft {
namespace {

constexpr uint16_t kFirstLid = 1;
constexpr uint32_t kMacBytes = 6;
constexpr uint32_t kGidsOfOneAddress = 2;  // RoCE versions 1 and 2
constexpr uint64_t kLinkLocalPrefix = 0xfe80000000000000;

// Some libraries look behind the public part for fields of their own devices.
struct PaddedDevice {
  ibv_device device{};
  std::byte zeros[1024]{};
};
using Devices = std::array<PaddedDevice, kMostSoftDevices>;

Devices& all_devices() {
  static Devices* const devices = [] {
    auto* made = new Devices;
    for (uint32_t index = 0; index < kMostSoftDevices; ++index) {
      ibv_device& device = (*made)[index].device;
      const std::string name = fmt::format("{}{}", kDevicePrefix, index);
      device.node_type = IBV_NODE_CA;
      device.transport_type = IBV_TRANSPORT_IB;
      strcpy(device.name, name.c_str());
      strcpy(device.dev_name, ("uverbs-" + name).c_str());
      strcpy(device.dev_path, ("/sys/class/infiniband_verbs/uverbs-" + name).c_str());
      strcpy(device.ibdev_path, ("/sys/class/infiniband/" + name).c_str());
    }
    return made;
  }();
  return *devices;
}

ibv_gid link_local(__be64 interface_id) {
  ibv_gid gid{};
  gid.global.subnet_prefix = __builtin_bswap64(kLinkLocalPrefix);
  gid.global.interface_id = interface_id;
  return gid;
}

// Locally administered.
std::array<uint8_t, kMacBytes> mac_of(uint32_t index) {
  const uint64_t guid = node_guid(index);
  std::array<uint8_t, kMacBytes> mac;
  memcpy(mac.data(), &guid, mac.size());
  mac[0] = 0x02;
  return mac;
}

// By the modified EUI-64 of the MAC address.
ibv_gid mac_gid(uint32_t index) {
  constexpr uint8_t kUniversal = 0x02;
  const std::array<uint8_t, kMacBytes> mac = mac_of(index);
  ibv_gid gid = link_local(0);
  uint8_t* const id = gid.raw + 8;
  std::copy_n(mac.begin(), 3, id);
  id[0] ^= kUniversal;
  id[3] = 0xff;
  id[4] = 0xfe;
  std::copy_n(mac.begin() + 3, 3, id + 5);
  return gid;
}

// ::ffff:127.0.0.1 for the first device.
ibv_gid ipv4_gid(uint32_t index) {
  ibv_gid gid{};
  gid.raw[10] = 0xff;
  gid.raw[11] = 0xff;
  gid.raw[12] = 127;
  gid.raw[15] = static_cast<uint8_t>(1 + index);
  return gid;
}

bool same_gid(const ibv_gid& one, const ibv_gid& other) {
  return memcmp(&one, &other, sizeof(one)) == 0;
}

}  // namespace

ibv_device* device(uint32_t index) { return &all_devices()[index].device; }

uint32_t device_count() {
  static const uint32_t count = [] {
    const Result<uint32_t> asked = soft_devices_from_environment();
    return asked.ok() ? *asked : 1;
  }();
  return count;
}

std::optional<uint32_t> device_index(const ibv_device* asked) {
  for (uint32_t index = 0; index < kMostSoftDevices; ++index) {
    if (asked == device(index)) return index;
  }
  return std::nullopt;
}

uint32_t device_index(const ibv_context* context) {
  return as_context(const_cast<ibv_context*>(context)).device_index;
}

LinkLayer link_layer_of(const ibv_context* context) {
  return as_context(const_cast<ibv_context*>(context)).link_layer;
}

// One for each boot of this machine, so that two hosts differ.
__be64 node_guid(uint32_t index) {
  static const std::string boot_id = [] {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    return id;
  }();
  return std::hash<std::string>{}(fmt::format("verbena-{}{}-{}", kDevicePrefix, index, boot_id));
}

uint16_t lid_of(uint32_t index) { return static_cast<uint16_t>(kFirstLid + index); }

ibv_port_attr describe_port(uint32_t index, LinkLayer link_layer) {
  const bool ethernet = link_layer == LinkLayer::kEthernet;
  ibv_port_attr attributes{};
  attributes.state = IBV_PORT_ACTIVE;
  attributes.max_mtu = IBV_MTU_4096;
  attributes.active_mtu = IBV_MTU_4096;
  attributes.gid_tbl_len = ethernet ? static_cast<int>(kEthernetGids) : 1;
  attributes.pkey_tbl_len = 1;
  attributes.max_msg_sz = kMaxMessageBytes;
  attributes.max_vl_num = 1;
  attributes.active_width = 2;   // 4X
  attributes.active_speed = 32;  // EDR
  attributes.phys_state = 5;     // link up
  if (ethernet) {
    attributes.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attributes.flags = IBV_QPF_GRH_REQUIRED;
    attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  } else {
    attributes.lid = lid_of(index);
    attributes.sm_lid = kFirstLid;
    attributes.link_layer = IBV_LINK_LAYER_INFINIBAND;
  }
  return attributes;
}

bool describe_gid(uint32_t index, LinkLayer link_layer, uint32_t gid_index, ibv_gid_entry* entry) {
  *entry = {};
  entry->gid_index = gid_index;
  entry->port_num = 1;
  if (link_layer == LinkLayer::kInfiniBand) {
    entry->gid = link_local(node_guid(index));
    entry->gid_type = IBV_GID_TYPE_IB;
    return gid_index == 0;
  }
  if (gid_index >= kEthernetGids) return false;
  const ibv_gid addresses[] = {mac_gid(index), ipv4_gid(index)};
  if (gid_index >= std::size(addresses) * kGidsOfOneAddress) return true;
  entry->gid = addresses[gid_index / kGidsOfOneAddress];
  entry->gid_type =
      gid_index % kGidsOfOneAddress == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
  entry->ndev_ifindex = if_nametoindex(kNetworkInterface);
  return true;
}

bool is_own_gid(const ibv_gid& gid) {
  for (uint32_t index = 0; index < kMostSoftDevices; ++index) {
    if (same_gid(gid, mac_gid(index)) || same_gid(gid, ipv4_gid(index)) ||
        same_gid(gid, link_local(node_guid(index)))) {
      return true;
    }
  }
  return false;
}

bool is_own_lid(uint16_t lid) { return lid >= kFirstLid && lid < kFirstLid + kMostSoftDevices; }

bool is_multicast(const ibv_gid& gid) {
  if (gid.raw[0] == 0xff) return true;
  constexpr std::array<uint8_t, 12> kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kIpv4Prefix.begin(), kIpv4Prefix.end(), gid.raw) && (gid.raw[12] >> 4) == 0xe;
}

bool is_zero_gid(const ibv_gid& gid) { return same_gid(gid, ibv_gid{}); }

int check_peer_address(const ibv_context* context, const ibv_ah_attr& address) {
  if (link_layer_of(context) != LinkLayer::kEthernet) return 0;
  if (address.is_global == 0) {
    return fail(EINVAL,
                "soft0: an Ethernet port reaches its peers by GIDs, and this address has none "
                "(is_global = 0); give the program a GID index (perftest: -x, ibv_*_pingpong: -g)");
  }
  ibv_gid_entry own;
  if (!describe_gid(device_index(context), LinkLayer::kEthernet, address.grh.sgid_index, &own) ||
      is_zero_gid(own.gid)) {
    return fail(EINVAL, fmt::format("soft0: there is no GID of index {}; 'ibv_devinfo -v' lists "
                                    "those there are",
                                    address.grh.sgid_index));
  }
  if (is_zero_gid(address.grh.dgid)) {
    return fail(EINVAL,
                "soft0: the peer's GID is zero; give the program on the other side a GID index, "
                "too (perftest: -x, ibv_*_pingpong: -g)");
  }
  return 0;
}

int query_gid_entry(ibv_context* context, uint32_t port, uint32_t gid_index, ibv_gid_entry* entry) {
  if (const int error = check_valid_context(context); error != 0) return error;
  if (port != 1 || !describe_gid(device_index(context), link_layer_of(context), gid_index, entry)) {
    return fail(EINVAL, fmt::format("soft0: has no GID of index {} and port {}", gid_index, port));
  }
  return is_zero_gid(entry->gid) ? fail(ENODATA, "soft0: this entry of the GID table is empty") : 0;
}

}  // namespace verbena::soft
