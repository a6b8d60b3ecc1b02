// The schedules of collective operations: for any number of members and any root, all end, and each
// message meets a receive of its size.
#include "src/bench/message/replay_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "src/trace/recording.h"

namespace verbena::bench {
namespace {

using trace::Event;
using trace::Operation;
using Kind = ReplayStep::Kind;

struct Member {
  std::vector<ReplayStep> steps;
  size_t at = 0;
  uint64_t waits_for = 0;  // receives that were not met
  uint64_t received_bytes = 0;
};

// All members' steps, with messages that are copied: how many bytes each received.
std::vector<uint64_t> carried_out(const std::vector<Event>& events,
                                  const std::vector<std::vector<uint64_t>>& lists) {
  const auto size = static_cast<uint32_t>(events.size());
  std::vector<uint32_t> members(size);
  // Not the members' numbers.
  std::iota(members.begin(), members.end(), 100u);
  std::vector<Member> all(size);
  for (uint32_t self = 0; self < size; ++self) {
    all[self].steps = collective_schedule(events[self], lists[self], members, self);
    const uint64_t scratch = collective_scratch_bytes(events[self], lists[self], size);
    for (const ReplayStep& step : all[self].steps) {
      if (step.kind == Kind::kCopy) continue;
      EXPECT_LE(step.offset + step.bytes, scratch);
    }
  }
  std::map<std::pair<uint32_t, uint32_t>, std::deque<uint64_t>> sent;
  std::map<std::pair<uint32_t, uint32_t>, std::deque<uint64_t>> awaited;
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t self = 0; self < size; ++self) {
      Member& one = all[self];
      for (; one.at < one.steps.size(); ++one.at) {
        const ReplayStep& step = one.steps[one.at];
        if (step.kind == Kind::kWait) {
          for (auto& [pair, sizes] : awaited) {
            auto& came = sent[pair];
            while (pair.second == self && !sizes.empty() && !came.empty()) {
              EXPECT_EQ(came.front(), sizes.front());
              one.received_bytes += came.front();
              came.pop_front();
              sizes.pop_front();
              --one.waits_for;
            }
          }
          if (one.waits_for > 0) break;
        } else if (step.kind == Kind::kSend) {
          sent[{self, step.peer - 100}].push_back(step.bytes);
        } else if (step.kind == Kind::kReceive) {
          awaited[{step.peer - 100, self}].push_back(step.bytes);
          ++one.waits_for;
        }
        moved = true;
      }
    }
  }
  std::vector<uint64_t> received;
  for (const Member& one : all) {
    EXPECT_EQ(one.at, one.steps.size());
    received.push_back(one.received_bytes);
  }
  for (const auto& [pair, sizes] : sent) EXPECT_TRUE(sizes.empty());
  return received;
}

std::vector<uint64_t> carried_out(Operation operation, uint64_t bytes, uint32_t size,
                                  uint32_t root = 0) {
  return carried_out(
      std::vector<Event>(size, {.bytes = bytes, .peer = root, .operation = operation}),
      std::vector<std::vector<uint64_t>>(size));
}

uint64_t sum(const std::vector<uint64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), uint64_t{0});
}

TEST(ReplaySchedules, EndForAnyNumberOfMembersAndRoot) {
  for (uint32_t size = 1; size <= 17; ++size) {
    for (uint32_t root = 0; root < size; ++root) {
      SCOPED_TRACE(testing::Message() << size << " members, root " << root);
      const uint64_t others = size - 1;
      EXPECT_EQ(sum(carried_out(Operation::kBroadcast, 100, size, root)), others * 100);
      EXPECT_EQ(sum(carried_out(Operation::kReduce, 100, size, root)), others * 100);
      EXPECT_EQ(carried_out(Operation::kReduce, 100, size, root).at(root) > 0, size > 1);
      // What goes through others counts once more for each.
      EXPECT_GE(sum(carried_out(Operation::kGather, 10, size, root)), others * 10);
      EXPECT_EQ(carried_out(Operation::kGather, 10, size, root).at(root), others * 10);
      EXPECT_GE(sum(carried_out(Operation::kScatter, 10, size, root)), others * 10);
    }
    const uint64_t others = size - 1;
    EXPECT_EQ(sum(carried_out(Operation::kBarrier, 0, size)), 0u);
    EXPECT_EQ(sum(carried_out(Operation::kAllreduce, 8, size)), 2 * others * 8);
    EXPECT_EQ(sum(carried_out(Operation::kAllgather, 10, size)), size * others * 10);
    EXPECT_EQ(sum(carried_out(Operation::kAlltoall, 10, size)), size * others * 10);
    EXPECT_EQ(sum(carried_out(Operation::kReduceScatter, 10, size)),
              others * 10 * size + others * 10);
    carried_out(Operation::kScan, 10, size);
  }
}

TEST(ReplaySchedules, HaveListsWhereTheBytesVary) {
  constexpr uint32_t kSize = 5;
  const std::vector<uint64_t> parts = {0, 10, 20, 30, 40};
  for (uint32_t root = 0; root < kSize; ++root) {
    for (const Operation operation : {Operation::kGather, Operation::kScatter}) {
      std::vector<Event> events;
      std::vector<std::vector<uint64_t>> lists(kSize);
      lists[root] = parts;
      for (uint32_t self = 0; self < kSize; ++self) {
        events.push_back({.bytes = parts[self],
                          .peer = root,
                          .operation = operation,
                          .flags = trace::kVariesAtRoot});
      }
      EXPECT_EQ(sum(carried_out(events, lists)), 100 - parts[root]);
    }
  }
  const std::vector<std::vector<uint64_t>> same(kSize, parts);
  const auto all = [](Operation operation) {
    return std::vector<Event>(kSize, {.operation = operation, .flags = trace::kVaries});
  };
  EXPECT_EQ(sum(carried_out(all(Operation::kAllgather), same)), 4 * 100u);
  EXPECT_EQ(sum(carried_out(all(Operation::kReduceScatter), same)), 4 * 100 + 100u);
  std::vector<std::vector<uint64_t>> exchanged;
  for (uint64_t self = 0; self < kSize; ++self) {
    exchanged.emplace_back();
    for (uint64_t to = 0; to < kSize; ++to) exchanged.back().push_back(10 * self + to);
    for (uint64_t from = 0; from < kSize; ++from) exchanged.back().push_back(10 * from + self);
  }
  EXPECT_EQ(sum(carried_out(all(Operation::kAlltoall), exchanged)),
            10 * 5 * 10 + 5 * 10 - 11 * 10u);
}

}  // namespace
}  // namespace verbena::bench
