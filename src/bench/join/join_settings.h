// What is varied about the join ("memsem" IV-D): how many tuples are joined, on one machine or by
// how many executors, and how the shuffle moves them.
#pragma once

#include <array>
#include <cstdint>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/socket_place.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench {

// How tuples with equal keys come together.
enum class JoinExchangeKind : uint8_t {
  kShuffle,  // executors send each tuple to the one that its key decides
  kNone,     // one executor has all of them
};

inline constexpr std::array kJoinExchanges = {JoinExchangeKind::kShuffle, JoinExchangeKind::kNone};

inline constexpr const char* join_exchange_name(JoinExchangeKind exchange) {
  return exchange == JoinExchangeKind::kShuffle ? "shuffle" : "none";
}

// What a point about the join has beside Point's own members. Executors are the requesting threads;
// beside each, a responding thread takes in those that send to it.
struct JoinSettings {
  uint64_t tuples = 1'000'000;  // of each relation, all executors together
  uint32_t tuple_bytes = 16;
  uint32_t batch = 16;
  JoinExchangeKind exchange = JoinExchangeKind::kShuffle;
  SocketPlace socket = SocketPlace::kAny;  // of threads, and of memory that they receive into
  ShuffleMethod method = ShuffleMethod::kAutomatic;
};

inline const JoinSettings& join_settings(const Point& point) {
  return settings_of<JoinSettings>(point);
}
inline JoinSettings& join_settings(Point& point) { return settings_of<JoinSettings>(point); }

inline bool is_shuffled(const Point& point) {
  return join_settings(point).exchange == JoinExchangeKind::kShuffle;
}
// Without a shuffle there is one, whose threads belong to oneTBB.
inline uint32_t join_executors(const Point& point) {
  return is_shuffled(point) ? point.nodes * point.threads : 1;
}

// Of each of them.
inline uint32_t join_threads(const Point& point) { return is_shuffled(point) ? 1 : point.threads; }

// --- what is counted: places in Report::counters ---

enum JoinCounter : uint8_t {
  kJoinedTuples,  // of both relations
  kOuterTuples,
  kResultRows,
  kShuffleNs,
  kPartitionNs,
  kProbeNs,
  kJoinCycles
};

}  // namespace verbena::bench
