// What the connection managers of two processes tell each other: one packet of a Unix socket each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace verbena::soft::cm {

enum class MessageType : uint16_t {
  kConnectRequest = 1,   // REQ
  kRequestReceived = 2,  // MRA: the program there has it, and takes its time
  kConnectReply = 3,     // REP
  kReadyToUse = 4,       // RTU
  kReject = 5,           // REJ, before a connection is established
  kDisconnect = 6,       // DREQ; needs no answer, since the end of a socket reaches its peer
  kDatagramRequest = 7,  // SIDR_REQ
  kDatagramReply = 8,    // SIDR_REP
};

inline constexpr uint32_t kMessageMagic = 0x31636276;  // changes with the layout below
inline constexpr size_t kPrivateDataBytes = 256;

struct Message {
  uint32_t magic;
  MessageType type;
  uint16_t port_space;
  uint32_t source_id;  // of the sender; never 0
  uint32_t target_id;  // of the receiver, which a request finds in the port's file
  // Of requests: sockaddr_in or sockaddr_in6.
  std::array<uint8_t, 28> source_address;
  std::array<uint8_t, 28> target_address;
  uint32_t queue_pair_number;
  uint32_t queue_key;
  uint32_t packet_number;  // the first one that the sender uses
  uint32_t reason;         // of rejects, and of replies for datagrams: 0 is success
  uint32_t ece_vendor;
  uint32_t ece_options;
  uint8_t responder_resources;
  uint8_t initiator_depth;
  uint8_t flow_control;
  uint8_t retry_count;
  uint8_t rnr_retry_count;
  uint8_t has_shared_receive_queue;
  uint8_t queue_pair_type;
  uint8_t reserved;
  std::array<uint8_t, kPrivateDataBytes> private_data;  // zeros behind what the program gave
};
static_assert(sizeof(Message) == 360);

// The bytes of a packet as a message. False if no connection manager of this release sends such:
// another size, layout or type, or values that do not fit their purpose. `message` is then
// undefined.
bool read_message(std::span<const std::byte> packet, Message& message);

}  // namespace verbena::soft::cm
