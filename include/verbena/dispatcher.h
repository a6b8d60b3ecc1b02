// A dispatcher: one thread that owns a node's connections and carries the requests of all workers.
//
// With a private connection per thread, a node with W workers has W queue pairs to every responder.
// A dispatcher has one, so the number of queue pairs no longer grows with the workers, at the price
// of a hand-over between two cores for each request and each response ("patterns" 4.1, design 2).
//
//   worker                                     dispatcher's thread
//   writes the request where it will be sent
//   from: a slot in registered memory
//   sets the last bit of its mailbox    --->   finds it, posts the slot as it is: nothing is copied
//   finds the last bit of its answer    <---   the response came: notes where it lies
//   reads the response where it landed
//
// The dispatcher never waits for a message before it takes the next one ("patterns" 6).
//
//   Dispatcher dispatcher(requesters, {.workers = 8});  // requesters: one per responder
//   // one thread:                             // each worker's thread:
//   while (running) dispatcher.poll();         auto& worker = dispatcher.worker(w);
//                                              char* to = worker.request_buffer(j, 0);
//                                              memcpy(to, "ping", 4);
//                                              worker.hand_over(j, 0, 4);
//                                              while (worker.poll(on_response) == 0) {}
//
// Threading: poll(), requesters() and their connections belong to the dispatcher's thread,
// worker(w) to the thread of worker w. Nothing here allocates, locks or enters the kernel after
// construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "verbena/data_path.h"
#include "verbena/rpc.h"

namespace verbena {

struct DispatcherOptions {
  uint32_t workers = 1;
  // Requests of one worker to one responder that may wait at once. Each requester needs
  // workers * pending slots.
  uint32_t pending = 1;
};

// A thread that hands its requests to a dispatcher.
class DispatchWorker {
 public:
  DispatchWorker(const DispatchWorker&) = delete;
  DispatchWorker& operator=(const DispatchWorker&) = delete;

  uint32_t number() const { return number_; }

  // Where the next request to `responder` in `slot` (below DispatcherOptions::pending) is written:
  // registered memory, the same address each time; the requester's rules for it apply.
  char* request_buffer(uint32_t responder, uint32_t slot) {
    return buffers_[mailbox(responder, slot)];
  }

  // Hands the first `bytes` of the buffer to the dispatcher. False: the slot still waits for its
  // response. `bytes` above the requester's request_max_bytes breaks that connection.
  bool hand_over(uint32_t responder, uint32_t slot, uint32_t bytes) {
    const size_t at = mailbox(responder, slot);
    if (waits_[at]) return false;
    waits_[at] = true;
    waiting_[responder].push_back(static_cast<uint32_t>(at));
    ++waiting_count_;
    // Publishes the request's bytes to the dispatcher's thread.
    publish_word(&requests_[at], kFlag | bytes);
    return true;
  }

  // Takes the responses that have come: `on_response(uint32_t responder, uint32_t slot,
  // std::span<const char> response)`. Their bytes stay valid until the slot is handed over again,
  // which `on_response` may do, as it may poll. A request whose connection broke gets no call; see
  // failed().
  template <typename OnResponse>
  uint32_t poll(OnResponse&& on_response) {
    uint32_t found = 0;
    for (uint32_t responder = 0; responder < waiting_.size(); ++responder) {
      found += poll_from(responder, [&](uint32_t slot, std::span<const char> response) {
        on_response(responder, slot, response);
      });
    }
    return found;
  }
  // The same for one responder: `on_response(uint32_t slot, std::span<const char> response)`.
  template <typename OnResponse>
  uint32_t poll_from(uint32_t responder, OnResponse&& on_response) {
    std::vector<uint32_t>& waiting = waiting_[responder];
    uint32_t found = 0;
    for (size_t i = waiting.size(); i-- > 0;) {
      if (i >= waiting.size()) continue;  // on_response() has taken some, too
      const size_t at = waiting[i];
      Answer& answer = answers_[at];
      // Pairs with answer(): where the response lies, and the response itself.
      const uint64_t mark = consume_word(&answer.mark);
      if (mark == 0) continue;
      store_word(&answer.mark, uint64_t{0});
      waiting[i] = waiting.back();
      waiting.pop_back();
      waits_[at] = false;
      --waiting_count_;
      if ((mark & kFailed) != 0) [[unlikely]] {
        ++failed_;
        continue;
      }
      ++found;
      on_response(static_cast<uint32_t>(at % pending_),
                  std::span<const char>(answer.bytes, mark & ~kFlag));
    }
    return found;
  }

  // Whether the slot waits for its response: its request buffer belongs to the dispatcher.
  bool waits(uint32_t responder, uint32_t slot) const { return waits_[mailbox(responder, slot)]; }
  // Requests that were handed over and not answered yet.
  uint32_t waiting() const { return waiting_count_; }
  // Requests whose connection broke, so far.
  uint64_t failed() const { return failed_; }

 private:
  template <typename R>
  friend class Dispatcher;

  static constexpr uint64_t kFlag = uint64_t{1} << 63;    // the last bit: something is there
  static constexpr uint64_t kFailed = uint64_t{1} << 62;  // of an answer: there will be none
  static constexpr size_t kCacheLineBytes = 64;

