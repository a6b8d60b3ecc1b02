#include "src/reproduce/experiments.h"

#include <fmt/format.h>

#include <utility>

#include "src/bench/experiment/experiment_file.h"
#include "src/bench/experiment/plan.h"

namespace verbena::reproduce {

Result<std::vector<bench::Point>> Experiments::points(const std::string& name) {
  if (const auto known = read_.find(name); known != read_.end()) return known->second;
  VERBENA_ASSIGN_OR_RETURN(const bench::Plan plan,
                           bench::read_experiment_file(fmt::format("{}/{}.toml", folder_, name)));
  VERBENA_ASSIGN_OR_RETURN(const std::vector<bench::PointGroup> groups, bench::point_groups(plan));
  std::vector<bench::Point>& points = read_[name];
  for (const bench::PointGroup& group : groups) {
    points.insert(points.end(), group.begin(), group.end());
  }
  return points;
}

Result<std::vector<bench::Point>> Experiments::points(const Selection& selection,
                                                      const std::map<std::string, Use>& uses) {
  VERBENA_ASSIGN_OR_RETURN(const std::vector<bench::Point> all, points(selection.experiment));
  Selection used;
  if (const auto use = uses.find(selection.experiment); use != uses.end()) {
    used.axes = use->second.only;
  }
  VERBENA_ASSIGN_OR_RETURN(std::vector<bench::Point> chosen, chosen_points(all, used));
  VERBENA_ASSIGN_OR_RETURN(chosen, chosen_points(chosen, selection));
  if (!chosen.empty()) return chosen;
  std::string text;
  for (const auto& [axis, values] : selection.axes) text += fmt::format(" {} {}", axis, values);
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{} has no point with{}", selection.experiment, text));
}

std::vector<const Selection*> selections_of(const Part& part) {
  std::vector<const Selection*> selections;
  if (part.groups.empty()) selections.push_back(&part.of);
  for (const auto* further : {&part.over, &part.minus, &part.than}) {
    if (*further) selections.push_back(&**further);
  }
  for (const Selection& group : part.groups) selections.push_back(&group);
  return selections;
}

}  // namespace verbena::reproduce
