// What one-sided operations are on the wire: the payload of Kind::kOneSided and of Kind::kAnswer.
//
//   | action (1) | type (1) | operation (1) | ranges (1) | pieces (1) | 0 (3) | bytes (8) |
//   | RemoteRange, for each range | RemotePiece, for each piece | bytes: put, operands, compared |
//
//   | outcome (8) | bytes: got, values before |
//
// The header's tag is the initiator's operation. A request is read once, and checked here: its
// ranges have `bytes` together, and so have its pieces; lengths are those that its action has.
#pragma once

#include <cstdint>
#include <span>

#include "src/message/message_header.h"
#include "verbena/data_path.h"
#include "verbena/message.h"

namespace verbena::message {

enum class OneSidedAction : uint8_t {
  kPut = 1,  // the bytes follow
  kGet,      // they are in the answer; or, with pieces, the target may WRITE them there before it
  kFetch,    // a long put: the target READs the pieces
  kStore,    // a long get: the target WRITEs them
  kAtomic,
  kFetchingAtomic,
};

struct OneSidedHeader {
  OneSidedAction action = OneSidedAction::kPut;
  uint8_t type = 0;       // of atomics
  uint8_t operation = 0;  // the same
  uint8_t ranges = 0;
  uint8_t pieces = 0;
  uint8_t unused[3] = {};
  uint64_t bytes = 0;
};
static_assert(sizeof(OneSidedHeader) == 16);

inline constexpr uint32_t kAnswerHeaderBytes = sizeof(uint64_t);

// What is left of a message for bytes, whatever else it has.
constexpr uint32_t one_sided_room_bytes(uint32_t room_bytes) {
  return room_bytes - kMaxHeaderBytes - static_cast<uint32_t>(sizeof(OneSidedHeader)) -
         kMaxPieces * static_cast<uint32_t>(sizeof(RemoteRange));
}
// Of one of operands and compared values; whole values of any type.
constexpr uint32_t atomic_room_bytes(uint32_t room_bytes) {
  constexpr uint32_t kLongestValue = 32;
  return one_sided_room_bytes(room_bytes) / 2 / kLongestValue * kLongestValue;
}

// A request taken apart.
struct OneSidedMessage {
  OneSidedHeader header;
  RemoteRange ranges[kMaxPieces];
  RemotePiece pieces[kMaxPieces];
  const char* body = nullptr;
  uint64_t body_bytes = 0;

  std::span<const RemoteRange> all_ranges() const { return {ranges, header.ranges}; }
  bool is_atomic() const { return header.action >= OneSidedAction::kAtomic; }
  AtomicType type() const { return static_cast<AtomicType>(header.type); }
  AtomicOperation operation() const { return static_cast<AtomicOperation>(header.operation); }
};

// Bytes of operands and compared values that an atomic on `bytes` brings along.
constexpr uint64_t operand_bytes(AtomicOperation operation, uint64_t bytes) {
  if (operation == AtomicOperation::kRead) return 0;
  return compares(operation) ? 2 * bytes : bytes;
}

// False: no messenger sends this. `room_bytes` bounds the answer, too.
bool parse_one_sided(const ParsedMessage& message, uint32_t room_bytes, OneSidedMessage* parsed);

// Writes all but the body, and returns where that begins.
char* put_one_sided(char* to, const OneSidedHeader& header, std::span<const RemoteRange> ranges,
                    std::span<const RemotePiece> pieces);

}  // namespace verbena::message
