// The file of one rank of a recording, as it is written; rank_decoder.h reads it. Without anything
// but the C++ library: the tracer is loaded into programs that know nothing of Verbena.
//
//   "VBNTRACE"  the version, the rank and the number of ranks, 32 bits each, little-endian
//   records     a byte (Operation and flags), then numbers of 7 bits per byte, the lowest first,
//               with the highest bit set but in the last byte; differences have their sign in bit 0
//   the record kEnd: what is known at the end, and the calls by name
//   64 bits     FNV-1a of all before, so that a damaged or unfinished file is told from a whole one
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "src/trace/recording.h"

namespace verbena::trace {

inline constexpr std::string_view kRecordingMagic = "VBNTRACE";
inline constexpr uint32_t kRecordingVersion = 1;
inline constexpr size_t kRecordingHeaderBytes = 20;
inline constexpr size_t kChecksumBytes = 8;

// FNV-1a.
inline constexpr uint64_t kChecksumBasis = 0xcbf29ce484222325u;
inline uint64_t checksum(std::span<const std::byte> bytes, uint64_t sum = kChecksumBasis) {
  for (const std::byte byte : bytes) {
    sum = (sum ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  }
  return sum;
}

// What became of a request: in the records of waits.
enum CompletionFlags : uint8_t {
  kCompletedReceive = 1u << 0,
  kCompletedAsPosted = 1u << 1,  // source, tag and bytes are those of the receive
  kCompletedCancelled = 1u << 2,
};

struct Completion {
  uint32_t request = 0;
  uint8_t flags = 0;
  uint32_t peer = 0;  // kCompletedReceive without kCompletedAsPosted: who, what and how much
  int32_t tag = 0;
  uint64_t bytes = 0;
};

class RankEncoder {
 public:
  static constexpr uint32_t kAnySource = UINT32_MAX;

  RankEncoder(uint32_t rank, uint32_t size) {
    raw(kRecordingMagic);
    for (const uint32_t word : {kRecordingVersion, rank, size}) fixed(word, sizeof(word));
  }

  // What it has to go to the file, in their order; it holds them no more.
  std::vector<std::byte> take() {
    sum_ = checksum(bytes_, sum_);
    std::vector<std::byte> taken;
    taken.swap(bytes_);
    return taken;
  }
  size_t held_bytes() const { return bytes_.size(); }

  void communicator(std::span<const uint32_t> members) {
    head(Operation::kCommunicator, 0);
    number(members.size());
    uint32_t before = 0;
    for (const uint32_t member : members) {
      difference(member, before);
      before = member;
    }
  }

  // Of any operation but waits. A receive of any source has kAnySource, one of any tag kAnyTag.
  static constexpr int32_t kAnyTag = INT32_MIN;
  void event(const Event& event, std::span<const uint64_t> list) {
    head(event.operation, event.flags);
    number(event.compute_ns);
    number(event.communicator);
    number(event.bytes);
    difference(event.address, address_);
    address_ = event.address;
    if (!is_collective(event.operation)) {
      number(event.peer == kAnySource ? 0 : uint64_t{event.peer} + 1);
      difference(static_cast<uint64_t>(int64_t{event.tag}), 0);
      return;
    }
    if (has_root(event.operation)) number(event.peer);
    if ((event.flags & kVaries) == 0) return;
    number(list.size());
    for (const uint64_t one : list) number(one);
  }
  // `latest`: the number of the latest request.
  void wait(uint64_t compute_ns, uint32_t latest, std::span<const Completion> completions) {
    head(Operation::kWait, 0);
    number(compute_ns);
    number(completions.size());
    for (const Completion& one : completions) {
      number(latest - one.request);
      number(one.flags);
      if ((one.flags & kCompletedReceive) == 0 ||
          (one.flags & (kCompletedAsPosted | kCompletedCancelled)) != 0) {
        continue;
      }
      number(one.peer);
      difference(static_cast<uint64_t>(int64_t{one.tag}), 0);
      number(one.bytes);
    }
  }

  // The last one; take() has the rest then.
  void end(uint64_t last_compute_ns, uint64_t elapsed_ns, uint32_t threads,
           std::span<const CallCount> calls) {
    head(Operation::kEnd, 0);
    number(last_compute_ns);
    number(elapsed_ns);
    number(threads);
    number(calls.size());
    for (const CallCount& call : calls) {
      number(call.name.size());
      raw(call.name);
      number(call.calls);
      number(call.duration_ns);
      number(call.replayed ? 1 : 0);
    }
    fixed(checksum(bytes_, sum_), kChecksumBytes);
  }

 private:
  void byte(uint64_t value) { bytes_.push_back(static_cast<std::byte>(value & 0xff)); }
  void fixed(uint64_t value, size_t size_bytes) {
    for (size_t i = 0; i < size_bytes; ++i) byte(value >> (8 * i));
  }
  void raw(std::string_view text) {
    for (const char character : text) byte(static_cast<unsigned char>(character));
  }
  void number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) byte(value | 0x80);
    byte(value);
  }
  void difference(uint64_t value, uint64_t before) {
    const auto step = static_cast<int64_t>(value - before);
    number(static_cast<uint64_t>(step) << 1 ^ static_cast<uint64_t>(step >> 63));
  }
  void head(Operation operation, uint8_t flags) {
    byte(static_cast<uint8_t>(operation) | static_cast<unsigned>(flags) << 5);
  }

  std::vector<std::byte> bytes_;
  uint64_t sum_ = kChecksumBasis;
  uint64_t address_ = 0;
};

}  // namespace verbena::trace
