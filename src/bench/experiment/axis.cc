#include "src/bench/experiment/axis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "src/bench/experiment/size_list.h"

namespace verbena::bench {

namespace {

using nlohmann::json;
using Values = Result<std::vector<uint64_t>>;

constexpr uint64_t kMaxThinkNs = 1'000'000'000;

std::vector<std::string> no_choices() { return {}; }

// The accessors of an axis that is a number in a member of Point.
template <auto kMember>
uint64_t get_number(const Point& point) {
  return static_cast<uint64_t>(point.*kMember);
}
template <auto kMember>
void set_number(Point& point, uint64_t value) {
  using Member = std::remove_cvref_t<decltype(point.*kMember)>;
  point.*kMember = static_cast<Member>(value);
}
template <auto kMember>
json number_json(const Point& point) {
  return point.*kMember;
}

std::string number_text(uint64_t value) { return fmt::format("{}", value); }

// Sizes and counts differ in their units only.
constexpr ListLimits kRequestLimits{.what = "request size", .min = 1, .max = kMaxMessageBytes};
constexpr ListLimits kResponseLimits{.what = "response size", .min = 1, .max = kMaxMessageBytes};
constexpr ListLimits kPendingLimits{
    .what = "number of pending requests", .min = 1, .max = kMaxPending};
constexpr ListLimits kNodesLimits{.what = "number of nodes", .min = 1, .max = kMaxNodes};
constexpr ListLimits kThreadsLimits{
    .what = "number of threads", .min = 1, .max = kMaxThreadsPerNode};
constexpr ListLimits kRespondersLimits{
    .what = "number of responder nodes", .min = 1, .max = kMaxNodes};
constexpr ListLimits kResponderThreadsLimits{
    .what = "number of responder threads", .min = 1, .max = kMaxThreadsPerNode};

constexpr ListLimits kSizeLimits{.what = "size", .min = 1, .max = kMaxMessageBytes};
constexpr ListLimits kEntriesLimits{.what = "number of entries", .min = 1, .max = 256};
constexpr ListLimits kRegionLimits{.what = "region size", .min = 8, .max = uint64_t{64} << 30};

template <const ListLimits& kLimits>
Values parse_counts(std::string_view text) {
  return parse_count_list(text, kLimits);
}
template <const ListLimits& kLimits>
Values parse_sizes(std::string_view text) {
  return parse_size_list(text, kLimits);
}
template <const ListLimits& kLimits>
bool in_limits(uint64_t value) {
  return value >= kLimits.min && value <= kLimits.max;
}

template <const ListLimits& kLimits, auto kMember>
constexpr Axis count_axis(std::string_view name, std::string_view json_key,
                          std::string_view standard, std::string_view help) {
  return {.scope = Scope::kMessages,
          .name = name,
          .alias = "",
          .json = json_key,
          .what = kLimits.what,
          .shape = "COUNTS",
          .standard = standard,
          .help = help,
          .compared = false,
          .parse = parse_counts<kLimits>,
          .text = number_text,
          .get = get_number<kMember>,
          .set = set_number<kMember>,
          .to_json = number_json<kMember>,
          .possible = in_limits<kLimits>,
          .choices = no_choices};
}

template <const ListLimits& kLimits, auto kMember>
constexpr Axis size_axis(std::string_view name, std::string_view alias, std::string_view json_key,
                         std::string_view help) {
  Axis axis = count_axis<kLimits, kMember>(name, json_key, "64", help);
  axis.alias = alias;
  axis.shape = "SIZES";
  axis.parse = parse_sizes<kLimits>;
  return axis;
}

constexpr Axis region_axis() {
  Axis axis = size_axis<kRegionLimits, &Point::region_bytes>(
      "region", "", "region_bytes", "Registered memory of a queue pair on each side");
  axis.standard = "1MiB";
  return axis;
}

constexpr Axis of_verbs(Axis axis) {
  axis.scope = Scope::kVerbs;
  return axis;
}
constexpr Axis of_both(Axis axis) {
  axis.scope = Scope::kBoth;
  return axis;
}

// An axis whose values have names, which `Names` gives: all(), name(value), parse(text).
template <typename Names>
Values parse_names(std::string_view text) {
  std::vector<uint64_t> values;
  if (text == "all") {
    for (const auto value : Names::all()) values.push_back(static_cast<uint64_t>(value));
    return values;
  }
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const auto value = Names::parse(rest.substr(0, comma));
    if (!value.ok()) {
      return Status(value.status().code(), value.status().message() + " and all");
    }
    const auto number = static_cast<uint64_t>(*value);
    if (std::find(values.begin(), values.end(), number) == values.end()) values.push_back(number);
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}
template <typename Names>
bool has_name(uint64_t value) {
  const auto all = Names::all();
  return std::any_of(all.begin(), all.end(),
                     [&](auto one) { return static_cast<uint64_t>(one) == value; });
}
template <typename Names>
std::string name_text(uint64_t value) {
  return Names::name(static_cast<typename Names::Value>(value));
}
template <typename Names>
std::vector<std::string> name_choices() {
  std::vector<std::string> names;
  for (const auto value : Names::all()) names.emplace_back(Names::name(value));
  names.emplace_back("all");
  return names;
}
template <typename Names, auto kMember>
json name_json(const Point& point) {
  return Names::name(point.*kMember);
}

template <typename Names, auto kMember>
constexpr Axis name_axis(std::string_view name, std::string_view json_key, std::string_view what,
                         std::string_view standard, std::string_view help) {
  return {.scope = Scope::kMessages,
          .name = name,
          .alias = "",
          .json = json_key,
          .what = what,
          .shape = "LIST",
          .standard = standard,
          .help = help,
          .compared = true,
          .parse = parse_names<Names>,
          .text = name_text<Names>,
          .get = get_number<kMember>,
          .set = set_number<kMember>,
          .to_json = name_json<Names, kMember>,
          .possible = has_name<Names>,
          .choices = name_choices<Names>};
}

template <typename Names>
Result<typename Names::Value> parse_one(const char* what, std::string_view text) {
  std::string names;
  for (const auto value : Names::all()) {
    if (text == Names::name(value)) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", Names::name(value));
  }
  return Status(StatusCode::kInvalidArgument,
                fmt::format("no {} '{}'; there are {}", what, text, names));
}

struct ProtocolNames {
  using Value = Protocol;
  static std::span<const Protocol> all() { return all_protocols(); }
  static const char* name(Protocol protocol) { return protocol_name(protocol); }
  static Result<Protocol> parse(std::string_view text) { return parse_protocol(text); }
};

struct LayoutNames {
  using Value = MarkLayout;
  static std::span<const MarkLayout> all() { return all_mark_layouts(); }
  static const char* name(MarkLayout layout) { return mark_layout_name(layout); }
  static Result<MarkLayout> parse(std::string_view text) { return parse_mark_layout(text); }
};

struct ModelNames {
  using Value = ConnectionModel;
  static constexpr std::array kAll = {ConnectionModel::kPrivate, ConnectionModel::kDispatcher};
  static std::span<const ConnectionModel> all() { return kAll; }
  static const char* name(ConnectionModel model) {
    return model == ConnectionModel::kPrivate ? "private" : "dispatcher";
  }
  static Result<ConnectionModel> parse(std::string_view text) {
    return parse_one<ModelNames>("connection model", text);
  }
};

struct WaitNames {
  using Value = WaitMode;
  static constexpr std::array kAll = {WaitMode::kPoll, WaitMode::kBlock};
  static std::span<const WaitMode> all() { return kAll; }
  static const char* name(WaitMode wait) { return wait == WaitMode::kPoll ? "poll" : "block"; }
  static Result<WaitMode> parse(std::string_view text) {
    return parse_one<WaitNames>("way to wait", text);
  }
};

struct ReceiveQueueNames {
  using Value = ReceiveQueues;
  static std::span<const ReceiveQueues> all() { return all_receive_queues(); }
  static const char* name(ReceiveQueues queues) { return receive_queues_name(queues); }
  static Result<ReceiveQueues> parse(std::string_view text) { return parse_receive_queues(text); }
};

struct OperationNames {
  using Value = Operation;
  static std::span<const Operation> all() { return kRawOperations; }
  static const char* name(Operation operation) { return operation_name(operation); }
  static Result<Operation> parse(std::string_view text) {
    return parse_one<OperationNames>("operation", text);
  }
};

struct MethodNames {
  using Value = VectorMethod;
  static std::span<const VectorMethod> all() { return kVectorMethods; }
  static const char* name(VectorMethod method) { return vector_method_name(method); }
  static Result<VectorMethod> parse(std::string_view text) {
    return parse_one<MethodNames>("method", text);
  }
};

struct PatternNames {
  using Value = AccessPattern;
  static std::span<const AccessPattern> all() { return kAccessPatterns; }
  static const char* name(AccessPattern pattern) { return access_pattern_name(pattern); }
  static Result<AccessPattern> parse(std::string_view text) {
    return parse_one<PatternNames>("access pattern", text);
  }
};

// Points about messages have no raw operation.
bool is_operation(uint64_t value) { return value <= static_cast<uint64_t>(Operation::kLook); }
constexpr Axis operation_axis() {
  Axis axis = name_axis<OperationNames, &Point::operation>(
      "operation", "operation", "operation", "write",
      "write, read, send, fetch-add, compare-swap, look, or all");
  axis.possible = is_operation;
  return of_verbs(axis);
}

json layout_json(const Point& point) { return layout_text(point); }

constexpr Axis mark_axis() {
  Axis axis = name_axis<LayoutNames, &Point::layout>(
      "mark", "mark_layout", "mark layout", "last-bit",
      "How a WRITE is recognized: last-bit, length-markers, head-tail, immediate, dense, or "
      "all");
  axis.to_json = layout_json;
  return axis;
}

// --- the share of active requesters: 0 < share <= 1, kept in millionths ---

Values parse_shares(std::string_view text) {
  std::vector<uint64_t> values;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    double share = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), share);
    const auto ppm = static_cast<int64_t>(std::llround(share * Point::kAlwaysActive));
    if (error != std::errc() || end != entry.data() + entry.size() || ppm < 1 ||
        ppm > int64_t{Point::kAlwaysActive}) {
      return Status(StatusCode::kInvalidArgument,
                    fmt::format("'{}' is no share of active requesters; give numbers above 0 and "
                                "up to 1, such as 0.1,0.5,1",
                                entry));
    }
    const auto value = static_cast<uint64_t>(ppm);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}

