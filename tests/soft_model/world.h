// What members tell each other, and where they wait for each other.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "tests/soft/process.h"
#include "tests/soft_model/plan.h"

namespace verbena::soft_model {

struct EndNotice {
  uint32_t number = 0;  // of the queue pair
  uint32_t keys[kKeys] = {};
};

struct Notice {
  uint64_t arena = 0;                      // its address
  uint64_t ticket_sums[kMaxMembers] = {};  // what was counted up, by the word's owner
  EndNotice ends[kMaxEnds] = {};           // those of the member
  uint32_t begins_last = 0;                // 1: the traffic of the last round comes next
};

using Notices = std::array<Notice, kMaxMembers>;

class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;
  // Waits for all members that live; the notices of all. Those of the dead are empty.
  virtual Notices exchange(uint32_t member, const Notice& mine) = 0;
};

// Members that are threads of this process.
class ThreadWorld : public World {
 public:
  explicit ThreadWorld(uint32_t members) : members_(members) {}
  Notices exchange(uint32_t member, const Notice& mine) override;

 private:
  const uint32_t members_;
  std::mutex mutex_;
  std::condition_variable turned_;
  uint64_t turn_ = 0;
  uint32_t here_ = 0;
  Notices gathering_ = {};
  Notices gathered_ = {};
};

// A member that is a process; the test gathers (soft_model_test.cc).
class ProcessWorld : public World {
 public:
  explicit ProcessWorld(soft_test::Link& link) : link_(link) {}
  Notices exchange(uint32_t member, const Notice& mine) override;

 private:
  soft_test::Link& link_;
};

}  // namespace verbena::soft_model
