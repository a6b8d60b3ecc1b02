#include "tests/soft_model/plan.h"

#include <algorithm>

#include "src/base/runtime.h"

namespace verbena::soft_model {

uint32_t size_of(const Request& request) {
  uint32_t size_bytes = 0;
  for (const Piece& piece : request.pieces) size_bytes += piece.length_bytes;
  return size_bytes;
}

bool is_signaled(const Request& request) {
  return (request.flags & IBV_SEND_SIGNALED) != 0 || request.status != IBV_WC_SUCCESS;
}

uint32_t capacity_of(const Life& life, uint32_t end, uint64_t number) {
  if (end == kNobody) return life.message_bytes + kGrhBytes;
  if (life.ends[end].type == IBV_QPT_UD) return life.message_bytes + kGrhBytes;
  Random random(life.seed ^ (uint64_t{end} << 40) ^ (number * 0x9e3779b97f4a7c15));
  const uint64_t kind = random.below(8);
  if (kind == 0) return 0;
  if (kind <= 2) return static_cast<uint32_t>(random.below(200));
  if (kind == 3) return life.message_bytes;
  return 1 + static_cast<uint32_t>(random.below(life.message_bytes));
}

Receive receive_of(const Life& life, uint32_t member, uint32_t end, uint64_t number,
                   uint32_t slot) {
  Receive receive{.capacity_bytes = capacity_of(life, end, number)};
  Random random(life.seed ^ (uint64_t{member} << 32) ^ (uint64_t{end} << 36) ^ number);
  uint64_t at =
      (end == kNobody ? life.members[member].shared_receives : life.ends[end].places.receives) +
      uint64_t{slot} * life.slot_bytes;
  uint32_t left = receive.capacity_bytes;
  while (left > 0) {
    const bool is_last = receive.pieces.size() + 1 == kMaxPieces || random.below(3) == 0;
    const auto length_bytes = is_last ? left : static_cast<uint32_t>(random.below(left + 1));
    receive.pieces.push_back({at, length_bytes});
    at += length_bytes + random.below(4);
    left -= length_bytes;
  }
  return receive;
}

}  // namespace verbena::soft_model
