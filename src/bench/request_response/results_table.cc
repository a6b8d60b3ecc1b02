#include "src/bench/request_response/results_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

std::string number_text(double count) { return count == 0 ? "0" : count_text(count); }

std::string cost_text(const std::optional<CpuCost>& cost) {
  if (!cost) return "-";
  return number_text(cost->instructions.value_or(cost->cycles));
}

std::string spread_text(const Summary& summary) {
  return fmt::format("{:+.0f}/{:+.0f} %", (summary.min / summary.median - 1) * 100,
                     (summary.max / summary.median - 1) * 100);
}

std::string shares_text(const char* side, const nlohmann::json& functions) {
  std::string text;
  for (const nlohmann::json& one : functions) {
    text += fmt::format("  {}  {:>5.1f} %  {}\n", side, one.value("share", 0.0) * 100,
                        one.value("function", ""));
  }
  return text;
}

// Whether two points differ only in what is compared.
bool same_group(const Point& a, const Point& b) {
  return a.topology == b.topology &&
         std::all_of(axes().begin(), axes().end(),
                     [&](const Axis& axis) { return axis.compared || axis.get(a) == axis.get(b); });
}

// "M:1 4 x 2 -> 1 x 2": nodes x threads of both sides.
std::string shape_text(const Point& point) {
  if (point.topology == Topology::kOneToOne) return topology_name(point.topology);
  if (point.topology == Topology::kAllToAll) {
    return fmt::format("{} {}x{}", topology_name(point.topology), point.nodes, point.threads);
  }
  return fmt::format("{} {}x{}:{}x{}", topology_name(point.topology), point.nodes, point.threads,
                     point.responder_nodes, point.responder_threads);
}

// The axes that have no column of their own but do not stand at their usual values.
std::vector<const Axis*> unusual_axes(const std::vector<PointResult>& results) {
  constexpr std::string_view kOwnColumns[] = {
      "nodes",   "threads",  "responders", "responder-threads", "request", "response",
      "pending", "protocol", "mark"};
  const Point usual;
  std::vector<const Axis*> unusual;
  for (const Axis& axis : axes()) {
    if (std::find(std::begin(kOwnColumns), std::end(kOwnColumns), axis.name) !=
        std::end(kOwnColumns)) {
      continue;
    }
    if (std::any_of(results.begin(), results.end(), [&](const PointResult& result) {
          return axis.get(result.point) != axis.get(usual);
        })) {
      unusual.push_back(&axis);
    }
  }
  return unusual;
}

}  // namespace

std::string simulation_text(const std::vector<PointResult>& results) {
  SimulationCounts sum;
  for (const PointResult& result : results) {
    for (const RunResult& run : result.runs) {
      if (!run.simulated) continue;
      sum.events += run.simulated->events;
      sum.virtual_ns += run.simulated->virtual_ns;
      sum.wall_s += run.simulated->wall_s;
    }
  }
  if (sum.events == 0 || sum.wall_s <= 0) return {};
  return fmt::format(
      "simulated: {:.3g} ms of virtual time in {:.2f} s, {:.1f} M events, {:.1f} M/s\n",
      static_cast<double>(sum.virtual_ns) / 1e6, sum.wall_s, static_cast<double>(sum.events) / 1e6,
      static_cast<double>(sum.events) / 1e6 / sum.wall_s);
}

