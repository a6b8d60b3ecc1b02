// The marks of a ring's messages: flags at head and tail with two values ("mpiiba" 4.2), and the
// lap.
//
//   slot:  | size (4 bytes) | lap (3) | head flag | payload, padded | tail flag |
//                                                                     ^ last of a word
//
// As in channel/head_tail_mark.h: the receiver polls the head, reads the size, and takes the
// message once the tail flag equals the head flag. The tail's place still holds something of an
// earlier message, which the sender knows, because its slot holds the same bytes: so it takes the
// flag value that is not there.
//
// There the receiver clears the head after use. Here the head says in which lap around the ring it
// was sent, so what lies there of the lap before is no message, and the receiver never writes into
// the ring. Clearing would take the line away from the sender once more, and hold up all that the
// receiver stores next, its answer too, since stores leave a CPU in order.
#pragma once

#include <cstdint>
#include <cstring>

#include "src/base/assert.h"
#include "src/channel/completion_mark.h"
#include "src/memory/arena.h"
#include "verbena/data_path.h"

namespace verbena::message {

struct RingMark {
  static constexpr uint32_t kPayloadOffset = channel::kWordBytes;
  // Slots are zero before the first lap.
  static constexpr uint32_t kFirstLap = 1;
  static constexpr uint32_t lap_after(uint32_t lap) { return (lap + 1) & kLapMask; }

  static constexpr channel::SlotShape shape(uint32_t capacity_bytes) {
    return {capacity_bytes, round_up<uint32_t>(sealed_bytes(capacity_bytes), kCacheLineBytes)};
  }
  // How many bytes travel for a payload of `bytes`: from the slot's start to behind the tail flag.
  static constexpr uint32_t sealed_bytes(uint32_t bytes) {
    return kPayloadOffset + round_up(bytes + 1, channel::kWordBytes);
  }

  // Whole words are stored, as the device loads them again: a load of several stores waits until
  // they have reached the cache.
  static void seal(char* slot, const channel::SlotShape& shape, uint32_t bytes, uint32_t lap) {
    VERBENA_DEBUG_ASSERT(bytes <= shape.capacity_bytes && lap <= kLapMask);
    static_cast<void>(shape);
    char* const last = slot + sealed_bytes(bytes) - channel::kWordBytes;
    uint64_t tail;
    std::memcpy(&tail, last, sizeof(tail));  // NOLINT(conventions): no copy
    const uint64_t flag = tail >> kFlagShift == kPrimary ? kSecondary : kPrimary;
    store_word(last, (tail & ~kFlagBits) | flag << kFlagShift);
    store_word(slot, flag << kFlagShift | uint64_t{lap} << kLapShift | bytes);
  }

  // The word with the tail flag of a message of `bytes`, from the slot's start on.
  static constexpr uint32_t tail_offset(uint32_t bytes) {
    return sealed_bytes(bytes) - channel::kWordBytes;
  }
  // As if the last message there had ended with the tail flag 0.
  static void clear_tail(char* slot, uint32_t bytes) {
    char* const last = slot + tail_offset(bytes);
    uint64_t tail;
    std::memcpy(&tail, last, sizeof(tail));  // NOLINT(conventions): no copy
    store_word(last, tail & ~kFlagBits);
  }

  static bool is_empty(const char* slot, uint32_t lap) {
    return channel::has_no_header(slot, kLapBits, uint64_t{lap} << kLapShift);
  }
  static channel::Probe probe(const char* slot, const channel::SlotShape& shape, uint32_t lap) {
    const uint64_t wanted = uint64_t{lap} << kLapShift;
    const uint64_t head = channel::poll_header(slot, kLapBits, wanted);
    if ((head & kLapBits) != wanted) return {};
    const uint64_t flag = head >> kFlagShift;
    const auto bytes = static_cast<uint32_t>(head);
    if ((flag != kPrimary && flag != kSecondary) || bytes > shape.capacity_bytes) [[unlikely]]
      return {.arrival = channel::Arrival::kViolation};
    const char* const last_byte = slot + sealed_bytes(bytes) - 1;
    if (poll_mark(last_byte, static_cast<uint8_t>(flag)) != flag) return {};
    return {channel::Arrival::kMessage, bytes, slot + kPayloadOffset};
  }

 private:
  static constexpr uint64_t kPrimary = 0x5a;
  static constexpr uint64_t kSecondary = 0xc3;
  static constexpr int kLapShift = 32;
  static constexpr int kFlagShift = 56;
  static constexpr uint32_t kLapMask = (1u << (kFlagShift - kLapShift)) - 1;
  static constexpr uint64_t kLapBits = uint64_t{kLapMask} << kLapShift;
  static constexpr uint64_t kFlagBits = uint64_t{0xff} << kFlagShift;
};

}  // namespace verbena::message
