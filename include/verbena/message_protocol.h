// How messages travel to a peer: what may be asked for, why it is so, and how many did.
#pragma once

#include <cstdint>
#include <string>

namespace verbena {

// How messages beyond eager_limit_bytes() travel.
enum class LongMessages : uint8_t {
  kAutomatic,  // as it is estimated to take least, with what has to be registered first
  kRead,       // the receiver READs them from the sender's memory
  kWrite,      // the sender WRITEs them into the receiver's
  kPipelined,  // in chunks, copied at both ends: nothing is registered
};

enum class MessageProtocol : uint8_t { kToSelf, kEager, kRead, kWrite, kPipelined };
const char* message_protocol_name(MessageProtocol protocol);

// What send() would do now with a message.
struct MessageExplanation {
  MessageProtocol protocol = MessageProtocol::kEager;
  bool by_ring = false;  // its first message goes by WRITE into a ring, else by SEND
  std::string text;      // one line: protocol, channel, thresholds, state of the buffer, and why
};

// Of messages to one peer, and from it.
struct PeerStatistics {
  uint64_t eager_by_ring = 0;   // sent by WRITE into a ring that the peer polls
  uint64_t eager_by_queue = 0;  // sent by SEND
  // Long messages, by what became of them.
  uint64_t read = 0;
  uint64_t written = 0;
  uint64_t pipelined = 0;
  uint64_t sent_bytes = 0;  // of all these, as the user counts them
  uint64_t credit_waits =
      0;  // sends that found neither channel with a credit, and would have blocked
  uint64_t unexpected = 0;  // messages from the peer that came before their receive
};

}  // namespace verbena
