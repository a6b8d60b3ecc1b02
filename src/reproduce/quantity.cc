#include "src/reproduce/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "src/bench/experiment/workload.h"
#include "src/bench/result/statistics.h"

namespace verbena::reproduce {

namespace {

using Names = std::set<std::string_view>;

Names moved_by(const std::vector<const Abscissa*>& abscissas) {
  Names names;
  for (const Abscissa* one : abscissas) names.insert(one->moves.begin(), one->moves.end());
  return names;
}

// bench::key_of() without some axes.
PointKey key_without(const bench::Point& point, const Names& names, bool with_topology = true) {
  PointKey key = bench::key_of(point);
  if (!with_topology) key[1] = 0;
  size_t place = 2;
  for (const bench::Axis& axis : point.workload->traits().axes) {
    if (names.contains(axis.name)) key[place] = 0;
    ++place;
  }
  return key;
}

// Axes that mean nothing at a point are at all their values there.
void add_idle_axes(const bench::Point& point, Names& names) {
  for (const bench::Axis& axis : point.workload->traits().axes) {
    if (!axis.applies(point)) names.insert(axis.name);
  }
}

std::vector<double> place(const bench::Point& point, const std::vector<const Abscissa*>& at) {
  std::vector<double> values;
  for (const Abscissa* one : at) values.push_back(one->value(point));
  return values;
}

void add_axis(std::string_view axis, Names& names) {
  names.insert(axis);
  if (const Abscissa* same = find_abscissa(axis)) {
    names.insert(same->moves.begin(), same->moves.end());
  }
}

// The second selection of a quantity whose first one is `of`.
Selection second_of(const Part& part, const Selection& of, bool groups) {
  const Selection& given = part.over ? *part.over : *part.minus;
  if (!groups) return given;
  Selection second = of;
  second.own = given.own;
  second.own_topology = given.own_topology;
  if (given.own_topology) second.topology = given.topology;
  for (const std::string& axis : given.own) second.axes[axis] = given.axes.at(axis);
  return second;
}

// On which the points of both quantities may differ.
Names free_axes(const Part& part, const Selection& of, const Selection& second, bool groups) {
  Names names;
  for (const std::string& axis : second.own) add_axis(axis, names);
  for (const std::string& axis : part.best) add_axis(axis, names);
  if (!groups) {
    for (const std::string& axis : of.own) add_axis(axis, names);
  }
  // A topology that differs has other nodes and threads.
  if (second.own_topology || of.own_topology) {
    for (const char* name : {"nodes", "responders", "threads", "responder-threads"}) {
      names.insert(name);
    }
  }
  return names;
}

std::vector<Sample> best_of(const std::vector<Sample>& samples,
                            const std::vector<std::string>& axes) {
  Names names;
  for (const std::string& axis : axes) add_axis(axis, names);
  // Some protocols have no mark: the best protocol is the best of all, not one per mark.
  for (const bench::Axis& axis : samples.front().point.workload->traits().axes) {
    if (names.contains(axis.depends_on)) names.insert(axis.name);
  }
  std::vector<Sample> best;
  std::map<PointKey, size_t> places;
  for (const Sample& sample : samples) {
    const auto [found, added] = places.emplace(key_without(sample.point, names), best.size());
    if (added) {
      best.push_back(sample);
    } else if (sample.value > best[found->second].value) {
      best[found->second] = sample;
    }
  }
  return best;
}

std::vector<const Abscissa*> all_abscissas(const Part& part) {
  std::vector<const Abscissa*> all = part.at;
  if (part.along != nullptr) all.push_back(part.along);
  return all;
}

double quotient(double of, double over, QuotientUnit unit) {
  switch (unit) {
    case QuotientUnit::kPercent:
      return 100 * of / over;
    case QuotientUnit::kChange:
      return 100 * (of / over - 1);
    case QuotientUnit::kReduction:
      return 100 * (1 - of / over);
    case QuotientUnit::kRatio:
      break;
  }
  return of / over;
}

}  // namespace

Result<std::optional<double>> value_at(const bench::Point& point, const Metric& metric,
                                       const Source& source) {
  std::span<const Measurement> runs = source.measurements->runs(point);
  if (source.run) {
    runs =
        *source.run < runs.size() ? runs.subspan(*source.run, 1) : std::span<const Measurement>();
  } else {
    runs = runs.first(std::min(runs.size(), source.seeds));
  }
  std::vector<double> values;
  bool measured = !runs.empty();
  for (const Measurement& one : runs) {
    if (!one.error.empty()) {
      return Status(StatusCode::kUnavailable, fmt::format("could not be measured: {}", one.error));
    }
    measured = measured && one.ended();
    if (const std::optional<double> value = metric.read(one.row)) values.push_back(*value);
  }
  if (!measured) {
    return Status(StatusCode::kUnavailable, "could not be measured: it was interrupted");
  }
  // A median of some would hide that the others have none.
  if (values.size() < runs.size()) return std::optional<double>();
  return std::optional<double>(bench::median(values));
}

Result<std::vector<Sample>> samples_of(const Part& part, const Selection& selection,
                                       std::string_view unit, const Source& source) {
  const std::optional<double> factor = in_unit(part.metric->dimension, unit);
  if (!factor) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is not measured in {}", part.metric->name, unit));
  }
  VERBENA_ASSIGN_OR_RETURN(const std::vector<bench::Point> points,
                           source.experiments->points(selection, *source.uses));
  std::vector<Sample> samples;
  for (const bench::Point& point : points) {
    VERBENA_ASSIGN_OR_RETURN(const std::optional<double> value,
                             value_at(point, *part.metric, source));
    if (!value) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("this device does not measure {}", part.metric->name));
    }
    samples.push_back({point, point, *value * *factor});
  }
  return part.best.empty() ? samples : best_of(samples, part.best);
}

