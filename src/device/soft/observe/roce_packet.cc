#include "src/device/soft/observe/roce_packet.h"

#include <array>
#include <cstring>

namespace verbena::soft::observe {
namespace {

constexpr uint32_t kEthernetBytes = 14;
constexpr uint32_t kIpBytes = 20;
constexpr uint32_t kUdpBytes = 8;
constexpr uint32_t kBthAt = kEthernetBytes + kIpBytes + kUdpBytes;
constexpr uint16_t kRocePort = 4791;
constexpr uint16_t kFullMember = 0xffff;

// Writes big-endian numbers one behind the other.
class Writer {
 public:
  explicit Writer(std::byte* to) : begin_(to), at_(to) {}
  void u8(uint32_t value) { *at_++ = static_cast<std::byte>(value); }
  void u16(uint32_t value) {
    u8(value >> 8);
    u8(value);
  }
  void u24(uint32_t value) {
    u8(value >> 16);
    u16(value);
  }
  void u32(uint32_t value) {
    u16(value >> 16);
    u16(value);
  }
  void u64(uint64_t value) {
    u32(static_cast<uint32_t>(value >> 32));
    u32(static_cast<uint32_t>(value));
  }
  void raw32(uint32_t value) {
    std::memcpy(at_, &value, sizeof(value));
    at_ += sizeof(value);
  }
  uint32_t length() const { return static_cast<uint32_t>(at_ - begin_); }

 private:
  std::byte* begin_;
  std::byte* at_;
};

void put_mac(Writer& to, uint32_t slot) {
  if (slot == kMulticastPort) {
    to.u24(0x01005e);  // of the IPv4 group below
    to.u24(0x560001);
    return;
  }
  to.u32(0x02567262);  // locally administered: "Vrb"
  to.u16(slot);
}

uint32_t ip_address(uint32_t slot) {
  return slot == kMulticastPort ? 0xef560001 : 0x0a560000 | (slot & 0xffff);
}

struct Extensions {
  bool deth = false;
  bool reth = false;
  bool atomic = false;
  bool aeth = false;
  bool atomic_ack = false;
  bool immediate = false;
  bool invalidate = false;
};

Extensions extensions_of(uint8_t opcode) {
  Extensions has;
  has.deth = (opcode & 0xe0) == kTransportDatagram;
  switch (opcode & 0x1f) {
    case kOpWriteOnlyImmediate:
      has.immediate = true;
      has.reth = true;
      break;
    case kOpWriteFirst:
    case kOpWriteOnly:
    case kOpReadRequest:
      has.reth = true;
      break;
    case kOpSendLastImmediate:
    case kOpSendOnlyImmediate:
    case kOpWriteLastImmediate:
      has.immediate = true;
      break;
    case kOpReadResponseFirst:
    case kOpReadResponseLast:
    case kOpReadResponseOnly:
    case kOpAcknowledge:
      has.aeth = true;
      break;
    case kOpAtomicAcknowledge:
      has.aeth = true;
      has.atomic_ack = true;
      break;
    case kOpCompareSwap:
    case kOpFetchAdd:
      has.atomic = true;
      break;
    case kOpSendLastInvalidate:
    case kOpSendOnlyInvalidate:
      has.invalidate = true;
      break;
    default:
      break;
  }
  return has;
}

uint32_t extension_bytes(const Extensions& has) {
  return (has.deth ? 8 : 0) + (has.reth ? 16 : 0) + (has.atomic ? 28 : 0) + (has.aeth ? 4 : 0) +
         (has.atomic_ack ? 8 : 0) + (has.immediate ? 4 : 0) + (has.invalidate ? 4 : 0);
}

void put_ip(Writer& to, const RocePacket& packet, uint32_t length) {
  const uint32_t source = ip_address(packet.source_slot);
  const uint32_t destination = ip_address(packet.destination_slot);
  constexpr uint32_t kVersionAndTos = 0x4500;
  constexpr uint32_t kDoNotFragment = 0x4000;
  constexpr uint32_t kTtlAndUdp = 0x4011;
  uint32_t sum = kVersionAndTos + length + kDoNotFragment + kTtlAndUdp + (source >> 16) +
                 (source & 0xffff) + (destination >> 16) + (destination & 0xffff);
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  to.u16(kVersionAndTos);
  to.u16(length);
  to.u16(0);
  to.u16(kDoNotFragment);
  to.u16(kTtlAndUdp);
  to.u16(~sum & 0xffff);
  to.u32(source);
  to.u32(destination);
}

void put_extensions(Writer& to, const RocePacket& packet, const Extensions& has) {
  if (has.deth) {
    to.u32(packet.qkey);
    to.u32(packet.source_qp & 0xffffff);
  }
  if (has.reth || has.atomic) {
    to.u64(packet.address);
    to.u32(packet.rkey);
  }
  if (has.reth) to.u32(packet.length_bytes);
  if (has.atomic) {
    to.u64(packet.swap_or_add);
    to.u64(packet.compare);
  }
  if (has.aeth) {
    to.u8(packet.syndrome);
    to.u24(packet.message_number);
  }
  if (has.atomic_ack) to.u64(packet.original);
  if (has.immediate) to.raw32(packet.immediate);
  if (has.invalidate) to.u32(packet.immediate);
}

// The CRC of Ethernet, a byte at a time.
constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1) != 0 ? value >> 1 ^ 0xedb88320 : value >> 1;
    }
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

