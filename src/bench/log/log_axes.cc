#include "src/bench/log/log_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
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

struct MethodNames {
  using Value = VectorMethod;
  static constexpr std::array kAll = {VectorMethod::kSp, VectorMethod::kSgl,
                                      VectorMethod::kDoorbell, VectorMethod::kAutomatic};
  static std::span<const VectorMethod> all() { return kAll; }
  static const char* name(VectorMethod method) { return vector_method_name(method); }
  static Result<VectorMethod> parse(std::string_view text) {
    return parse_one_name<MethodNames>("method", text);
  }
};

constexpr Axis nodes_axis() {
  Axis axis = with_help(kNodesAxis, "Nodes with writers and readers; each is a process");
  axis.standard = "1";
  return axis;
}

constexpr Axis replicas_axis() {
  Axis axis = with_help(kRespondersAxis, "Nodes that have the log, each all of it (k)");
  axis.name = "replicas";
  axis.alias = "responders";
  axis.what = "number of replicas";
  axis.standard = "1";
  return axis;
}

constexpr std::array kAxes = {
    nodes_axis(),
    with_help(kThreadsAxis, "Threads of each of these nodes; each writes or reads"),
    count_axis<kReadersLimits, &Settings::readers>(
        "readers", "readers", "0", "Of these threads, those that read what is appended; one less"),
    replicas_axis(),
    size_axis<kCapacityLimits, &Settings::capacity_bytes>("capacity", "capacity_bytes", "64MiB",
                                                          "Space for entries: a power of two"),
    size_axis<kEntryLimits, &Settings::entry_bytes>("entry-size", "entry_bytes", "64",
                                                    "Bytes of an entry"),
    count_axis<kAppendedBatchLimits, &Settings::batch>("batch", "entries", "1",
                                                       "Entries that are appended at once"),
    with_help(kPendingAxis, "Pending batches of a writer, at most 256"),
    name_axis<MethodNames, &Settings::method>(
        "method", "method", "method", "automatic",
        "How the entries of a batch become work requests: sp, sgl, doorbell, automatic, or all"),
};

}  // namespace

std::span<const Axis> log_axes() { return kAxes; }

}  // namespace verbena::bench
