#include "src/bench/request_response/request_response_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "src/bench/experiment/size_list.h"
#include "src/bench/request_response/request_response_axes.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/result/knee.h"
#include "src/bench/result/result_texts.h"
#include "src/bench/result/text_table.h"

namespace verbena::bench {

namespace {

std::string spread_text(const Summary& summary) {
  if (!summary.has_spread()) return "-";
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
  const std::span<const Axis> axes = request_response_axes();
  return a.topology == b.topology && std::all_of(axes.begin(), axes.end(), [&](const Axis& axis) {
           return axis.compared || axis.get(a) == axis.get(b);
         });
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

constexpr std::string_view kOpenLoopLegend =
    "open loop (offered): latency counts from when a request arrives, whether it can be sent then "
    "or not; saturated: the\nrate is below 95 % of the offered one, and the latency grows with the "
    "length of the run\n";

// The axes that have no column of their own but do not stand at their usual values.
std::vector<const Axis*> unusual_axes(const std::vector<PointResult>& results) {
  constexpr std::string_view kOwnColumns[] = {
      "nodes",   "threads",  "responders", "responder-threads", "request", "response",
      "pending", "protocol", "mark",       "arrival-rate"};
  const Point usual = request_response_workload().point();
  std::vector<const Axis*> unusual;
  for (const Axis& axis : request_response_axes()) {
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

std::string request_response_table(const std::vector<PointResult>& results) {
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
  const bool open = std::any_of(results.begin(), results.end(), [](const PointResult& result) {
    return result.point.arrival_rate_per_s > 0;
  });
  if (open) rows.front().insert(rows.front().end(), {"offered", "saturated"});
  const bool lossy = std::any_of(results.begin(), results.end(), [](const PointResult& result) {
    return request_response_settings(result.point).transport != Transport::kRc;
  });
  if (lossy) rows.front().push_back("resent");
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
    const RequestResponseSettings& settings = request_response_settings(point);
    // What is compared stands together.
    if (previous != nullptr && !same_group(*previous, point)) rows.emplace_back();
    previous = &point;
    std::vector<std::string> row = {
        protocol_name(settings.protocol),
        uses_mark_layout(settings.protocol) ? layout_text(settings) : "-",
        size_text(settings.request_bytes), size_text(settings.response_bytes),
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
        const std::optional<double> empty = result.metric(0);
        row.push_back(empty ? fmt::format("{:.0f} %", *empty * 100) : "-");
      }
      if (open) {
        const std::optional<double> offered = result.offered_rate_per_s();
        row.push_back(offered ? rate_text(*offered) : "-");
        row.push_back(!offered ? "-" : result.saturated() ? "yes" : "no");
      }
      if (lossy) {
        const std::optional<double> resent = result.metric(1);
        row.push_back(resent ? fmt::format("{:.3g} %", *resent * 100) : "-");
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
             unit, shapes ? "empty: share of the responders' polls that found nothing\n" : "") +
         (lossy ? "resent: messages of both sides that were sent again, per request\n" : "") +
         (open ? std::string(kOpenLoopLegend) + knees_text(results) : "") +
         simulation_text(results);
}

std::string request_response_profiles(const std::vector<PointResult>& results) {
  std::string text;
  for (const PointResult& result : results) {
    if (result.profile.is_null()) continue;
    const Point& point = result.point;
    const RequestResponseSettings& settings = request_response_settings(point);
    const std::string what =
        fmt::format("{} {}, {} response, {} pending", design_text(settings), shape_text(point),
                    size_text(settings.response_bytes), point.pending);
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
          side, cost_number_text(cost.value("per_message", 0.0)), cost.value("per_byte", 0.0),
          cost.value("messages_per_poll", 0.0));
      text += shares_text(side, cost.value("functions", nlohmann::json::array()));
    }
  }
  return text;
}

}  // namespace verbena::bench
