// Matching against a model that compares everything with everything.
#include "src/message/matching.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <list>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::message {
namespace {

constexpr uint32_t kAny = MatchPattern::kAnySource;
constexpr uint32_t kNone = Matching::kNone;

// The rules, as simple as can be.
class Model {
 public:
  struct Receive {
    uint32_t number;
    MatchPattern pattern;
  };
  struct Message {
    uint32_t number;
    uint32_t source;
    uint64_t tag;
  };

  uint32_t find_receive(uint32_t source, uint64_t tag) const {
    for (const Receive& receive : receives) {
      if (receive.pattern.fits(source, tag)) return receive.number;
    }
    return kNone;
  }
  uint32_t find_message(const MatchPattern& pattern) const {
    for (const Message& message : messages) {
      if (pattern.fits(message.source, message.tag)) return message.number;
    }
    return kNone;
  }

  std::list<Receive> receives;
  std::list<Message> messages;
};

// How a random program chooses its receives.
struct Habit {
  const char* name;
  uint32_t sources;
  uint32_t tags;
  std::vector<uint64_t> masks;
};

class RandomProgram {
 public:
  static constexpr uint32_t kCapacity = 64;

  RandomProgram(uint64_t seed, const Habit& habit)
      : random_(seed), habit_(habit), matching_(kCapacity, kCapacity) {
    for (uint32_t number = 0; number < kCapacity; ++number) {
      free_receives_.insert(number);
      free_messages_.insert(number);
    }
  }

  void step() {
    switch (random_.below(9)) {
      case 0:
      case 1:
      case 2:
        return receive();
      case 3:
      case 4:
      case 5:
        return message();
      case 6:
        return peek();
      case 7:
        return cancel();
      default:
        return forget();
    }
  }
  uint64_t matches() const { return matches_; }
  uint64_t most_waiting() const { return most_waiting_; }

 private:
  MatchPattern pattern() {
    MatchPattern pattern;
    pattern.source =
        random_.below(3) == 0 ? kAny : static_cast<uint32_t>(random_.below(habit_.sources));
    pattern.tag = random_.below(habit_.tags);
    pattern.ignore = habit_.masks[random_.below(habit_.masks.size())];
    return pattern;
  }
  // Any of them, so that numbers are used in no order.
  uint32_t draw(std::set<uint32_t>& numbers) {
    auto at = numbers.begin();
    std::advance(at, random_.below(numbers.size()));
    const uint32_t number = *at;
    numbers.erase(at);
    return number;
  }

  void receive() {
    const MatchPattern wanted = pattern();
    const uint32_t found = matching_.find_message(wanted);
    ASSERT_EQ(found, model_.find_message(wanted));
    if (found != kNone) {
      take_message(found);
      ++matches_;
    } else if (!free_receives_.empty()) {
      const uint32_t number = draw(free_receives_);
      matching_.post(number, wanted);
      model_.receives.push_back({number, wanted});
    }
    compare();
  }
  void message() {
    const auto source = static_cast<uint32_t>(random_.below(habit_.sources));
    const uint64_t tag = random_.below(habit_.tags);
    const uint32_t found = matching_.find_receive(source, tag);
    ASSERT_EQ(found, model_.find_receive(source, tag));
    if (found != kNone) {
      ++matches_;
      // One for several messages stays where it is.
      if (random_.below(4) != 0) take_receive(found);
    } else if (!free_messages_.empty()) {
      const uint32_t number = draw(free_messages_);
      matching_.add_message(number, source, tag);
      model_.messages.push_back({number, source, tag});
    }
    compare();
  }
  void peek() {
    const MatchPattern wanted = pattern();
    ASSERT_EQ(matching_.find_message(wanted), model_.find_message(wanted));
  }
  void cancel() {
    if (model_.receives.empty()) return;
    auto at = model_.receives.begin();
    std::advance(at, random_.below(model_.receives.size()));
    take_receive(at->number);
    compare();
  }
  // A message that goes although nobody received it: its peer is gone, or it was claimed.
  void forget() {
    if (model_.messages.empty()) return;
    auto at = model_.messages.begin();
    std::advance(at, random_.below(model_.messages.size()));
    take_message(at->number);
    compare();
  }

