#include "src/device/fault/faulty_completion_queue.h"

#include <algorithm>

#include "src/base/runtime.h"

namespace verbena::fault {

int FaultyCompletionQueue::poll(int count, ibv_wc* completions, uint64_t& delayed_count) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!kept_.empty()) {
    if (deferred_until_ns_ != 0 && now_ns() < deferred_until_ns_) return 0;
    return take_kept(count, completions);
  }
  const int taken = poll_(verbs_, count, completions);
  if (taken < 0) return taken;
  for (int i = 0; i < taken && !expected_.empty(); ++i) {
    const auto expected = find_expected(completions[i]);
    if (completions[i].status != IBV_WC_WR_FLUSH_ERR || expected == expected_.end()) continue;
    completions[i].status = expected->status;
    expected_.erase(expected);
  }
  int passing = taken;
  for (int i = 0; i < taken; ++i) {
    // Every completion draws, also behind one that is deferred: so that its draw does not depend on
    // how many were polled at once.
    if (!dice_.hit(fault_.probability) || armed_) continue;
    ++delayed_count;
    if (passing < taken) continue;
    passing = i;
    deferred_until_ns_ = now_ns() + fault_.duration_ns;
  }
  kept_.assign(completions + passing, completions + taken);
  if (taken == 0 && !added_.empty()) {
    kept_.swap(added_);
    deferred_until_ns_ = 0;
    return take_kept(count, completions);
  }
  return passing;
}

int FaultyCompletionQueue::take_kept(int count, ibv_wc* completions) {
  int taken = 0;
  for (; taken < count && !kept_.empty(); ++taken) {
    completions[taken] = kept_.front();
    kept_.pop_front();
  }
  return taken;
}

void FaultyCompletionQueue::arm() {
  const std::lock_guard<std::mutex> guard(mutex_);
  armed_ = true;
  deferred_until_ns_ = 0;
}

void FaultyCompletionQueue::event_taken() {
  const std::lock_guard<std::mutex> guard(mutex_);
  armed_ = false;
}

std::deque<ibv_wc>::iterator FaultyCompletionQueue::find_expected(const ibv_wc& completion) {
  return std::find_if(expected_.begin(), expected_.end(), [&](const ibv_wc& expected) {
    return expected.qp_num == completion.qp_num && expected.wr_id == completion.wr_id;
  });
}

void FaultyCompletionQueue::expect(const ibv_wc& completion) {
  const std::lock_guard<std::mutex> guard(mutex_);
  expected_.push_back(completion);
}

void FaultyCompletionQueue::add_expected(const ibv_wc& completion) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto expected = find_expected(completion);
  added_.push_back(completion);
  if (expected != expected_.end()) {
    expected_.erase(expected);
  } else {
    // A poll has given its status to another one with this number, whose flush is left.
    added_.back().status = IBV_WC_WR_FLUSH_ERR;
  }
}

void FaultyCompletionQueue::forget(uint32_t queue_pair_number) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto is_its = [queue_pair_number](const ibv_wc& completion) {
    return completion.qp_num == queue_pair_number;
  };
  std::erase_if(kept_, is_its);
  std::erase_if(added_, is_its);
  std::erase_if(expected_, is_its);
}

}  // namespace verbena::fault
