// What a sender and a receiver say over their control connection: before the region is opened, and
// at the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "shuffle/layout.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::shuffle_app {

inline constexpr uint64_t kMagic = 0x656c666675687376;  // "vshuffle"
inline constexpr uint32_t kVersion = 1;

// The first part of both does not change from release to release.
struct Hello {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t sender = 0;
  uint32_t receiver = 0;
  uint32_t receivers = 0;
};
inline constexpr uint32_t kHelloTag = 0x53485501;

struct Reason {
  char text[400] = {};

  Reason() = default;
  explicit Reason(std::string_view from) {
    const size_t length = std::min(from.size(), sizeof(text) - 1);
    std::copy_n(from.data(), length, text);  // NOLINT(conventions): control path
  }
  std::string string() const {
    return std::string(text, std::find(text, text + sizeof(text), '\0'));
  }
};

// The receiver's answer: not ok() says why the sender is refused.
struct Welcome {
  uint32_t version = kVersion;
  StatusCode code = StatusCode::kOk;
  LaneShape shape;
  Reason reason = {};

  bool ok() const { return code == StatusCode::kOk; }
  // A later release may have others.
  StatusCode known_code() const {
    return code >= StatusCode::kOk && code <= StatusCode::kInternal ? code
                                                                    : StatusCode::kUnavailable;
  }
};
inline constexpr uint32_t kWelcomeTag = 0x53485502;

// The last that either side says: it has done its part, or why it gives up. What ends without it
// has died.
struct Goodbye {
  uint32_t finished = 0;
  Reason reason = {};
};
inline constexpr uint32_t kGoodbyeTag = 0x53485503;

inline Status check_version(const std::string& peer, uint32_t version) {
  if (version == kVersion) return Status::ok_status();
  return Status(StatusCode::kProtocolViolation,
                peer + " has a shuffle of version " + std::to_string(version) +
                    ", this release has " + std::to_string(kVersion) +
                    "; run the same release everywhere");
}

// What a receiver's answer means for the sender.
inline Status check_welcome(const std::string& peer, const Welcome& welcome) {
  VERBENA_RETURN_IF_ERROR(check_version(peer, welcome.version));
  if (!welcome.ok()) {
    return Status(welcome.known_code(), peer + ": " + welcome.reason.string());
  }
  if (welcome.shape.is_possible()) return Status::ok_status();
  return Status(StatusCode::kProtocolViolation,
                peer + " has buffers of " + std::to_string(welcome.shape.buffer_bytes) +
                    " bytes and " + std::to_string(welcome.shape.max_entries) +
                    " entries, which no receiver has; run the same release everywhere");
}

inline Status check_range(const char* option, uint64_t asked, uint64_t least, uint64_t most) {
  if (asked >= least && asked <= most) return Status::ok_status();
  return Status(StatusCode::kInvalidArgument, std::string(option) + " is " + std::to_string(asked) +
                                                  "; choose " + std::to_string(least) + " to " +
                                                  std::to_string(most));
}

// --- the other side's end ---

enum class PeerEnd : uint8_t { kNone, kFinished, kGaveUp, kDied };

struct PeerState {
  PeerEnd end = PeerEnd::kNone;
  std::string reason = {};  // of kGaveUp
};

inline constexpr int64_t kGoodbyeTimeoutNs = 1'000'000'000;

// What a peer that has closed the connection said before. Off the data path: waits for a frame that
// has come in part.
inline PeerState read_goodbye(ControlConnection& control) {
  const auto goodbye = control.receive_value<Goodbye>(kGoodbyeTag, kGoodbyeTimeoutNs);
  if (!goodbye.ok()) return {.end = PeerEnd::kDied};
  if (goodbye->finished != 0) return {.end = PeerEnd::kFinished};
  return {.end = PeerEnd::kGaveUp, .reason = goodbye->reason.string()};
}
// A system call.
inline PeerState check_peer(ControlConnection& control) {
  return control.peer_closed() ? read_goodbye(control) : PeerState();
}

inline void say_goodbye(ControlConnection& control, const Goodbye& goodbye) {
  // A peer that is gone does not mind.
  static_cast<void>(control.send_value(kGoodbyeTag, goodbye, kGoodbyeTimeoutNs));
  control.hang_up();
}

}  // namespace verbena::shuffle_app
