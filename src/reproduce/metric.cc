#include "src/reproduce/metric.h"

#include <array>

namespace verbena::reproduce {

namespace {

using nlohmann::json;

// row[first][second]…, where there is such a number.
template <typename... Keys>
std::optional<double> number_at(const json& row, const char* key, Keys... further) {
  if (!row.is_object() || !row.contains(key)) return std::nullopt;
  if constexpr (sizeof...(further) == 0) {
    if (!row[key].is_number()) return std::nullopt;
    return row[key].template get<double>();
  } else {
    return number_at(row[key], further...);
  }
}

// The papers count the responses: messages per time x V.
std::optional<double> value_bandwidth(const json& row) {
  return number_at(row, "value_bandwidth_bytes_per_s");
}
// Requests and responses together, as they load the link.
std::optional<double> total_bandwidth(const json& row) {
  return number_at(row, "total_bandwidth_bytes_per_s");
}
// Of M:M the mean of the nodes; of the others that of the one node through which everything goes.
std::optional<double> value_bandwidth_per_node(const json& row) {
  const auto all = value_bandwidth(row);
  if (row.value("topology", "") != "M:M") return all;
  const auto nodes = number_at(row, "requester_nodes");
  if (!all || !nodes || *nodes == 0) return std::nullopt;
  return *all / *nodes;
}
std::optional<double> value_bandwidth_per_responder(const json& row) {
  const auto all = value_bandwidth(row);
  const auto nodes = number_at(row, "responder_nodes");
  const auto threads = number_at(row, "responder_threads");
  if (!all || !nodes || !threads || *nodes * *threads == 0) return std::nullopt;
  return *all / (*nodes * *threads);
}
std::optional<double> rate(const json& row) { return number_at(row, "rate_per_s"); }
// Of raw verbs: entries, of which an operation moves several.
std::optional<double> entry_rate(const json& row) {
  const auto operations = rate(row);
  const auto entries = number_at(row, "entries");
  if (!operations || !entries) return std::nullopt;
  return *operations * *entries;
}
std::optional<double> rate_per_thread(const json& row) {
  const auto all = rate(row);
  const auto threads = number_at(row, "threads");
  if (!all || !threads || *threads == 0) return std::nullopt;
  return *all / *threads;
}
// Of all nodes.
std::optional<double> rate_per_requester(const json& row) {
  const auto of_threads = rate_per_thread(row);
  const auto nodes = number_at(row, "requester_nodes");
  if (!of_threads || !nodes || *nodes == 0) return std::nullopt;
  return *of_threads / *nodes;
}
// From one operation to the next, of all threads together.
std::optional<double> interval(const json& row) {
  const auto per_s = rate(row);
  if (!per_s || *per_s == 0) return std::nullopt;
  return 1e9 / *per_s;
}
std::optional<double> latency(const json& row) { return number_at(row, "latency_ns", "p50"); }
std::optional<double> tail_latency(const json& row) { return number_at(row, "latency_ns", "p99"); }

template <char kSide>
const char* side() {
  return kSide == 'q' ? "requester" : "responder";
}
template <char kSide>
std::optional<double> cycles(const json& row) {
  return number_at(row, "cpu", side<kSide>(), "cycles_per_message");
}
template <char kSide>
std::optional<double> instructions_per_byte(const json& row) {
  return number_at(row, "cpu", side<kSide>(), "instructions_per_byte");
}
// Of one responding thread: what a thread that never rests spends on a message.
std::optional<double> responder_nanoseconds(const json& row) {
  const auto per_s = rate(row);
  const auto nodes = number_at(row, "responder_nodes");
  const auto threads = number_at(row, "responder_threads");
  if (!per_s || !nodes || !threads || *per_s == 0) return std::nullopt;
  return 1e9 * *nodes * *threads / *per_s;
}
std::optional<double> empty_polls_percent(const json& row) {
  const auto share = number_at(row, "empty_poll_share");
  if (!share) return std::nullopt;
  return 100 * *share;
}
// Of operations on remote memory.
std::optional<double> round_trips(const json& row) {
  return number_at(row, "round_trips_per_operation");
}
std::optional<double> queue_pairs(const json& row) {
  return number_at(row, "queue_pairs", "most_per_node");
}
// Of the shuffle.
std::optional<double> sender_cycles(const json& row) {
  return number_at(row, "sender_cycles_per_record");
}

// Of collectives, the mean over all ranks, without the barrier behind them.
std::optional<double> collective_time(const json& row) { return number_at(row, "collective_ns"); }
// The same, and of a ping-pong half of it.
std::optional<double> one_way(const json& row) {
  if (row.value("test", "") != "latency") return collective_time(row);
  const auto there_and_back = interval(row);
  if (!there_and_back) return std::nullopt;
  return *there_and_back / 2;
}
// Of tagged messages: what went by the rings that are polled.
std::optional<double> ring_percent(const json& row) {
  const auto share = number_at(row, "ring_share");
  if (!share) return std::nullopt;
  return 100 * *share;
}

// Of all nodes that use the memory of one, at their ends.
std::optional<double> opened_queue_pairs(const json& row) {
  return number_at(row, "queue_pairs_to_back_end");
}

constexpr std::array kMetrics = {
    Metric{"value-bandwidth", Dimension::kBandwidth, value_bandwidth},
    Metric{"value-bandwidth-per-node", Dimension::kBandwidth, value_bandwidth_per_node},
    Metric{"value-bandwidth-per-responder", Dimension::kBandwidth, value_bandwidth_per_responder},
    Metric{"total-bandwidth", Dimension::kBandwidth, total_bandwidth},
    Metric{"rate", Dimension::kRate, rate},
    Metric{"entry-rate", Dimension::kRate, entry_rate},
    Metric{"rate-per-thread", Dimension::kRate, rate_per_thread},
    Metric{"rate-per-requester", Dimension::kRate, rate_per_requester},
    Metric{"interval", Dimension::kTime, interval},
    Metric{"latency", Dimension::kTime, latency},
    Metric{"tail-latency", Dimension::kTime, tail_latency},
    Metric{"requester-cycles", Dimension::kPlain, cycles<'q'>},
    Metric{"responder-cycles", Dimension::kPlain, cycles<'s'>},
    Metric{"responder-nanoseconds", Dimension::kPlain, responder_nanoseconds},
    Metric{"requester-instructions-per-byte", Dimension::kPlain, instructions_per_byte<'q'>},
    Metric{"responder-instructions-per-byte", Dimension::kPlain, instructions_per_byte<'s'>},
    Metric{"empty-polls-percent", Dimension::kShare, empty_polls_percent},
    Metric{"round-trips", Dimension::kPlain, round_trips},
    Metric{"opened-queue-pairs", Dimension::kPlain, opened_queue_pairs},
    Metric{"queue-pairs", Dimension::kPlain, queue_pairs},
    Metric{"sender-cycles-per-record", Dimension::kPlain, sender_cycles},
    Metric{"collective-time", Dimension::kTime, collective_time},
    Metric{"one-way", Dimension::kTime, one_way},
    Metric{"ring-percent", Dimension::kShare, ring_percent},
};

struct Unit {
  std::string_view name;
  Dimension dimension;
  double factor;
};
constexpr std::array kUnits = {
    Unit{"Gbps", Dimension::kBandwidth, 8e-9}, Unit{"GB/s", Dimension::kBandwidth, 1e-9},
    Unit{"MB/s", Dimension::kBandwidth, 1e-6}, Unit{"ns", Dimension::kTime, 1},
    Unit{"us", Dimension::kTime, 1e-3},        Unit{"s", Dimension::kTime, 1e-9},
    Unit{"MOPS", Dimension::kRate, 1e-6},      Unit{"percent", Dimension::kShare, 1},
};

}  // namespace

std::span<const Metric> metrics() { return kMetrics; }

const Metric* find_metric(std::string_view name) {
  for (const Metric& metric : kMetrics) {
    if (metric.name == name) return &metric;
  }
  return nullptr;
}

std::optional<double> in_unit(Dimension dimension, std::string_view unit) {
  for (const Unit& one : kUnits) {
    if (one.name != unit) continue;
    if (one.dimension != dimension) return std::nullopt;
    return one.factor;
  }
  if (dimension == Dimension::kPlain) return 1;
  return std::nullopt;
}

std::string_view usual_unit(Dimension dimension) {
  for (const Unit& one : kUnits) {
    if (one.dimension == dimension && one.name != "ns") return one.name;
  }
  return "";
}

}  // namespace verbena::reproduce
