#include "src/bench/shuffle/shuffle_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/executor_axes.h"
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

constexpr const char* kKeysName = "distribution";
using RecordKeysNames = EnumNames<RecordKeys, kRecordKeys, record_keys_name, kKeysName>;

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
    socket_place_axis<&Settings::socket>(
        "Where senders and receivers run: any, rnic (its socket), other, or all"),
    name_axis<RecordKeysNames, &Settings::keys>("distribution", "distribution", kKeysName,
                                                "uniform",
                                                "How often keys come: uniform, zipfian, or all"),
    shuffle_method_axis<&Settings::method>(
        "How records become WRITEs: basic, sp, sgl, automatic, or all"),
};

}  // namespace

std::span<const Axis> shuffle_axes() { return kAxes; }

}  // namespace verbena::bench
