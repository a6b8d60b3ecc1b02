// The way of one request and its response through a simulation: from the post until the response is
// taken, step behind step, without a gap.
//
// What the simulation recorded knows entries of send queues only. Which of them are the request and
// the response is found by where both lie: the request in the memory that its WQE sends, the
// response where a packet of its WQE was placed last. Where a library copies both, and so neither
// address is known: what the thread posted first, and what others placed last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/device/sim/recorder.h"
#include "verbena/rpc.h"
#include "verbena/status.h"

namespace verbena::bench {

// What a message causes that nobody waits for.
struct BesidePath {
  std::string text;
  uint32_t node = 0;
  sim::Time begin = 0;
  sim::Time end = 0;
};

struct MessagePath {
  std::vector<sim::Step> steps;  // each begins where the one before it ends
  std::vector<BesidePath> beside;
  uint64_t measured_ns = 0;  // by the thread that waited

  sim::Time begin() const { return steps.front().begin; }
  sim::Time end() const { return steps.back().end; }
  sim::Time sum() const;
  sim::Time unexplained() const;
  // Whether the steps are all that was measured, whose clock counts whole nanoseconds.
  bool adds_up() const;
};

// Lays steps side by side from `from` to `to`: of what overlaps, the earlier one stays whole, and
// what lies between two is the wait that comes before the second.
std::vector<sim::Step> tile(std::vector<sim::Step> steps, sim::Time from, sim::Time to);

// Steps of the same kind at the same place that follow each other become one.
std::vector<sim::Step> merged(const std::vector<sim::Step>& steps);

// What was recorded, by thread and by message.
class MessagePaths {
 public:
  // `layout` is that of the connections. The recorder must outlive this.
  MessagePaths(const sim::Recorder& recorder, MarkLayout layout);

  // kNotFound names what was not recorded.
  Result<MessagePath> find(const sim::Recorder::Taken& taken) const;

 private:
  struct Hash {
    size_t operator()(const sim::MessageId& id) const {
      return (uint64_t{id.node} << 52 ^ uint64_t{id.queue_pair} << 32 ^ id.number) *
             0x9e3779b97f4a7c15u;
    }
  };
  using Post = sim::Recorder::Post;

  const Post* find_request(const sim::Recorder::Taken& taken, sim::Time from) const;
  const Post* find_response(const sim::Recorder::Taken& taken, sim::Time from) const;
  sim::MessageId seen_wqe(const Post& post) const;
  std::vector<sim::Step> of_message(const sim::MessageId& id) const;
  std::vector<sim::Step> of_thread(uint32_t thread, sim::Time from, sim::Time to) const;
  // A thread's time from when something was visible to it, or it began by itself, until `to`.
  std::vector<sim::Step> thread_part(uint32_t thread, sim::Time from, sim::Time to, bool finds,
                                     const Post* posts) const;
  sim::Time first_hand_over(uint32_t thread, sim::Time from, sim::Time to, bool finds) const;
  void add_beside(const char* what, const sim::MessageId& id, MessagePath* path) const;

  const sim::Recorder& recorder_;
  MarkLayout layout_;
  std::vector<std::vector<uint32_t>> by_thread_;
  std::unordered_map<sim::MessageId, std::vector<uint32_t>, Hash> by_message_;
  std::unordered_map<sim::MessageId, uint32_t, Hash> posts_;
  std::vector<uint32_t> by_ring_;  // posts by when their doorbells were rung
};

}  // namespace verbena::bench
