// What is varied about the log ("memsem" IV-E): how large entries are, how many of them are
// appended at once and how they are gathered, on how many back-ends, and who reads along.
#pragma once

#include <cstdint>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/socket_links.h"
#include "verbena/remote_vector.h"

namespace verbena::bench {

// What a point about the log has beside Point's own members.
struct LogSettings {
  uint32_t readers = 0;  // threads of each node that read; the others write
  uint32_t batch = 1;    // entries that are appended at once
  uint32_t entry_bytes = 64;
  uint64_t capacity_bytes = uint64_t{64} << 20;
  VectorMethod method = VectorMethod::kAutomatic;
  // On which writers and readers run in turn; the log lies on the first one of its back-ends.
  uint32_t sockets = 1;
  SocketLinks links = SocketLinks::kMesh;
};

inline const LogSettings& log_settings(const Point& point) {
  return settings_of<LogSettings>(point);
}
inline LogSettings& log_settings(Point& point) { return settings_of<LogSettings>(point); }

// Requesting threads are numbered node by node; the last ones of a node are its readers.
inline bool is_log_reader(const Point& point, uint32_t requesting) {
  return requesting % point.threads >= point.threads - log_settings(point).readers;
}
inline uint32_t log_writers(const Point& point) {
  return point.nodes * (point.threads - log_settings(point).readers);
}
inline uint32_t first_log_reader(const Point& point) {
  return point.threads - log_settings(point).readers;
}

// --- what is counted: places in Report::counters ---

enum LogCounter : uint8_t {
  kAppendedBatches,
  kAppendedEntries,
  kSkippedBatches,
  kFullWaits,
  kReadEntries,
  kSkippedPlaces
};

}  // namespace verbena::bench
