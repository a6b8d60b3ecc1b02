#include "src/reproduce/check.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/bench/experiment/workload.h"

namespace verbena::reproduce {

Result<std::vector<bench::Point>> chosen_points(const std::vector<bench::Point>& points,
                                                const Selection& selection) {
  std::vector<bench::Point> chosen;
  for (const bench::Point& point : points) {
    if (!selection.topology || *selection.topology == point.topology) chosen.push_back(point);
  }
  for (const auto& [name, text] : selection.axes) {
    if (chosen.empty()) break;
    const bench::Workload& workload = *chosen.front().workload;
    const bench::Axis* axis = workload.find_axis(name);
    if (axis == nullptr) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("{} have no axis '{}'", workload.traits().subject, name));
    }
    VERBENA_ASSIGN_OR_RETURN(const std::vector<uint64_t> values, axis->parse(text));
    std::erase_if(chosen, [&](const bench::Point& point) {
      return std::find(values.begin(), values.end(), axis->get(point)) == values.end();
    });
  }
  return chosen;
}

}  // namespace verbena::reproduce
