// The axes of the design space that a benchmark can vary: one table, from which come the tool's
// options, the keys of experiment files, the keys of result files, and what travels between the
// processes. An axis more is an entry here and a member of Point.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/point.h"
#include "verbena/status.h"

namespace verbena::bench {

enum class Scope : uint8_t { kMessages, kVerbs, kBoth };

struct Axis {
  Scope scope;  // of which subject it is an axis
  // "pending": the option is --pending, the key in an experiment file is pending.
  std::string_view name;
  std::string_view alias;  // a second name for both; may be empty
  std::string_view json;   // the key in results
  std::string_view what;   // one entry, in errors: "number of pending requests"
  std::string_view shape;  // what the option takes: "COUNTS"
  std::string_view
      standard;  // what it is where nothing is said, as typed; "" where the topology has it
  std::string_view help;
  // Points that differ in nothing but such axes are compared: their runs take turns.
  bool compared;

  // A list as typed: "1,16".
  Result<std::vector<uint64_t>> (*parse)(std::string_view text);
  // One value as typed, the inverse.
  std::string (*text)(uint64_t value);
  uint64_t (*get)(const Point& point);
  void (*set)(Point& point, uint64_t value);
  nlohmann::json (*to_json)(const Point& point);
  // Whether a value that came from elsewhere can be one.
  bool (*possible)(uint64_t value);
  // The values, where they are names.
  std::vector<std::string> (*choices)();

  bool belongs_to(Subject subject) const {
    return scope == Scope::kBoth ||
           scope == (subject == Subject::kVerbs ? Scope::kVerbs : Scope::kMessages);
  }
};

// From the slowest changing to the fastest in a sweep.
std::span<const Axis> axes();
// By name or alias; null if there is none.
const Axis* find_axis(std::string_view name);
// Of the axes of a subject, for errors: "pending, size, entries".
std::string axis_names(Subject subject);

}  // namespace verbena::bench
