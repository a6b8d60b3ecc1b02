// The requester's side of the payloads: what a request consists of, and whether a response is
// right. `kVerify` decides at compile time whether every byte is written and checked, or the
// lengths only.
#pragma once

#include <cstdint>
#include <span>
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
template <bool kVerify>
class MessageWork {
 public:
  static constexpr bool kTakesTime = kVerify;

  // `first_slot`: of the queue pair's slots, the one that is slot 0 here.
  MessageWork(const Point& point, uint64_t key, uint32_t first_slot = 0)
      : request_bytes_(request_response_settings(point).request_bytes),
        response_bytes_(request_response_settings(point).response_bytes),
        first_slot_(first_slot),
        key_(key),
        sequence_(kVerify ? point.pending : 0) {}

  // Fills the slot's request and returns how many bytes to post.
  uint32_t prepare(uint32_t slot, char* request) {
    if constexpr (kVerify) {
      PayloadPattern(key_, Direction::kRequest, first_slot_ + slot, sequence_[slot])
          .fill({request, request_bytes_});
    }
    return request_bytes_;
  }

  bool check(uint32_t slot, std::span<const char> response) {
    if constexpr (kVerify) {
      const PayloadPattern expected(key_, Direction::kResponse, first_slot_ + slot,
                                    sequence_[slot]++);
      return response.size() == response_bytes_ && expected.matches(response);
    }
    return response.size() == response_bytes_;
  }

 private:
  uint32_t request_bytes_;
  uint32_t response_bytes_;
  uint32_t first_slot_;
  uint64_t key_;
  std::vector<uint64_t> sequence_;
};

// READ: the request says what to fetch of the responder's readable memory, where each slot has a
// place of its own; successive requests of a slot fetch from shifted places, so that a response
// that is a request old is noticed.
template <bool kVerify>
class ReadWork {
 public:
  static constexpr bool kTakesTime = kVerify;

  ReadWork(const Point& point, uint64_t memory_key, uint32_t first_slot = 0)
      : response_bytes_(request_response_settings(point).response_bytes),
        first_slot_(first_slot),
        layout_(point),
        pattern_(readable_pattern(memory_key)),
        sequence_(point.pending) {}

  uint32_t prepare(uint32_t slot, char* request) {
    *reinterpret_cast<ReadRequest*>(request) = {
        .offset = layout_.offset(first_slot_ + slot, sequence_[slot]), .bytes = response_bytes_};
    return sizeof(ReadRequest);
  }

  bool check(uint32_t slot, std::span<const char> response) {
    const uint64_t offset = layout_.offset(first_slot_ + slot, sequence_[slot]++);
    if constexpr (kVerify) {
      return response.size() == response_bytes_ && pattern_.matches(response, offset);
    }
    return response.size() == response_bytes_;
  }

 private:
  uint32_t response_bytes_;
  uint32_t first_slot_;
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

  template <bool kVerify>
  auto make(const Phase& phase) const {
    const Point& point = job_.setup.point;
    const uint64_t run_key = job_.setup.run_key;
    if constexpr (kReads) {
      std::vector<ReadWork<kVerify>> works;
      for (const uint32_t peer : responding_) {
        works.emplace_back(point, pair_key(run_key, 0, 0, peer), first_slot_);
      }
      return works;
    } else {
      std::vector<MessageWork<kVerify>> works;
      for (const uint32_t peer : responding_) {
        works.emplace_back(point, pair_key(run_key, phase.number, connection_, peer), first_slot_);
      }
      return works;
    }
  }

 private:
  const NodeJob& job_;
  uint32_t connection_;
  uint32_t first_slot_;
  std::vector<uint32_t> responding_;
};

}  // namespace verbena::bench