  void take_message(uint32_t number) {
    matching_.remove_message(number);
    model_.messages.remove_if([&](const Model::Message& m) { return m.number == number; });
    free_messages_.insert(number);
  }
  void take_receive(uint32_t number) {
    matching_.remove_receive(number);
    model_.receives.remove_if([&](const Model::Receive& r) { return r.number == number; });
    free_receives_.insert(number);
  }
  void compare() {
    ASSERT_EQ(matching_.receives(), model_.receives.size());
    ASSERT_EQ(matching_.messages(), model_.messages.size());
    most_waiting_ =
        std::max<uint64_t>(most_waiting_, std::max(model_.receives.size(), model_.messages.size()));
  }

  Random random_;
  const Habit& habit_;
  Matching matching_;
  Model model_;
  std::set<uint32_t> free_receives_;
  std::set<uint32_t> free_messages_;
  uint64_t matches_ = 0;
  uint64_t most_waiting_ = 0;
};

const std::vector<Habit>& habits() {
  static const std::vector<Habit> all = {
      {"exact", 4, 6, {0}},
      {"any tag", 3, 8, {0, ~uint64_t{0}}},
      {"one tag", 2, 1, {0}},
      {"parts of tags", 3, 16, {0, 3, 12, ~uint64_t{0}}},
      // More kinds than are indexed.
      {"many masks", 2, 16, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ~uint64_t{0}}},
  };
  return all;
}

TEST(Matching, DoesWhatTheModelDoes) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  for (const Habit& habit : habits()) {
    SCOPED_TRACE(habit.name);
    uint64_t matches = 0;
    uint64_t most_waiting = 0;
    for (uint64_t program = 0; program < 40; ++program) {
      SCOPED_TRACE("program " + std::to_string(program));
      RandomProgram run(seed * 1000 + program, habit);
      for (int step = 0; step < 1000; ++step) {
        run.step();
        if (testing::Test::HasFatalFailure()) return;
      }
      matches += run.matches();
      most_waiting = std::max(most_waiting, run.most_waiting());
    }
    // The programs are worth something: messages and receives met, and waited for each other.
    EXPECT_GT(matches, 1000u);
    EXPECT_GT(most_waiting, 3u);
  }
}

TEST(Matching, TheFirstPostedReceiveOfAnyKindIsTaken) {
  Matching matching(8, 8);
  matching.post(5, {.source = kAny, .tag = 7, .ignore = 0});
  matching.post(1, {.source = 3, .tag = 7, .ignore = 0});
  matching.post(2, {.source = 3, .tag = 0, .ignore = ~uint64_t{0}});
  EXPECT_EQ(matching.find_receive(3, 8), 2u);
  EXPECT_EQ(matching.find_receive(4, 8), kNone);
  EXPECT_EQ(matching.find_receive(4, 7), 5u);
  EXPECT_EQ(matching.find_receive(3, 7), 5u);
  matching.remove_receive(5);
  EXPECT_EQ(matching.find_receive(3, 7), 1u);
  matching.remove_receive(1);
  EXPECT_EQ(matching.find_receive(3, 7), 2u);
}

TEST(Matching, AKindThatComesLateFindsEarlierMessages) {
  Matching matching(8, 8);
  matching.add_message(3, 1, 0x10);
  matching.add_message(0, 2, 0x20);
  EXPECT_EQ(matching.find_message({.source = kAny, .tag = 0x20, .ignore = 0}), 0u);
  EXPECT_EQ(matching.find_message({.source = kAny, .tag = 0, .ignore = 0xf0}), 3u);
  matching.remove_message(3);
  EXPECT_EQ(matching.find_message({.source = kAny, .tag = 0, .ignore = 0xf0}), 0u);
  EXPECT_EQ(matching.find_message({.source = 1, .tag = 0, .ignore = 0xf0}), kNone);
}

TEST(Matching, TenThousandOfOneTagAreTakenInOrder) {
  constexpr uint32_t kMany = 10'000;
  Matching matching(kMany, kMany);
  for (uint32_t i = 0; i < kMany; ++i) matching.add_message(kMany - 1 - i, i % 3, 9);
  const MatchPattern any{.source = kAny, .tag = 9, .ignore = 0};
  for (uint32_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(matching.find_message(any), kMany - 1 - i);
    matching.remove_message(kMany - 1 - i);
  }
  for (uint32_t i = 0; i < kMany; ++i) {
    matching.post(i, i % 2 == 0 ? any : MatchPattern{.source = 1, .tag = 9, .ignore = 0});
  }
  for (uint32_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(matching.find_receive(1, 9), i);
    matching.remove_receive(i);
  }
  EXPECT_EQ(matching.receives(), 0u);
  EXPECT_EQ(matching.messages(), 0u);
}

}  // namespace
}  // namespace verbena::message
