// The requester's side of the payloads: what a request consists of, and whether a response is
// right. `verify` decides whether every byte is written and checked, or the lengths only: a branch
// per message, so that a design's loops are compiled once.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/bench/load/payload_pattern.h"
#include "src/bench/request_response/readable_memory.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/run/node_job.h"
#include "verbena/rpc.h"

namespace verbena::bench {

// Requests and responses that are messages: all protocols but READ.
class MessageWork {
 public:
  // `first_slot`: of the queue pair's slots, the one that is slot 0 here.
  MessageWork(const Point& point, bool verify, uint64_t key, uint32_t first_slot = 0)
      : request_bytes_(request_response_settings(point).request_bytes),
        response_bytes_(request_response_settings(point).response_bytes),
        first_slot_(first_slot),
        verify_(verify),
        key_(key),
        sequence_(verify ? point.pending : 0) {}

  bool takes_time() const { return verify_; }

  // Fills the slot's request and returns how many bytes to post.
  uint32_t prepare(uint32_t slot, char* request) {
    if (verify_) [[unlikely]]
      fill(slot, request);
    return request_bytes_;
  }

  bool check(uint32_t slot, std::span<const char> response) {
    if (verify_) [[unlikely]]
      return is_right(slot, response);
    return response.size() == response_bytes_;
  }

 private:
  // Not inlined: a design's loops have room for what all messages need.
  void fill(uint32_t slot, char* request);
  bool is_right(uint32_t slot, std::span<const char> response);

  uint32_t request_bytes_;
  uint32_t response_bytes_;
  uint32_t first_slot_;
  bool verify_;
  uint64_t key_;
  std::vector<uint64_t> sequence_;
};

// READ: the request says what to fetch of the responder's readable memory, where each slot has a
// place of its own; successive requests of a slot fetch from shifted places, so that a response
// that is a request old is noticed.
class ReadWork {
 public:
  ReadWork(const Point& point, bool verify, uint64_t memory_key, uint32_t first_slot = 0)
      : response_bytes_(request_response_settings(point).response_bytes),
        first_slot_(first_slot),
        verify_(verify),
        layout_(point),
        pattern_(readable_pattern(memory_key)),
        sequence_(point.pending) {}

  bool takes_time() const { return verify_; }

  uint32_t prepare(uint32_t slot, char* request) {
    *reinterpret_cast<ReadRequest*>(request) = {
        .offset = layout_.offset(first_slot_ + slot, sequence_[slot]), .bytes = response_bytes_};
    return sizeof(ReadRequest);
  }

  bool check(uint32_t slot, std::span<const char> response) {
    const uint64_t offset = layout_.offset(first_slot_ + slot, sequence_[slot]++);
    return response.size() == response_bytes_ && (!verify_ || pattern_.matches(response, offset));
  }

 private:
  uint32_t response_bytes_;
  uint32_t first_slot_;
  bool verify_;
  ReadableLayout layout_;
  PayloadPattern pattern_;
  std::vector<uint64_t> sequence_;
};

// The key of the payloads between two threads in one phase: whatever strays between pairs, phases
// or runs is noticed.
inline uint64_t pair_key(uint64_t run_key, uint64_t phase, uint32_t requesting,
                         uint32_t responding) {
  return run_key + phase + (uint64_t{requesting} << 40) + (uint64_t{responding} << 20);
}

// The work of a thread's requests to each of its responding threads.
template <bool kReads>
class RequestWorks {
 public:
  static constexpr bool kMayArrive = true;  // see RequestPhases

  // `connection`: the number in NodeJob::connections that connected; `first_slot`: of the queue
  // pairs' slots, this thread's first one.
  RequestWorks(const NodeJob& job, uint32_t connection, uint32_t first_slot,
               std::vector<uint32_t> responding)
      : job_(job),
        connection_(connection),
        first_slot_(first_slot),
        responding_(std::move(responding)) {}

  auto make(const Phase& phase) const {
    const Point& point = job_.setup.point;
    const uint64_t run_key = job_.setup.run_key;
    std::vector<std::conditional_t<kReads, ReadWork, MessageWork>> works;
    for (const uint32_t peer : responding_) {
      const uint64_t key = kReads ? pair_key(run_key, 0, 0, peer)
                                  : pair_key(run_key, phase.number, connection_, peer);
      works.emplace_back(point, phase.verify, key, first_slot_);
    }
    return works;
  }

 private:
  const NodeJob& job_;
  uint32_t connection_;
  uint32_t first_slot_;
  std::vector<uint32_t> responding_;
};

}  // namespace verbena::bench
