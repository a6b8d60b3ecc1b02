// Histories of a map from keys to values that several use at once: each key is a register of its
// own that may be empty, and must be linearizable (linearizability.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/linearizability.h"

namespace verbena::test {

struct MapOperation {
  enum class Kind : uint32_t { kSearch, kInsert, kUpdate, kRemove };
  Kind kind = Kind::kSearch;
  bool succeeded = false;  // search, remove: it was there; insert: it was not
  uint64_t key = 0;
  uint64_t value = 0;  // that was found, inserted or set; not 0
};

struct MapModel {
  using Operation = MapOperation;
  using State = uint64_t;  // the value; 0: none

  static uint64_t hash(State state) { return state; }
  // All values are different.
  static State seen(const Operation& operation) {
    const bool found = operation.kind == Operation::Kind::kSearch && operation.succeeded;
    return found ? operation.value : State{};
  }
  static bool step(State& state, const Operation& operation, bool answered) {
    switch (operation.kind) {
      case Operation::Kind::kSearch:
        return !answered || state == (operation.succeeded ? operation.value : 0);
      case Operation::Kind::kInsert:
        if (answered && operation.succeeded != (state == 0)) return false;
        if (state == 0) state = operation.value;
        return true;
      case Operation::Kind::kUpdate:
        state = operation.value;
        return true;
      case Operation::Kind::kRemove:
        if (answered && operation.succeeded != (state != 0)) return false;
        state = 0;
        return true;
    }
    return false;
  }
};

using MapCall = Call<MapOperation>;

inline std::string describe(const MapCall& call) {
  constexpr const char* kKinds[] = {"search", "insert", "update", "remove"};
  const MapOperation& done = call.operation;
  const bool answered = call.end_ns != kUnanswered;
  return std::to_string(call.begin_ns) + " to " +
         (answered ? std::to_string(call.end_ns) : std::string("?")) +
         (call.session == MapCall::kNoSession ? std::string()
                                              : ", session " + std::to_string(call.session) +
                                                    " replied " + std::to_string(call.reply_ns)) +
         ": " + kKinds[static_cast<uint32_t>(done.kind)] + " " + std::to_string(done.value) +
         (!answered        ? ""
          : done.succeeded ? ", done"
                           : ", not done") +
         "\n";
}

// For the calls of one session, whose buffered updates end when they are published: a search that
// found one of them before happens between the two, so it ends with it.
inline void extend_searches(std::vector<MapCall>& calls) {
  using Kind = MapOperation::Kind;
  std::map<uint64_t, uint64_t> published_ns;  // by value
  for (const MapCall& call : calls) {
    if (call.operation.kind == Kind::kUpdate && call.end_ns != call.reply_ns) {
      published_ns[call.operation.value] = call.end_ns;
    }
  }
  for (MapCall& call : calls) {
    if (call.operation.kind != Kind::kSearch || call.end_ns == kUnanswered) continue;
    const auto update = published_ns.find(call.operation.value);
    if (update != published_ns.end()) call.end_ns = std::max(call.end_ns, update->second);
  }
}

inline bool is_key_linearizable(const std::vector<MapCall>& calls) {
  using Kind = MapOperation::Kind;
  std::set<uint64_t> seen;
  for (const MapCall& call : calls) {
    if (call.operation.kind == Kind::kSearch && call.end_ns != kUnanswered) {
      seen.insert(call.operation.value);
    }
  }
  // What was not answered doubles the search each time, so it is tried first without that of which
  // nothing was seen.
  std::vector<MapCall> certain;
  std::vector<MapCall> possible;
  for (const MapCall& call : calls) {
    const bool answered = call.end_ns != kUnanswered;
    if (!answered && call.operation.kind == Kind::kSearch) continue;
    possible.push_back(call);
    const bool is_seen =
        call.operation.kind != Kind::kRemove && seen.contains(call.operation.value);
    if (answered || is_seen) certain.push_back(call);
  }
  return is_linearizable<MapModel>(certain) ||
         (possible.size() > certain.size() && is_linearizable<MapModel>(possible));
}

// The history of a key that is not linearizable, in lines; empty if there is none.
inline std::string broken_history(const std::vector<MapCall>& calls) {
  std::map<uint64_t, std::vector<MapCall>> keys;
  for (const MapCall& call : calls) keys[call.operation.key].push_back(call);
  for (auto& [key, history] : keys) {
    if (is_key_linearizable(history)) continue;
    std::sort(history.begin(), history.end(),
              [](const MapCall& a, const MapCall& b) { return a.begin_ns < b.begin_ns; });
    std::string text = "key " + std::to_string(key) + " is not linearizable:\n";
    for (const MapCall& call : history) text += describe(call);
    return text;
  }
  return "";
}

}  // namespace verbena::test
