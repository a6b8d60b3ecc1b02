#include "src/bench/experiment/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>

namespace verbena::bench {

const Axis* Workload::find_axis(std::string_view name) const {
  for (const Axis& axis : traits_.axes) {
    if (name == axis.name || (!axis.alias.empty() && name == axis.alias)) return &axis;
  }
  return nullptr;
}

std::string command_words(const WorkloadCommand& command) {
  if (command.group.empty()) return std::string(command.name);
  return fmt::format("{} {}", command.group, command.name);
}

std::string Workload::axis_names() const {
  std::vector<std::string_view> names;
  for (const Axis& axis : traits_.axes) names.push_back(axis.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<uint64_t> key_of(const Point& point) {
  const WorkloadTraits& traits = point.workload->traits();
  std::vector<uint64_t> key = {std::hash<std::string_view>()(traits.name),
                               static_cast<uint64_t>(point.topology)};
  for (const Axis& axis : traits.axes) key.push_back(axis.get(point));
  return key;
}

bool operator==(const Point& a, const Point& b) { return key_of(a) == key_of(b); }

}  // namespace verbena::bench
