// What clients and server of the lock service send each other; all numbers as the machine has them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "verbena/data_path.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::lock_service {

// Over the control connection, by the server, once a client is connected.
inline constexpr uint32_t kGreetingType = 0x6c6f636b;  // "lock"
struct Greeting {
  uint32_t version = 1;  // raised with every change of what follows
  uint32_t locks = 0;
  uint32_t sequencers = 0;
  uint32_t reserved = 0;
  uint64_t lease_ns = 0;
};

// Calls. A refused one is answered with a text that says why.
enum LockCallType : uint16_t { kSwap = 1, kAdd = 2 };
// Of requests and responses: room for such a text.
inline constexpr uint32_t kSlotBytes = 256;

// Of the options. Besides those that are posted, a client makes one call that it waits for.
inline Status check_pending(uint32_t pending) {
  constexpr uint32_t kMost = kMaxPending - 1;
  if (pending <= kMost) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument, "pending is " + std::to_string(pending) +
                                                  "; choose at most " + std::to_string(kMost));
}

struct SwapRequest {
  uint64_t lock = 0;
  uint64_t expected = 0;
  uint64_t desired = 0;
};
struct AddRequest {
  uint64_t sequencer = 0;
  uint64_t count = 0;
};
// Of both.
struct NumberResponse {
  uint64_t before = 0;
};

template <typename T>
std::span<const char> bytes_of(const T& message) {
  return {reinterpret_cast<const char*>(&message), sizeof(T)};
}
// False: it has another size. The bytes may be in memory that the peer can write: they are read
// once.
template <typename T>
bool read_message(std::span<const char> bytes, T* message) {
  if (bytes.size() != sizeof(T)) return false;
  copy_bytes(message, bytes.data(), sizeof(T));
  return true;
}

}  // namespace verbena::lock_service
