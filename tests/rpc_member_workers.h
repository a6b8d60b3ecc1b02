// The workers of a member that has a dispatcher: threads that share the member's connections, one
// to each responder, and check every response that they are handed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "tests/rpc_support.h"
#include "verbena/dispatcher.h"

namespace verbena::rpc_test {

// One responder as a worker sees it: what a Client needs of a Requester.
class WorkerPort {
 public:
  WorkerPort(DispatchWorker& worker, uint32_t responder)
      : worker_(&worker), responder_(responder) {}

  char* request_buffer(uint32_t slot) { return worker_->request_buffer(responder_, slot); }
  PostResult try_post(uint32_t slot, uint32_t bytes) {
    if (broken()) return PostResult::kFailed;
    return worker_->hand_over(responder_, slot, bytes) ? PostResult::kPosted
                                                       : PostResult::kWouldBlock;
  }
  template <typename OnResponse>
  uint32_t poll(OnResponse&& on_response) {
    const uint64_t failed_before = worker_->failed();
    const uint32_t found = worker_->poll_from(responder_, on_response);
    failed_ += worker_->failed() - failed_before;
    return found;
  }
  // Whether this worker was told that a request of its own will get no response.
  bool broken() const { return failed_ > 0; }

 private:
  DispatchWorker* worker_;
  uint32_t responder_;
  uint64_t failed_ = 0;
};

class MemberWorkers {
 public:
  // `cases`: by requester, what each worker sends through it in `pending` slots of its own.
  MemberWorkers(std::vector<Requester*> requesters, const std::vector<Case>& cases,
                uint32_t workers, uint32_t pending)
      : dispatcher_(std::move(requesters), {.workers = workers, .pending = pending}) {
    for (uint32_t number = 0; number < workers; ++number) {
      threads_.push_back(std::make_unique<WorkerThread>());
      WorkerThread& worker = *threads_.back();
      for (uint32_t responder = 0; responder < cases.size(); ++responder) {
        Case c = cases[responder];
        c.pending = pending;
        c.messages = c.messages / workers + 1;
        c.seed += number;
        worker.talks.push_back({WorkerPort(dispatcher_.worker(number), responder), Client(c)});
      }
    }
    for (uint32_t number = 0; number < workers; ++number) {
      threads_[number]->thread = start_thread("worker", [this, number] {
        threads_[number]->work(dispatcher_.worker(number));
        over_.fetch_add(1, std::memory_order_release);
      });
    }
  }

  // The dispatcher's work, as Dispatcher::poll().
  uint32_t poll() { return dispatcher_.poll(); }
  // Every worker has every response, or knows that there will be none. What follows may be asked
  // only then.
  bool finished() const { return over_.load(std::memory_order_acquire) == threads_.size(); }

  bool complete(uint32_t responder) const {
    return std::all_of(threads_.begin(), threads_.end(), [&](const auto& thread) {
      return thread->talks[responder].client.complete();
    });
  }
  uint64_t wrong() const {
    uint64_t wrong = 0;
    for (const auto& thread : threads_) {
      for (const Talk& talk : thread->talks) wrong += talk.client.outcome().wrong;
    }
    return wrong;
  }
  // A worker heard nothing for too long, and gave up.
  bool stuck() const {
    return std::any_of(threads_.begin(), threads_.end(),
                       [](const auto& thread) { return thread->stuck; });
  }

 private:
  // A worker's exchange with one responder.
  struct Talk {
    WorkerPort port;
    Client client;
    bool over() const { return client.complete() || port.broken(); }
  };

  struct WorkerThread {
    void work(DispatchWorker& worker) {
      Waiter waiter;
      uint64_t last_progress_ns = now_ns();
      while (worker.waiting() > 0 || !all_over()) {
        uint32_t found = 0;
        for (Talk& talk : talks) found += talk.client.step(talk.port, [](uint64_t) {});
        if (found > 0) {
          waiter.progress();
          last_progress_ns = now_ns();
          continue;
        }
        waiter.idle();
        if (now_ns() - last_progress_ns > kTimeoutNs / 2) {
          stuck = true;
          return;
        }
      }
    }
    bool all_over() const {
      return std::all_of(talks.begin(), talks.end(), [](const Talk& talk) { return talk.over(); });
    }

    std::vector<Talk> talks;  // by responder
    bool stuck = false;
    Thread thread;
  };

  Dispatcher<> dispatcher_;
  std::atomic<uint32_t> over_{0};
  std::vector<std::unique_ptr<WorkerThread>> threads_;
};

}  // namespace verbena::rpc_test
