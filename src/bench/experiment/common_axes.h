// Axes of the members that every point has. A workload takes those that it can vary, each at its
// place among its own ones.
#pragma once

#include <array>
#include <span>

#include "src/bench/experiment/axis.h"
#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/size_list.h"
#include "src/bench/experiment/topology.h"
#include "verbena/rpc.h"

namespace verbena::bench {

// A workload may describe an axis in its own words.
constexpr Axis with_help(Axis axis, std::string_view help) {
  axis.help = help;
  return axis;
}

// --- the topology ---

inline constexpr ListLimits kNodesLimits{.what = "number of nodes", .min = 1, .max = kMaxNodes};
inline constexpr ListLimits kThreadsLimits{
    .what = "number of threads", .min = 1, .max = kMaxThreadsPerNode};
inline constexpr ListLimits kRespondersLimits{
    .what = "number of responder nodes", .min = 1, .max = kMaxNodes};
inline constexpr ListLimits kResponderThreadsLimits{
    .what = "number of responder threads", .min = 1, .max = kMaxThreadsPerNode};

inline constexpr Axis kNodesAxis = count_axis<kNodesLimits, &Point::nodes>(
    "nodes", "requester_nodes", "", "Nodes that request (P, N); each is a process. M:M: all nodes");
inline constexpr Axis kThreadsAxis = count_axis<kThreadsLimits, &Point::threads>(
    "threads", "threads", "1", "Requesting threads per node (S)");
inline constexpr Axis kRespondersAxis = count_axis<kRespondersLimits, &Point::responder_nodes>(
    "responders", "responder_nodes", "", "Nodes that respond (Q)");
inline constexpr Axis kResponderThreadsAxis =
    count_axis<kResponderThreadsLimits, &Point::responder_threads>(
        "responder-threads", "responder_threads", "",
        "Responding threads per such node (T; M:1: as --threads, N-to-1: 1)");

// Of applications: the processes that use what others have, and those others.
constexpr Axis using_nodes_axis(std::string_view help) {
  Axis axis = with_help(kNodesAxis, help);
  axis.standard = "1";
  return axis;
}
constexpr Axis used_nodes_axis(std::string_view name, std::string_view what,
                               std::string_view help) {
  Axis axis = with_help(kRespondersAxis, help);
  axis.name = name;
  axis.alias = "responders";
  axis.what = what;
  axis.standard = "1";
  return axis;
}

struct ModelNames {
  using Value = ConnectionModel;
  static constexpr std::array kAll = {ConnectionModel::kPrivate, ConnectionModel::kDispatcher};
  static std::span<const ConnectionModel> all() { return kAll; }
  static const char* name(ConnectionModel model) {
    return model == ConnectionModel::kPrivate ? "private" : "dispatcher";
  }
  static Result<ConnectionModel> parse(std::string_view text) {
    return parse_one_name<ModelNames>("connection model", text);
  }
};
inline constexpr Axis kModelAxis = name_axis<ModelNames, &Point::model>(
    "model", "model", "connection model", "private",
    "Who owns the queue pairs: private (each thread), dispatcher (one thread per node), or all");

// --- the load ---

inline constexpr ListLimits kPendingLimits{
    .what = "number of pending requests", .min = 1, .max = kMaxPending};
inline constexpr Axis kPendingAxis = count_axis<kPendingLimits, &Point::pending>(
    "pending", "pending", "1",
    "Pending requests per queue pair (R); N-to-M: per requesting thread");

// In millionths; 0 < share <= 1.
AxisValues parse_shares(std::string_view text);
std::string share_text(uint64_t ppm);
nlohmann::json active_share_json(const Point& point);
bool is_share(uint64_t ppm);

inline constexpr Axis kActiveAxis{
    .name = "active",
    .alias = "",
    .json = "active_share",
    .what = "share of active requesters",
    .shape = "SHARES",
    .standard = "1",
    .help = "Share of requests that are sent; instead of the others the requester pauses",
    .compared = false,
    .depends_on = "",
    .parse = parse_shares,
    .text = share_text,
    .get = get_number<&Point::active_ppm>,
    .set = set_number<&Point::active_ppm>,
    .to_json = active_share_json,
    .possible = is_share,
    .choices = no_choices,
    .applies = always_applies};

AxisValues parse_think(std::string_view text);
std::string nanoseconds_text(uint64_t value);
bool is_think(uint64_t value);

inline constexpr Axis kThinkAxis{.name = "think",
                                 .alias = "",
                                 .json = "think_ns",
                                 .what = "rest",
                                 .shape = "TIME",
                                 .standard = "8us",
                                 .help = "How long such a pause lasts",
                                 .compared = false,
                                 .depends_on = "",
                                 .parse = parse_think,
                                 .text = nanoseconds_text,
                                 .get = get_number<&Point::think_ns>,
                                 .set = set_number<&Point::think_ns>,
                                 .to_json = number_json<&Point::think_ns>,
                                 .possible = is_think,
                                 .choices = no_choices,
                                 .applies = always_applies};

// More than any device answers; so many fit into a second of whole nanoseconds.
inline constexpr ListLimits kArrivalRateLimits{
    .what = "arrival rate", .min = 0, .max = 1'000'000'000};
inline constexpr Axis kArrivalRateAxis = count_axis<kArrivalRateLimits, &Point::arrival_rate_per_s>(
    "arrival-rate", "arrival_rate_per_s", "0",
    "Open loop: requests/s that arrive, of all requesters; latency counts from the arrival; "
    "0: closed loop");

struct ArrivalsNames {
  using Value = Arrivals;
  static constexpr std::array kAll = {Arrivals::kPoisson, Arrivals::kEven};
  static std::span<const Arrivals> all() { return kAll; }
  static const char* name(Arrivals arrivals) {
    return arrivals == Arrivals::kPoisson ? "poisson" : "even";
  }
  static Result<Arrivals> parse(std::string_view text) {
    return parse_one_name<ArrivalsNames>("arrival process", text);
  }
};
constexpr Axis arrivals_axis() {
  Axis axis = name_axis<ArrivalsNames, &Point::arrivals>(
      "arrivals", "arrivals", "arrival process", "poisson",
      "When they arrive: poisson (exponential gaps), even (equal gaps), or all");
  axis.compared = false;  // it stands beside the rate
  axis.depends_on = "arrival-rate";
  axis.applies = [](const Point& point) { return point.arrival_rate_per_s > 0; };
  axis.to_json = [](const Point& point) -> nlohmann::json {
    return point.arrival_rate_per_s > 0 ? ArrivalsNames::name(point.arrivals) : "none";
  };
  return axis;
}
inline constexpr Axis kArrivalsAxis = arrivals_axis();

struct WaitNames {
  using Value = WaitMode;
  static constexpr std::array kAll = {WaitMode::kPoll, WaitMode::kBlock};
  static std::span<const WaitMode> all() { return kAll; }
  static const char* name(WaitMode wait) { return wait == WaitMode::kPoll ? "poll" : "block"; }
  static Result<WaitMode> parse(std::string_view text) {
    return parse_one_name<WaitNames>("way to wait", text);
  }
};
inline constexpr Axis kWaitAxis = name_axis<WaitNames, &Point::wait>(
    "wait", "wait", "way to wait", "poll",
    "What idle threads do: poll (spin, then yield), block (then sleep on completions), or all");

// --- how work is posted ---

inline constexpr ListLimits kSignalLimits{.what = "signal interval", .min = 0, .max = 4096};
inline constexpr ListLimits kBatchLimits{.what = "post batch", .min = 1, .max = 256};
inline constexpr ListLimits kHugePagesLimits{.what = "use of huge pages", .min = 0, .max = 1};

inline constexpr Axis kSignalIntervalAxis = count_axis<kSignalLimits, &Point::signal_interval>(
    "signal-interval", "signal_interval", "0",
    "Every n-th work request is signaled; 0: a quarter of the send queue");
inline constexpr Axis kPostBatchAxis = count_axis<kBatchLimits, &Point::post_batch>(
    "post-batch", "post_batch", "1", "Work requests per doorbell");
inline constexpr Axis kHugePagesAxis = count_axis<kHugePagesLimits, &Point::huge_pages>(
    "huge-pages", "huge_pages", "0", "1: slots in 2 MiB pages");

// A size, or what the device takes.
AxisValues parse_inline(std::string_view text);
std::string inline_text(uint64_t value);
nlohmann::json inline_json(const Point& point);
bool is_inline(uint64_t value);

inline constexpr Axis kInlineAxis{.name = "inline",
                                  .alias = "",
                                  .json = "inline_bytes",
                                  .what = "inline limit",
                                  .shape = "SIZES",
                                  .standard = "device",
                                  .help = "Messages up to this size are sent inline, in their WQE",
                                  .compared = false,
                                  .depends_on = "",
                                  .parse = parse_inline,
                                  .text = inline_text,
                                  .get = get_number<&Point::inline_bytes>,
                                  .set = set_number<&Point::inline_bytes>,
                                  .to_json = inline_json,
                                  .possible = is_inline,
                                  .choices = no_choices,
                                  .applies = always_applies};

}  // namespace verbena::bench
