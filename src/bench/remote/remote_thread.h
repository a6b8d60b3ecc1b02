// What a thread has that uses remote memory: its connections, or the memory that it shares with the
// other threads of its node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/remote/remote_settings.h"
#include "src/bench/run/node_job.h"
#include "verbena/apps/lock_service.h"
#include "verbena/connection.h"
#include "verbena/data_path.h"
#include "verbena/remote.h"
#include "verbena/status.h"

namespace verbena::bench {

// No lease ends while a run lasts: what is measured are locks whose holders live.
inline constexpr uint64_t kBenchLeaseNs = 3'600'000'000'000;

// WordVersion::kLocal: as the region would be.
struct LocalMemory {
  explicit LocalMemory(const Point& point) : lines(exposed_bytes(point) / sizeof(Line) + 1) {}
  char* data() { return reinterpret_cast<char*>(lines.data()); }

  struct alignas(64) Line {
    uint64_t words[8] = {};
  };
  std::vector<Line> lines;
};

struct RemoteThread {
  NodeJob* job;
  uint32_t number;
  std::unique_ptr<ControlConnection> control{};
  std::unique_ptr<verbena::RemoteRegion> region{};  // none of WordVersion::kLocal
  std::unique_ptr<LockClient> client{};             // WordVersion::kRpc

  const Point& point() const { return job->setup.point; }
  const RemoteSettings& settings() const { return remote_settings(point()); }
  uint64_t seed() const { return job->setup.seed + number; }
  // From the first phase on.
  char* local() const { return static_cast<LocalMemory*>(job->shared.get())->data(); }
};

// In a simulation time passes, and others run, only where a thread waits, which what is local does
// not do.
inline void let_others_run() {
  if (VirtualTime::current() != nullptr) Waiter().idle(now_ns());
}

// Words in the memory that all threads of a point share, one at a time, whichever it is: what
// checks use.
class SharedWords {
 public:
  explicit SharedWords(const RemoteThread& thread)
      : region_(thread.region.get()), local_(region_ == nullptr ? thread.local() : nullptr) {}

  Result<uint64_t> load(uint64_t offset_bytes) const {
    if (region_ == nullptr) return read_word(word(offset_bytes));
    return region_->read(RemotePointer<uint64_t>{offset_bytes});
  }
  Status store(uint64_t offset_bytes, uint64_t value) const {
    if (region_ != nullptr) return region_->write(RemotePointer<uint64_t>{offset_bytes}, value);
    store_word(word(offset_bytes), value);
    return Status::ok_status();
  }
  Result<uint64_t> compare_and_swap(uint64_t offset_bytes, uint64_t expected,
                                    uint64_t desired) const {
    if (region_ == nullptr) return compare_and_swap_word(word(offset_bytes), expected, desired);
    return region_->compare_and_swap({offset_bytes}, expected, desired);
  }

 private:
  uint64_t* word(uint64_t offset_bytes) const {
    return reinterpret_cast<uint64_t*>(local_ + offset_bytes);
  }

  verbena::RemoteRegion* region_;
  char* local_;
};

}  // namespace verbena::bench
