#include "src/bench/verbs/verbs_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/verbs/verbs_settings.h"
#include "verbena/rpc.h"

namespace verbena::bench {

namespace {

using Settings = VerbsSettings;

constexpr ListLimits kSizeLimits{.what = "size", .min = 1, .max = kMaxMessageBytes};
constexpr ListLimits kEntriesLimits{.what = "number of entries", .min = 1, .max = 256};
constexpr ListLimits kPeersLimits{.what = "number of peers", .min = 1, .max = kMaxNodes - 1};
constexpr ListLimits kRegionLimits{.what = "region size", .min = 8, .max = uint64_t{64} << 30};

struct OperationNames {
  using Value = Operation;
  static std::span<const Operation> all() { return kOperations; }
  static const char* name(Operation operation) { return operation_name(operation); }
  static Result<Operation> parse(std::string_view text) {
    return parse_one_name<OperationNames>("operation", text);
  }
};

struct MethodNames {
  using Value = VectorMethod;
  static std::span<const VectorMethod> all() { return all_vector_methods(); }
  static const char* name(VectorMethod method) { return vector_method_name(method); }
  static Result<VectorMethod> parse(std::string_view text) {
    return parse_one_name<MethodNames>("method", text);
  }
};

struct PatternNames {
  using Value = AccessPattern;
  static std::span<const AccessPattern> all() { return kAccessPatterns; }
  static const char* name(AccessPattern pattern) { return access_pattern_name(pattern); }
  static Result<AccessPattern> parse(std::string_view text) {
    return parse_one_name<PatternNames>("access pattern", text);
  }
};

struct TransportNames {
  using Value = Transport;
  static std::span<const Transport> all() { return all_transports(); }
  static const char* name(Transport transport) { return transport_name(transport); }
  static Result<Transport> parse(std::string_view text) { return parse_transport(text); }
};

struct SocketPlaceNames {
  using Value = SocketPlace;
  static std::span<const SocketPlace> all() { return kSocketPlaces; }
  static const char* name(SocketPlace place) { return socket_place_name(place); }
  static Result<SocketPlace> parse(std::string_view text) {
    return parse_one_name<SocketPlaceNames>("socket", text);
  }
};

constexpr std::array kAxes = {
    kThreadsAxis,
    size_axis<kSizeLimits, &Settings::size_bytes>("size", "size_bytes", "64",
                                                  "Bytes per buffer; of an atomic always 8"),
    count_axis<kEntriesLimits, &Settings::entries>(
        "entries", "entries", "1", "Buffers of an operation, gathered as --method says"),
    size_axis<kRegionLimits, &Settings::region_bytes>(
        "region", "region_bytes", "1MiB", "Registered memory of a queue pair on each side"),
    count_axis<kPeersLimits, &Settings::peers>(
        "peers", "peers", "1",
        "Nodes that each thread reaches in turn, by a connection to each or one UD queue pair"),
    with_help(kPendingAxis, "Pending operations per queue pair (R); of several peers, per thread"),
    with_help(kSignalIntervalAxis, "Every n-th work request is signaled; 0: one per operation"),
    kPostBatchAxis,
    kInlineAxis,
    kHugePagesAxis,
    name_axis<SocketPlaceNames, &Settings::remote_core>(
        "remote-core-socket", "remote_core_socket", "socket", "any",
        "The same of the other side's threads, which only SENDs need"),
    name_axis<SocketPlaceNames, &Settings::remote_memory>("remote-memory-socket",
                                                          "remote_memory_socket", "socket", "any",
                                                          "The same of the other side's regions"),
    name_axis<SocketPlaceNames, &Settings::memory>(
        "memory-socket", "memory_socket", "socket", "any",
        "The same of the regions of the threads that post"),
    name_axis<SocketPlaceNames, &Settings::core>(
        "core-socket", "core_socket", "socket", "any",
        "Socket of the threads that post: that of the RNIC, another one, any, or all"),
    name_axis<PatternNames, &Settings::local>(
        "local", "local_pattern", "access pattern", "seq",
        "Order of addresses in the local region: seq, rand, or all"),
    name_axis<PatternNames, &Settings::remote>(
        "remote", "remote_pattern", "access pattern", "seq",
        "The same in the remote region; receives of SENDs are always in sequence"),
    name_axis<TransportNames, &Settings::transport>(
        "transport", "transport", "transport", "rc",
        "Queue pairs: rc, uc (write and send), ud (send), or all"),
    name_axis<OperationNames, &Settings::operation>(
        "operation", "operation", "operation", "write",
        "write, read, send, fetch-add, compare-swap, poll, or all"),
    name_axis<MethodNames, &Settings::method>(
        "method", "method", "method", "sgl",
        "How buffers become work requests: sp, sgl, doorbell, or all"),
};

}  // namespace

std::span<const Axis> verbs_axes() { return kAxes; }

}  // namespace verbena::bench
