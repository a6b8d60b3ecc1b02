// Whose messages a messenger polls memory for, and in which order (message.h).
#pragma once

#include <cstdint>

namespace verbena {

// Whose messages come into memory that the receiver polls, which is faster, but takes memory and a
// poll for each ("mpiiba" 3.3, 4.6). All others come by SEND.
enum class PollingSetPolicy : uint8_t {
  kAll,      // everybody, as far as there are places
  kFirst,    // the first that send
  kDynamic,  // those that send most; checked every 1,024 messages
  kHints,    // those that the program names: hint()
};
// In which order they are polled.
enum class PollingOrder : uint8_t {
  kSequential,  // in the order in which they joined
  kCircular,    // going on where the last poll ended
  kByTraffic,   // those that send most first
};

}  // namespace verbena