  struct Answer {
    uint64_t mark = 0;
    const char* bytes = nullptr;
  };

  // `buffers`: of its mailboxes, by responder and slot.
  DispatchWorker(uint32_t number, uint32_t pending, std::vector<char*> buffers)
      : number_(number),
        pending_(pending),
        buffers_(std::move(buffers)),
        requests_(buffers_.size()),
        answers_(buffers_.size()),
        posted_(buffers_.size()),
        waits_(buffers_.size()),
        waiting_(buffers_.size() / pending) {
    for (std::vector<uint32_t>& waiting : waiting_) waiting.reserve(pending);
  }

  size_t mailbox(uint32_t responder, uint32_t slot) const {
    return size_t{responder} * pending_ + slot;
  }

  void answer(size_t at, std::span<const char> response) {
    answers_[at].bytes = response.data();
    publish_word(&answers_[at].mark, kFlag | response.size());
  }
  void answer_failed(size_t at) { publish_word(&answers_[at].mark, kFlag | kFailed); }

  uint32_t number_;
  uint32_t pending_;
  std::vector<char*> buffers_;
  std::vector<uint64_t> requests_;  // written here, cleared by the dispatcher
  std::vector<Answer> answers_;     // written by the dispatcher, cleared here
  std::vector<char> posted_;        // the dispatcher's own
  // The worker's own.
  alignas(kCacheLineBytes) std::vector<char> waits_;
  std::vector<std::vector<uint32_t>> waiting_;  // mailboxes, by responder
  uint32_t waiting_count_ = 0;
  uint64_t failed_ = 0;
};

// `R` is Requester, or the requester of a compiled design point (verbena/design.h).
template <typename R = Requester>
class Dispatcher {
 public:
  using Worker = DispatchWorker;

  // The requesters must have (at least) workers * pending slots each, and outlive the dispatcher.
  Dispatcher(std::vector<R*> requesters, const DispatcherOptions& options)
      : requesters_(std::move(requesters)), options_(options) {
    workers_.reserve(options.workers);
    for (uint32_t number = 0; number < options.workers; ++number) {
      std::vector<char*> buffers;
      for (R* requester : requesters_) {
        for (uint32_t slot = 0; slot < options.pending; ++slot) {
          buffers.push_back(requester->request_buffer(number * options.pending + slot));
        }
      }
      workers_.push_back(
          std::unique_ptr<Worker>(new Worker(number, options.pending, std::move(buffers))));
    }
    failed_.resize(requesters_.size());
  }

  Worker& worker(uint32_t number) { return *workers_[number]; }
  const std::vector<R*>& requesters() const { return requesters_; }

  // Posts what the workers handed over and hands out the responses that came; returns how many of
  // both. Never blocks. Polls every mailbox.
  uint32_t poll() {
    uint32_t moved = 0;
    for (const auto& worker : workers_) moved += take_requests(*worker);
    for (uint32_t responder = 0; responder < requesters_.size(); ++responder) {
      R& requester = *requesters_[responder];
      moved += requester.poll([&](uint32_t slot, std::span<const char> response) {
        Worker& worker = *workers_[slot / options_.pending];
        const size_t at = mailbox(responder, slot % options_.pending);
        worker.posted_[at] = false;
        worker.answer(at, response);
      });
      if (!requester.status().ok() && !failed_[responder]) [[unlikely]]
        fail(responder);
    }
    return moved;
  }

 private:
  size_t mailbox(uint32_t responder, uint32_t slot) const {
    return size_t{responder} * options_.pending + slot;
  }

  uint32_t take_requests(Worker& worker) {
    uint32_t taken = 0;
    for (uint32_t responder = 0; responder < requesters_.size(); ++responder) {
      for (uint32_t slot = 0; slot < options_.pending; ++slot) {
        const size_t at = mailbox(responder, slot);
        // Pairs with hand_over(): the request's bytes are there.
        const uint64_t request = consume_word(&worker.requests_[at]);
        if (request == 0) continue;
        if (failed_[responder]) [[unlikely]] {
          store_word(&worker.requests_[at], uint64_t{0});
          worker.answer_failed(at);
          continue;
        }
        const PostResult result =
            requesters_[responder]->try_post(worker.number_ * options_.pending + slot,
                                             static_cast<uint32_t>(request & ~Worker::kFlag));
        if (result == PostResult::kWouldBlock) continue;  // the send queue is full: next time
        store_word(&worker.requests_[at], uint64_t{0});
        if (result == PostResult::kPosted) [[likely]] {
          worker.posted_[at] = true;
          ++taken;
        } else {
          worker.answer_failed(at);
        }
      }
    }
    return taken;
  }

  // The connection broke: whoever waits for it is told.
  void fail(uint32_t responder) {
    failed_[responder] = true;
    for (const auto& worker : workers_) {
      for (uint32_t slot = 0; slot < options_.pending; ++slot) {
        const size_t at = mailbox(responder, slot);
        if (worker->posted_[at]) worker->answer_failed(at);
      }
    }
  }

  std::vector<R*> requesters_;
  DispatcherOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<bool> failed_;
};

}  // namespace verbena