std::string share_text(uint64_t ppm) {
  return fmt::format("{}", static_cast<double>(ppm) / Point::kAlwaysActive);
}
json share_json(const Point& point) {
  return static_cast<double>(point.active_ppm) / Point::kAlwaysActive;
}
bool is_share(uint64_t ppm) { return ppm >= 1 && ppm <= Point::kAlwaysActive; }

// --- how long the others rest ---

Values parse_think(std::string_view text) {
  VERBENA_ASSIGN_OR_RETURN(const uint64_t think_ns, parse_duration_ns(text));
  if (think_ns > kMaxThinkNs) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a rest of {} is too long; choose up to 1s", text));
  }
  return std::vector<uint64_t>{think_ns};
}
std::string nanoseconds_text(uint64_t value) { return fmt::format("{}ns", value); }
bool is_think(uint64_t value) { return value >= 1 && value <= kMaxThinkNs; }

// --- the inline limit: a size, or what the device takes ---

constexpr ListLimits kInlineLimits{.what = "inline limit", .min = 0, .max = 4096};

Values parse_inline(std::string_view text) {
  if (text == "device") return std::vector<uint64_t>{kDeviceInlineLimit};
  return parse_size_list(text, kInlineLimits);
}
std::string inline_text(uint64_t value) {
  return value == kDeviceInlineLimit ? "device" : number_text(value);
}
json inline_json(const Point& point) {
  if (point.inline_bytes == kDeviceInlineLimit) return "device";
  return point.inline_bytes;
}
bool is_inline(uint64_t value) { return value == kDeviceInlineLimit || value <= kInlineLimits.max; }

