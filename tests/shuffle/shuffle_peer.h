// What the processes of the shuffle's tests tell each other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/rpc_support.h"
#include "verbena/apps/shuffle.h"

namespace verbena::shuffle_test {

using rpc_test::kTimeoutNs;

inline constexpr uint32_t kSenders = 2;
inline constexpr uint32_t kReceivers = 2;

struct Task {
  bool sends = false;
  uint32_t number = 0;  // among those that do the same
  uint64_t records = 0;
  uint16_t ports[kReceivers] = {};
};
inline constexpr uint32_t kTaskTag = 0x53485511;
inline constexpr uint32_t kPortTag = 0x53485512;    // a receiver's
inline constexpr uint32_t kOpenedTag = 0x53485514;  // it is connected with all others

// How it ended.
struct Outcome {
  StatusCode code = StatusCode::kOk;
  char message[600] = {};
};
inline constexpr uint32_t kOutcomeTag = 0x53485513;

// In turn to all receivers; long ones now and then.
inline std::string record_text(uint32_t sender, uint64_t number) {
  std::string text = std::to_string(sender) + "/" + std::to_string(number) + "/";
  text.append(number % 50 == 0 ? 5000 : number % 200, 'x');
  return text;
}
inline ShuffleReceiverOptions receiver_options(uint32_t number) {
  return {.receiver = number,
          .receivers = kReceivers,
          .senders = kSenders,
          .buffer_bytes = 16 << 10,
          .max_record_bytes = 8192,
          .checksum = true};
}

// Takes records until the end; what each sender's are, in order, goes to `records` if it is given.
inline Status receive(ShuffleReceiver& receiver, std::vector<std::vector<std::string>>* records) {
  std::vector<std::string> unfinished(kSenders);
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.wait_next());
    if (span.empty()) return Status::ok_status();
    span.for_each([&](std::string_view bytes, bool more) {
      std::string& record = unfinished[span.sender()];
      record += bytes;
      if (more) return;
      if (records != nullptr) (*records)[span.sender()].push_back(record);
      record.clear();
    });
    receiver.release(span);
  }
}

}  // namespace verbena::shuffle_test
