// What the remote memory tests share between their processes.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/runtime.h"
#include "tests/rpc_support.h"
#include "verbena/connection.h"
#include "verbena/device.h"
#include "verbena/remote.h"

namespace verbena::remote_test {

using rpc_test::kTimeoutNs;
using rpc_test::test_device;

enum class Role : uint32_t { kBackEnd, kFrontEnd };
struct Task {
  Role role = Role::kBackEnd;
  uint32_t pending = 8;
};
inline constexpr uint32_t kTaskTag = 0x524d5401;

// The region: a counter, then a word for each value of it that a front-end has seen. Whoever gets n
// from the counter writes n + 1 into word n.
inline constexpr uint64_t kWords = 1 << 16;
inline constexpr uint64_t kRegionBytes = (1 + kWords) * sizeof(uint64_t);
inline constexpr RemotePointer<uint64_t> kCounter{.offset_bytes = 0};
inline constexpr RemotePointer<uint64_t> kFirstWord{.offset_bytes = 8};

// Takes numbers and writes their words, many at once, until `operations` are written or the
// connection ends. Calls on_progress() with how many are. Returns that; fewer, with a connection
// that works, if nothing came for a long time.
template <typename OnProgress>
uint64_t take_numbers(RemoteRegion& region, uint64_t operations, OnProgress&& on_progress) {
  constexpr uint64_t kWritten = 1;  // the token of a WRITE
  std::vector<uint64_t> to_write;
  uint64_t written = 0;
  uint64_t asked = 0;
  Waiter waiter;
  uint64_t last_progress_ns = now_ns();
  while (written < operations && region.status().ok()) {
    while (!to_write.empty() &&
           region.post_write(kFirstWord + to_write.back() % kWords, to_write.back() + 1,
                             kWritten) == PostResult::kPosted) {
      to_write.pop_back();
    }
    while (asked < operations && to_write.empty() &&
           region.post_fetch_and_add(kCounter, 1, 0) == PostResult::kPosted) {
      ++asked;
    }
    const uint32_t found = region.poll([&](const RemoteCompletion& done) {
      if (done.token == kWritten) {
        on_progress(++written);
      } else {
        to_write.push_back(done.value<uint64_t>());
      }
    });
    if (found > 0) {
      waiter.progress();
      last_progress_ns = now_ns();
    } else {
      waiter.idle();
      if (now_ns() - last_progress_ns > static_cast<uint64_t>(kTimeoutNs)) break;
    }
  }
  return written;
}

}  // namespace verbena::remote_test
