#include "src/calibrate/observation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/bench/experiment/plan.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/verbs/verbs_workload.h"

namespace verbena::calibrate {

namespace {

struct Recipe {
  std::vector<std::string_view> parameters;
  bool verbs = true;  // else requests and responses
  std::vector<AxisValue> axes;
  Quantity quantity = Quantity::kOperation;
  double per_unit = 1;
};

// Where nothing waits for a peer, an operation takes what its thread does for it. Of many pending
// ones a poll takes all completions, or few are signaled; a single one takes a poll of its own.
const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = {
      {{"cpu_poll"}, true, {{"operation", "poll"}, {"entries", "64"}}, Quantity::kMedian, 64},
      {{"post_wqe"},
       true,
       {{"operation", "write"}, {"size", "8"}, {"pending", "64"}, {"signal-interval", "32"}}},
      {{"poll_completion"}, true, {{"operation", "write"}, {"size", "8"}, {"pending", "16"}}},
      {{"poll_empty"}, true, {{"operation", "write"}, {"size", "8"}, {"pending", "1"}}},
      {{"post_read"}, true, {{"operation", "read"}, {"size", "8"}, {"pending", "16"}}},
      {{"post_read_64"},
       true,
       {{"operation", "read"}, {"size", "4096"}, {"region", "65536"}, {"pending", "16"}},
       Quantity::kOperation,
       64},
      {{"post_atomic"}, true, {{"operation", "fetch-add"}, {"pending", "16"}}},
      {{"post_sge"},
       true,
       {{"operation", "write"}, {"size", "8"}, {"entries", "8"}, {"pending", "16"}},
       Quantity::kOperation,
       7},
      {{"post_send"},
       true,
       {{"operation", "send"}, {"size", "8"}, {"pending", "16"}},
       Quantity::kRequester},
      {{"cpu_message"}, false, {{"protocol", "write/write"}, {"pending", "16"}}},
      // The peer's core looks at what is written, which makes it slower than alone.
      {{"post_64"},
       false,
       {{"protocol", "write/write"}, {"pending", "8"}, {"request", "8192"}, {"response", "8192"}},
       Quantity::kOperation,
       128},
      {{"post_lines"},
       false,
       {{"protocol", "write/write"}, {"pending", "16"}, {"request", "1024"}, {"response", "1024"}}},
      {{"post_receive"},
       true,
       {{"operation", "send"}, {"size", "8"}, {"pending", "16"}},
       Quantity::kResponder},
      {{"post_shared_receive"}, false, {{"protocol", "send/send"}, {"pending", "16"}}},
      // Round trips of two ways.
      {{"post_visible"},
       false,
       {{"protocol", "write/write"}, {"pending", "1"}},
       Quantity::kMedian,
       2},
      {{"post_visible_send"},
       false,
       {{"protocol", "send/send"}, {"pending", "1"}},
       Quantity::kMedian,
       2},
  };
  return all;
}

std::string_view quantity_text(Quantity quantity) {
  switch (quantity) {
    case Quantity::kOperation:
      return "time for each";
    case Quantity::kMedian:
      return "median latency";
    case Quantity::kRequester:
      return "the requesting thread's time for each";
    case Quantity::kResponder:
      return "the responding thread's time for each";
  }
  return "";
}

}  // namespace

std::string Observation::parameters_text() const {
  return fmt::format("{}", fmt::join(parameters, ", "));
}

Result<bench::Point> make_point(const bench::Workload& workload, std::string_view topology,
                                const std::vector<AxisValue>& axes) {
  Result<bench::Sweep> sweep = workload.traits().has_topology ? bench::Sweep::in(topology, workload)
                                                              : bench::Sweep::of(workload);
  VERBENA_RETURN_IF_ERROR(sweep.status());
  for (const auto& [axis, value] : axes) VERBENA_RETURN_IF_ERROR(sweep->set(axis, value));
  bench::Plan plan;
  plan.sweeps.push_back(*std::move(sweep));
  VERBENA_ASSIGN_OR_RETURN(const std::vector<bench::PointGroup> groups, bench::point_groups(plan));
  if (groups.size() == 1 && groups.front().size() == 1) return groups.front().front();
  return Status(StatusCode::kInternal, "a point of the calibration has several values on an axis");
}

Result<double> quantity_ns(Quantity quantity, const bench::RunResult& result,
                           double cycles_per_ns) {
  const auto cost = [&](const std::optional<bench::CpuCost>& one) -> Result<double> {
    if (!one.has_value()) {
      return Status(StatusCode::kUnavailable, "the run has no CPU cost of this side");
    }
    return one->cycles / cycles_per_ns;
  };
  if (result.requests == 0) {
    return Status(StatusCode::kUnavailable, "nothing completed in the run");
  }
  switch (quantity) {
    case Quantity::kOperation:
      return 1e9 / result.rate_per_s;
    case Quantity::kMedian:
      return result.p50_ns;
    case Quantity::kRequester:
      return cost(result.requester_cost);
    case Quantity::kResponder:
      return cost(result.responder_cost);
  }
  return Status(StatusCode::kInternal, "no such quantity");
}

Result<std::vector<Observation>> software_observations() {
  std::vector<Observation> all;
  for (const Recipe& recipe : recipes()) {
    const bench::Workload& workload =
        recipe.verbs ? bench::verbs_workload() : bench::request_response_workload();
    VERBENA_ASSIGN_OR_RETURN(bench::Point point, make_point(workload, "one-to-one", recipe.axes));
    std::string text = fmt::format("{}: {}", workload.text(point), quantity_text(recipe.quantity));
    all.push_back({.parameters = recipe.parameters,
                   .point = std::move(point),
                   .quantity = recipe.quantity,
                   .per_unit = recipe.per_unit,
                   .text = std::move(text)});
  }
  return all;
}

}  // namespace verbena::calibrate
