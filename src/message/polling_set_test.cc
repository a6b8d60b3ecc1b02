#include "src/message/polling_set.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::message {
namespace {

constexpr uint32_t kNobody = PollingSet::kNone;

PollingSet make_set(PollingSetPolicy policy, PollingOrder order, uint32_t places,
                    uint32_t connections = 16) {
  PollingSet set(policy, order, places, connections);
  for (uint32_t connection = 0; connection < connections; ++connection) set.add(connection);
  return set;
}
std::vector<uint32_t> join_all(PollingSet& set) {
  std::vector<uint32_t> joined;
  for (uint32_t next = set.next_to_join(); next != kNobody; next = set.next_to_join()) {
    joined.push_back(next);
  }
  return joined;
}
std::vector<uint32_t> order_of(const PollingSet& set) {
  std::vector<uint32_t> polled;
  for (uint32_t i = 0; i < set.size(); ++i) polled.push_back(set.at(i));
  return polled;
}
void count_messages(PollingSet& set, uint32_t connection, uint32_t messages) {
  for (uint32_t i = 0; i < messages; ++i) set.count(connection);
}

using Numbers = std::vector<uint32_t>;

TEST(PollingSet, AllAreInAsFarAsThereArePlaces) {
  PollingSet set = make_set(PollingSetPolicy::kAll, PollingOrder::kSequential, 4, 6);
  EXPECT_EQ(join_all(set), (Numbers{0, 1, 2, 3}));
  EXPECT_TRUE(set.is_in(3));
  EXPECT_FALSE(set.is_in(4));
  EXPECT_EQ(set.next_to_leave(), kNobody);
  set.remove(1);
  EXPECT_EQ(join_all(set), (Numbers{4}));
  EXPECT_EQ(order_of(set), (Numbers{0, 2, 3, 4}));
}

TEST(PollingSet, TheFirstThatSendAreIn) {
  PollingSet set = make_set(PollingSetPolicy::kFirst, PollingOrder::kSequential, 2);
  EXPECT_TRUE(join_all(set).empty());
  set.count(9);
  EXPECT_EQ(join_all(set), (Numbers{9}));
  set.count(3);
  EXPECT_EQ(join_all(set), (Numbers{3}));
  count_messages(set, 5, 5000);
  EXPECT_TRUE(join_all(set).empty());
  set.end_period();
  EXPECT_EQ(set.next_to_leave(), kNobody);
  EXPECT_EQ(order_of(set), (Numbers{9, 3}));
}

TEST(PollingSet, TrafficDecidesWithHysteresis) {
  PollingSet set = make_set(PollingSetPolicy::kDynamic, PollingOrder::kSequential, 2);
  count_messages(set, 1, 100);
  count_messages(set, 2, 100);
  EXPECT_EQ(join_all(set).size(), 2u);
  // A little more is not enough to take a place.
  count_messages(set, 7, 150);
  EXPECT_EQ(set.next_to_leave(), kNobody);
  count_messages(set, 2, 500);
  count_messages(set, 7, 500);
  EXPECT_TRUE(set.due());
  EXPECT_EQ(set.next_to_leave(), 1u);
  EXPECT_TRUE(set.is_in(1));  // still polled
  EXPECT_EQ(set.next_to_leave(), kNobody);
  EXPECT_EQ(set.next_to_join(), kNobody);
  set.left(1);
  EXPECT_EQ(join_all(set), (Numbers{7}));
  // Who has become silent loses its place to who has not.
  for (int period = 0; period < 12; ++period) {
    set.end_period();
    EXPECT_FALSE(set.due());
    count_messages(set, 2, 200);
    count_messages(set, 4, 20);
  }
  EXPECT_EQ(set.next_to_leave(), 7u);
}

TEST(PollingSet, WhoDeclinesJoinsOnceItIsInvited) {
  PollingSet set = make_set(PollingSetPolicy::kDynamic, PollingOrder::kSequential, 1);
  count_messages(set, 1, 100);
  count_messages(set, 2, 50);
  EXPECT_EQ(join_all(set), (Numbers{1}));
  set.decline(1);
  EXPECT_TRUE(set.has_declined(1));
  EXPECT_TRUE(set.is_in(1));  // still polled
  EXPECT_EQ(set.next_to_leave(), kNobody);
  set.left(1);
  EXPECT_EQ(join_all(set), (Numbers{2}));
  count_messages(set, 1, 1000);
  EXPECT_EQ(set.next_to_leave(), kNobody);
  set.invite(1);
  EXPECT_EQ(set.next_to_leave(), 2u);
  set.left(2);
  EXPECT_EQ(join_all(set), (Numbers{1}));
}

TEST(PollingSet, HintsDecide) {
  PollingSet set = make_set(PollingSetPolicy::kHints, PollingOrder::kSequential, 2);
  count_messages(set, 1, 100);
  EXPECT_TRUE(join_all(set).empty());
  set.hint(5, 10);
  set.hint(6, 20);
  set.hint(7, 15);
  EXPECT_EQ(join_all(set), (Numbers{6, 7}));
  EXPECT_EQ(set.next_to_leave(), kNobody);
  set.hint(6, 0);
  EXPECT_EQ(set.next_to_leave(), 6u);
  set.left(6);
  EXPECT_EQ(join_all(set), (Numbers{5}));
}

TEST(PollingSet, TheOrderOfPolling) {
  PollingSet sequential = make_set(PollingSetPolicy::kAll, PollingOrder::kSequential, 3, 3);
  join_all(sequential);
  sequential.end_round(1);
  EXPECT_EQ(order_of(sequential), (Numbers{0, 1, 2}));

  PollingSet circular = make_set(PollingSetPolicy::kAll, PollingOrder::kCircular, 3, 3);
  join_all(circular);
  circular.end_round(0);
  EXPECT_EQ(order_of(circular), (Numbers{1, 2, 0}));
  circular.end_round(1);
  EXPECT_EQ(order_of(circular), (Numbers{0, 1, 2}));
  circular.end_round(1);
  circular.remove(2);
  EXPECT_EQ(order_of(circular).size(), 2u);

  PollingSet by_traffic = make_set(PollingSetPolicy::kAll, PollingOrder::kByTraffic, 3, 3);
  join_all(by_traffic);
  count_messages(by_traffic, 2, 50);
  count_messages(by_traffic, 1, 20);
  by_traffic.end_period();
  EXPECT_EQ(order_of(by_traffic), (Numbers{2, 1, 0}));
}

TEST(PollingSet, AllLeaveWhereTheOwnerSleepsAndComeBackOnceItDoesNot) {
  PollingSet set = make_set(PollingSetPolicy::kAll, PollingOrder::kSequential, 3, 4);
  join_all(set);
  ASSERT_EQ(set.size(), 3u);
  set.rest();
  Numbers leaving;
  for (uint32_t next = 0; (next = set.next_to_leave()) != PollingSet::kNone;) {
    leaving.push_back(next);
  }
  EXPECT_EQ(leaving.size(), 3u);
  EXPECT_EQ(set.size(), 3u);  // polled until their senders have stopped
  for (const uint32_t connection : leaving) set.left(connection);
  EXPECT_EQ(set.next_to_join(), PollingSet::kNone);
  set.end_period();
  EXPECT_EQ(set.next_to_join(), PollingSet::kNone);
  set.rest();
  set.end_period();
  EXPECT_EQ(set.next_to_join(), PollingSet::kNone);
  set.end_period();  // without a sleep
  EXPECT_NE(set.next_to_join(), PollingSet::kNone);
}

// Whatever happens, the places bound the set, and nobody is polled twice.
TEST(PollingSet, NeverHasMoreThanItsPlaces) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (const PollingSetPolicy policy : {PollingSetPolicy::kAll, PollingSetPolicy::kFirst,
                                        PollingSetPolicy::kDynamic, PollingSetPolicy::kHints}) {
    constexpr uint32_t kConnections = 12;
    PollingSet set = make_set(policy, static_cast<PollingOrder>(random.below(3)), 4, kConnections);
    std::vector<bool> known(kConnections, true);
    std::vector<uint32_t> leaving;
    uint32_t changes = 0;
    for (int step = 0; step < 20'000; ++step) {
      const auto connection = static_cast<uint32_t>(random.below(kConnections));
      switch (random.below(40)) {
        case 0:
          known[connection] ? set.remove(connection) : set.add(connection);
          known[connection] = !known[connection];
          std::erase(leaving, connection);
          break;
        case 1:
          set.hint(connection, static_cast<uint32_t>(random.below(100)));
          break;
        case 2:
          if (!leaving.empty()) {
            set.left(leaving.back());
            leaving.pop_back();
          }
          break;
        default:
          if (known[connection]) set.count(connection);
      }
      if (set.due()) set.end_period();
      if (const uint32_t next = set.next_to_leave(); next != kNobody) leaving.push_back(next);
      changes += static_cast<uint32_t>(join_all(set).size());
      if (set.size() > 0) set.end_round(static_cast<uint32_t>(random.below(set.size())));
      const Numbers polled = order_of(set);
      ASSERT_LE(polled.size(), 4u);
      for (size_t i = 0; i < polled.size(); ++i) {
        ASSERT_TRUE(known[polled[i]] && set.is_in(polled[i]));
        for (size_t j = 0; j < i; ++j) ASSERT_NE(polled[i], polled[j]);
      }
    }
    EXPECT_GT(changes, 4u);
  }
}

}  // namespace
}  // namespace verbena::message
