// Whether a history of calls, some of them at once, could have happened one at a time, each between
// its call and its answer: linearizability, decided by the search of Wing and Gong with the states
// that it has seen remembered.
//
// Model says what one thing does, a register for instance, of which the history is:
//   struct Operation                         what was called, and what was answered
//   using State                              copied, compared, hashed; at first State{}
//   static uint64_t hash(const State&)
//   static bool step(State&, const Operation&, bool answered)
//     carries the operation out. False: it cannot have been answered so. Where it was not answered,
//     because its caller died, anything goes, and it may have happened or not.
// and may have, where states are numbers and no two operations lead to the same one (but State{}),
//   static State seen(const Operation&)      that an answered one has found; State{}: none
// which shortens the search: a state that is still to be seen must not be left, and all that nobody
// sees any more are alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace verbena::test {

inline constexpr uint64_t kUnanswered = std::numeric_limits<uint64_t>::max();

// Times are of one clock. A call at the moment of another one's answer counts as at once with it.
//
// What may happen after its answer, such as an update that is buffered, ends when it has happened
// for certain. Such calls are in sessions: those of one caller happen in its own order, as it saw
// it: what it called after an answer comes behind what was answered.
template <typename Operation>
struct Call {
  static constexpr uint64_t kNoSession = std::numeric_limits<uint64_t>::max();

  uint64_t begin_ns = 0;
  uint64_t end_ns = kUnanswered;
  Operation operation;
  uint64_t session = kNoSession;
  uint64_t reply_ns = kUnanswered;  // the answer, in a session

  // Whether it comes before `other` by the order of their session.
  bool precedes(const Call& other) const {
    return session != kNoSession && session == other.session && reply_ns < other.begin_ns;
  }
};

template <typename Model>
class LinearizabilitySearch {
 public:
  using State = typename Model::State;
  using Calls = std::vector<Call<typename Model::Operation>>;