uint32_t add_to_crc(uint32_t crc, const std::byte* bytes, uint32_t size_bytes) {
  for (uint32_t i = 0; i < size_bytes; ++i) {
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint32_t>(bytes[i])) & 0xff];
  }
  return crc;
}

}  // namespace

uint32_t put_headers(const RocePacket& packet, std::byte* to) {
  const Extensions has = extensions_of(packet.opcode);
  const uint32_t padding = padding_bytes(packet.payload_bytes);
  const uint32_t udp_length =
      kUdpBytes + 12 + extension_bytes(has) + packet.payload_bytes + padding + kInvariantCrcBytes;
  Writer writer(to);
  put_mac(writer, packet.destination_slot);
  put_mac(writer, packet.source_slot);
  writer.u16(0x0800);
  put_ip(writer, packet, kIpBytes + udp_length);
  // By the source port switches spread flows: one for each pair of queue pairs.
  writer.u16(0xc000 | ((packet.source_qp ^ packet.destination_qp) & 0x3fff));
  writer.u16(kRocePort);
  writer.u16(udp_length);
  writer.u16(0);  // no checksum, as RNICs send it
  writer.u8(packet.opcode);
  constexpr uint32_t kMigrated = 0x40;
  writer.u8((packet.solicited ? 0x80 : 0) | kMigrated | padding << 4);
  writer.u16(kFullMember);
  writer.u32(packet.destination_qp & 0xffffff);
  writer.u32((packet.asks_for_ack ? 0x80000000 : 0) | (packet.psn & 0xffffff));
  put_extensions(writer, packet, has);
  return writer.length();
}

// What routers change counts as ones, and the local header that IPv4 stands for, too (A17.3.3).
uint32_t invariant_crc(const std::byte* frame, uint32_t size_bytes) {
  constexpr uint32_t kBthBytes = 12;
  if (size_bytes < kBthAt + kBthBytes) return 0;
  std::byte masked[8 + kBthAt - kEthernetBytes + kBthBytes];
  std::memset(masked, 0xff, 8);
  std::byte* const ip = masked + 8;
  std::memcpy(ip, frame + kEthernetBytes, sizeof(masked) - 8);
  const std::byte ones{0xff};
  ip[1] = ones;                                // type of service
  ip[8] = ones;                                // time to live
  ip[10] = ip[11] = ones;                      // checksum
  ip[kIpBytes + 6] = ip[kIpBytes + 7] = ones;  // checksum of UDP
  ip[kIpBytes + kUdpBytes + 4] = ones;         // FECN, BECN, reserved
  uint32_t crc = add_to_crc(~0u, masked, sizeof(masked));
  crc = add_to_crc(crc, frame + kBthAt + kBthBytes, size_bytes - kBthAt - kBthBytes);
  return ~crc;
}

}  // namespace verbena::soft::observe
