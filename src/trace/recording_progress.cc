// Whether all calls of a recording can end: see check_progress().
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/trace/recording.h"

namespace verbena::trace {

namespace {

// All ranks, each as far as it can go; those that wait for somebody are looked at again when that
// has happened.
class Progress {
 public:
  explicit Progress(RecordedJob& job)
      : job_(job), ranks_(job.size()), waiting_for_(job.communicators.size()) {
    for (uint32_t rank = 0; rank < job.size(); ++rank) {
      uint32_t requests = 0;
      for (const Event& event : job.ranks[rank].events) {
        requests = std::max(requests, event.request);
      }
      ranks_[rank].done.resize(requests + 1);
      runnable_.push_back(rank);
    }
  }

  Status run() {
    for (;;) {
      while (!runnable_.empty()) {
        const uint32_t rank = runnable_.front();
        runnable_.pop_front();
        ranks_[rank].queued = false;
        advance(rank);
      }
      // Sends that nobody receives yet were copied.
      bool freed = false;
      bool ended = true;
      for (uint32_t rank = 0; rank < job_.size(); ++rank) {
        std::vector<Event>& events = job_.ranks[rank].events;
        Rank& one = ranks_[rank];
        if (one.at == events.size()) continue;
        ended = false;
        Event& event = events[one.at];
        if (event.operation != Operation::kSend || event.has(kSynchronous)) continue;
        event.flags |= kBuffered;
        ++job_.buffered_sends;
        freed = true;
        next(rank);
      }
      if (ended) return Status::ok_status();
      if (!freed) return stuck();
    }
  }

 private:
  struct Rank {
    size_t at = 0;       // in its events
    bool begun = false;  // the event there
    bool queued = true;
    std::vector<bool> done;                           // by request
    std::unordered_map<uint32_t, uint64_t> arrivals;  // by communicator: collectives it came to
    // By request, of a collective: which one of its communicator.
    std::unordered_map<uint32_t, std::pair<uint32_t, uint64_t>> collectives;
  };
  // An end of a message that waits for the other: the rank, its request or 0, and its call.
  struct End {
    uint32_t rank = 0;
    uint32_t request = 0;
    size_t at = 0;
  };
  // Without memory while it is empty: there may be a million.
  class Ends {
   public:
    bool empty() const { return first_ == ends_.size(); }
    void push(const End& end) { ends_.push_back(end); }
    End pop() {
      const End end = ends_[first_++];
      if (empty()) {
        ends_.clear();
        first_ = 0;
      }
      return end;
    }

   private:
    std::vector<End> ends_;
    size_t first_ = 0;
  };
  struct Meeting {
    Ends sends;
    Ends receives;
  };
  struct Gathering {
    uint64_t complete = 0;  // so many operations, which all members came to
    std::unordered_map<uint64_t, uint32_t> came;
    std::vector<uint32_t> waiting;  // ranks
  };

  void wake(uint32_t rank) {
    if (ranks_[rank].queued) return;
    ranks_[rank].queued = true;
    runnable_.push_back(rank);
  }
  void next(uint32_t rank) {
    ++ranks_[rank].at;
    ranks_[rank].begun = false;
    wake(rank);
  }
  void end(const End& end) {
    Rank& rank = ranks_[end.rank];
    if (end.request != 0) {
      rank.done[end.request] = true;
      wake(end.rank);
    } else if (rank.at == end.at) {
      next(end.rank);
    }  // else a buffered send, which its rank has left behind
  }

  void arrive(uint32_t rank, const Event& event) {
    Gathering& gathering = waiting_for_[event.communicator];
    const uint64_t nth = ranks_[rank].arrivals[event.communicator]++;
    if (event.request != 0) ranks_[rank].collectives[event.request] = {event.communicator, nth};
    const auto members = static_cast<uint32_t>(job_.communicators[event.communicator].size());
    if (++gathering.came[nth] < members) return;
    gathering.came.erase(nth);
    gathering.complete = nth + 1;
    for (const uint32_t one : gathering.waiting) wake(one);
    gathering.waiting.clear();
  }
  bool is_complete(uint32_t rank, uint32_t communicator, uint64_t nth) {
    Gathering& gathering = waiting_for_[communicator];
    if (nth < gathering.complete) return true;
    gathering.waiting.push_back(rank);
    return false;
  }

  // Whether the call has ended.
  bool message(uint32_t rank, const Event& event, bool sends) {
    Rank& one = ranks_[rank];
    if (event.has(kUnmatched)) {
      if (event.request != 0) one.done[event.request] = true;
      return true;
    }
    const uint32_t from = sends ? rank : event.peer;
    const uint32_t to = sends ? event.peer : rank;
    Meeting& meeting = meetings_[uint64_t{from} << 32 | to][event.channel];
    Ends& others = sends ? meeting.receives : meeting.sends;
    if (others.empty()) {
      (sends ? meeting.sends : meeting.receives).push({rank, event.request, one.at});
      return false;
    }
    const End other = others.pop();
    if (event.request != 0) one.done[event.request] = true;
    end(other);
    return true;
  }

  void advance(uint32_t rank) {
    const std::vector<Event>& events = job_.ranks[rank].events;
    Rank& one = ranks_[rank];
    while (one.at < events.size() && step(rank, events[one.at])) {
      ++one.at;
      one.begun = false;
    }
  }

  bool step(uint32_t rank, const Event& event) {
    Rank& one = ranks_[rank];
    const bool begins = !one.begun;
    one.begun = true;
    switch (event.operation) {
      case Operation::kSend:
      case Operation::kReceive:
        return begins && message(rank, event, event.operation == Operation::kSend);
      case Operation::kStartSend:
      case Operation::kStartReceive:
        message(rank, event, event.operation == Operation::kStartSend);
        return true;
      case Operation::kWait:
        return is_over(rank, event);
      default:
        if (begins) arrive(rank, event);
        return event.has(kNonblocking) ||
               is_complete(rank, event.communicator, one.arrivals[event.communicator] - 1);
    }
  }

  bool is_over(uint32_t rank, const Event& event) {
    Rank& one = ranks_[rank];
    for (const uint64_t request : job_.ranks[rank].list(event)) {
      const auto found = one.collectives.find(static_cast<uint32_t>(request));
      if (found != one.collectives.end()) {
        if (!is_complete(rank, found->second.first, found->second.second)) return false;
      } else if (!one.done[request]) {
        return false;
      }
    }
    return true;
  }

  Status stuck() const {
    for (uint32_t rank = 0; rank < job_.size(); ++rank) {
      const std::vector<Event>& events = job_.ranks[rank].events;
      if (ranks_[rank].at == events.size()) continue;
      return {StatusCode::kProtocolViolation,
              fmt::format("{} cannot be replayed: rank {} would wait for ever in its call {} of "
                          "{}, a {}; record the program again",
                          job_.name, rank, ranks_[rank].at + 1, events.size(),
                          operation_name(events[ranks_[rank].at].operation))};
    }
    return Status::ok_status();
  }

  RecordedJob& job_;
  std::vector<Rank> ranks_;
  std::vector<Gathering> waiting_for_;  // by communicator
  std::deque<uint32_t> runnable_;
  std::unordered_map<uint64_t, std::unordered_map<uint32_t, Meeting>> meetings_;
};

}  // namespace

Status check_progress(RecordedJob& job) { return Progress(job).run(); }

}  // namespace verbena::trace