  explicit LinearizabilitySearch(const Calls& calls)
      : calls_(calls), done_((calls.size() + 63) / 64) {
    struct Moment {
      uint64_t at_ns;
      bool is_end;
      size_t call;
    };
    std::vector<Moment> moments;
    for (size_t i = 0; i < calls.size(); ++i) {
      moments.push_back({calls[i].begin_ns, false, i});
      if (!answered(i)) continue;
      moments.push_back({calls[i].end_ns, true, i});
      ++answers_left_;
      count_seen(i, 1);
    }
    find_predecessors();
    std::sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) {
      return std::pair(a.at_ns, a.is_end) < std::pair(b.at_ns, b.is_end);
    });
    // Event 0 is the head of the list, 1 and up the moments, and the last one its end.
    events_.resize(moments.size() + 2);
    ends_.resize(calls.size());
    begins_.resize(calls.size());
    for (size_t i = 0; i < events_.size(); ++i) {
      events_[i].before = i == 0 ? 0 : i - 1;
      events_[i].behind = i + 1;
      if (i == 0 || i > moments.size()) continue;
      events_[i].call = moments[i - 1].call;
      events_[i].is_end = moments[i - 1].is_end;
      (moments[i - 1].is_end ? ends_ : begins_)[moments[i - 1].call] = i;
    }
  }

  bool run() {
    const size_t end = events_.size() - 1;
    State state{};
    size_t at = events_[0].behind;
    while (answers_left_ > 0) {
      if (at != end && !events_[at].is_end) {
        State next = state;
        const size_t call = events_[at].call;
        if (is_in_turn(call) && Model::step(next, calls_[call].operation, answered(call)) &&
            may_leave(state, next) && is_new(call, next)) {
          chosen_.emplace_back(call, std::exchange(state, next));
          choose(call);
          at = events_[0].behind;
        } else {
          at = events_[at].behind;
        }
        continue;
      }
      // An answer, whose call must come before everything behind it: take the last choice back.
      if (chosen_.empty()) return false;
      const auto [call, before] = chosen_.back();
      chosen_.pop_back();
      state = before;
      take_back(call);
      at = events_[begins_[call]].behind;
    }
    return true;
  }

 private:
  static constexpr bool kTellsSeen = requires(const typename Model::Operation& operation) {
    Model::seen(operation);
  };
  // Stands for each that nobody sees any more.
  static constexpr State kAnyState = static_cast<State>(-1);

  struct Event {
    size_t before = 0;
    size_t behind = 0;
    size_t call = 0;
    bool is_end = false;
  };
  // What was carried out, and the state after it.
  struct Seen {
    std::vector<uint64_t> done;
    State state;
    bool operator==(const Seen&) const = default;
  };
  struct SeenHash {
    size_t operator()(const Seen& seen) const {
      uint64_t hash = Model::hash(seen.state);
      for (const uint64_t word : seen.done)
        hash = (hash ^ word) * 0x9e3779b97f4a7c15 ^ (hash >> 29);
      return hash;
    }
  };

  void find_predecessors() {
    std::unordered_map<uint64_t, std::vector<size_t>> sessions;
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i].session != Calls::value_type::kNoSession) {
        sessions[calls_[i].session].push_back(i);
      }
    }
    before_.resize(calls_.size());
    behind_.resize(calls_.size());
    for (const auto& [session, members] : sessions) {
      for (const size_t one : members) {
        for (const size_t other : members) {
          if (!calls_[one].precedes(calls_[other])) continue;
          before_[other].push_back(one);
          behind_[one].push_back(other);
        }
      }
    }
  }
  // Whether all before it in its session have been carried out, or never are, and none behind it.
  bool is_in_turn(size_t call) const {
    return std::all_of(before_[call].begin(), before_[call].end(),
                       [this](size_t one) { return is_done(one) || !answered(one); }) &&
           std::none_of(behind_[call].begin(), behind_[call].end(),
                        [this](size_t one) { return is_done(one); });
  }
  bool is_done(size_t call) const { return (done_[call / 64] >> (call % 64) & 1) != 0; }

  bool answered(size_t call) const { return calls_[call].end_ns != kUnanswered; }
  void flip(size_t call) { done_[call / 64] ^= uint64_t{1} << (call % 64); }
  bool is_new(size_t call, const State& state) {
    flip(call);
    const bool inserted = seen_.insert({done_, is_to_be_seen(state) ? state : kAnyState}).second;
    flip(call);
    return inserted;
  }

  // Of models with seen(): the number of answered calls that are left and have found the state.
  void count_seen(size_t call, int more) {
    if constexpr (kTellsSeen) {
      const State state = Model::seen(calls_[call].operation);
      if (answered(call) && state != State{}) to_be_seen_[state] += more;
    }
  }
  bool is_to_be_seen(const State& state) const {
    if constexpr (kTellsSeen) {
      const auto found = to_be_seen_.find(state);
      return state == State{} || (found != to_be_seen_.end() && found->second > 0);
    }
    return true;
  }
  bool may_leave(const State& state, const State& next) const {
    if constexpr (kTellsSeen) return next == state || state == State{} || !is_to_be_seen(state);
    return true;
  }
  void unlink(size_t event) {
    events_[events_[event].before].behind = events_[event].behind;
    events_[events_[event].behind].before = events_[event].before;
  }
  void link(size_t event) {
    events_[events_[event].before].behind = event;
    events_[events_[event].behind].before = event;
  }
  void choose(size_t call) {
    flip(call);
    unlink(begins_[call]);
    if (!answered(call)) return;
    unlink(ends_[call]);
    --answers_left_;
    count_seen(call, -1);
  }
  void take_back(size_t call) {
    flip(call);
    if (answered(call)) {
      link(ends_[call]);
      ++answers_left_;
      count_seen(call, 1);
    }
    link(begins_[call]);
  }

  const Calls& calls_;
  std::unordered_map<State, int> to_be_seen_;
  std::vector<Event> events_;
  std::vector<size_t> begins_;  // of calls: their events
  std::vector<size_t> ends_;
  std::vector<std::vector<size_t>> before_;  // of calls: others of their sessions
  std::vector<std::vector<size_t>> behind_;
  std::vector<uint64_t> done_;
  size_t answers_left_ = 0;
  std::vector<std::pair<size_t, State>> chosen_;  // with the state before
  std::unordered_set<Seen, SeenHash> seen_;
};

template <typename Model>
bool is_linearizable(const std::vector<Call<typename Model::Operation>>& calls) {
  return LinearizabilitySearch<Model>(calls).run();
}

}  // namespace verbena::test
