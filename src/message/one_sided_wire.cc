#include "src/message/one_sided_wire.h"

namespace verbena::message {
namespace {

template <typename Part>
bool add_up_to(uint64_t bytes, const Part* parts, uint32_t count) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < count; ++i) {
    if (parts[i].bytes > bytes - total) return false;
    total += parts[i].bytes;
  }
  return total == bytes;
}

bool is_possible(const OneSidedMessage& message, uint32_t room_bytes) {
  const OneSidedHeader& header = message.header;
  switch (header.action) {
    case OneSidedAction::kPut:
      return header.pieces == 0 && message.body_bytes == header.bytes;
    case OneSidedAction::kGet:
      return message.body_bytes == 0 && header.bytes <= one_sided_room_bytes(room_bytes) &&
             (header.pieces == 0 || add_up_to(header.bytes, message.pieces, header.pieces));
    case OneSidedAction::kFetch:
    case OneSidedAction::kStore:
      return message.body_bytes == 0 && header.bytes > 0 &&
             add_up_to(header.bytes, message.pieces, header.pieces);
    case OneSidedAction::kAtomic:
    case OneSidedAction::kFetchingAtomic:
      // What only reads has an answer.
      return header.pieces == 0 && has_atomic(message.type(), message.operation()) &&
             (message.operation() != AtomicOperation::kRead ||
              header.action == OneSidedAction::kFetchingAtomic) &&
             header.bytes <= atomic_room_bytes(room_bytes) &&
             header.bytes % atomic_bytes(message.type()) == 0 &&
             message.body_bytes == operand_bytes(message.operation(), header.bytes);
  }
  return false;
}

}  // namespace

bool parse_one_sided(const ParsedMessage& message, uint32_t room_bytes, OneSidedMessage* parsed) {
  OneSidedHeader& header = parsed->header;
  if (message.bytes < sizeof(header)) return false;
  copy_bytes(&header, message.payload, sizeof(header));
  if (header.ranges > kMaxPieces || header.pieces > kMaxPieces) return false;
  const uint32_t range_bytes = header.ranges * static_cast<uint32_t>(sizeof(RemoteRange));
  const uint32_t piece_bytes = header.pieces * static_cast<uint32_t>(sizeof(RemotePiece));
  const uint32_t before_body = static_cast<uint32_t>(sizeof(header)) + range_bytes + piece_bytes;
  if (message.bytes < before_body) return false;
  copy_bytes(parsed->ranges, message.payload + sizeof(header), range_bytes);
  copy_bytes(parsed->pieces, message.payload + sizeof(header) + range_bytes, piece_bytes);
  parsed->body = message.payload + before_body;
  parsed->body_bytes = message.bytes - before_body;
  return add_up_to(header.bytes, parsed->ranges, header.ranges) && is_possible(*parsed, room_bytes);
}

char* put_one_sided(char* to, const OneSidedHeader& header, std::span<const RemoteRange> ranges,
                    std::span<const RemotePiece> pieces) {
  copy_bytes(to, &header, sizeof(header));
  to += sizeof(header);
  if (!ranges.empty()) copy_bytes(to, ranges.data(), ranges.size_bytes());
  to += ranges.size_bytes();
  if (!pieces.empty()) copy_bytes(to, pieces.data(), pieces.size_bytes());
  return to + pieces.size_bytes();
}

}  // namespace verbena::message