constexpr ListLimits kSignalLimits{.what = "signal interval", .min = 0, .max = 4096};
constexpr ListLimits kBatchLimits{.what = "post batch", .min = 1, .max = 256};
constexpr ListLimits kPollBatchLimits{.what = "poll batch", .min = 0, .max = 4096};
constexpr ListLimits kSpareReceivesLimits{.what = "use of spare receives", .min = 0, .max = 1};
constexpr ListLimits kHugePagesLimits{.what = "use of huge pages", .min = 0, .max = 1};

constexpr std::array kAxes = {
    count_axis<kNodesLimits, &Point::nodes>(
        "nodes", "requester_nodes", "",
        "Nodes that request (P, N); each is a process. M:M: all nodes"),
    of_both(count_axis<kThreadsLimits, &Point::threads>("threads", "threads", "1",
                                                        "Requesting threads per node (S)")),
    count_axis<kRespondersLimits, &Point::responder_nodes>("responders", "responder_nodes", "",
                                                           "Nodes that respond (Q)"),
    count_axis<kResponderThreadsLimits, &Point::responder_threads>(
        "responder-threads", "responder_threads", "",
        "Responding threads per such node (T; M:1: as --threads, N-to-1: 1)"),
    Axis{.scope = Scope::kMessages,
         .name = "active",
         .alias = "",
         .json = "active_share",
         .what = "share of active requesters",
         .shape = "SHARES",
         .standard = "1",
         .help = "Share of requests that are sent; instead of the others a requester rests",
         .compared = false,
         .parse = parse_shares,
         .text = share_text,
         .get = get_number<&Point::active_ppm>,
         .set = set_number<&Point::active_ppm>,
         .to_json = share_json,
         .possible = is_share,
         .choices = no_choices},
    Axis{.scope = Scope::kMessages,
         .name = "think",
         .alias = "",
         .json = "think_ns",
         .what = "rest",
         .shape = "TIME",
         .standard = "8us",
         .help = "How long such a rest lasts",
         .compared = false,
         .parse = parse_think,
         .text = nanoseconds_text,
         .get = get_number<&Point::think_ns>,
         .set = set_number<&Point::think_ns>,
         .to_json = number_json<&Point::think_ns>,
         .possible = is_think,
         .choices = no_choices},
    size_axis<kRequestLimits, &Point::request_bytes>("request", "", "request_bytes",
                                                     "Bytes per request (L)"),
    size_axis<kResponseLimits, &Point::response_bytes>("response", "value", "response_bytes",
                                                       "Bytes per response, the value (V)"),
    of_verbs(size_axis<kSizeLimits, &Point::size_bytes>("size", "", "size_bytes",
                                                        "Bytes per entry; of an atomic always 8")),
    of_verbs(count_axis<kEntriesLimits, &Point::entries>(
        "entries", "entries", "1", "Buffers that an operation moves, put together by --method")),
    of_verbs(region_axis()),
    of_both(count_axis<kPendingLimits, &Point::pending>(
        "pending", "pending", "1",
        "Requests (raw verbs: operations) under way at once, per queue pair (R); N-to-M: per "
        "requesting thread")),
    of_both(count_axis<kSignalLimits, &Point::signal_interval>(
        "signal-interval", "signal_interval", "0",
        "Every n-th work request asks for a completion; 0: a quarter of the send queue (raw "
        "verbs: all)")),
    of_both(count_axis<kBatchLimits, &Point::post_batch>("post-batch", "post_batch", "1",
                                                         "Work requests per doorbell")),
    count_axis<kPollBatchLimits, &Point::poll_batch>(
        "poll-batch", "poll_batch", "0",
        "Responses that a requester takes of a queue pair before the next one's turn; 0: all"),
    Axis{.scope = Scope::kBoth,
         .name = "inline",
         .alias = "",
         .json = "inline_bytes",
         .what = kInlineLimits.what,
         .shape = "SIZES",
         .standard = "device",
         .help = "Messages up to this size travel in the work request",
         .compared = false,
         .parse = parse_inline,
         .text = inline_text,
         .get = get_number<&Point::inline_bytes>,
         .set = set_number<&Point::inline_bytes>,
         .to_json = inline_json,
         .possible = is_inline,
         .choices = no_choices},
    of_both(count_axis<kHugePagesLimits, &Point::huge_pages>("huge-pages", "huge_pages", "0",
                                                             "1: slots in 2 MiB pages")),
    count_axis<kSpareReceivesLimits, &Point::spare_receives>(
        "spare-receives", "spare_receives", "1",
        "Receives for responses; 0: as many as are pending, each posted before its request"),
    of_verbs(name_axis<PatternNames, &Point::local>(
        "local", "local_pattern", "access pattern", "seq",
        "Which entries of the own region follow each other: seq, rand, or all")),
    of_verbs(name_axis<PatternNames, &Point::remote>(
        "remote", "remote_pattern", "access pattern", "seq",
        "The same of the other side's region; a SEND's receives lie in sequence")),
    operation_axis(),
    of_verbs(name_axis<MethodNames, &Point::method>(
        "method", "method", "method", "sgl",
        "How entries become work requests: sp, sgl, doorbell, or all")),
    name_axis<WaitNames, &Point::wait>(
        "wait", "wait", "way to wait", "poll",
        "Of idle threads: poll (spin, then yield), block (then sleep on completions), or all"),
    name_axis<ReceiveQueueNames, &Point::receive_queues>(
        "receive-queues", "receive_queues", "kind of receive queues", "shared",
        "Where requests that need a receive find one: shared, per-connection, or all"),
    name_axis<ModelNames, &Point::model>(
        "model", "model", "connection model", "private",
        "Who owns the queue pairs: private (each thread), dispatcher (one thread per node), or "
        "all"),
    name_axis<ProtocolNames, &Point::protocol>(
        "protocol", "protocol", "protocol", "all",
        "send/send, send/write, write/send, write/write, read, or all"),
    mark_axis(),
};

}  // namespace

std::span<const Axis> axes() { return kAxes; }

const Axis* find_axis(std::string_view name) {
  for (const Axis& axis : kAxes) {
    if (name == axis.name || (!axis.alias.empty() && name == axis.alias)) return &axis;
  }
  return nullptr;
}

std::string axis_names(Subject subject) {
  std::vector<std::string_view> names;
  for (const Axis& axis : axes()) {
    if (axis.belongs_to(subject)) names.push_back(axis.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace verbena::bench
