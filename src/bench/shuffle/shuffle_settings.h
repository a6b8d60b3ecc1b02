// What is varied about the shuffle ("memsem" IV-C): who sends to whom, how large records are, how
// many of them go by one WRITE, and whether all receivers get as many.
#pragma once

#include <array>
#include <cstdint>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/socket_place.h"
#include "verbena/apps/shuffle.h"

namespace verbena::bench {

// How often the keys of records come.
enum class RecordKeys : uint8_t {
  kUniform,
  kZipfian,  // key i in proportion to 1 / i^0.99
};

inline constexpr std::array kRecordKeys = {RecordKeys::kUniform, RecordKeys::kZipfian};

inline constexpr const char* record_keys_name(RecordKeys keys) {
  return keys == RecordKeys::kUniform ? "uniform" : "zipfian";
}

// What a point about the shuffle has beside Point's own members. Senders are the requesting
// threads, receivers the responding ones; without nodes that respond, receivers are on the nodes of
// the senders.
struct ShuffleSettings {
  uint32_t record_bytes = 64;
  uint32_t batch = 16;  // records of a WRITE
  uint32_t chunk = 16;  // records that a sender takes at a time: an operation
  uint64_t buffer_bytes = uint64_t{256} << 10;
  uint32_t writes = 8;  // on their way to each receiver
  RecordKeys keys = RecordKeys::kUniform;
  SocketPlace socket = SocketPlace::kAny;  // of threads, and of memory that they receive into
  ShuffleMethod method = ShuffleMethod::kAutomatic;
};

inline const ShuffleSettings& shuffle_settings(const Point& point) {
  return settings_of<ShuffleSettings>(point);
}
inline ShuffleSettings& shuffle_settings(Point& point) {
  return settings_of<ShuffleSettings>(point);
}

inline uint32_t shuffle_senders(const Point& point) { return point.nodes * point.threads; }
inline uint32_t shuffle_receivers(const Point& point) {
  const uint32_t nodes = point.responder_nodes == 0 ? point.nodes : point.responder_nodes;
  return nodes * point.responder_threads;
}

// Records for which a sender has memory: those on their way and in batches that are not full, and
// as many again.
inline uint64_t shuffle_ring_records(const Point& point) {
  const ShuffleSettings& settings = shuffle_settings(point);
  return uint64_t{settings.writes + 2} * settings.batch * shuffle_receivers(point) + settings.chunk;
}

// --- what is counted: places in Report::counters ---

enum ShuffleCounter : uint8_t {
  kSentRecords,
  kReceivedRecords,
  kRecordWrites,
  kCounterWrites,
  kCreditReads,
  kRefusals,
  kSenderCycles,
  kReceiverCycles
};

}  // namespace verbena::bench
