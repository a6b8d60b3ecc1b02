// What the processes of one user share: the tables of a software RNIC, as they lie in its process's
// memory.
//
// Every process is an own RNIC. It publishes one Header, and one block per queue pair, completion
// queue and shared receive queue, all in its one memory file, where they lie at the offset of their
// address. A peer maps them and moves data and receive work itself. There is no lock here: each
// word has one writer, or is changed by one atomic step, so a process that dies at any instruction
// leaves nothing half done that others wait for.
//
// Whatever is read from here was written by another process: indexes, lengths and keys are checked
// before use.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::soft {

inline constexpr uint64_t kLayoutMagic = 0x3174666f53617256;  // "VraSoft1", little-endian
inline constexpr uint32_t kLayoutVersion = 12;
inline constexpr size_t kCacheLineBytes = 64;

// A queue pair number is 24 bits: the process's slot and the queue pair's index in it. Slot 0 stays
// unused, so that no queue pair has the reserved numbers 0 and 1.
inline constexpr uint32_t kQpIndexBits = 14;
inline constexpr uint32_t kMaxQueuePairs = 1u << kQpIndexBits;
inline constexpr uint32_t kMaxProcesses = 1u << (24 - kQpIndexBits);
inline constexpr uint32_t kMaxMemoryRegions = 1u << 18;
inline constexpr uint64_t kMaxRegionBytes = 1ull << 43;  // half of what is mapped of a peer
// What a region of the whole address space has (ibv_reg_mr() of NULL and SIZE_MAX, on demand).
inline constexpr uint64_t kImplicitRegionBytes = 1ull << 47;
inline constexpr uint32_t kMaxQueueWrs = 16384;
inline constexpr uint32_t kMaxSges = 16;
inline constexpr uint32_t kMaxCqes = 1u << 20;
inline constexpr uint32_t kMaxCompletionQueues = 2 * kMaxQueuePairs;
inline constexpr uint32_t kMaxSharedReceiveQueues = kMaxQueuePairs;
inline constexpr uint32_t kMaxDomains = kMaxQueuePairs;
inline constexpr uint32_t kMaxOutstandingReads = 128;  // READs and atomics of a queue pair
inline constexpr uint32_t kMaxAddressHandles = 1u << 20;
inline constexpr uint32_t kMaxMulticastGroups = 4096;
inline constexpr uint32_t kMaxGroupMembers = kMaxQueuePairs;  // of all groups together
inline constexpr uint32_t kMaxInlineBytes = 512;
inline constexpr uint64_t kMaxMessageBytes = 1u << 30;

inline constexpr uint32_t kMaxDatagramBytes = 4096;  // the port's MTU
inline constexpr uint32_t kGrhBytes = 40;
// Of Ethernet, with two VLAN tags, without the FCS.
inline constexpr uint32_t kMaxFrameBytes = kMaxDatagramBytes + 14 + 2 * 4;
inline constexpr uint32_t kMaxFlows = 64;  // of a queue pair

// Queue pairs of different transports do not hear each other; of XRC, one kind hears the other.
enum class Transport : uint32_t {
  kReliable = 1,
  kUnreliable = 2,
  kDatagram = 3,
  kXrcSend = 4,
  kXrcReceive = 5,
  kRawPacket = 6,
};
// Those that receive from any number of senders into one ring.
inline bool has_datagrams(Transport transport) {
  return transport == Transport::kDatagram || transport == Transport::kRawPacket;
}
inline bool is_reliable(Transport transport) {
  return transport == Transport::kReliable || transport == Transport::kXrcSend ||
         transport == Transport::kXrcReceive;
}
inline bool is_xrc(Transport transport) {
  return transport == Transport::kXrcSend || transport == Transport::kXrcReceive;
}
// What the peer of a queue pair has to be.
inline Transport transport_of_peer(Transport transport) {
  if (transport == Transport::kXrcSend) return Transport::kXrcReceive;
  return transport == Transport::kXrcReceive ? Transport::kXrcSend : transport;
}

inline uint32_t make_qp_number(uint32_t slot, uint32_t index) {
  return slot << kQpIndexBits | index;
}
inline uint32_t slot_of(uint32_t qp_number) { return qp_number >> kQpIndexBits; }
inline uint32_t index_of(uint32_t qp_number) { return qp_number & (kMaxQueuePairs - 1); }

