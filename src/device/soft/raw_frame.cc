#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/device/soft/raw.h"
#include "src/device/soft/refusal.h"

namespace verbena::soft {
namespace {

constexpr uint16_t kVlanTypes[] = {0x8100, 0x88a8};
constexpr uint32_t kMostVlanTags = 2;
constexpr uint16_t kIpv4Type = 0x0800;
constexpr uint16_t kIpv6Type = 0x86dd;
constexpr uint8_t kTcp = 6;
constexpr uint8_t kUdp = 17;
constexpr uint32_t kMostSpecs = 16;

// A frame's bytes in their order; what lies behind its end is not read.
class FrameReader {
 public:
  FrameReader(const std::byte* bytes, size_t size_bytes) : bytes_(bytes), left_bytes_(size_bytes) {}
  bool has(size_t bytes) const { return left_bytes_ >= bytes; }
  void skip(size_t bytes) {
    bytes_ += bytes;
    left_bytes_ -= bytes;
  }
  uint8_t byte(size_t at) const { return static_cast<uint8_t>(bytes_[at]); }
  template <typename Field>
  void copy(size_t at, Field& to, size_t size_bytes = sizeof(Field)) const {
    std::memcpy(&to, bytes_ + at, size_bytes);
  }

 private:
  const std::byte* bytes_;
  size_t left_bytes_;
};

void parse_ports(const FrameReader& reader, FrameFields& fields) {
  if ((fields.protocol != kTcp && fields.protocol != kUdp) || !reader.has(4)) return;
  reader.copy(0, fields.source_port);
  reader.copy(2, fields.destination_port);
}

void parse_ipv4(FrameReader reader, FrameFields& fields) {
  const size_t header_bytes = reader.has(20) ? (reader.byte(0) & 0xf) * 4u : 0;
  if (header_bytes < 20 || reader.byte(0) >> 4 != 4 || !reader.has(header_bytes)) return;
  fields.ip_version = 4;
  fields.traffic_class = reader.byte(1);
  fields.ip_flags = static_cast<uint8_t>(((reader.byte(6) & 0x40) != 0 ? 2 : 0) |
                                         ((reader.byte(6) & 0x20) != 0 ? 4 : 0));
  fields.hop_limit = reader.byte(8);
  fields.protocol = reader.byte(9);
  reader.copy(12, fields.source_ip, 4);
  reader.copy(16, fields.destination_ip, 4);
  // Ports stand in the first fragment.
  const bool first = (reader.byte(6) & 0x1f) == 0 && reader.byte(7) == 0;
  reader.skip(header_bytes);
  if (first) parse_ports(reader, fields);
}

void parse_ipv6(FrameReader reader, FrameFields& fields) {
  if (!reader.has(40) || reader.byte(0) >> 4 != 6) return;
  fields.ip_version = 6;
  uint32_t first;
  reader.copy(0, first);
  first = ntohl(first);
  fields.traffic_class = static_cast<uint8_t>(first >> 20);
  fields.flow_label = htonl(first & 0xfffff);
  fields.protocol = reader.byte(6);
  fields.hop_limit = reader.byte(7);
  reader.copy(8, fields.source_ip);
  reader.copy(24, fields.destination_ip);
  reader.skip(40);
  parse_ports(reader, fields);
}

// Adds a condition on a field. False if the flow asks for another value of it already.
template <typename Field>
bool ask(FlowRule& rule, Field FrameFields::*field, const void* value, const void* mask,
         size_t size_bytes = sizeof(Field)) {
  auto* values = reinterpret_cast<uint8_t*>(&(rule.value.*field));
  auto* masks = reinterpret_cast<uint8_t*>(&(rule.mask.*field));
  for (size_t i = 0; i < size_bytes; ++i) {
    const auto bits = static_cast<const uint8_t*>(mask)[i];
    const auto wanted = static_cast<uint8_t>(static_cast<const uint8_t*>(value)[i] & bits);
    if (((values[i] ^ wanted) & masks[i] & bits) != 0) return false;
    values[i] = static_cast<uint8_t>(values[i] | wanted);
    masks[i] = static_cast<uint8_t>(masks[i] | bits);
  }
  return true;
}
template <typename Field, typename Value>
bool ask_all(FlowRule& rule, Field FrameFields::*field, Value value) {
  const auto wanted = static_cast<Field>(value);
  const auto bits = static_cast<Field>(~Field{0});
  return ask(rule, field, &wanted, &bits);
}

bool add(FlowRule& rule, const ibv_flow_spec_eth& spec) {
  return ask(rule, &FrameFields::destination_mac, spec.val.dst_mac, spec.mask.dst_mac) &&
         ask(rule, &FrameFields::source_mac, spec.val.src_mac, spec.mask.src_mac) &&
         ask(rule, &FrameFields::ether_type, &spec.val.ether_type, &spec.mask.ether_type) &&
         ask(rule, &FrameFields::vlan_tag, &spec.val.vlan_tag, &spec.mask.vlan_tag);
}
template <typename Ipv4Spec>
bool add_ipv4(FlowRule& rule, const Ipv4Spec& spec) {
  return ask_all(rule, &FrameFields::ip_version, 4) &&
         ask(rule, &FrameFields::source_ip, &spec.val.src_ip, &spec.mask.src_ip, 4) &&
         ask(rule, &FrameFields::destination_ip, &spec.val.dst_ip, &spec.mask.dst_ip, 4);
}
bool add(FlowRule& rule, const ibv_flow_spec_ipv4_ext& spec) {
  return add_ipv4(rule, spec) &&
         ask(rule, &FrameFields::protocol, &spec.val.proto, &spec.mask.proto) &&
         ask(rule, &FrameFields::traffic_class, &spec.val.tos, &spec.mask.tos) &&
         ask(rule, &FrameFields::hop_limit, &spec.val.ttl, &spec.mask.ttl) &&
         ask(rule, &FrameFields::ip_flags, &spec.val.flags, &spec.mask.flags);
}
bool add(FlowRule& rule, const ibv_flow_spec_ipv6& spec) {
  return ask_all(rule, &FrameFields::ip_version, 6) &&
         ask(rule, &FrameFields::source_ip, spec.val.src_ip, spec.mask.src_ip) &&
         ask(rule, &FrameFields::destination_ip, spec.val.dst_ip, spec.mask.dst_ip) &&
         ask(rule, &FrameFields::flow_label, &spec.val.flow_label, &spec.mask.flow_label) &&
         ask(rule, &FrameFields::protocol, &spec.val.next_hdr, &spec.mask.next_hdr) &&
         ask(rule, &FrameFields::traffic_class, &spec.val.traffic_class,
             &spec.mask.traffic_class) &&
         ask(rule, &FrameFields::hop_limit, &spec.val.hop_limit, &spec.mask.hop_limit);
}
bool add(FlowRule& rule, const ibv_flow_spec_tcp_udp& spec) {
  return ask_all(rule, &FrameFields::protocol, spec.type == IBV_FLOW_SPEC_TCP ? kTcp : kUdp) &&
         ask(rule, &FrameFields::source_port, &spec.val.src_port, &spec.mask.src_port) &&
         ask(rule, &FrameFields::destination_port, &spec.val.dst_port, &spec.mask.dst_port);
}

enum class Added { kYes, kContradicts, kTooShort, kUnknown };

// `at` is not aligned for what stands there.
Added add_spec(FlowRule& rule, const std::byte* at, uint32_t type, uint16_t size_bytes) {
  const auto add_as = [&](auto spec, auto&& how) {
    if (size_bytes < sizeof(spec)) return Added::kTooShort;
    std::memcpy(&spec, at, sizeof(spec));
    return how(spec) ? Added::kYes : Added::kContradicts;
  };
  const auto usual = [&rule](const auto& spec) { return add(rule, spec); };
  switch (type) {
    case IBV_FLOW_SPEC_ETH:
      return add_as(ibv_flow_spec_eth{}, usual);
    case IBV_FLOW_SPEC_IPV4:
      return add_as(ibv_flow_spec_ipv4{},
                    [&rule](const auto& spec) { return add_ipv4(rule, spec); });
    case IBV_FLOW_SPEC_IPV4_EXT:
      return add_as(ibv_flow_spec_ipv4_ext{}, usual);
    case IBV_FLOW_SPEC_IPV6:
      return add_as(ibv_flow_spec_ipv6{}, usual);
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
      return add_as(ibv_flow_spec_tcp_udp{}, usual);
    default:
      return Added::kUnknown;
  }
}

// The rank of a flow of this type, and what the type asks for; 0: there is no such type.
uint32_t add_type(FlowRule& rule, ibv_flow_attr_type type, uint16_t priority) {
  constexpr uint8_t kMulticastBit[6] = {1};
  switch (type) {
    case IBV_FLOW_ATTR_NORMAL:
      return kFirstRank + priority;
    case IBV_FLOW_ATTR_ALL_DEFAULT:
      return kAllDefaultRank;
    case IBV_FLOW_ATTR_MC_DEFAULT:
      ask(rule, &FrameFields::destination_mac, kMulticastBit, kMulticastBit);
      return kMulticastDefaultRank;
    case IBV_FLOW_ATTR_SNIFFER:
      return kSnifferRank;
    default:
      return 0;
  }
}

}  // namespace

FrameFields parse_frame(const std::byte* bytes, size_t size_bytes) {
  FrameFields fields{};
  FrameReader reader(bytes, size_bytes);
  if (!reader.has(kEthernetHeaderBytes)) return fields;
  reader.copy(0, fields.destination_mac);
  reader.copy(6, fields.source_mac);
  reader.copy(12, fields.ether_type);
  reader.skip(kEthernetHeaderBytes);
  for (uint32_t tags = 0; tags < kMostVlanTags && reader.has(4); ++tags) {
    if (std::ranges::find(kVlanTypes, ntohs(fields.ether_type)) == std::end(kVlanTypes)) break;
    if (tags == 0) reader.copy(0, fields.vlan_tag);
    reader.copy(2, fields.ether_type);
    reader.skip(4);
  }
  if (ntohs(fields.ether_type) == kIpv4Type) parse_ipv4(reader, fields);
  if (ntohs(fields.ether_type) == kIpv6Type) parse_ipv6(reader, fields);
  return fields;
}

std::optional<FlowRule> rule_of(const ibv_flow_attr& attributes) {
  const auto refuse = [](int error, const std::string& text) {
    fail(error, text);
    return std::nullopt;
  };
  if (attributes.port != 1) {
    return refuse(EINVAL,
                  fmt::format("soft0: has port 1 only, the flow is of port {}", attributes.port));
  }
  if (attributes.flags != 0 || attributes.comp_mask != 0) {
    return refuse(EOPNOTSUPP,
                  fmt::format("soft0: flows have no flags, given were {:#x}", attributes.flags));
  }
  FlowRule rule;
  rule.rank = add_type(rule, attributes.type, attributes.priority);
  if (rule.rank == 0 || (rule.rank >= kMulticastDefaultRank && attributes.num_of_specs != 0) ||
      attributes.num_of_specs > kMostSpecs) {
    return refuse(EINVAL, fmt::format("soft0: a flow of type NORMAL has up to {} specifications, "
                                      "one of type ALL_DEFAULT, MC_DEFAULT or SNIFFER has none; "
                                      "given were {} of type {}",
                                      kMostSpecs, attributes.num_of_specs,
                                      static_cast<int>(attributes.type)));
  }
  // They follow the attributes, each with its type and size.
  const auto* at = reinterpret_cast<const std::byte*>(&attributes + 1);
  for (uint32_t i = 0; i < attributes.num_of_specs; ++i) {
    ibv_flow_spec_action_drop header;
    std::memcpy(&header, at, offsetof(ibv_flow_spec_action_drop, size) + sizeof(header.size));
    switch (add_spec(rule, at, header.type, header.size)) {
      case Added::kYes:
        break;
      case Added::kContradicts:
        return refuse(EINVAL,
                      "soft0: the specifications of the flow contradict each other: no "
                      "frame could match");
      case Added::kTooShort:
        return refuse(EINVAL, fmt::format("soft0: {} bytes are too few for a specification of "
                                          "type {:#x} (size)",
                                          header.size, static_cast<uint32_t>(header.type)));
      case Added::kUnknown:
        return refuse(EOPNOTSUPP,
                      fmt::format("soft0: flows have specifications of Ethernet, IPv4, IPv6, TCP "
                                  "and UDP, asked for type {:#x}",
                                  static_cast<uint32_t>(header.type)));
    }
    at += header.size;
  }
  return rule;
}

}  // namespace verbena::soft
