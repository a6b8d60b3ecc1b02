// Completion marks: how the receiver of a WRITE tells a whole message in the memory it polls from
// none and from half of one.
//
// A message lies in a slot: memory of the same shape on both sides, bound to each other for the
// life of the connection ("mpiiba" 3.2). The sender seals the payload in its slot, which adds the
// mark, and writes the sealed bytes to the peer's slot; the receiver probes its slot until the mark
// is there. All three layouts rest on one property of the device, DeviceInfo::writes_in_order: the
// bytes of a WRITE become visible in address order, at least its last 8 bytes after all others. So
// the byte that decides is the last one of the message.
//
// Devices and CPUs place whole aligned 8-byte words. Every layout therefore pads the message so
// that its last byte is the last byte of such a word: no mark straddles two cache lines.
//
// A peer can write whatever it likes into the slot. Lengths are read once and checked against the
// slot before use; a mark that no sender makes is a violation, never undefined behaviour.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>

#include "src/base/sanitizer.h"
#include "src/memory/arena.h"
#include "verbena/data_path.h"

namespace verbena::channel {

static_assert(std::endian::native == std::endian::little,
              "the marks are words whose last byte in memory is the highest");

inline constexpr uint32_t kWordBytes = 8;

// How large the payloads and the slots of one direction are. Slots start at cache lines.
struct SlotShape {
  uint32_t capacity_bytes;  // largest payload
  uint32_t slot_bytes;      // distance from one slot to the next
};

// The bytes of a sealed message in the sender's slot, and where in the peer's slot they belong.
struct Sealed {
  uint32_t local_offset;
  uint32_t remote_offset;
  uint32_t bytes;
};

enum class Arrival : uint8_t { kNone, kMessage, kViolation };

struct Probe {
  Arrival arrival = Arrival::kNone;
  uint32_t bytes = 0;
  const char* payload = nullptr;  // aligned to 8 bytes
};

// Polls the word at a slot's start, for layouts that find the last byte by it. The device may be
// writing it, and nothing but where the last byte lies is concluded from it. So this race is meant;
// only ThreadSanitizer has to be told. The second form is poll_bits(), the third has_no_bits().
#if VERBENA_THREAD_SANITIZER
__attribute__((noinline, no_sanitize("thread"))) inline uint64_t load_header(const char* slot) {
  asm volatile("" ::: "memory");
  return *reinterpret_cast<const uint64_t*>(slot);  // NOLINT(conventions)
}
inline uint64_t poll_header(const char* slot) {
  const uint64_t head = load_header(slot);
  verbena::internal::count_poll(head != 0);
  return head;
}
inline uint64_t poll_header(const char* slot, uint64_t mask, uint64_t wanted) {
  const uint64_t head = load_header(slot);
  verbena::internal::count_poll((head & mask) == wanted);
  return head;
}
inline bool has_no_header(const char* slot, uint64_t mask, uint64_t wanted) {
  const bool empty = (load_header(slot) & mask) != wanted;
  if (empty) verbena::internal::count_poll(false);
  return empty;
}
#else
inline uint64_t poll_header(const char* slot) {
  return poll_word(reinterpret_cast<const uint64_t*>(slot));
}
inline uint64_t poll_header(const char* slot, uint64_t mask, uint64_t wanted) {
  return poll_bits(reinterpret_cast<const uint64_t*>(slot), mask, wanted);
}
inline bool has_no_header(const char* slot, uint64_t mask, uint64_t wanted) {
  return has_no_bits(reinterpret_cast<const uint64_t*>(slot), mask, wanted);
}
#endif

// clang-format off
template <typename Mark>
concept CompletionMark = requires(char* slot, const char* polled, const SlotShape& shape, uint32_t bytes) {
  // The shape of slots for payloads of up to `bytes`.
  { Mark::shape(bytes) } -> std::same_as<SlotShape>;
  // Sender: where the payload begins in its slot, a multiple of 8.
  { Mark::kPayloadOffset } -> std::convertible_to<uint32_t>;
  // Sender: completes the message around a payload that lies in place.
  { Mark::seal(slot, shape, bytes) } -> std::same_as<Sealed>;
  // Receiver: whether a whole message is there.
  { Mark::probe(polled, shape) } -> std::same_as<Probe>;
  // Receiver: makes the slot ready for the next message, after one of `bytes`. Must be done before
  // the sender may use the slot again.
  { Mark::clear(slot, shape, bytes) } -> std::same_as<void>;
  // How many bytes travel for a payload of `bytes`, and how many clear() touches.
  { Mark::sealed_bytes(bytes) } -> std::same_as<uint32_t>;
  { Mark::cleared_bytes(bytes) } -> std::same_as<uint32_t>;
  // Receiver: whether the payload survives clear(), so that it can be called at once.
  { Mark::kClearKeepsPayload } -> std::convertible_to<bool>;
};
// clang-format on

}  // namespace verbena::channel
