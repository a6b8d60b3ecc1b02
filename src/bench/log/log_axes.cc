#include "src/bench/log/log_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/socket_axes.h"
#include "src/bench/log/log_entries.h"
#include "src/bench/log/log_settings.h"

namespace verbena::bench {

namespace {

using Settings = LogSettings;

constexpr ListLimits kReadersLimits{.what = "number of readers", .min = 0, .max = 255};
constexpr ListLimits kAppendedBatchLimits{.what = "batch", .min = 1, .max = 1000};
constexpr ListLimits kEntryLimits{.what = "entry size", .min = kLeastEntryBytes, .max = 1 << 20};
constexpr ListLimits kCapacityLimits{
    .what = "capacity", .min = 64 << 10, .max = uint64_t{64} << 30};

constexpr std::array kMethods = {VectorMethod::kSp, VectorMethod::kSgl, VectorMethod::kDoorbell,
                                 VectorMethod::kAutomatic};
constexpr const char* kMethodName = "method";
using MethodNames = EnumNames<VectorMethod, kMethods, vector_method_name, kMethodName>;

constexpr std::array kAxes = {
    using_nodes_axis("Nodes with writers and readers; each is a process"),
    with_help(kThreadsAxis, "Threads of each of these nodes; each writes or reads"),
    count_axis<kReadersLimits, &Settings::readers>(
        "readers", "readers", "0", "Of these threads, those that read what is appended; one less"),
    used_nodes_axis("replicas", "number of replicas",
                    "Nodes that have the log, each all of it (k)"),
    size_axis<kCapacityLimits, &Settings::capacity_bytes>("capacity", "capacity_bytes", "64MiB",
                                                          "Space for entries: a power of two"),
    size_axis<kEntryLimits, &Settings::entry_bytes>("entry-size", "entry_bytes", "64",
                                                    "Bytes of an entry"),
    count_axis<kAppendedBatchLimits, &Settings::batch>("batch", "entries", "1",
                                                       "Entries that are appended at once"),
    with_help(kPendingAxis, "Pending batches of a writer, at most 256"),
    sockets_axis<&Settings::sockets>("Sockets on which the threads run in turn"),
    links_axis<&Settings::links>("mesh", "Of several sockets: one or mesh"),
    name_axis<MethodNames, &Settings::method>(
        "method", "method", "method", "automatic",
        "How the entries of a batch become work requests: sp, sgl, doorbell, automatic, or all"),
};

}  // namespace

std::span<const Axis> log_axes() { return kAxes; }

}  // namespace verbena::bench
