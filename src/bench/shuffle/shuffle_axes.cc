#include "src/bench/shuffle/shuffle_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/shuffle/shuffle_records.h"
#include "src/bench/shuffle/shuffle_settings.h"

namespace verbena::bench {

namespace {

using Settings = ShuffleSettings;

constexpr ListLimits kReceiverNodesLimits{
    .what = "number of receiver nodes", .min = 0, .max = kMaxNodes};
constexpr ListLimits kRecordLimits{.what = "record size", .min = kLeastRecordBytes, .max = 1 << 20};
constexpr ListLimits kRecordBatchLimits{.what = "batch", .min = 1, .max = 256};
constexpr ListLimits kChunkLimits{.what = "chunk", .min = 1, .max = 4096};
constexpr ListLimits kBufferLimits{.what = "buffer", .min = 4 << 10, .max = 1 << 30};
constexpr ListLimits kWritesLimits{.what = "number of pending WRITEs", .min = 1, .max = 256};

struct ShuffleMethodNames {
  using Value = ShuffleMethod;
  static constexpr std::array kAll = {ShuffleMethod::kBasic, ShuffleMethod::kSp,
                                      ShuffleMethod::kSgl, ShuffleMethod::kAutomatic};
  static std::span<const ShuffleMethod> all() { return kAll; }
  static const char* name(ShuffleMethod method) { return shuffle_method_name(method); }
  static Result<ShuffleMethod> parse(std::string_view text) {
    return parse_one_name<ShuffleMethodNames>("method", text);
  }
};

struct ShuffleSocketNames {
  using Value = SocketPlace;
  static std::span<const SocketPlace> all() { return kSocketPlaces; }
  static const char* name(SocketPlace place) { return socket_place_name(place); }
  static Result<SocketPlace> parse(std::string_view text) {
    return parse_one_name<ShuffleSocketNames>("socket", text);
  }
};

struct RecordKeysNames {
  using Value = RecordKeys;
  static std::span<const RecordKeys> all() { return kRecordKeys; }
  static const char* name(RecordKeys keys) { return record_keys_name(keys); }
  static Result<RecordKeys> parse(std::string_view text) {
    return parse_one_name<RecordKeysNames>("distribution", text);
  }
};

constexpr Axis with_standard(Axis axis, std::string_view standard, std::string_view help) {
  axis.standard = standard;
  axis.help = help;
  return axis;
}

constexpr Axis receivers_axis() {
  Axis axis = with_standard(kResponderThreadsAxis, "1", "Receivers of each node that has any");
  axis.name = "receivers";
  axis.alias = "responder-threads";
  axis.what = "number of receivers";
  return axis;
}

constexpr Axis receiver_nodes_axis() {
  Axis axis = count_axis<kReceiverNodesLimits, &Point::responder_nodes>(
      "receiver-nodes", "responder_nodes", "0",
      "Further nodes, which have the receivers; 0: these are on the nodes of the senders");
  axis.alias = "responders";
  return axis;
}

constexpr std::array kAxes = {
    with_standard(kNodesAxis, "2", "Nodes with senders; each is a process"),
    with_standard(kThreadsAxis, "1", "Senders of each of these nodes"),
    receiver_nodes_axis(),
    receivers_axis(),
    size_axis<kRecordLimits, &Settings::record_bytes>("record-size", "record_bytes", "64",
                                                      "Bytes of a record"),
    count_axis<kRecordBatchLimits, &Settings::batch>(
        "batch", "batch", "16", "Records of a WRITE, at most; of method basic always 1"),
    count_axis<kChunkLimits, &Settings::chunk>(
        "chunk", "entries", "16", "Records that a sender takes at a time: an operation"),
    size_axis<kBufferLimits, &Settings::buffer_bytes>("buffer", "buffer_bytes", "256KiB",
                                                      "Memory of a receiver for each sender"),
    count_axis<kWritesLimits, &Settings::writes>("writes", "pending_writes", "8",
                                                 "WRITEs on their way from a sender to a receiver"),
    name_axis<ShuffleSocketNames, &Settings::socket>(
        "socket", "socket", "socket", "any",
        "Where senders and receivers run: any, rnic (its socket), other, or all"),
    name_axis<RecordKeysNames, &Settings::keys>("distribution", "distribution", "distribution",
                                                "uniform",
                                                "How often keys come: uniform, zipfian, or all"),
    name_axis<ShuffleMethodNames, &Settings::method>(
        "method", "method", "method", "automatic",
        "How records become WRITEs: basic, sp, sgl, automatic, or all"),
};

}  // namespace

std::span<const Axis> shuffle_axes() { return kAxes; }

}  // namespace verbena::bench
