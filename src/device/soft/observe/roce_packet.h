// RoCEv2 packets as they would be on a wire: Ethernet, IPv4, UDP, and the transport headers of the
// InfiniBand Architecture Specification, volume 1, chapter 9 and annex A17.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::soft::observe {

// Values of BTH's opcode: what they do, below the transport in the upper three bits.
enum TransportOpcode : uint8_t {
  kOpSendFirst = 0x00,
  kOpSendMiddle = 0x01,
  kOpSendLast = 0x02,
  kOpSendLastImmediate = 0x03,
  kOpSendOnly = 0x04,
  kOpSendOnlyImmediate = 0x05,
  kOpWriteFirst = 0x06,
  kOpWriteMiddle = 0x07,
  kOpWriteLast = 0x08,
  kOpWriteLastImmediate = 0x09,
  kOpWriteOnly = 0x0a,
  kOpWriteOnlyImmediate = 0x0b,
  kOpReadRequest = 0x0c,
  kOpReadResponseFirst = 0x0d,
  kOpReadResponseMiddle = 0x0e,
  kOpReadResponseLast = 0x0f,
  kOpReadResponseOnly = 0x10,
  kOpAcknowledge = 0x11,
  kOpAtomicAcknowledge = 0x12,
  kOpCompareSwap = 0x13,
  kOpFetchAdd = 0x14,
  kOpSendLastInvalidate = 0x16,
  kOpSendOnlyInvalidate = 0x17,
  kTransportReliable = 0x00,
  kTransportUnreliable = 0x20,
  kTransportDatagram = 0x60,
};

// AETH: an acknowledgement without a count of credits; NAKs by their code.
inline constexpr uint8_t kSyndromeAck = 0x1f;
inline constexpr uint8_t kSyndromeRnrNak = 0x20;
inline constexpr uint8_t kSyndromeInvalidRequest = 0x61;
inline constexpr uint8_t kSyndromeRemoteAccess = 0x62;
inline constexpr uint8_t kSyndromeRemoteOperation = 0x63;

inline constexpr uint32_t kMulticastPort = ~0u;  // of RocePacket::destination_slot
inline constexpr uint32_t kInvariantCrcBytes = 4;
inline constexpr uint32_t kMostHeaderBytes = 14 + 20 + 8 + 12 + 28 + 4;

// The fields that the opcode does not have are not looked at.
struct RocePacket {
  // Each process has an address of its own: 10.86.0.0 and its slot.
  uint32_t source_slot = 0;
  uint32_t destination_slot = 0;
  uint32_t destination_qp = 0;
  uint32_t source_qp = 0;  // DETH; and of all, what the UDP source port is made of
  uint8_t opcode = 0;      // with the transport
  bool solicited = false;
  bool asks_for_ack = false;
  uint32_t psn = 0;
  uint32_t payload_bytes = 0;
  uint64_t address = 0;  // RETH, AtomicETH
  uint32_t rkey = 0;
  uint32_t length_bytes = 0;  // RETH
  uint64_t swap_or_add = 0;   // AtomicETH
  uint64_t compare = 0;
  uint8_t syndrome = 0;  // AETH
  uint32_t message_number = 0;
  uint64_t original = 0;   // AtomicAckETH
  uint32_t immediate = 0;  // ImmDt, as it lies in memory; or IETH, the key
  uint32_t qkey = 0;       // DETH
};

// Writes the headers, which the payload follows, then zeros up to a multiple of four bytes and the
// invariant CRC. Returns their length, kMostHeaderBytes at most.
uint32_t put_headers(const RocePacket& packet, std::byte* to);
inline uint32_t padding_bytes(uint32_t payload_bytes) { return (4 - payload_bytes % 4) % 4; }

// The invariant CRC of a packet from its Ethernet header to its padding; in the order of its bytes
// on the wire where this machine is little-endian.
uint32_t invariant_crc(const std::byte* frame, uint32_t size_bytes);

}  // namespace verbena::soft::observe
