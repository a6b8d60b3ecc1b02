// How messages travel to a peer: what may be asked for, why it is so, and how many did.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/device.h"
#include "verbena/status.h"

namespace verbena {

struct MessengerOptions;

// How messages beyond eager_limit_bytes() travel.
enum class LongMessages : uint8_t {
  kAutomatic,  // as it is estimated to take least, with what has to be registered first
  kRead,       // the receiver READs them from the sender's memory
  kWrite,      // the sender WRITEs them into the receiver's
  kPipelined,  // in chunks, copied at both ends: nothing is registered
};

// Where the device takes the bytes of messages up to eager_limit_bytes() and of short puts from,
// and where it places those of short gets ("bufreuse" 3). A buffer that is used often enough is
// registered, and no longer copied; all others are, as are messages in several pieces.
enum class ReusedBuffers : uint8_t {
  kCopied,    // all of them
  kMeasured,  // once a registration pays, by what it, a copy and a look-up cost here: measured when
              // the messenger is opened, which takes some milliseconds
  kPaper,     // after as many uses as paid on the paper's machines (its table 2)
};

// What used buffers are found by: the paper compares them (its figure 3), and takes the hash table.
enum class ReusedIndex : uint8_t { kHash, kTree };

enum class MessageProtocol : uint8_t { kToSelf, kEager, kRead, kWrite, kPipelined };
const char* message_protocol_name(MessageProtocol protocol);

// What send() would do now with a message.
struct MessageExplanation {
  MessageProtocol protocol = MessageProtocol::kEager;
  bool by_ring = false;   // its first message goes by WRITE into a ring, else by SEND
  bool gathered = false;  // kEager: by the device from the user's memory, without a copy
  std::string text;       // one line: protocol, channel, thresholds, state of the buffer, and why
};

// What a message would take by one protocol: the time until it is in the receiver's memory, if
// nothing else is on its way.
struct MessageEstimate {
  MessageProtocol protocol = MessageProtocol::kEager;
  bool by_ring = false;         // of kEager: by WRITE into a ring, else by SEND
  bool usable = false;          // at this size, with these options
  bool of_this_device = false;  // else only order and proportion mean something
  double again_ns = 0;          // from memory that is used again
  double first_ns = 0;          // from memory that is used once
  std::string why;              // one line
};
// Of every protocol, before there is any messenger: those that can be used first, the cheapest for
// memory that is used again at the head. Control path.
//   kInvalidArgument  an option out of range
Result<std::vector<MessageEstimate>> estimate_message(const DeviceInfo& device,
                                                      const MessengerOptions& options,
                                                      uint64_t bytes);

// Of messages to one peer, and from it.
struct PeerStatistics {
  uint64_t eager_by_ring = 0;   // sent by WRITE into a ring that the peer polls
  uint64_t eager_by_queue = 0;  // sent by SEND
  uint64_t gathered = 0;        // of these and of puts: from the user's memory, without a copy
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
