// A send or receive queue, of which some work requests are deferred before the device gets them.
//
// While one is deferred, all that come later queue behind it, so that the order is kept. What is
// deferred counts towards the queue's depth: the caller is refused (ENOMEM) where the device would
// have refused it had nothing been deferred.
#pragma once

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/fault/deferred_request.h"
#include "src/device/fault/dice.h"
#include "verbena/fault.h"

namespace verbena::fault {

template <typename Request>
class DeferringQueue {
 public:
  struct Device {
    // Posts to the device.
    std::function<int(Request*, Request**)> post;
    // What the device checks of a request before it takes it: 0, or an errno value.
    std::function<int(const Request&)> check;
    // Whether the completion of a request tells that it, and all before it, are done.
    std::function<bool(const Request&)> signaled;
    // Asks for a call of release() at a time.
    std::function<void(uint64_t due_ns)> release_at;
  };

  DeferringQueue(Fault fault, Dice dice, uint32_t depth_wrs, Device device)
      : fault_(fault), dice_(dice), depth_wrs_(depth_wrs), device_(std::move(device)) {}

  // As ibv_post_send() and ibv_post_recv(); adds to `deferred_count` those that it defers.
  int post(Request* list, Request** rejected, uint64_t& deferred_count) {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Request*> requests;
    size_t passing = 0;  // leading requests that go to the device at once
    std::vector<uint64_t> due_ns;
    for (Request* request = list; request != nullptr; request = request->next) {
      const bool defer = deferring_ && dice_.hit(fault_.probability);
      requests.push_back(request);
      due_ns.push_back(defer ? now_ns() + fault_.duration_ns : 0);
      deferred_count += defer ? 1 : 0;
      if (deferred_.empty() && passing + 1 == requests.size() && !defer) ++passing;
    }
    if (const int error = pass(requests, passing, rejected); error != 0) return error;
    for (size_t i = passing; i < requests.size(); ++i) {
      if (const int error = defer(*requests[i], due_ns[i]); error != 0) {
        *rejected = requests[i];
        return error;
      }
    }
    return 0;
  }

  // Gives the device what is due, or everything. Returns the numbers (wr_id) of those that it does
  // not take: too late for the caller of post().
  std::vector<uint64_t> release(bool everything = false) {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::vector<uint64_t> lost;
    while (!deferred_.empty()) {
      DeferredRequest<Request>& first = deferred_.front();
      if (!everything && first.due_ns() > now_ns()) {
        device_.release_at(first.due_ns());
        break;
      }
      Request* rejected = nullptr;
      const int error = device_.post(first.request(), &rejected);
      if (error == ENOMEM) {
        // Work before it is not polled yet.
        first.postpone(now_ns() + kRetryNs);
        device_.release_at(first.due_ns());
        break;
      }
      if (error != 0) lost.push_back(first.request()->wr_id);
      deferred_.pop_front();
    }
    return lost;
  }

  // A completion was polled.
  void retire() {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (signaled_.empty()) return;
    retired_ = signaled_.front();
    signaled_.pop_front();
  }
  // What of the work so far completes cannot be counted: to watch its depth is left to the device.
  void stop_counting() {
    const std::lock_guard<std::mutex> guard(mutex_);
    forget();
  }
  // Whether work requests meet faults. Not from the beginning, nor in the error state.
  void set_deferring(bool deferring) {
    const std::lock_guard<std::mutex> guard(mutex_);
    deferring_ = deferring;
  }
  // The device forgets its work, and so does this.
  void drop() {
    const std::lock_guard<std::mutex> guard(mutex_);
    drop_locked();
  }
  // Drops its work if the device destroys the queue, that is if `destroy` returns 0; posts nothing
  // meanwhile. Returns what that returned.
  template <typename Destroy>
  int drop_if_destroyed(Destroy&& destroy) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const int error = destroy();
    if (error == 0) drop_locked();
    return error;
  }

 private:
  static constexpr uint64_t kRetryNs = 20'000;

  // Posts the first `count` requests of a list.
  int pass(const std::vector<Request*>& requests, size_t count, Request** rejected) {
    if (count == 0) return 0;
    if (count == requests.size()) {
      const int error = device_.post(requests.front(), rejected);
      for (Request* request : requests) {
        if (error != 0 && request == *rejected) break;
        note(*request);
      }
      return error;
    }
    // Copies, since the list is the caller's and must not be cut.
    std::vector<Request> copies;
    copies.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      copies.push_back(*requests[i]);
      copies[i].next = nullptr;
      if (i > 0) copies[i - 1].next = &copies[i];
    }
    Request* rejected_copy = nullptr;
    const int error = device_.post(copies.data(), &rejected_copy);
    const size_t taken = error == 0 ? count : static_cast<size_t>(rejected_copy - copies.data());
    for (size_t i = 0; i < taken; ++i) note(*requests[i]);
    if (error != 0) *rejected = requests[taken];
    return error;
  }

  int defer(const Request& request, uint64_t due_ns) {
    if (const int error = device_.check(request); error != 0) return error;
    if (accepted_ - retired_ >= depth_wrs_ || deferred_.size() >= depth_wrs_) return ENOMEM;
    note(request);
    deferred_.emplace_back(request, due_ns);
    if (deferred_.size() == 1) device_.release_at(due_ns);
    return 0;
  }

  void note(const Request& request) {
    ++accepted_;
    if (device_.signaled(request)) signaled_.push_back(accepted_);
  }

  void drop_locked() {
    deferred_.clear();
    forget();
    deferring_ = false;
  }

  void forget() {
    retired_ = accepted_;
    signaled_.clear();
  }

  std::mutex mutex_;
  Fault fault_;
  Dice dice_;
  uint32_t depth_wrs_;
  Device device_;
  bool deferring_ = false;
  std::deque<DeferredRequest<Request>> deferred_;
  // Work requests so far, of these known to be done, and which ones' completions will tell.
  uint64_t accepted_ = 0;
  uint64_t retired_ = 0;
  std::deque<uint64_t> signaled_;
};

}  // namespace verbena::fault
