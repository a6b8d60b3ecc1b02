// What the processes of the log's tests tell each other.
#pragma once

#include <cstdint>
#include <string>

#include "tests/rpc_support.h"
#include "verbena/apps/log.h"

namespace verbena::log_test {

using rpc_test::kTimeoutNs;

inline constexpr uint32_t kMaxStores = 2;

struct Task {
  uint32_t stores = 0;  // 0: be one; else write to so many
  uint16_t ports[kMaxStores] = {};
  uint32_t writer = 0;  // its number, in its records
  uint32_t pending = 1;
};
inline constexpr uint32_t kTaskTag = 0x4c4f4711;
inline constexpr uint32_t kPortTag = 0x4c4f4712;  // a store's
// A record that was acknowledged.
struct Acknowledged {
  uint64_t number = 0;
  LogPosition position = 0;
};
inline constexpr uint32_t kAcknowledgedTag = 0x4c4f4713;

inline std::string record_text(uint32_t writer, uint64_t number) {
  return std::to_string(writer) + "/" + std::to_string(number);
}

}  // namespace verbena::log_test