// A key names an entry of the region table and, in its low byte, which of its generations.
inline uint32_t region_index(uint32_t key) { return key >> 8; }

enum class Sharing : uint32_t {
  kMapped = 1,   // peers map the pages of the memory file
  kForeign = 2,  // peers go through the kernel (process_vm_writev and readv)
  kSegment = 3,  // a System V segment of the application: peers attach it, too
};

// Beside ibv_access_flags: the entry is of a memory window.
inline constexpr uint32_t kWindowAccess = 1u << 30;
// In the owner's private table: the owner reaches the region at the program's own address, where it
// may be gone (page_probe.h).
inline constexpr uint32_t kOwnAddressAccess = 1u << 31;
// No pages moved for the region, and none need move back; only its owner's requests fill it.
inline constexpr uint32_t kLeftAccess = 1u << 29;
// The entry is of a region of ibv_alloc_null_mr() (null_region.h).
inline constexpr uint32_t kNullAccess = 1u << 28;
// The domain of the windows that are open to one queue pair only, in one generation of it; those of
// protection domains count from 1.
inline uint32_t window_domain(uint32_t qp_generation) { return 1u << 31 | qp_generation; }

struct alignas(kCacheLineBytes) RegionEntry {
  // (unique count << 32) | key while registered, else 0. Written last at registration and first at
  // deregistration. By the owner; but a peer's SEND_WITH_INV zeroes that of a window.
  std::atomic<uint64_t> stamp;
  std::atomic<uint64_t> iova;
  std::atomic<uint64_t> address;
  std::atomic<uint64_t> length_bytes;
  std::atomic<uint32_t> access;
  std::atomic<uint32_t> domain;
  std::atomic<Sharing> sharing;
  // kSegment: which one, and where in it the region starts.
  std::atomic<int32_t> segment_id;
  std::atomic<uint64_t> segment_offset_bytes;
  // For the owner itself: another address of the same bytes in its process, which stays valid
  // whatever the application does to its own mapping; `address` if there is none.
  std::atomic<uint64_t> alias;
};
static_assert(sizeof(RegionEntry) == kCacheLineBytes);

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t slot;
  int32_t pid;
  int32_t wake_fd;   // pipe of the service thread: a byte asks it for faults and unrung channels
  uint32_t wake_id;  // of that pipe, so that another file under its number is not written to
  // Set by whoever attaches this process and may not copy from it (process_vm_readv).
  std::atomic<uint32_t> copies_refused;
  // Odd while pages of this process move, when the kernel may find nothing where they are.
  alignas(kCacheLineBytes) std::atomic<uint64_t> page_moves;
  // Raised by whoever, in any process, joins or leaves a multicast group.
  alignas(kCacheLineBytes) std::atomic<uint64_t> group_epoch;
  alignas(kCacheLineBytes)
      std::atomic<uint64_t> queue_pairs[kMaxQueuePairs];      // address of QpShared, or 0
  std::atomic<uint64_t> xrc_queues[kMaxSharedReceiveQueues];  // address of XrcShared, or 0
  // The slots of processes that have sent to one of these queues, by themselves; one bit each.
  std::atomic<uint64_t> xrc_senders[kMaxProcesses / 64];
  RegionEntry regions[kMaxMemoryRegions];
};

struct SharedSge {
  uint64_t address;
  uint32_t length_bytes;
  uint32_t lkey;
};

// A posted receive, as senders see it. The first line holds three SGEs, enough for most.
struct alignas(kCacheLineBytes) SharedReceive {
  // Shared receive queues only, see make_claim().
  std::atomic<uint64_t> claim;
  uint32_t sge_count;
  uint32_t length_bytes;  // of all SGEs; kReceiveInvalid if the owner found an SGE that is not
                          // registered
  SharedSge first_sges[3];
};
static_assert(sizeof(SharedReceive) == kCacheLineBytes);
inline constexpr uint32_t kReceiveInvalid = ~0u;

// All SGEs; those behind the first three lie in the lines that follow.
inline SharedSge* sges_of(SharedReceive& receive) {
  return reinterpret_cast<SharedSge*>(reinterpret_cast<std::byte*>(&receive) +
                                      offsetof(SharedReceive, first_sges));
}
inline const SharedSge* sges_of(const SharedReceive& receive) {
  return sges_of(const_cast<SharedReceive&>(receive));
}

