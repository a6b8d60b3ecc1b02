// What is varied about the hashtable ("memsem" IV-B): the mix of operations of the Yahoo! Cloud
// Serving Benchmark (Cooper et al. 2010), which keys they use, and how large all is.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/socket_links.h"
#include "verbena/apps/hashtable.h"

namespace verbena::bench {

// A hashtable has no order of keys, so a scan of E searches for consecutively numbered ones.
enum class YcsbMix : uint8_t { kA, kB, kC, kD, kE, kF, kCustom };
enum class KeyDistribution : uint8_t { kZipfian, kUniform, kLatest };

inline constexpr std::array kYcsbMixes = {YcsbMix::kA, YcsbMix::kB, YcsbMix::kC,     YcsbMix::kD,
                                          YcsbMix::kE, YcsbMix::kF, YcsbMix::kCustom};
inline constexpr std::array kKeyDistributions = {
    KeyDistribution::kZipfian, KeyDistribution::kUniform, KeyDistribution::kLatest};

inline constexpr const char* ycsb_mix_name(YcsbMix mix) {
  constexpr std::array kNames = {"A", "B", "C", "D", "E", "F", "custom"};
  return kNames[static_cast<size_t>(mix)];
}
inline constexpr const char* key_distribution_name(KeyDistribution distribution) {
  constexpr std::array kNames = {"zipfian", "uniform", "latest"};
  return kNames[static_cast<size_t>(distribution)];
}

using HashtableAcknowledgement::kBuffered;
inline constexpr std::array kAcknowledgements = {HashtableAcknowledgement::kPublished, kBuffered};
inline constexpr const char* acknowledgement_name(HashtableAcknowledgement acknowledgement) {
  return acknowledgement == kBuffered ? "buffered" : "published";
}

// Kinds of operations, as WorkloadTraits::kinds names them.
enum class HashtableKind : uint8_t { kSearch, kUpdate, kInsert, kReadModifyWrite, kScan };
inline constexpr std::array<std::string_view, 5> kHashtableKinds = {"search", "update", "insert",
                                                                    "read-modify-write", "scan"};

// Keys of a scan: 1 to so many, each number as often as the others.
inline constexpr uint32_t kMostScanned = 100;

inline constexpr bool inserts_keys(YcsbMix mix) { return mix == YcsbMix::kD || mix == YcsbMix::kE; }
// What is done where nothing changes.
inline constexpr HashtableKind reading_kind(YcsbMix mix) {
  return mix == YcsbMix::kE ? HashtableKind::kScan : HashtableKind::kSearch;
}

// What is done where no key is only read.
inline constexpr HashtableKind changing_kind(YcsbMix mix) {
  switch (mix) {
    case YcsbMix::kD:
    case YcsbMix::kE:
      return HashtableKind::kInsert;
    case YcsbMix::kF:
      return HashtableKind::kReadModifyWrite;
    default:
      return HashtableKind::kUpdate;
  }
}

// The share of searches or scans of a mix, in percent; of `custom` what the user says.
inline constexpr uint32_t reads_percent(YcsbMix mix, uint32_t custom) {
  switch (mix) {
    case YcsbMix::kA:
    case YcsbMix::kF:
      return 50;
    case YcsbMix::kB:
    case YcsbMix::kD:
    case YcsbMix::kE:
      return 95;
    case YcsbMix::kC:
      return 100;
    case YcsbMix::kCustom:
      break;
  }
  return custom;
}

// What a point about the hashtable has beside Point's own members. Keys are numbered from 0 on. A
// table is a part of them: with s sockets, back-end b of B has on socket i those whose number
// modulo s * B is s * b + i.
struct HashtableSettings {
  YcsbMix mix = YcsbMix::kA;
  KeyDistribution distribution = KeyDistribution::kZipfian;
  uint32_t reads_percent = 50;
  uint64_t keys = 100'000;      // that are there at the beginning
  uint64_t new_keys = 200'000;  // room for those that mixes D and E insert
  uint32_t key_bytes = 16;
  uint32_t value_bytes = 64;
  // The hot area: one key of so many (0: of none), and HashtableFormat's and HashtableOptions' own.
  uint32_t hot = 0;
  uint32_t hot_entries = HashtableFormat().hot_block_entries;
  uint32_t theta = HashtableOptions().hot_modifications;
  uint64_t hot_lease_ns = HashtableOptions().hot_lease_ns;
  HashtableAcknowledgement acknowledgement = HashtableAcknowledgement::kPublished;
  uint64_t loss_window_ns = HashtableOptions().loss_window_ns;
  // On which a back-end has a table each, and front-ends run in turn.
  uint32_t sockets = 1;
  SocketLinks links = SocketLinks::kMatched;
};

inline const HashtableSettings& hashtable_settings(const Point& point) {
  return settings_of<HashtableSettings>(point);
}
inline HashtableSettings& hashtable_settings(Point& point) {
  return settings_of<HashtableSettings>(point);
}

inline uint32_t front_ends(const Point& point) { return point.nodes * point.threads; }

// New keys that one front-end may insert.
inline uint64_t new_keys_each(const Point& point) {
  const HashtableSettings& settings = hashtable_settings(point);
  if (!inserts_keys(settings.mix)) return 0;
  return (settings.new_keys + front_ends(point) - 1) / front_ends(point);
}

inline uint32_t tables(const Point& point) {
  return point.responder_nodes * hashtable_settings(point).sockets;
}
inline uint64_t hot_keys(const HashtableSettings& settings) {
  return settings.hot == 0 ? 0 : settings.keys / settings.hot;
}

// Of a front-end's table: a scan's searches are on their way together.
inline uint32_t searches_at_once(const Point& point) {
  constexpr uint32_t kMost = 256;
  const bool scans = hashtable_settings(point).mix == YcsbMix::kE;
  return std::min(point.pending * (scans ? kMostScanned : 1), kMost);
}

// Of each table.
inline HashtableFormat format_of(const Point& point) {
  const HashtableSettings& settings = hashtable_settings(point);
  const uint64_t keys = settings.keys + new_keys_each(point) * front_ends(point);
  const auto share = [&point](uint64_t all, uint64_t unit) {
    const uint64_t parts = tables(point) * unit;
    return (all + parts - 1) / parts;
  };
  return {.entries = share(keys, 1),
          .max_key_bytes = settings.key_bytes,
          .max_value_bytes = settings.value_bytes,
          .max_front_ends = front_ends(point),
          .hot_blocks = static_cast<uint32_t>(
              std::min<uint64_t>(share(hot_keys(settings), settings.hot_entries), UINT32_MAX)),
          .hot_block_entries = settings.hot_entries};
}

// Of a front-end's table, but for where it lies.
inline HashtableOptions options_of(const HashtableSettings& settings) {
  return {.hot_modifications = settings.theta,
          .hot_lease_ns = settings.hot_lease_ns,
          .acknowledgement = settings.acknowledgement,
          .loss_window_ns = settings.loss_window_ns};
}
inline RemoteRegionOptions region_options_of(const Point& point) {
  return hashtable_region_options(format_of(point), searches_at_once(point),
                                  options_of(hashtable_settings(point)));
}

// --- what is counted: places in Report::counters ---

enum HashtableCounter : uint8_t {
  kDoneOperations,
  kRereads,
  kLostRaces,
  kWorkRequests,
  kHotHits,
  kHotModifications,
  kHotFlushes,
  kHotKept
};

}  // namespace verbena::bench
