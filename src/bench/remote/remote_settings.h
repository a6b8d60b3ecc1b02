// What operations on remote memory vary ("memsem" III-C and III-E): writes that are consolidated or
// not, and locks and sequencers that lie in this machine's memory, in remote memory or at a server.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "src/bench/experiment/point.h"
#include "src/bench/experiment/socket_links.h"

namespace verbena::bench {

enum class RemoteOperation : uint8_t { kWrite, kLock, kSequencer };
// Where the word of a lock or sequencer is, and who changes it.
enum class WordVersion : uint8_t {
  kLocal,   // the processor of this machine, which all threads share
  kRemote,  // the RNIC of the back-end
  kRpc,     // a thread of a server
};
enum class ConsolidationKind : uint8_t { kNone, kShared, kExclusive };
enum class WritePattern : uint8_t { kSequential, kRandom, kZipf };
enum class Backoff : uint8_t { kOff, kOn };
inline constexpr std::array kRemoteOperations = {RemoteOperation::kWrite, RemoteOperation::kLock,
                                                 RemoteOperation::kSequencer};
inline constexpr std::array kWordVersions = {WordVersion::kLocal, WordVersion::kRemote,
                                             WordVersion::kRpc};
inline constexpr std::array kConsolidationKinds = {
    ConsolidationKind::kNone, ConsolidationKind::kShared, ConsolidationKind::kExclusive};
inline constexpr std::array kWritePatterns = {WritePattern::kSequential, WritePattern::kRandom,
                                              WritePattern::kZipf};
inline constexpr std::array kBackoffs = {Backoff::kOff, Backoff::kOn};

inline constexpr const char* remote_operation_name(RemoteOperation operation) {
  switch (operation) {
    case RemoteOperation::kWrite:
      return "write";
    case RemoteOperation::kLock:
      return "lock";
    case RemoteOperation::kSequencer:
      break;
  }
  return "sequencer";
}
inline constexpr const char* word_version_name(WordVersion version) {
  switch (version) {
    case WordVersion::kLocal:
      return "local";
    case WordVersion::kRemote:
      return "remote";
    case WordVersion::kRpc:
      break;
  }
  return "rpc";
}
inline constexpr const char* consolidation_kind_name(ConsolidationKind kind) {
  switch (kind) {
    case ConsolidationKind::kNone:
      return "none";
    case ConsolidationKind::kShared:
      return "shared";
    case ConsolidationKind::kExclusive:
      break;
  }
  return "exclusive";
}
inline constexpr const char* write_pattern_name(WritePattern pattern) {
  switch (pattern) {
    case WritePattern::kSequential:
      return "seq";
    case WritePattern::kRandom:
      return "rand";
    case WritePattern::kZipf:
      break;
  }
  return "zipf";
}
inline constexpr const char* backoff_name(Backoff backoff) {
  return backoff == Backoff::kOn ? "on" : "off";
}
// What a point about remote memory has beside Point's own members. All requesting threads share one
// lock or sequencer; of writes each has a part of the region of its own.
struct RemoteSettings {
  RemoteOperation operation = RemoteOperation::kWrite;
  WordVersion version = WordVersion::kRemote;
  ConsolidationKind consolidation = ConsolidationKind::kNone;
  WritePattern pattern = WritePattern::kRandom;
  Backoff backoff = Backoff::kOn;
  uint32_t size_bytes = 32;                    // of a write
  uint64_t region_bytes = uint64_t{64} << 10;  // of a thread
  uint32_t block_bytes = 1024;                 // S
  uint32_t theta = 16;
  uint32_t kept_blocks = 64;
  uint32_t range = 1;  // numbers at once
  // On which the memory has a part each, and threads run in turn.
  uint32_t sockets = 1;
  SocketLinks links = SocketLinks::kMatched;
};

inline const RemoteSettings& remote_settings(const Point& point) {
  return settings_of<RemoteSettings>(point);
}
inline RemoteSettings& remote_settings(Point& point) { return settings_of<RemoteSettings>(point); }

// Whether several operations of a thread can be on their way: of writes that are consolidated, so
// many blocks.
inline bool can_be_pending(const RemoteSettings& settings) {
  return settings.operation != RemoteOperation::kLock && settings.version != WordVersion::kLocal;
}

// --- the region of the back-end ---

// In lines of their own: the word of the lock or sequencer, and what the lock guards.
inline constexpr uint64_t kWordOffset = 0;
inline constexpr uint64_t kGuardedOffset = 64;
// Where --verify notes which numbers were given.
inline constexpr uint64_t kClaimsOffset = 128;
inline constexpr uint64_t kClaims = uint64_t{1} << 16;

// Of a thread, in the part of each socket; and all of that.
inline uint64_t share_bytes(const Point& point) {
  const RemoteSettings& settings = remote_settings(point);
  const uint64_t places = settings.region_bytes / settings.size_bytes;
  const uint64_t bytes = (places + settings.sockets - 1) / settings.sockets * settings.size_bytes;
  return (bytes + 63) / 64 * 64;
}
inline uint64_t socket_bytes(const Point& point) {
  return point.nodes * point.threads * share_bytes(point);
}
inline uint64_t part_bytes(const Point& point) {
  const RemoteSettings& settings = remote_settings(point);
  const uint64_t block = settings.block_bytes;
  return (settings.region_bytes + block - 1) / block * block;
}
inline uint64_t part_offset(const Point& point, uint32_t requesting_thread) {
  return requesting_thread * part_bytes(point);
}
inline uint64_t exposed_bytes(const Point& point) {
  switch (remote_settings(point).operation) {
    case RemoteOperation::kWrite:
      if (remote_settings(point).sockets > 1) {
        return remote_settings(point).sockets * socket_bytes(point);
      }
      return part_offset(point, point.nodes * point.threads);
    case RemoteOperation::kLock:
      return kClaimsOffset;
    case RemoteOperation::kSequencer:
      break;
  }
  return kClaimsOffset + kClaims * sizeof(uint64_t);
}

// --- what is counted: places in Report::counters ---

enum RemoteCounter : uint8_t {
  kCountedOperations,
  kRoundTrips,
  kAcquisitions,
  kAttempts,
  kQueuePairs,  // of the nodes that use the memory
  kBackEnds,
};

}  // namespace verbena::bench
