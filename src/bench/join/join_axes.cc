#include "src/bench/join/join_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/executor_axes.h"
#include "src/bench/join/join_settings.h"

namespace verbena::bench {

namespace {

using Settings = JoinSettings;

constexpr ListLimits kTupleLimits{.what = "number of tuples", .min = 1, .max = uint64_t{1} << 30};
constexpr ListLimits kTupleBytesLimits{.what = "tuple size", .min = 16, .max = 4096};
constexpr ListLimits kTupleBatchLimits{.what = "batch", .min = 1, .max = 256};

constexpr const char* kExchangeName = "exchange";
using JoinExchangeNames =
    EnumNames<JoinExchangeKind, kJoinExchanges, join_exchange_name, kExchangeName>;

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
    socket_place_axis<&Settings::socket>(
        "Where executors run: any, rnic (its socket), other, or all"),
    name_axis<JoinExchangeNames, &Settings::exchange>(
        "exchange", "exchange", kExchangeName, "shuffle",
        "How tuples come together: shuffle, none (all are at one node), or all"),
    shuffle_method_axis<&Settings::method>(
        "How tuples become WRITEs: basic, sp, sgl, automatic, or all"),
};

}  // namespace

std::span<const Axis> join_axes() { return kAxes; }

}  // namespace verbena::bench
