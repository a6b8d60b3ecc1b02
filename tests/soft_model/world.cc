#include "tests/soft_model/world.h"

namespace verbena::soft_model {

Notices ThreadWorld::exchange(uint32_t member, const Notice& mine) {
  std::unique_lock lock(mutex_);
  gathering_[member] = mine;
  const uint64_t turn = turn_;
  if (++here_ < members_) {
    turned_.wait(lock, [&] { return turn_ != turn; });
    return gathered_;
  }
  // Nobody overwrites them before all have been here again.
  gathered_ = gathering_;
  here_ = 0;
  ++turn_;
  turned_.notify_all();
  return gathered_;
}

Notices ProcessWorld::exchange(uint32_t /*member*/, const Notice& mine) {
  link_.put(mine);
  return link_.get<Notices>();
}

}  // namespace verbena::soft_model
