// What a front-end and a store say before the region is opened, over their control connection.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "log/layout.h"
#include "verbena/connection.h"
#include "verbena/status.h"

namespace verbena::log_app {

enum class Role : uint32_t { kReader, kWriter, kFormer };

struct Hello {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  Role role = Role::kReader;
};
inline constexpr uint32_t kHelloTag = 0x4c4f4701;

// The store's answer: not ok() says why the front-end is refused.
struct Welcome {
  uint32_t version = kVersion;
  StatusCode code = StatusCode::kOk;
  uint32_t writer = 0;  // whose floor is the front-end's
  char reason[300] = {};

  bool ok() const { return code == StatusCode::kOk; }
  // A later release may have others.
  StatusCode known_code() const {
    return code >= StatusCode::kOk && code <= StatusCode::kInternal ? code
                                                                    : StatusCode::kUnavailable;
  }
  static Welcome refusal(const Status& status) {
    Welcome welcome{.code = status.code()};
    const size_t length = std::min(status.message().size(), sizeof(welcome.reason) - 1);
    std::copy_n(status.message().data(), length,  // NOLINT(conventions): control path
                welcome.reason);
    return welcome;
  }
};
inline constexpr uint32_t kWelcomeTag = 0x4c4f4702;

inline Status check_version(const std::string& peer, uint32_t version) {
  if (version == kVersion) return Status::ok_status();
  return Status(StatusCode::kProtocolViolation,
                peer + " has a log of version " + std::to_string(version) + ", this release has " +
                    std::to_string(kVersion) + "; run the same release on both sides");
}

// What a store's answer means for the front-end.
inline Status check_welcome(const std::string& peer, const Welcome& welcome) {
  if (welcome.ok()) return check_version(peer, welcome.version);
  const auto end = std::ranges::find(welcome.reason, '\0');
  return Status(welcome.known_code(), peer + ": " + std::string(std::begin(welcome.reason), end));
}

}  // namespace verbena::log_app
