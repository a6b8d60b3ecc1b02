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
         (answered ? std::to_string(call.end_ns) : std::string("?")) + ": " +
         kKinds[static_cast<uint32_t>(done.kind)] + " " + std::to_string(done.value) +
         (!answered        ? ""
          : done.succeeded ? ", done"
                           : ", not done") +
         "\n";
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