Result<std::vector<Sample>> quantity_of(const Part& part, const Selection& of,
                                        std::string_view unit, const Source& source) {
  VERBENA_ASSIGN_OR_RETURN(std::vector<Sample> samples, samples_of(part, of, unit, source));
  const std::vector<const Abscissa*> all = all_abscissas(part);
  if (part.over || part.minus) {
    const bool groups = part.shape == Shape::kOrdered;
    const Selection second = second_of(part, of, groups);
    VERBENA_ASSIGN_OR_RETURN(const std::vector<Sample> others,
                             samples_of(part, second, unit, source));
    const Names free = free_axes(part, of, second, groups);
    const bool same_topology = !second.own_topology && (groups || !of.own_topology);
    std::vector<Sample> joined;
    for (const Sample& one : samples) {
      for (const Sample& other : others) {
        if (place(one.point, all) != place(other.point, all)) continue;
        Names moved = free;
        add_idle_axes(one.point, moved);
        add_idle_axes(other.point, moved);
        if (key_without(one.point, moved, same_topology) !=
            key_without(other.point, moved, same_topology)) {
          continue;
        }
        joined.push_back({one.point, other.point,
                          part.over ? quotient(one.value, other.value, part.quotient_unit)
                                    : one.value - other.value});
      }
    }
    if (joined.empty()) {
      return Status(StatusCode::kInvalidArgument, "the two quantities have no place in common");
    }
    samples = part.most.empty() ? std::move(joined) : best_of(joined, part.most);
  }
  if (part.mean) {
    std::vector<Sample> means;
    for (const std::vector<Sample>& group : groups_of(samples, all)) {
      means.push_back(group.front());
      means.back().value = 0;
      for (const Sample& one : group) {
        means.back().value += one.value / static_cast<double>(group.size());
      }
    }
    samples = std::move(means);
  }
  for (Sample& sample : samples) sample.value *= part.scale;
  return samples;
}

std::vector<std::vector<Sample>> groups_of(const std::vector<Sample>& samples,
                                           const std::vector<const Abscissa*>& at) {
  std::map<std::vector<double>, std::vector<Sample>> by_place;
  for (const Sample& sample : samples) by_place[place(sample.point, at)].push_back(sample);
  std::vector<std::vector<Sample>> groups;
  for (auto& [where, group] : by_place) groups.push_back(std::move(group));
  return groups;
}

Result<std::vector<Line>> lines_of(const std::vector<Sample>& samples, const Abscissa& along) {
  const Names moved = moved_by({&along});
  std::vector<Line> lines;
  std::map<PointKey, size_t> places;
  for (const Sample& sample : samples) {
    PointKey key = key_without(sample.point, moved);
    const PointKey other = key_without(sample.other, moved);
    key.insert(key.end(), other.begin(), other.end());
    const auto [found, added] = places.emplace(key, lines.size());
    if (added) lines.emplace_back();
    if (lines[found->second].emplace(along.value(sample.point), sample).second) continue;
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("two values at the same {}", along.name));
  }
  return lines;
}

std::vector<std::string> labels_of(const std::vector<Sample>& samples,
                                   const std::vector<const Abscissa*>& known,
                                   std::span<const std::string_view> known_axes) {
  if (samples.empty()) return {};
  Names moved = moved_by(known);
  moved.insert(known_axes.begin(), known_axes.end());
  std::vector<std::string> labels(samples.size());
  const auto extend = [&](auto text_of) {
    std::set<std::string> different;
    for (const Sample& sample : samples) different.insert(text_of(sample));
    if (different.size() < 2) return;
    for (size_t i = 0; i < samples.size(); ++i) {
      labels[i] += (labels[i].empty() ? "" : " ") + text_of(samples[i]);
    }
  };
  extend([](const Sample& one) { return std::string(bench::topology_name(one.point.topology)); });
  for (const bench::Axis& any : samples.front().point.workload->traits().axes) {
    if (moved.contains(any.name)) continue;
    const auto text_of = [&](const bench::Point& point) {
      const bench::Axis* axis = point.workload->find_axis(any.name);
      if (axis == nullptr) return std::string();
      const std::string text = axis->text(axis->get(point));
      return axis->compared ? text : fmt::format("{} {}", axis->name, text);
    };
    extend([&](const Sample& one) { return text_of(one.point); });
    const bool same = std::all_of(samples.begin(), samples.end(), [&](const Sample& one) {
      return text_of(one.point) == text_of(one.other);
    });
    if (!same) extend([&](const Sample& one) { return text_of(one.other); });
  }
  return labels;
}

}  // namespace verbena::reproduce
