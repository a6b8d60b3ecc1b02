// The checker of histories: what it must accept, and what it must not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/runtime.h"
#include "tests/support/map_history.h"

namespace verbena::test {
namespace {

using Kind = MapOperation::Kind;

MapCall call(uint64_t begin_ns, uint64_t end_ns, Kind kind, uint64_t value, bool succeeded = true) {
  return {begin_ns, end_ns, {kind, succeeded, 7, value}};
}
MapCall miss(uint64_t begin_ns, uint64_t end_ns, Kind kind) {
  return call(begin_ns, end_ns, kind, 0, false);
}

TEST(LinearizabilityTest, AcceptsWhatMayBe) {
  EXPECT_EQ(broken_history({}), "");
  EXPECT_EQ(broken_history({miss(1, 2, Kind::kSearch), call(3, 4, Kind::kInsert, 5),
                            call(5, 6, Kind::kSearch, 5), call(7, 8, Kind::kRemove, 0),
                            miss(9, 10, Kind::kRemove)}),
            "");
  // A search beside an update finds the old value or the new one; two of them in this order only.
  EXPECT_EQ(broken_history({call(1, 2, Kind::kUpdate, 1), call(3, 20, Kind::kUpdate, 2),
                            call(4, 5, Kind::kSearch, 1), call(6, 7, Kind::kSearch, 2)}),
            "");
  // Two insertions at once, of which one succeeds.
  EXPECT_EQ(broken_history({call(1, 9, Kind::kInsert, 1), call(1, 9, Kind::kInsert, 2, false),
                            call(10, 11, Kind::kSearch, 1)}),
            "");
  // The same moment counts as at once.
  EXPECT_EQ(broken_history({call(1, 5, Kind::kUpdate, 1), miss(5, 6, Kind::kSearch)}), "");
}

TEST(LinearizabilityTest, RejectsWhatCannotBe) {
  const std::vector<std::vector<MapCall>> wrong = {
      // A value that nobody wrote.
      {call(1, 2, Kind::kSearch, 9)},
      // A lost update.
      {call(1, 2, Kind::kUpdate, 1), call(3, 4, Kind::kUpdate, 2), call(5, 6, Kind::kSearch, 1)},
      {call(1, 2, Kind::kUpdate, 1), miss(3, 4, Kind::kSearch)},
      // The new value, then the old one, while the update is on its way.
      {call(1, 2, Kind::kUpdate, 1), call(3, 20, Kind::kUpdate, 2), call(4, 5, Kind::kSearch, 2),
       call(6, 7, Kind::kSearch, 1)},
      // Two insertions of one key succeed.
      {call(1, 9, Kind::kInsert, 1), call(1, 9, Kind::kInsert, 2)},
      // A removal that two have done.
      {call(1, 2, Kind::kInsert, 1), call(3, 9, Kind::kRemove, 0), call(3, 9, Kind::kRemove, 0)},
      // It comes back after its removal.
      {call(1, 2, Kind::kInsert, 1), call(3, 4, Kind::kRemove, 0), call(5, 6, Kind::kSearch, 1)},
      // Nobody else was there to make it fail.
      {call(1, 2, Kind::kInsert, 1, false)},
  };
  for (const auto& history : wrong) EXPECT_NE(broken_history(history), "");
}

TEST(LinearizabilityTest, WhatWasNotAnsweredMayHaveHappenedOrNot) {
  const MapCall lost = call(3, kUnanswered, Kind::kUpdate, 2);
  const MapCall first = call(1, 2, Kind::kUpdate, 1);
  EXPECT_EQ(broken_history({first, lost, call(4, 5, Kind::kSearch, 1)}), "");
  EXPECT_EQ(broken_history({first, lost, call(4, 5, Kind::kSearch, 2)}), "");
  // Also later, but then it stays.
  EXPECT_EQ(
      broken_history({first, lost, call(4, 5, Kind::kSearch, 1), call(6, 7, Kind::kSearch, 2)}),
      "");
  EXPECT_NE(
      broken_history({first, lost, call(4, 5, Kind::kSearch, 2), call(6, 7, Kind::kSearch, 1)}),
      "");
  // Not before it was called.
  EXPECT_NE(broken_history({call(1, 2, Kind::kSearch, 2), lost}), "");
}

// Buffered updates of one front-end, session 1, end when they are published.
TEST(LinearizabilityTest, CallsOfASessionHappenInItsOrder) {
  const auto of_session = [](uint64_t session, uint64_t begin_ns, uint64_t reply_ns,
                             uint64_t end_ns, Kind kind, uint64_t value, bool succeeded = true) {
    return MapCall{begin_ns, end_ns, {kind, succeeded, 7, value}, session, reply_ns};
  };
  const auto broken = [](std::vector<MapCall> own, const std::vector<MapCall>& others) {
    extend_searches(own);
    own.insert(own.end(), others.begin(), others.end());
    return !broken_history(own).empty();
  };
  const MapCall old = of_session(2, 1, 2, 2, Kind::kUpdate, 1);
  const MapCall buffered = of_session(1, 3, 4, 20, Kind::kUpdate, 5);
  const MapCall own_search = of_session(1, 6, 7, 7, Kind::kSearch, 5);
  const MapCall other_search = of_session(2, 8, 9, 9, Kind::kSearch, 1);
  // Others see the old value until it is published, and not afterwards.
  EXPECT_FALSE(broken({buffered, own_search}, {old, other_search}));
  EXPECT_TRUE(broken({buffered, own_search}, {old, of_session(2, 21, 22, 22, Kind::kSearch, 1)}));
  // Whoever has seen it does not see the old one again.
  EXPECT_TRUE(broken({buffered}, {old, of_session(2, 5, 6, 6, Kind::kSearch, 5), other_search}));
  // Its own searches do not see the old one.
  EXPECT_TRUE(broken({buffered, of_session(1, 6, 7, 7, Kind::kSearch, 1)}, {old}));
  // Its own later modifications come behind it.
  EXPECT_TRUE(broken({buffered, of_session(1, 6, 7, 7, Kind::kRemove, 0)},
                     {old, of_session(2, 21, 22, 22, Kind::kSearch, 5)}));
  EXPECT_FALSE(broken({buffered, of_session(1, 6, 7, 30, Kind::kUpdate, 6)},
                      {old, other_search, of_session(2, 25, 26, 26, Kind::kSearch, 5)}));
  EXPECT_TRUE(broken({buffered, of_session(1, 6, 7, 30, Kind::kUpdate, 6)},
                     {old, of_session(2, 15, 16, 16, Kind::kSearch, 6),
                      of_session(2, 25, 26, 26, Kind::kSearch, 5)}));
  // What died with its front-end was lost, with what that had found of it, or not.
  const MapCall lost = of_session(1, 3, 4, kUnanswered, Kind::kUpdate, 5);
  EXPECT_FALSE(broken({lost, own_search}, {old, of_session(2, 90, 91, 91, Kind::kSearch, 1)}));
  EXPECT_FALSE(broken({lost, own_search}, {old, of_session(2, 90, 91, 91, Kind::kSearch, 5)}));
}

TEST(LinearizabilityTest, KeysAreIndependent) {
  MapCall other = call(3, 4, Kind::kUpdate, 2);
  other.operation.key = 8;
  EXPECT_EQ(broken_history({call(1, 2, Kind::kUpdate, 1), other, call(5, 6, Kind::kSearch, 1)}),
            "");
}

// A register that works, used by several at once, and then one answer that is changed.
TEST(LinearizabilityTest, FindsOneWrongAnswerAmongMany) {
  const uint64_t seed = run_seed();
  for (uint64_t run = 0; run < 200; ++run) {
    Random random(seed + run);
    constexpr uint64_t kThreads = 6;
    std::vector<uint64_t> free_at(kThreads, 0);
    std::vector<MapCall> calls;
    uint64_t state = 0;
    uint64_t now = 10;
    for (uint64_t i = 1; i <= 300; ++i) {
      // Each happens at `now`, somewhere in its interval; intervals of a thread do not overlap.
      const uint64_t thread = random.below(kThreads);
      now = std::max(now, free_at[thread]) + 2 + random.below(20);
      const uint64_t begin = free_at[thread] + random.below(now - free_at[thread]);
      MapCall made{begin, now + random.below(60), {}};
      made.operation.kind = static_cast<Kind>(random.below(4));
      made.operation.key = 7;
      made.operation.value = i;
      switch (made.operation.kind) {
        case Kind::kSearch:
          made.operation.succeeded = state != 0;
          made.operation.value = state;
          break;
        case Kind::kInsert:
          made.operation.succeeded = state == 0;
          if (state == 0) state = i;
          break;
        case Kind::kUpdate:
          made.operation.succeeded = true;
          state = i;
          break;
        case Kind::kRemove:
          made.operation.succeeded = state != 0;
          state = 0;
      }
      free_at[thread] = made.end_ns + 1;
      calls.push_back(made);
    }
    ASSERT_EQ(broken_history(calls), "") << "seed " << seed + run;
    // A search that finds a value which was replaced before all that was at once with it began.
    const uint64_t late = now + 1000;
    calls.push_back({late, late + 1, {Kind::kUpdate, true, 7, 1000}});
    calls.push_back({late + 2, late + 3, {Kind::kSearch, true, 7, 1 + random.below(300)}});
    ASSERT_NE(broken_history(calls), "") << "seed " << seed + run;
  }
}

}  // namespace
}  // namespace verbena::test
