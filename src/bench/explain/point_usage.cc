#include "src/bench/explain/point_usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "src/base/assert.h"
#include "src/bench/experiment/workload.h"
#include "src/bench/result/application_table.h"
#include "src/bench/result/text_table.h"
#include "src/bench/run/node_pool.h"
#include "src/bench/run/run.h"
#include "src/device/sim/simulation.h"

namespace verbena::bench {

namespace {

// Of the limits table.
constexpr size_t kShownUnits = 3;
// What was hardly used says nothing.
constexpr double kLeastShown = 0.0005;

std::string_view role_of(const WiredNode& node, const NodeNames& names) {
  if (node.requesting > 0 && node.responding > 0) return names.both;
  return node.requesting > 0 ? names.requesting : names.responding;
}

std::string busy_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

}  // namespace

std::vector<UnitUsage> usage_by_role(const Point& point, const std::vector<sim::NodeUsage>& nodes) {
  const Result<Wiring> wiring = wire(shape_of(point));
  VERBENA_ASSERT(wiring.ok() && wiring->nodes.size() == nodes.size());
  std::vector<UnitUsage> units;
  for (uint32_t number = 0; number < nodes.size(); ++number) {
    const std::string_view role =
        role_of(wiring->nodes[number], point.workload->traits().node_names);
    auto first = std::find_if(units.begin(), units.end(),
                              [role](const UnitUsage& one) { return one.role == role; });
    if (first == units.end()) {
      const auto offset = first - units.begin();
      for (size_t unit = 0; unit < sim::kNodeUnits; ++unit) {
        units.push_back({.role = role, .unit = static_cast<sim::NodeUnit>(unit)});
      }
      first = units.begin() + offset;
    }
    for (size_t unit = 0; unit < sim::kNodeUnits; ++unit) {
      UnitUsage& sum = *(first + static_cast<std::ptrdiff_t>(unit));
      const double share = nodes[number].share[unit];
      sum.mean += (share - sum.mean) / ++sum.nodes;
      if (share <= sum.most) continue;
      sum.most = share;
      sum.busiest = number;
    }
  }
  return units;
}

Result<PointUsage> measure_usage(const std::string& device, const Point& point, uint64_t messages) {
  const std::unique_ptr<NodePool> pool = NodePool::simulated(device);
  PointUsage usage;
  std::optional<sim::UsageMeter> meter;
  RunOptions options;
  options.messages = messages;
  options.before_timed = [&meter](const std::vector<pid_t>&) {
    meter.emplace(*sim::Simulation::current());
    return Status::ok_status();
  };
  options.after_timed = [&] { usage.units = usage_by_role(point, meter->read()); };
  RunFailure failure;
  VERBENA_ASSIGN_OR_RETURN(usage.run, run_point(*pool, point, options, 0, &failure));
  return usage;
}

std::vector<UnitUsage> by_load(std::vector<UnitUsage> units) {
  std::stable_sort(units.begin(), units.end(),
                   [](const UnitUsage& a, const UnitUsage& b) { return a.most > b.most; });
  return units;
}

std::string load_text(const UnitUsage& usage) {
  return fmt::format("{} {} {:.0f} %", usage.role, sim::text_of(usage.unit), 100 * usage.most);
}

std::string usage_table(const PointUsage& usage) {
  std::vector<std::vector<std::string>> rows = {
      {"role", "unit", "nodes", "mean", "most", "of node"}};
  for (const UnitUsage& one : usage.units) {
    if (one.most < kLeastShown) continue;
    rows.push_back({std::string(one.role), sim::text_of(one.unit), fmt::format("{}", one.nodes),
                    busy_text(one.mean), busy_text(one.most), fmt::format("{}", one.busiest)});
  }
  return text_table(rows, 2);
}

std::string limits_table(const std::vector<PointResult>& results,
                         const std::vector<PointUsage>& usages) {
  VERBENA_ASSERT(results.size() == usages.size() && !results.empty());
  const std::vector<const Axis*> axes = shown_axes(results, std::array{std::string_view("nodes")});
  std::vector<std::vector<std::string>> rows(1);
  for (const Axis* axis : axes) rows.front().emplace_back(axis->name);
  rows.front().insert(rows.front().end(), {"rate", "median"});
  rows.front().emplace_back("busiest");
  for (size_t i = 1; i < kShownUnits; ++i) rows.front().emplace_back("then");
  for (size_t i = 0; i < results.size(); ++i) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Axis* axis : axes) row.push_back(axis_text(*axis, results[i].point));
    row.push_back(rate_text(usages[i].run.rate_per_s));
    row.push_back(time_text(usages[i].run.p50_ns));
    const std::vector<UnitUsage> units = by_load(usages[i].units);
    for (size_t unit = 0; unit < std::min(kShownUnits, units.size()); ++unit) {
      row.push_back(load_text(units[unit]));
    }
  }
  return text_table(rows, axes.size());
}

nlohmann::json usage_json(const PointUsage& usage) {
  nlohmann::json roles = nlohmann::json::object();
  for (const UnitUsage& one : usage.units) {
    nlohmann::json& role = roles[std::string(one.role)];
    role["nodes"] = one.nodes;
    role[sim::key_of(one.unit)] = {{"mean", one.mean}, {"most", one.most}};
  }
  return roles;
}

}  // namespace verbena::bench
