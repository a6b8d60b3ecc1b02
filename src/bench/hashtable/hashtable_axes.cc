#include "src/bench/hashtable/hashtable_axes.h"

#include <array>

#include "src/bench/experiment/axis_kinds.h"
#include "src/bench/experiment/common_axes.h"
#include "src/bench/experiment/socket_axes.h"
#include "src/bench/hashtable/hashtable_settings.h"
#include "src/bench/hashtable/keys.h"

namespace verbena::bench {

namespace {

using Settings = HashtableSettings;

constexpr ListLimits kKeysLimits{.what = "number of keys", .min = 1, .max = 1u << 27};
constexpr ListLimits kNewKeysLimits{.what = "number of new keys", .min = 1, .max = 1u << 27};
constexpr ListLimits kKeySizeLimits{.what = "key size", .min = kLeastKeyBytes, .max = 4096};
constexpr ListLimits kValueSizeLimits{
    .what = "value size", .min = kLeastValueBytes, .max = 1'000'000};
constexpr ListLimits kHotLimits{.what = "share of hot keys", .min = 0, .max = 1u << 20};
constexpr ListLimits kHotEntriesLimits{.what = "number of entries of a block", .min = 2, .max = 64};
constexpr ListLimits kThetaLimits{.what = "theta", .min = 1, .max = 256};
constexpr ListLimits kLeaseLimits{.what = "lease in ns", .min = 0, .max = 1'000'000'000};
constexpr ListLimits kReadsLimits{.what = "share of searches in percent", .min = 0, .max = 100};

constexpr const char* kMixName = "mix";
using MixNames = EnumNames<YcsbMix, kYcsbMixes, ycsb_mix_name, kMixName>;
constexpr const char* kDistributionName = "distribution";
using DistributionNames =
    EnumNames<KeyDistribution, kKeyDistributions, key_distribution_name, kDistributionName>;

constexpr ListLimits kLossLimits{.what = "loss window in ns",
                                 .min = 2 * HashtableFormat().hot_lock_lease_ns,
                                 .max = 10'000'000'000};
constexpr const char* kAcknowledgementName = "acknowledgement";
using AcknowledgementNames = EnumNames<HashtableAcknowledgement, kAcknowledgements,
                                       acknowledgement_name, kAcknowledgementName>;

constexpr Axis only_of_hot_area(Axis axis) {
  axis.depends_on = "hot";
  axis.applies = [](const Point& point) { return hashtable_settings(point).hot > 0; };
  return axis;
}

constexpr Axis only_of_buffers(Axis axis) {
  axis.depends_on = "acknowledgement";
  axis.applies = [](const Point& point) {
    return hashtable_settings(point).acknowledgement == kBuffered;
  };
  return axis;
}

constexpr Axis only_of_mix(Axis axis, bool (*applies)(const Point& point)) {
  axis.depends_on = "mix";
  axis.applies = applies;
  return axis;
}
bool inserts(const Point& point) { return inserts_keys(hashtable_settings(point).mix); }
bool is_custom(const Point& point) { return hashtable_settings(point).mix == YcsbMix::kCustom; }

constexpr std::array kAxes = {
    using_nodes_axis("Nodes with front-ends; each is a process"),
    with_help(kThreadsAxis, "Front-ends of each of these nodes; each is a thread"),
    used_nodes_axis("back-ends", "number of back-ends",
                    "Nodes that have the table, each a part of the keys"),
    count_axis<kKeysLimits, &Settings::keys>("keys", "keys", "100000",
                                             "Keys that are in the table at the beginning"),
    only_of_mix(count_axis<kNewKeysLimits, &Settings::new_keys>(
                    "new-keys", "new_keys", "200000",
                    "Room for keys that mixes D and E insert, of all front-ends"),
                inserts),
    size_axis<kKeySizeLimits, &Settings::key_bytes>("key-size", "key_bytes", "16",
                                                    "Bytes of a key"),
    size_axis<kValueSizeLimits, &Settings::value_bytes>("value-size", "value_bytes", "64",
                                                        "Bytes of a value"),
    only_of_mix(count_axis<kReadsLimits, &Settings::reads_percent>(
                    "reads", "reads_percent", "50",
                    "Searches of mix custom, in percent; the rest are updates"),
                is_custom),
    with_help(kPendingAxis, "Pending operations of a front-end, at most 256"),
    count_axis<kHotLimits, &Settings::hot>(
        "hot", "hot", "0",
        "One key of so many begins in the hot area, the most used ones; 0: none"),
    only_of_hot_area(count_axis<kHotEntriesLimits, &Settings::hot_entries>(
        "hot-entries", "hot_entries", "8", "Entries of a block of the hot area: 2, 4, ..., 64")),
    only_of_hot_area(count_axis<kThetaLimits, &Settings::theta>(
        "theta", "theta", "16", "Modifications after which a block is written")),
    only_of_hot_area(count_axis<kLeaseLimits, &Settings::hot_lease_ns>(
        "hot-lease", "hot_lease_ns", "10000",
        "Longest time in ns that an operation waits for them")),
    only_of_buffers(count_axis<kLossLimits, &Settings::loss_window_ns>(
        "loss-window", "loss_window_ns", "10000000",
        "Longest time in ns for which an update is answered and not published")),
    sockets_axis<&Settings::sockets>(
        "Sockets that have a part of each back-end's keys, and front-ends in turn"),
    only_of_hot_area(name_axis<AcknowledgementNames, &Settings::acknowledgement>(
        "acknowledgement", "acknowledgement", "acknowledgement", "published",
        "When an update of a hot key is answered: published, buffered (before it is), or all")),
    links_axis<&Settings::links>(),
    name_axis<DistributionNames, &Settings::distribution>(
        "distribution", "distribution", "distribution", "zipfian",
        "Which keys are used: zipfian (0.99), uniform, latest, or all; of mix D always latest"),
    name_axis<MixNames, &Settings::mix>(
        "mix", "mix", "mix", "A",
        "Mix of operations, those of YCSB or one's own: A to F, custom, or all"),
};

}  // namespace

std::span<const Axis> hashtable_axes() { return kAxes; }

}  // namespace verbena::bench