inline size_t shared_receive_stride_bytes(uint32_t max_sges) {
  size_t bytes = offsetof(SharedReceive, first_sges) + max_sges * sizeof(SharedSge);
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

// One arrival at a connected queue pair: SEND, or the immediate of a WRITE. Written by the one
// peer. At an XRC shared receive queue: written by whoever took the receive.
inline constexpr uint32_t kPacketInlineBytes = 112;
struct alignas(kCacheLineBytes) Packet {
  uint32_t byte_count;
  uint32_t immediate;
  uint16_t receive_index;  // which WQE of the shared receive queue the sender took
  uint8_t kind;            // PacketKind | kPacketSolicited | kPacketWithImmediate
  uint8_t inline_bytes;    // payload here, not yet in the receive buffer
  std::atomic<uint32_t>
      mark;  // position + 1: this packet is complete; XRC: the receiving queue pair
  std::byte payload[kPacketInlineBytes];
};
static_assert(sizeof(Packet) == 2 * kCacheLineBytes);

enum PacketKind : uint8_t {
  kPacketSend = 1,
  kPacketWrite = 2,            // WRITE_WITH_IMM: the data is in place already
  kPacketLengthError = 3,      // the message is longer than the receive it met
  kPacketProtectionError = 4,  // the receive's memory is not registered (any more)
  kPacketAccessError = 5,      // WRITE_WITH_IMM: the memory of the WRITE is not accessible
  kPacketFlushed = 6,          // XRC: the receiving queue pair failed in the middle of the message
  kPacketKindMask = 0x0f,
  kPacketWithInvalidate = 0x20,  // `immediate` is the key of a window that was shut
  kPacketWithImmediate = 0x40,
  kPacketSolicited = 0x80,
};

inline constexpr uint32_t kNoReadyBit = ~0u;

// What the peer of a connected queue pair needs to deliver to it: a ring of packets that this one
// peer writes, and the receives that are posted to the queue pair itself.
struct ConnectionShared {
  alignas(kCacheLineBytes) uint64_t packets;  // address of Packet[packet_count]
  uint64_t receives;  // address of SharedReceive[receive_count] with receive_stride_bytes; 0 with a
                      // shared queue
  uint32_t packet_count;
  uint32_t receive_count;
  uint32_t receive_stride_bytes;

  // Receives posted so far (low half) and the shortest of them ever (high half), so that one load
  // answers a sender both "is there a receive" and "does this surely fit".
  alignas(kCacheLineBytes) std::atomic<uint64_t> credits;
  // Packets consumed; only kept with a shared receive queue, where credits do not bound the
  // packets.
  alignas(kCacheLineBytes) std::atomic<uint32_t> consumed;
  // Which generation of the peer sends here, 0 before its first operation. Another generation,
  // which would start anew in the middle of the packets, is not let in.
  std::atomic<uint32_t> sender_generation;
};

// What a reliable connection adds: a responder's answers to what it cannot carry out.
struct ReliableShared {
  // How long a sender waits for a receive, from one retry to the next (RNR NAK timer field).
  alignas(kCacheLineBytes) std::atomic<uint32_t> min_rnr_timer;
  // The peer asks for the error state because it broke a rule here: see make_fault().
  std::atomic<uint64_t> fault;
};

// A datagram in the ring of the queue pair that it is sent to. Up to kInlineDatagramBytes of GRH
// and payload lie here, more in the ring's payloads at the same index.
inline constexpr uint32_t kInlineDatagramBytes = 104;
struct alignas(kCacheLineBytes) Datagram {
  std::atomic<uint32_t> mark;    // position + 1: this datagram is complete
  uint32_t receiver_generation;  // which generation of the queue pair its sender meant
  uint32_t source_qp;
  uint32_t immediate;
  uint16_t size_bytes;  // of the payload, without the GRH
  uint8_t flags;        // DatagramFlags
  uint8_t origin;       // make_origin()
  uint32_t reserved;
  std::byte bytes[kInlineDatagramBytes];  // GRH, if there is one, and payload
};
static_assert(sizeof(Datagram) == 2 * kCacheLineBytes);
// Slots for shorter ones lay closer together, and were slower (docs/architecture.md, datagrams).
inline constexpr size_t kDatagramPayloadBytes =
    (kGrhBytes + kMaxDatagramBytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;

static_assert(kMaxFrameBytes <= kDatagramPayloadBytes);

enum DatagramFlags : uint8_t {
  kDatagramWithImmediate = 1,
  kDatagramSolicited = 2,
  kDatagramWithGrh = 4,
};

// Who took a position of the ring: (position << 32) | (queue pair number << 8), and in the low byte
// whether the owner found that its taker had ended. Only senders change it from one position to the
// next.
inline uint64_t make_datagram_claim(uint32_t position, uint32_t qp_number) {
  return static_cast<uint64_t>(position) << 32 | qp_number << 8;
}
inline uint32_t claimed_position(uint64_t claim) { return static_cast<uint32_t>(claim >> 32); }
inline uint32_t claim_taker(uint64_t claim) { return claim >> 8 & 0xffffff; }
inline constexpr uint64_t kClaimVoid = 1;

// A flow of a queue pair of raw packets: which frames it receives, see raw.h. Its owner writes; who
// reads it between two equal even versions has read one flow.
struct FlowShared {
  alignas(kCacheLineBytes) std::atomic<uint64_t> version;
  std::atomic<uint32_t> rank;  // FlowRank, or 0: there is no flow
  // Of the fields of a frame (FrameFields), as words.
  static constexpr uint32_t kWords = 8;
  std::atomic<uint64_t> value[kWords];
  std::atomic<uint64_t> mask[kWords];
};

// What senders of datagrams need: a ring of which each takes the next position by a
// compare-and-swap. A position that is below `voided` plus the receives posted
// (ConnectionShared::credits) and below `retired` plus the ring's size is for them to take; what
// finds none is dropped.
struct DatagramShared {
  alignas(kCacheLineBytes) uint64_t claims;  // address of atomic<uint64_t>[slot_count]
  uint64_t datagrams;                        // address of Datagram[slot_count]
  uint64_t payloads;                         // address of slot_count * kDatagramPayloadBytes
  uint32_t slot_count;
  std::atomic<uint32_t> qkey;
  uint64_t flows;  // of raw packets: address of FlowShared[kMaxFlows]
  // The owner's: positions before this one are done with; those that met no receive.
  alignas(kCacheLineBytes) std::atomic<uint32_t> retired;
  std::atomic<uint32_t> voided;
  // The senders': where the next free position may be. Only saves steps.
  alignas(kCacheLineBytes) std::atomic<uint32_t> next_hint;
};

// An XRC domain, the same in all processes that opened it: the device and inode numbers of its
// file, or, without a file, numbers that no file and no other domain has. Zeros: none.
struct XrcDomainId {
  uint64_t device;
  uint64_t file;
  bool operator==(const XrcDomainId&) const = default;
};
inline constexpr uint64_t kXrcWithoutFile = ~0ull;  // the device of those

// A queue pair as other processes see it. The first part does not depend on the transport.
struct QpShared {
  // Which generation of the queue pair, which peer it accepts and whether it accepts: see
  // make_gate(). One load tells a sender everything that may have changed.
  alignas(kCacheLineBytes) std::atomic<uint64_t> gate;
  std::atomic<uint32_t> access;  // ibv_access_flags for peers
  uint32_t domain;
  // Whose this is now: its memory is used again. Stored before the gate of that one is.
  uint32_t number;
  uint32_t transport;             // Transport
  uint64_t completion_queue;      // address of CqShared
  uint64_t shared_receive_queue;  // address of SrqShared, or 0
  XrcDomainId xrc_domain;         // of one that receives by XRC
  uint32_t ready_bit;  // bit to set in the completion queue after an arrival, or kNoReadyBit
  // Odd while the owner, as an initiator, touches its peer's memory. Whoever takes something away
  // from peers waits for it to move; long copies move it on as they go.
  alignas(kCacheLineBytes) std::atomic<uint64_t> in_flight;

  ConnectionShared connection;
  ReliableShared reliable;
  DatagramShared datagram;
};

// No gate's value, not even that of memory that is gone and reads as zero.
inline constexpr uint64_t kNoGate = ~0ull;
inline uint64_t make_gate(uint32_t generation, uint32_t peer_qp_number, ibv_qp_state state) {
  return static_cast<uint64_t>(generation) << 32 | peer_qp_number << 8 |
         static_cast<uint32_t>(state);
}

// The queue pair number that a gate accepts; 0: none.
inline uint32_t gate_peer(uint64_t gate) { return gate >> 8 & 0xffffff; }

// Which generation of the queue pair is at fault (so that a later one is not), and the event to
// raise.
inline uint64_t make_fault(uint32_t generation, ibv_event_type event) {
  return static_cast<uint64_t>(generation) << 32 | static_cast<uint32_t>(event);
}

struct CqShared {
  // 0, kArmedSolicited, kArmedAny, or that a sender is writing the event: see make_ringing().
  alignas(kCacheLineBytes) std::atomic<uint32_t> armed;
  uint32_t has_channel;
  int32_t channel_fd;   // of the owner's process
  uint32_t channel_id;  // of that pipe, so that a reused descriptor is not mistaken
  uint64_t cookie;      // what an event carries
  alignas(kCacheLineBytes) std::atomic<uint64_t> ready_bits[kMaxQueuePairs / 64];
};

// Tells a completion queue, after a packet was published, at which queue pair it is. A bit that is
// set already costs its line no transfer.
inline void set_ready_bit(CqShared& queue, uint32_t bit) {
  std::atomic<uint64_t>& bits = queue.ready_bits[bit / 64];
  const uint64_t mask = 1ull << (bit % 64);
  // Store-load: either we see the bit clear, or the poll that clears it sees the packet.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if ((bits.load(std::memory_order_relaxed) & mask) == 0)
    bits.fetch_or(mask, std::memory_order_acq_rel);
}

inline constexpr uint32_t kArmedSolicited = 1;
inline constexpr uint32_t kArmedAny = 2;

// A sender disarms a queue, writes the event, and only then leaves 0, so that the event is not lost
// with a sender that is killed or stopped in between, or has no descriptor to write it: whoever has
// another event, or learns of the death, or is the owner that the sender wakes, writes one. So
// there may be one event more than were asked for. `number` tells apart who rings.
inline constexpr uint32_t make_ringing(uint64_t number) {
  return static_cast<uint32_t>(number << 2) | kArmedSolicited | kArmedAny;
}
inline constexpr bool is_ringing(uint32_t armed) {
  return (armed & (kArmedSolicited | kArmedAny)) == (kArmedSolicited | kArmedAny);
}

// A shared receive queue: a ring of indexes of receive WQEs in posting order. A sender takes the
// WQE at `head` by marking it with a queue pair number; anyone may then move `head` on. So a WQE
// whose taker died is found.
struct SrqShared {
  alignas(kCacheLineBytes) std::atomic<uint64_t> head;
  alignas(kCacheLineBytes) std::atomic<uint64_t> tail;
  uint64_t ring;      // address of atomic<uint64_t>[ring_count]: (position << 16) | index
  uint64_t receives;  // address of SharedReceive[receive_count]
  uint32_t ring_count;
  uint32_t receive_count;
  uint32_t receive_stride_bytes;
  uint32_t domain;
};
static_assert(kMaxQueueWrs <= 1u << 16);

// What an XRC shared receive queue has besides: senders of many connections deliver into it, each
// having taken a receive. The packet of an arrival lies at the index of its receive; which have
// arrived stands in a ring, in which one compare-and-swap takes a place and fills it. So a sender
// that dies leaves no hole in it. There are places for all receives: the owner frees the place of
// an arrival before it posts the receive again.
struct XrcShared {
  SrqShared queue;
  // (unique count << 32) | number of the queue while it is there, else 0.
  alignas(kCacheLineBytes) std::atomic<uint64_t> stamp;
  XrcDomainId domain;
  uint64_t completion_queue;  // address of CqShared
  uint64_t arrivals;          // address of atomic<uint64_t>[queue.ring_count]: see below
  uint64_t packets;           // address of Packet[queue.receive_count]
  // The senders': the next free place, which anyone may move on when it is filled.
  alignas(kCacheLineBytes) std::atomic<uint64_t> next;
};

inline uint64_t make_free_place(uint64_t position) { return position << 17; }
inline uint64_t make_arrival(uint64_t position, uint16_t receive_index) {
  return position << 17 | 1u << 16 | receive_index;
}

// Of a shared receive: the queue pair number is 0 while it is free to take. Else it is that of the
// receiving queue pair, whatever its senders were before and are later; or, of XRC, the sender's.
inline uint64_t make_claim(uint64_t position, uint32_t qp_number) {
  return position << 24 | qp_number;
}
inline uint32_t marked_number(uint64_t claim) { return static_cast<uint32_t>(claim & 0xffffff); }

}  // namespace verbena::soft
