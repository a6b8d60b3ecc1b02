#include "src/bench/join/join_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/join/join_settings.h"

namespace verbena::bench {

namespace {

using Settings = JoinSettings;

constexpr ListLimits kTupleLimits{.what = "number of tuples", .min = 1, .max = uint64_t{1} << 30};
constexpr ListLimits kTupleBytesLimits{.what = "tuple size", .min = 16, .max = 4096};
constexpr ListLimits kTupleBatchLimits{.what = "batch", .min = 1, .max = 256};

struct JoinMethodNames {
  using Value = ShuffleMethod;
  static constexpr std::array kAll = {ShuffleMethod::kBasic, ShuffleMethod::kSp,
                                      ShuffleMethod::kSgl, ShuffleMethod::kAutomatic};
  static std::span<const ShuffleMethod> all() { return kAll; }
  static const char* name(ShuffleMethod method) { return shuffle_method_name(method); }
  static Result<ShuffleMethod> parse(std::string_view text) {
    return parse_one_name<JoinMethodNames>("method", text);
  }
};

struct JoinSocketNames {
  using Value = SocketPlace;
  static std::span<const SocketPlace> all() { return kSocketPlaces; }
  static const char* name(SocketPlace place) { return socket_place_name(place); }
  static Result<SocketPlace> parse(std::string_view text) {
    return parse_one_name<JoinSocketNames>("socket", text);
  }
};

struct JoinExchangeNames {
  using Value = JoinExchangeKind;
  static std::span<const JoinExchangeKind> all() { return kJoinExchanges; }
  static const char* name(JoinExchangeKind exchange) { return join_exchange_name(exchange); }
  static Result<JoinExchangeKind> parse(std::string_view text) {
    return parse_one_name<JoinExchangeNames>("exchange", text);
  }
};

constexpr Axis join_nodes_axis() {
  Axis axis = with_help(kNodesAxis, "Nodes with executors; each is a process");
  axis.standard = "1";
  return axis;
}

constexpr std::array kAxes = {
    join_nodes_axis(),
    with_help(kThreadsAxis, "Executors of each node; of exchange none the threads of the one join"),
    count_axis<kTupleLimits, &Settings::tuples>("tuples", "tuples", "1000000",
                                                "Tuples of each of both relations"),
    size_axis<kTupleBytesLimits, &Settings::tuple_bytes>(
        "tuple-size", "tuple_bytes", "16", "Bytes of a tuple, of which 8 are its key"),
    count_axis<kTupleBatchLimits, &Settings::batch>(
        "batch", "batch", "16", "Tuples of a WRITE, at most; of method basic always 1"),
    name_axis<JoinSocketNames, &Settings::socket>(
        "socket", "socket", "socket", "any",
        "Where executors run: any, rnic (its socket), other, or all"),
    name_axis<JoinExchangeNames, &Settings::exchange>(
        "exchange", "exchange", "exchange", "shuffle",
        "How tuples come together: shuffle, none (all are at one node), or all"),
    name_axis<JoinMethodNames, &Settings::method>(
        "method", "method", "method", "automatic",
        "How tuples become WRITEs: basic, sp, sgl, automatic, or all"),
};

}  // namespace

std::span<const Axis> join_axes() { return kAxes; }

}  // namespace verbena::bench
