#include "src/bench/remote/remote_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/socket_axes.h"
#include "src/bench/remote/remote_settings.h"

namespace verbena::bench {

namespace {

using Settings = RemoteSettings;

constexpr ListLimits kSizeLimits{.what = "size", .min = 1, .max = 1 << 20};
constexpr ListLimits kRegionLimits{.what = "region size", .min = 64, .max = uint64_t{64} << 30};
constexpr ListLimits kBlockLimits{.what = "block size", .min = 64, .max = 1 << 20};
constexpr ListLimits kThetaLimits{.what = "theta", .min = 1, .max = 1 << 20};
constexpr ListLimits kKeptLimits{.what = "number of blocks", .min = 4, .max = 1 << 20};
constexpr ListLimits kRangeLimits{.what = "range", .min = 1, .max = 1 << 20};

constexpr const char* kOperation = "operation";
constexpr const char* kVersion = "version";
constexpr const char* kConsolidation = "consolidation";
constexpr const char* kPattern = "access pattern";
constexpr const char* kBackoff = "back-off";

using OperationNames =
    EnumNames<RemoteOperation, kRemoteOperations, remote_operation_name, kOperation>;
using VersionNames = EnumNames<WordVersion, kWordVersions, word_version_name, kVersion>;
using ConsolidationNames =
    EnumNames<ConsolidationKind, kConsolidationKinds, consolidation_kind_name, kConsolidation>;
using PatternNames = EnumNames<WritePattern, kWritePatterns, write_pattern_name, kPattern>;
using BackoffNames = EnumNames<Backoff, kBackoffs, backoff_name, kBackoff>;

constexpr std::array kAxes = {
    using_nodes_axis("Nodes that use the memory of one more; each is a process"),
    with_help(kThreadsAxis, "Threads of each of these nodes"),
    size_axis<kSizeLimits, &Settings::size_bytes>("size", "size_bytes", "32", "Bytes of a write"),
    size_axis<kRegionLimits, &Settings::region_bytes>("region", "region_bytes", "64KiB",
                                                      "Memory into which a thread writes, its own"),
    size_axis<kBlockLimits, &Settings::block_bytes>(
        "block", "block_bytes", "1KiB", "Block that is written at once (S): a power of two"),
    count_axis<kThetaLimits, &Settings::theta>("theta", "theta", "16",
                                               "Modifications after which a block is written"),
    count_axis<kKeptLimits, &Settings::kept_blocks>(
        "kept", "kept_blocks", "64", "Blocks that are kept at once, each in one of four places"),
    count_axis<kRangeLimits, &Settings::range>("range", "range", "1",
                                               "Numbers that a sequencer gives at once"),
    sockets_axis<&Settings::sockets>(
        "Of writes: sockets that have a part of the memory each, and threads in turn"),
    with_help(kPendingAxis,
              "Pending operations per thread, of consolidated writes blocks; of locks and of what "
              "is local always 1"),
    name_axis<PatternNames, &Settings::pattern>(
        "pattern", "pattern", "access pattern", "rand",
        "Order of the places that are written: seq, rand, zipf (0.99), or all"),
    name_axis<BackoffNames, &Settings::backoff>("backoff", "backoff", "back-off", "on",
                                                "Of locks: off, on, or all"),
    links_axis<&Settings::links>(),
    name_axis<ConsolidationNames, &Settings::consolidation>(
        "consolidation", "consolidation", "consolidation", "none",
        "Of writes: none, shared, exclusive, or all"),
    name_axis<VersionNames, &Settings::version>(
        "version", "version", "version", "remote",
        "Of locks and sequencers: local, remote, rpc, or all"),
    name_axis<OperationNames, &Settings::operation>("operation", "operation", "operation", "write",
                                                    "write, lock, sequencer, or all"),
};

}  // namespace

std::span<const Axis> remote_axes() { return kAxes; }

}  // namespace verbena::bench
