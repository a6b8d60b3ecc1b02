// An axis of the design space: something that a benchmark can vary. From a workload's axes come the
// tool's options, the keys of experiment files, the keys of result files, and what travels between
// the processes.
//
// axis_kinds.h makes axes of numbers, sizes and names; common_axes.h has those of the members that
// every point has.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/point.h"
#include "verbena/status.h"

namespace verbena::bench {

struct Axis {
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
  // The axis whose value decides whether this one means anything (`applies`); "" where none does.
  std::string_view depends_on;

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
  // Whether it means anything at this point.
  bool (*applies)(const Point& point);
};

}  // namespace verbena::bench