std::string results_table(const std::vector<PointResult>& results) {
  const bool shapes = std::any_of(results.begin(), results.end(), [](const PointResult& result) {
    return result.point.topology != Topology::kOneToOne;
  });
  const bool verified = std::any_of(results.begin(), results.end(),
                                    [](const PointResult& result) { return result.verify; });
  std::vector<std::vector<std::string>> rows = {
      {"protocol", "mark", "request", "response", "pending", "median", "p99", "p99.9", "rate",
       "value bandwidth", "total bandwidth", "CPU req.", "CPU resp.", "runs", "spread"}};
  if (shapes) {
    rows.front().insert(rows.front().begin() + 2, "nodes x threads");
    rows.front().push_back("empty");
  }
  if (verified) rows.front().push_back("verified");
  const std::vector<const Axis*> unusual = unusual_axes(results);
  const size_t labels_left = (shapes ? 3 : 2) + unusual.size();
  for (size_t i = 0; i < unusual.size(); ++i) {
    rows.front().insert(rows.front().begin() + static_cast<std::ptrdiff_t>(2 + i),
                        std::string(unusual[i]->name));
  }
  const char* unit = "cycles";
  const Point* previous = nullptr;
  for (const PointResult& result : results) {
    const Point& point = result.point;
    // What is compared stands together.
    if (previous != nullptr && !same_group(*previous, point)) rows.emplace_back();
    previous = &point;
    std::vector<std::string> row = {protocol_name(point.protocol),
                                    uses_mark_layout(point.protocol) ? layout_text(point) : "-",
                                    size_text(point.request_bytes), size_text(point.response_bytes),
                                    fmt::format("{}", point.pending)};
    if (shapes) row.insert(row.begin() + 2, shape_text(point));
    for (size_t i = 0; i < unusual.size(); ++i) {
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(2 + i),
                 unusual[i]->text(unusual[i]->get(point)));
    }
    const size_t labels = row.size();
    if (result.measured()) {
      const std::optional<CpuCost> cost = result.requester_cost();
      if (cost && cost->instructions) unit = "instructions";
      const Summary rate = result.rate_per_s();
      row.insert(row.end(), {time_text(result.p50_ns().median), time_text(result.p99_ns().median),
                             time_text(result.p999_ns().median), rate_text(rate.median),
                             bandwidth_text(result.value_bandwidth_bytes_per_s()),
                             bandwidth_text(result.total_bandwidth_bytes_per_s()),
                             cost_text(result.requester_cost()), cost_text(result.responder_cost()),
                             fmt::format("{}", result.runs.size()), spread_text(rate)});
      if (shapes) {
        const std::optional<double> empty = result.empty_look_share();
        row.push_back(empty ? fmt::format("{:.0f} %", *empty * 100) : "-");
      }
      if (verified) row.push_back(result.verified() ? "yes" : "NO");
    }
    const bool failed = result.errors > 0;
    if (!failed || result.measured()) rows.push_back(row);
    if (failed) {
      row.resize(labels);
      row.push_back(fmt::format("FAILED: {}", result.error));
      rows.push_back(std::move(row));
    }
  }
  return text_table(rows, labels_left) +
         fmt::format(
             "latency: post to response of one request, waiting behind other pending ones "
             "included; "
             "bandwidth: of the responses (value),\nand of requests too (total; that of a READ "
             "does "
             "not travel); CPU: {} per message at requester and responder, polls\nthat found "
             "nothing "
             "left out; numbers are medians over the runs, spread is that of the rate\n{}",
             unit, shapes ? "empty: share of the responders' looks that found no request\n" : "") +
         simulation_text(results);
}

std::string profiles_table(const std::vector<PointResult>& results) {
  std::string text;
  for (const PointResult& result : results) {
    if (result.profile.is_null()) continue;
    const Point& point = result.point;
    const std::string what =
        fmt::format("{} {}, {} response, {} pending", protocol_name(point.protocol),
                    shape_text(point), size_text(point.response_bytes), point.pending);
    if (result.profile.contains("event")) {
      text += fmt::format("\nwhere the time goes: {} (samples of {})\n", what,
                          result.profile.value("event", ""));
      for (const char* side : {"requester", "responder"}) {
        text += shares_text(side, result.profile.value(side, nlohmann::json::array()));
      }
    }
    if (!result.profile.contains("instructions")) continue;
    text += fmt::format(
        "\nwhere the instructions go: {} (valgrind, a short run; polls that found messages)\n",
        what);
    for (const char* side : {"requester", "responder"}) {
      const nlohmann::json& cost = result.profile["instructions"][side];
      text += fmt::format(
          "  {}  {} per message, {:.3g} per byte of the response, {:.3g} messages "
          "a poll\n",
          side, number_text(cost.value("per_message", 0.0)), cost.value("per_byte", 0.0),
          cost.value("messages_per_poll", 0.0));
      text += shares_text(side, cost.value("functions", nlohmann::json::array()));
    }
  }
  return text;
}

}  // namespace verbena::bench
