#include "src/device/soft/network_header.h"

#include <endian.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace verbena::soft {
namespace {

constexpr uint8_t kTransportHeaderNext = 0x1b;  // a base transport header, without UDP
constexpr uint32_t kGrhVersion = 6;
constexpr uint32_t kFlowMask = 0xfffff;
constexpr uint32_t kUdpHeaderBytes = 8;
constexpr uint32_t kUnusedBytes = 20;  // before a header of IPv4
constexpr uint8_t kIpv4VersionAndLength = 0x45;
constexpr uint16_t kIpv4DoNotFragment = 0x4000;
constexpr std::array<uint8_t, 12> kIpv4InGid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

struct Ipv4 {
  uint8_t version_and_length;
  uint8_t type_of_service;
  uint16_t total_length;
  uint16_t identification;
  uint16_t fragment;
  uint8_t time_to_live;
  uint8_t protocol;
  uint16_t checksum;
  std::array<uint8_t, 4> source;
  std::array<uint8_t, 4> destination;
};
static_assert(sizeof(Ipv4) == kNetworkHeaderBytes - kUnusedBytes);

bool is_ipv4(const ibv_gid& gid) {
  return std::equal(kIpv4InGid.begin(), kIpv4InGid.end(), gid.raw);
}

ibv_gid gid_of(const std::array<uint8_t, 4>& address) {
  ibv_gid gid{};
  std::copy(kIpv4InGid.begin(), kIpv4InGid.end(), gid.raw);
  std::copy(address.begin(), address.end(), gid.raw + kIpv4InGid.size());
  return gid;
}

// In the order of bytes in memory, as the words themselves are.
uint16_t checksum_of(const Ipv4& header) {
  std::array<uint16_t, sizeof(Ipv4) / 2> words;
  std::memcpy(words.data(), &header, sizeof(header));
  uint32_t sum = 0;
  for (const uint16_t word : words) sum += word;
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

}  // namespace

NetworkHeader::NetworkHeader(const ibv_gid_entry& source, const ibv_global_route& route) {
  const bool version_2 = source.gid_type == IBV_GID_TYPE_ROCE_V2;
  udp_bytes_ = version_2 ? kUdpHeaderBytes : 0;
  is_ipv4_ = version_2 && is_ipv4(source.gid) && is_ipv4(route.dgid);
  if (is_ipv4_) {
    Ipv4 header{};
    header.version_and_length = kIpv4VersionAndLength;
    header.type_of_service = route.traffic_class;
    header.fragment = htobe16(kIpv4DoNotFragment);
    header.time_to_live = route.hop_limit;
    header.protocol = IPPROTO_UDP;
    std::copy_n(source.gid.raw + kIpv4InGid.size(), 4, header.source.begin());
    std::copy_n(route.dgid.raw + kIpv4InGid.size(), 4, header.destination.begin());
    std::memcpy(bytes_.data() + kUnusedBytes, &header, sizeof(header));
    return;
  }
  ibv_grh header{};
  header.version_tclass_flow =
      htobe32(kGrhVersion << 28 | uint32_t{route.traffic_class} << 20 | route.flow_label);
  header.next_hdr = version_2 ? uint8_t{IPPROTO_UDP} : kTransportHeaderNext;
  header.hop_limit = route.hop_limit;
  header.sgid = source.gid;
  header.dgid = route.dgid;
  std::memcpy(bytes_.data(), &header, sizeof(header));
}

void NetworkHeader::write(uint32_t message_bytes, std::byte* to) const {
  std::memcpy(to, bytes_.data(), bytes_.size());
  const uint32_t payload_bytes = udp_bytes_ + message_bytes;
  if (is_ipv4_) {
    Ipv4 header;
    std::memcpy(&header, bytes_.data() + kUnusedBytes, sizeof(header));
    header.total_length = htobe16(static_cast<uint16_t>(sizeof(header) + payload_bytes));
    header.checksum = checksum_of(header);
    std::memcpy(to + kUnusedBytes, &header, sizeof(header));
    return;
  }
  const uint16_t length = htobe16(static_cast<uint16_t>(payload_bytes));
  std::memcpy(to + offsetof(ibv_grh, paylen), &length, sizeof(length));
}

ReadHeader read_header(const ibv_grh& grh) {
  ReadHeader found;
  const uint32_t flow = be32toh(grh.version_tclass_flow);
  if (flow >> 28 == kGrhVersion) {
    found.source = grh.sgid;
    found.destination = grh.dgid;
    found.flow_label = flow & kFlowMask;
    found.traffic_class = static_cast<uint8_t>(flow >> 20);
    found.hop_limit = grh.hop_limit;
    found.is_udp = grh.next_hdr == IPPROTO_UDP;
    return found;
  }
  std::array<std::byte, kNetworkHeaderBytes> bytes;
  std::memcpy(bytes.data(), &grh, sizeof(grh));
  Ipv4 header;
  std::memcpy(&header, bytes.data() + kUnusedBytes, sizeof(header));
  found.source = gid_of(header.source);
  found.destination = gid_of(header.destination);
  found.traffic_class = header.type_of_service;
  found.hop_limit = header.time_to_live;
  found.is_udp = true;
  return found;
}

}  // namespace verbena::soft
