// What is in front of every message on the wire.
//
//   | sequence (4) | kind (1) | flags (1) | ring credits (1) | queue credits (1) |
//   | tag (8), without kSameTag | data (8), with kHasData | operation (8), with kWantsFinish |
//   | the kind's own | payload |
//
// **The header cache** ("bufreuse" 3.1): both sides of a connection keep the tag of its last eager
// message, in the order of all messages. The next one with the same tag leaves it out.
//
// Read once from the slot or receive, and only then looked at: the peer may write there at any
// time.
#pragma once

#include <bit>
#include <cstdint>

#include "verbena/data_path.h"

namespace verbena::message {

enum class Kind : uint8_t {
  kEager = 1,   // payload: the message
  kRendezvous,  // payload: RemoteMemory: how long the message is, and how it is to travel
  kFinish,      // tag: the operation of the receiver of this that is done; out of order
  kCredits,     // nothing else; by SEND without a sequence number, and without a credit
  kRingOffer,   // tag: address of a ring that its receiver polls; data: its key
  kRingLeave,   // it is not going to be polled any more
  kRingLeft,    // and not to be written any more; never comes by the ring
  kOneSided,    // tag: an operation of its sender, which the receiver carries out and answers
  // Of long messages, out of order, as kFinish:
  kTarget = 16,  // tag: the operation of the receiver of this; payload: Target, where it goes
  kChunk,        // tag: the transfer of the receiver of this; payload: its next bytes
  kWritten,      // tag: the transfer of the receiver of this, all of which has been written
  kAnswer,       // of kOneSided; tag: the operation of the receiver of this
};

// What its receiver uses when it comes, whatever waits before it.
constexpr bool is_out_of_order(Kind kind) {
  return kind == Kind::kFinish || kind == Kind::kCredits ||
         (kind >= Kind::kTarget && kind <= Kind::kAnswer);
}
// Of these, what may come by the ring, where it has a number, too: then nothing of the ring is left
// behind when the peer says, with a later number, that it has left it.
constexpr bool is_early_of_ring(Kind kind) {
  return kind == Kind::kFinish || kind == Kind::kAnswer || kind == Kind::kTarget ||
         kind == Kind::kWritten || kind == Kind::kCredits;
}
constexpr bool is_known(Kind kind) {
  return (kind >= Kind::kEager && kind <= Kind::kOneSided) ||
         (kind >= Kind::kTarget && kind <= Kind::kAnswer);
}

enum HeaderFlags : uint8_t {
  kHasData = 1 << 0,
  kUntagged = 1 << 1,
  kWantsFinish = 1 << 2,
  kFailed = 1 << 3,   // of kFinish
  kSameTag = 1 << 4,  // of kEager: that of the one before
};
inline constexpr uint8_t kKnownFlags = 31;

struct MessageHeader {
  uint32_t sequence = 0;
  Kind kind = Kind::kEager;
  uint8_t flags = 0;
  uint8_t ring_credits = 0;
  uint8_t queue_credits = 0;
  uint64_t tag = 0;
};
static_assert(sizeof(MessageHeader) == 16);
inline constexpr uint32_t kTagOffset = 8;

inline constexpr uint32_t kMaxHeaderBytes = sizeof(MessageHeader) + 2 * sizeof(uint64_t);
inline constexpr uint32_t kMaxPieces = 4;

struct RemotePiece {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint32_t rkey = 0;
  uint32_t unused = 0;
};
// How a long message travels; part of the wire.
enum class Method : uint32_t {
  kRead = 0,       // the receiver READs it from the sender's memory
  kWrite = 1,      // the sender WRITEs it into the receiver's
  kPipelined = 2,  // in chunks, by way of the buffers of SENDs: no user's memory is registered
};
inline constexpr uint32_t kMethods = 3;

struct RemoteMemory {
  uint64_t bytes = 0;
  uint32_t count = 0;  // of pieces: to READ from, or to WRITE into; else 0
  Method method = Method::kRead;
  RemotePiece pieces[kMaxPieces] = {};
};
// The answer to a request that the receiver does not READ.
struct Target {
  uint64_t transfer = 0;  // what the receiver calls it
  RemoteMemory memory;    // bytes: as many as the receiver has room for
};

// A message taken apart.
struct ParsedMessage {
  MessageHeader header;
  uint64_t data = 0;
  uint64_t operation = 0;
  const char* payload = nullptr;
  uint32_t bytes = 0;  // of the payload
};

// False: it is shorter than it says, or has flags or a kind that no sender makes. With kSameTag the
// tag is what it was.
inline bool parse(const char* message, uint32_t bytes, ParsedMessage* parsed) {
  if (bytes < kTagOffset) return false;
  MessageHeader& header = parsed->header;
  copy_bytes(&header, message, kTagOffset);
  if (!is_known(header.kind) || (header.flags & ~kKnownFlags) != 0) return false;
  uint32_t at = kTagOffset;
  if ((header.flags & kSameTag) == 0) {
    at = sizeof(MessageHeader);
    if (bytes < at) return false;
    copy_bytes(&header.tag, message + kTagOffset, sizeof(header.tag));
  } else if (header.kind != Kind::kEager) {
    return false;
  }
  if ((header.flags & kHasData) != 0) {
    if (bytes < at + sizeof(uint64_t)) return false;
    copy_bytes(&parsed->data, message + at, sizeof(uint64_t));
    at += sizeof(uint64_t);
  }
  if ((header.flags & kWantsFinish) != 0) {
    if (bytes < at + sizeof(uint64_t)) return false;
    copy_bytes(&parsed->operation, message + at, sizeof(uint64_t));
    at += sizeof(uint64_t);
  }
  parsed->payload = message + at;
  parsed->bytes = bytes - at;
  return true;
}

// Writes the header, and returns where the payload begins. In whole words: see RingMark::seal().
inline char* put_header(char* to, const MessageHeader& header, uint64_t data, uint64_t operation) {
  static_assert(std::endian::native == std::endian::little);
  const uint64_t first = uint64_t{header.sequence} |
                         uint64_t{static_cast<uint8_t>(header.kind)} << 32 |
                         uint64_t{header.flags} << 40 | uint64_t{header.ring_credits} << 48 |
                         uint64_t{header.queue_credits} << 56;
  copy_bytes(to, &first, sizeof(first));
  to += kTagOffset;
  if ((header.flags & kSameTag) == 0) {
    copy_bytes(to, &header.tag, sizeof(header.tag));
    to += sizeof(header.tag);
  }
  if ((header.flags & kHasData) != 0) {
    copy_bytes(to, &data, sizeof(data));
    to += sizeof(data);
  }
  if ((header.flags & kWantsFinish) != 0) {
    copy_bytes(to, &operation, sizeof(operation));
    to += sizeof(operation);
  }
  return to;
}

}  // namespace verbena::message
