#include "src/trace/recording.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "src/base/assert.h"

namespace verbena::trace {

const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::kEnd:
      return "end";
    case Operation::kCommunicator:
      return "communicator";
    case Operation::kSend:
      return "send";
    case Operation::kReceive:
      return "receive";
    case Operation::kStartSend:
      return "nonblocking send";
    case Operation::kStartReceive:
      return "nonblocking receive";
    case Operation::kWait:
      return "wait";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kReduce:
      return "reduce";
    case Operation::kAllreduce:
      return "allreduce";
    case Operation::kScan:
      return "scan";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kAllgather:
      return "allgather";
    case Operation::kAlltoall:
      return "alltoall";
    case Operation::kReduceScatter:
      break;
  }
  return "reduce_scatter";
}

RankBuilder::RankBuilder(uint32_t rank, uint32_t size) {
  recording_.rank = rank;
  recording_.size = size;
  std::vector<uint32_t> all(size);
  std::iota(all.begin(), all.end(), 0u);
  recording_.communicators.push_back(std::move(all));
  recording_.communicators.push_back({rank});
}

Event& RankBuilder::add(Operation operation, uint64_t bytes, uint64_t address) {
  Event event{.bytes = bytes, .address = address, .operation = operation};
  // Whole nanoseconds, and what is left goes to the next call.
  event.compute_ns = static_cast<uint64_t>(compute_ns_);
  compute_ns_ -= std::floor(compute_ns_);
  recording_.events.push_back(event);
  return recording_.events.back();
}

void RankBuilder::send(uint32_t to, int32_t tag, uint64_t bytes, uint64_t address) {
  Event& event = add(Operation::kSend, bytes, address);
  event.peer = to;
  event.tag = tag;
}

void RankBuilder::receive(uint32_t from, int32_t tag, uint64_t bytes, uint64_t address) {
  Event& event = add(Operation::kReceive, bytes, address);
  event.peer = from;
  event.tag = tag;
}

uint32_t RankBuilder::start_send(uint32_t to, int32_t tag, uint64_t bytes, uint64_t address) {
  Event& event = add(Operation::kStartSend, bytes, address);
  event.peer = to;
  event.tag = tag;
  return event.request = ++requests_;
}

uint32_t RankBuilder::start_receive(uint32_t from, int32_t tag, uint64_t bytes, uint64_t address) {
  Event& event = add(Operation::kStartReceive, bytes, address);
  event.peer = from;
  event.tag = tag;
  return event.request = ++requests_;
}

void RankBuilder::wait(std::span<const uint32_t> requests) {
  Event& event = add(Operation::kWait, 0, 0);
  event.first = static_cast<uint32_t>(recording_.numbers.size());
  event.count = static_cast<uint32_t>(requests.size());
  recording_.numbers.insert(recording_.numbers.end(), requests.begin(), requests.end());
}

void RankBuilder::collective(Operation operation, uint64_t bytes, uint64_t address, uint32_t root,
                             uint32_t communicator) {
  VERBENA_ASSERT(is_collective(operation));
  Event& event = add(operation, bytes, address);
  event.peer = root;
  event.communicator = communicator;
}

void RankBuilder::collective_v(Operation operation, std::span<const uint64_t> list,
                               uint64_t address, uint32_t root, uint32_t communicator) {
  collective(operation, 0, address, root, communicator);
  Event& event = recording_.events.back();
  event.flags = kVaries;
  event.first = static_cast<uint32_t>(recording_.numbers.size());
  event.count = static_cast<uint32_t>(list.size());
  recording_.numbers.insert(recording_.numbers.end(), list.begin(), list.end());
}

uint32_t RankBuilder::communicator(std::vector<uint32_t> members) {
  recording_.communicators.push_back(std::move(members));
  return static_cast<uint32_t>(recording_.communicators.size() - 1);
}

RankRecording RankBuilder::take() {
  recording_.last_compute_ns = static_cast<uint64_t>(compute_ns_);
  return std::move(recording_);
}

}  // namespace verbena::trace
