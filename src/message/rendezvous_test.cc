// Long messages by each method, and which one is chosen.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/message/messengers_for_test.h"
#include "src/message/rendezvous_choice.h"

namespace verbena::message {
namespace {

constexpr LongMessages kMethodsToAsk[] = {LongMessages::kRead, LongMessages::kWrite,
                                          LongMessages::kPipelined};

class RendezvousTest : public testing::TestWithParam<LongMessages> {
 protected:
  void make(MessengerOptions options = {}) {
    options.long_messages = GetParam();
    all_ = std::make_unique<MessengersForTest>(2, options);
  }
  MessengersForTest& all() { return *all_; }

  static std::string text_of(size_t bytes, int number) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 % 251 + number);
    return text;
  }
  // The pieces of some memory, the last one with what is left.
  static std::vector<iovec> pieces_of(std::string& memory, const std::vector<size_t>& sizes) {
    std::vector<iovec> pieces;
    size_t at = 0;
    for (const size_t bytes : sizes) {
      pieces.push_back({memory.data() + at, bytes});
      at += bytes;
    }
    pieces.push_back({memory.data() + at, memory.size() - at});
    return pieces;
  }
  testing::AssertionResult completes(size_t sent, size_t received) {
    return all().until(
        [&] { return all().done(0).size() >= sent && all().done(1).size() >= received; });
  }
  uint64_t count_of(const PeerStatistics& counts) const {
    return GetParam() == LongMessages::kRead    ? counts.read
           : GetParam() == LongMessages::kWrite ? counts.written
                                                : counts.pipelined;
  }

  std::unique_ptr<MessengersForTest> all_;
};

TEST_P(RendezvousTest, PiecesOfAnySizes) {
  make();
  const std::vector<std::vector<size_t>> splits = {
      {}, {1}, {100'000}, {0, 50'000}, {3, 0, 149'000}, {50'000, 50'000, 49'999}};
  int number = 0;
  for (const auto& sending : splits) {
    for (const auto& receiving : splits) {
      std::string text = text_of(150'000, ++number);
      std::string memory(text.size() + number % 3, '-');
      const std::vector<iovec> from = pieces_of(text, sending);
      const std::vector<iovec> to = pieces_of(memory, receiving);
      all().done(0).clear();
      all().done(1).clear();
      ASSERT_EQ(all()[1].receive({.tag = 1, .pieces = to}), PostResult::kPosted);
      ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = 1, .pieces = from}));
      ASSERT_TRUE(completes(1, 1));
      EXPECT_EQ(all().done(0)[0].outcome, MessageOutcome::kOk);
      EXPECT_EQ(all().done(1)[0].bytes, text.size());
      ASSERT_TRUE(memory.compare(0, text.size(), text) == 0);
      EXPECT_EQ(memory.substr(text.size()), std::string(number % 3, '-'));
    }
  }
  const PeerStatistics counts = all()[0].peer_statistics(all().peer(0, 1));
  EXPECT_EQ(count_of(counts), splits.size() * splits.size());
  EXPECT_EQ(counts.read + counts.written + counts.pipelined, splits.size() * splits.size());
  EXPECT_EQ(counts.sent_bytes, 150'000 * splits.size() * splits.size());
}

// Where there are rings, nothing but chunks goes by SEND: neither the offer, nor the answer, nor
// what tells that all is there ("mpiiba" 3.2).
TEST_P(RendezvousTest, WhatControlsAMessageGoesByTheRing) {
  make();
  const auto exchange = [&](uint32_t from, std::string text) {
    const uint32_t to = 1 - from;
    std::string memory(text.size(), '-');
    const iovec target{memory.data(), memory.size()};
    const iovec source{text.data(), text.size()};
    all().done(0).clear();
    all().done(1).clear();
    ASSERT_EQ(all()[to].receive({.tag = 1, .pieces = {&target, 1}}), PostResult::kPosted);
    ASSERT_TRUE(all().send(from, {.peer = all().peer(from, to), .tag = 1, .pieces = {&source, 1}}));
    ASSERT_TRUE(completes(1, 1));
    EXPECT_EQ(memory, text);
  };
  for (int i = 0; i < 100 && (all()[0].statistics().ring_messages == 0 ||
                              all()[1].statistics().ring_messages == 0);
       ++i) {
    exchange(0, "short");
    exchange(1, "short");
  }
  const uint64_t by_queue[] = {all()[0].statistics().queue_messages,
                               all()[1].statistics().queue_messages};
  for (int number = 0; number < 5; ++number) exchange(0, text_of(100'000, number));
  EXPECT_EQ(all()[1].statistics().queue_messages, by_queue[1]);
  if (GetParam() != LongMessages::kPipelined) {
    EXPECT_EQ(all()[0].statistics().queue_messages, by_queue[0]);
  }
}

TEST_P(RendezvousTest, WhatDoesNotFitIsLost) {
  make();
  std::string text = text_of(100'000, 0);
  const iovec from{text.data(), text.size()};
  for (const size_t room : {0u, 1u, 2000u, 99'999u}) {
    std::string memory(room + 10, '-');
    const iovec to{memory.data(), room};
    all().done(0).clear();
    all().done(1).clear();
    ASSERT_EQ(all()[1].receive({.tag = 1, .pieces = {&to, 1}}), PostResult::kPosted);
    ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = 1, .pieces = {&from, 1}}));
    ASSERT_TRUE(completes(1, 1));
    EXPECT_EQ(all().done(0)[0].outcome, MessageOutcome::kOk);
    EXPECT_EQ(all().done(1)[0].outcome, MessageOutcome::kTruncated);
    EXPECT_EQ(all().done(1)[0].bytes, room);
    EXPECT_EQ(all().done(1)[0].lost_bytes, text.size() - room);
    EXPECT_EQ(memory.substr(0, room), text.substr(0, room));
    EXPECT_EQ(memory.substr(room), "----------");
  }
}

// As many receives as there are transfers have met their messages, and wait for their sender.
TEST_P(RendezvousTest, DiscardedWhileAllTransfersAreTaken) {
  constexpr uint32_t kMostTransfers = 1024;
  constexpr uint32_t kDiscarded = 3;
  make();
  const std::string text = text_of(5000, 1);
  std::string memory(text.size(), '-');
  const iovec to{memory.data(), memory.size()};
  for (uint32_t i = 0; i < kMostTransfers; ++i) ASSERT_TRUE(all().send(0, 1, 1, text));
  for (uint32_t i = 0; i < kDiscarded; ++i) ASSERT_TRUE(all().send(0, 1, 2, text));
  ASSERT_TRUE(
      all().until([&] { return all()[1].statistics().unexpected == kMostTransfers + kDiscarded; }));
  std::vector<uint32_t> claims;
  for (uint32_t i = 0; i < kDiscarded; ++i) {
    MessageInfo info;
    ASSERT_TRUE(all()[1].claim({.tag = 2}, &info));
    claims.push_back(info.claim);
  }
  uint32_t posted = 0;
  while (posted < kMostTransfers &&
         all()[1].receive({.tag = 1, .pieces = {&to, 1}}) == PostResult::kPosted) {
    ++posted;
  }
  for (const uint32_t claim : claims) all()[1].discard_claimed(claim);
  for (; posted < kMostTransfers; ++posted) {
    PostResult result = PostResult::kWouldBlock;
    ASSERT_TRUE(all().until([&] {
      result = all()[1].receive({.tag = 1, .pieces = {&to, 1}});
      return result != PostResult::kWouldBlock;
    }));
    ASSERT_EQ(result, PostResult::kPosted);
  }
  ASSERT_TRUE(completes(kMostTransfers + kDiscarded, kMostTransfers));
  for (const MessageCompletion& done : all().done(0)) EXPECT_EQ(done.outcome, MessageOutcome::kOk);
  EXPECT_EQ(memory, text);
}

// It has sent long messages, as many as receives can meet, and takes part in nothing any more.
TEST_P(RendezvousTest, APeerThatStopsLeavesTransfersToOthers) {
  constexpr uint32_t kMany = 1500;
  constexpr uint32_t kOthers = 20;
  MessengerOptions options;
  options.long_messages = GetParam();
  all_ = std::make_unique<MessengersForTest>(3, options);
  const std::string text = text_of(5000, 1);
  std::string memory(text.size(), '-');
  const iovec to{memory.data(), memory.size()};
  for (uint32_t i = 0; i < kMany; ++i) ASSERT_TRUE(all().send(0, 1, 1, text));
  for (uint32_t i = 0; i < kOthers; ++i) ASSERT_TRUE(all().send(2, 1, 2, text));
  ASSERT_TRUE(all().until([&] { return all()[1].statistics().unexpected == kMany + kOthers; }));
  const std::unique_ptr<Messenger> stopped = all().take(0);
  const ReceiveRequest of_stopped{.source = all().peer(1, 0), .tag = 1, .pieces = {&to, 1}};
  for (uint32_t i = 0; i < kMany; ++i) {
    if (all()[1].receive(of_stopped) != PostResult::kPosted) break;
  }
  std::string other(text.size(), '-');
  const iovec to_other{other.data(), other.size()};
  for (uint32_t i = 0; i < kOthers; ++i) {
    PostResult result = PostResult::kWouldBlock;
    ASSERT_TRUE(all().until([&] {
      result = all()[1].receive({.tag = 2, .pieces = {&to_other, 1}});
      return result != PostResult::kWouldBlock;
    }));
    ASSERT_EQ(result, PostResult::kPosted);
  }
  ASSERT_TRUE(all().until([&] { return all().done(2).size() == kOthers; }));
  EXPECT_EQ(other, text);
}

// Several at once in both directions, of which some are unexpected, and messages that are copied
// among them.
TEST_P(RendezvousTest, ManyAtOnce) {
  MessengerOptions options;
  options.slot_bytes = 512;
  options.queue_credits = 6;
  options.ring_slots = 4;
  make(options);
  constexpr int kMany = 40;
  std::vector<std::string> texts;
  std::vector<std::string> memory[2];
  for (int i = 0; i < kMany; ++i) {
    texts.push_back(text_of(i % 3 == 0 ? 100 : 1000 + i * 997, i));
    for (auto& of : memory) of.emplace_back(texts.back().size(), '-');
  }
  const auto post = [&](int i) {
    for (uint32_t at = 0; at < 2; ++at) {
      const iovec to{memory[at][i].data(), memory[at][i].size()};
      ASSERT_EQ(all()[at].receive({.tag = static_cast<uint64_t>(i), .pieces = {&to, 1}}),
                PostResult::kPosted);
    }
  };
  for (int i = 0; i < kMany; i += 2) post(i);
  for (int i = 0; i < kMany; ++i) {
    for (uint32_t at = 0; at < 2; ++at) {
      const iovec from{texts[i].data(), texts[i].size()};
      ASSERT_TRUE(all().send(at, {.peer = all().peer(at, 1 - at),
                                  .tag = static_cast<uint64_t>(i),
                                  .pieces = {&from, 1},
                                  .flags = i % 5 == 0 ? unsigned{kMessageDelivered} : 0u}));
    }
  }
  for (int i = 1; i < kMany; i += 2) post(i);
  ASSERT_TRUE(completes(2 * kMany, 2 * kMany));
  for (uint32_t at = 0; at < 2; ++at) {
    for (const MessageCompletion& done : all().done(at)) {
      EXPECT_EQ(done.outcome, MessageOutcome::kOk);
    }
    for (int i = 0; i < kMany; ++i) EXPECT_TRUE(memory[at][i] == texts[i]) << i;
  }
}

// A long message for which there is a receive comes, although messages before it wait for memory
// that only the user frees.
TEST_P(RendezvousTest, ComesPastMessagesThatWait) {
  MessengerOptions options;
  options.queue_credits = 6;
  options.ring_slots = 4;
  options.max_unexpected = 2;
  options.polling_set = 0;
  make(options);
  std::string text = text_of(50'000, 0);
  std::string memory(text.size(), '-');
  const iovec to{memory.data(), memory.size()};
  ASSERT_EQ(all()[1].receive({.tag = 1, .pieces = {&to, 1}}), PostResult::kPosted);
  const iovec from{text.data(), text.size()};
  ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = 1, .pieces = {&from, 1}}));
  const std::string small = "nobody receives it";
  const iovec piece{const_cast<char*>(small.data()), small.size()};
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(all()[0].send({.peer = all().peer(0, 1), .tag = 2, .pieces = {&piece, 1}}));
  }
  ASSERT_TRUE(all().until([&] {
    for (const MessageCompletion& done : all().done(1)) {
      if (done.tag == 1) return true;
    }
    return false;
  }));
  EXPECT_TRUE(memory == text);
}

TEST_P(RendezvousTest, APeerThatEndsOnTheWay) {
  for (const uint32_t ends : {0u, 1u}) {
    make();
    std::string text = text_of(8'000'000, 0);
    std::string memory(text.size(), '-');
    const iovec to{memory.data(), memory.size()};
    const iovec from{text.data(), text.size()};
    ASSERT_EQ(all()[1].receive({.tag = 1, .pieces = {&to, 1}}), PostResult::kPosted);
    ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1), .tag = 1, .pieces = {&from, 1}}));
    all().poll_all();
    all().close(ends);
    const uint32_t stays = 1 - ends;
    ASSERT_TRUE(all().until([&] { return !all().done(stays).empty(); }));
    const MessageOutcome outcome = all().done(stays)[0].outcome;
    EXPECT_TRUE(outcome == MessageOutcome::kPeerLost || outcome == MessageOutcome::kOk);
    if (stays == 1 && outcome == MessageOutcome::kOk) {
      EXPECT_TRUE(memory == text);
    }
  }
}

TEST_P(RendezvousTest, SaysHowItGoes) {
  make();
  const PeerNumber peer = all().peer(0, 1);
  EXPECT_NE(all()[0].explain(peer, 100, nullptr).text.find("no connection"), std::string::npos);
  ASSERT_TRUE(all().send(0, 1, 7, "hello"));
  const MessageExplanation eager = all()[0].explain(peer, 100, nullptr);
  EXPECT_EQ(eager.protocol, MessageProtocol::kEager);
  EXPECT_NE(eager.text.find(std::to_string(all()[0].eager_limit_bytes())), std::string::npos);
  EXPECT_NE(eager.text.find(eager.by_ring ? "WRITE" : "SEND"), std::string::npos) << eager.text;
  const std::string memory(70'000, 'x');
  const MessageExplanation rendezvous = all()[0].explain(peer, memory.size(), memory.data());
  EXPECT_EQ(rendezvous.protocol, GetParam() == LongMessages::kRead ? MessageProtocol::kRead
                                 : GetParam() == LongMessages::kWrite
                                     ? MessageProtocol::kWrite
                                     : MessageProtocol::kPipelined);
  for (const char* part : {"long_messages", "not registered", "70000", "estimated"}) {
    EXPECT_NE(rendezvous.text.find(part), std::string::npos) << rendezvous.text;
  }
  EXPECT_EQ(all()[0].explain(all().peer(0, 0), 5, nullptr).protocol, MessageProtocol::kToSelf);
}

std::string name_of(const testing::TestParamInfo<LongMessages>& info) {
  return info.param == LongMessages::kRead    ? "READ"
         : info.param == LongMessages::kWrite ? "WRITE"
                                              : "chunks";
}
INSTANTIATE_TEST_SUITE_P(Methods, RendezvousTest, testing::ValuesIn(kMethodsToAsk), name_of);

// ---- which one ----

RendezvousCosts costs_of(const StepCosts& steps) {
  return RendezvousCosts::from_steps(steps, 2000, 16);
}
MessageState unregistered(double region_ns) {
  return {.readable_ns = region_ns, .source_ns = region_ns, .target_ns = region_ns};
}

TEST(RendezvousChoice, RegisteredMemoryIsNotCopied) {
  const RendezvousCosts costs = costs_of({});
  MessageState state = unregistered(30'000);
  state.readable = true;
  for (const uint64_t bytes : {3000u, 100'000u, 10'000'000u}) {
    EXPECT_EQ(choose_method(costs, LongMessages::kAutomatic, bytes, state).method, Method::kRead);
  }
  state.readable = false;
  state.source = true;
  EXPECT_EQ(choose_method(costs, LongMessages::kAutomatic, 100'000, state).method, Method::kWrite);
}

TEST(RendezvousChoice, MemoryThatIsNotRegisteredIsCopiedUpToASize) {
  const RendezvousCosts costs = costs_of({});
  const auto method = [&](uint64_t bytes, const MessageState& state) {
    return choose_method(costs, LongMessages::kAutomatic, bytes, state).method;
  };
  EXPECT_EQ(method(3000, unregistered(30'000)), Method::kPipelined);
  EXPECT_NE(method(100'000'000, unregistered(30'000)), Method::kPipelined);
  // What costs nothing to register is not copied, nor what is used often.
  EXPECT_NE(method(100'000, unregistered(0)), Method::kPipelined);
  MessageState often = unregistered(30'000);
  often.often_used = true;
  EXPECT_NE(method(100'000, often), Method::kPipelined);
}

TEST(RendezvousChoice, AnOptionDecidesWhateverItCosts) {
  const RendezvousCosts costs = costs_of({});
  EXPECT_EQ(choose_method(costs, LongMessages::kPipelined, 1 << 30, {}).method, Method::kPipelined);
  EXPECT_EQ(choose_method(costs, LongMessages::kRead, 3000, unregistered(1e9)).method,
            Method::kRead);
  EXPECT_EQ(choose_method(costs, LongMessages::kWrite, 3000, unregistered(1e9)).method,
            Method::kWrite);
}

// Where READs are slow, WRITE takes their place.
TEST(RendezvousChoice, TheDeviceDecidesBetweenReadAndWrite) {
  MessageState state;
  state.readable = state.source = true;
  StepCosts steps;
  EXPECT_EQ(choose_method(costs_of(steps), LongMessages::kAutomatic, 100'000, state).method,
            Method::kRead);
  steps.read_gap_ns = 10'000;
  EXPECT_EQ(choose_method(costs_of(steps), LongMessages::kAutomatic, 100'000, state).method,
            Method::kWrite);
}

TEST(MessageEstimates, TheCheapestUsableOneComesFirst) {
  const test::Node node{test::must(Device::open("soft0"))};
  MessengerOptions options;
  const auto estimate = [&](uint64_t bytes) {
    return test::must(estimate_message(node.device.info(), options, bytes));
  };
  const std::vector<MessageEstimate> small = estimate(8);
  ASSERT_EQ(small.size(), 5u);
  EXPECT_EQ(small[0].protocol, MessageProtocol::kEager);
  EXPECT_TRUE(small[0].by_ring && small[0].usable);
  EXPECT_TRUE(small[1].usable && !small[1].by_ring);
  for (size_t i = 2; i < small.size(); ++i) EXPECT_FALSE(small[i].usable) << small[i].why;
  const std::vector<MessageEstimate> large = estimate(100'000);
  EXPECT_NE(large[0].protocol, MessageProtocol::kPipelined);
  EXPECT_GT(large[0].first_ns, large[0].again_ns);
  EXPECT_EQ(large[2].protocol, MessageProtocol::kPipelined);
  EXPECT_EQ(large[2].first_ns, large[2].again_ns);
  EXPECT_LT(large[2].first_ns, large[0].first_ns);
  EXPECT_EQ(large[3].protocol, MessageProtocol::kEager);
  EXPECT_FALSE(large[3].usable);
  EXPECT_FALSE(large[3].why.empty());
  options.polling_set = 0;
  EXPECT_FALSE(estimate(8)[0].by_ring);
  options.slot_bytes = 1000;
  EXPECT_EQ(estimate_message(node.device.info(), options, 8).status().code(),
            StatusCode::kInvalidArgument);
}

// A buffer that is sent from again and again is registered in the end, and so is the receiver's.
TEST(RendezvousChoice, OftenUsedMemoryIsRegistered) {
  MessengersForTest all(2, {.long_messages = LongMessages::kAutomatic});
  std::string text(8192, 'x');
  std::string memory(text.size(), '-');
  const iovec from{text.data(), text.size()};
  const iovec to{memory.data(), memory.size()};
  uint32_t sent = 0;
  const auto registered = [&] {
    return all[0].statistics().registrations > 0 && all[1].statistics().registrations > 0;
  };
  while (!registered() && sent < 1000) {
    for (char& byte : text) byte = static_cast<char>(sent);
    all.done(0).clear();
    all.done(1).clear();
    ASSERT_EQ(all[1].receive({.tag = 1, .pieces = {&to, 1}}), PostResult::kPosted);
    ASSERT_TRUE(all.send(0, {.peer = all.peer(0, 1), .tag = 1, .pieces = {&from, 1}}));
    ASSERT_TRUE(all.until([&] { return all.done(0).size() == 1 && all.done(1).size() == 1; }));
    ASSERT_TRUE(memory == text);
    ++sent;
  }
  EXPECT_TRUE(registered());
  EXPECT_GT(sent, 1u);
  const PeerStatistics counts = all[0].peer_statistics(all.peer(0, 1));
  EXPECT_GT(counts.pipelined, 0u);
  EXPECT_EQ(counts.pipelined + counts.read + counts.written, sent);
}

// However often it is used, each message would pay for it.
TEST(RendezvousChoice, MemoryThatWouldNotStayRegisteredIsCopied) {
  MessengersForTest all(2, {.long_messages = LongMessages::kAutomatic, .registered_bytes = 4096});
  std::string text(8192, 'x');
  std::string memory(text.size(), '-');
  const iovec from{text.data(), text.size()};
  const iovec to{memory.data(), memory.size()};
  constexpr uint32_t kSends = 64;
  for (uint32_t sent = 0; sent < kSends; ++sent) {
    all.done(0).clear();
    all.done(1).clear();
    ASSERT_EQ(all[1].receive({.tag = 1, .pieces = {&to, 1}}), PostResult::kPosted);
    ASSERT_TRUE(all.send(0, {.peer = all.peer(0, 1), .tag = 1, .pieces = {&from, 1}}));
    ASSERT_TRUE(all.until([&] { return all.done(0).size() == 1 && all.done(1).size() == 1; }));
  }
  EXPECT_EQ(all[0].statistics().registrations, 0u);
  EXPECT_EQ(all[1].statistics().registrations, 0u);
  EXPECT_EQ(all[0].peer_statistics(all.peer(0, 1)).pipelined, kSends);
}

// By SEND, as peers without rings do: a long message leaves them credits.
TEST(RendezvousFairness, ShortMessagesGoBesideChunks) {
  MessengersForTest all(2, {.polling_set = 0, .long_messages = LongMessages::kPipelined});
  const PeerNumber peer = all.peer(0, 1);
  std::string text(16 << 20, 'x');
  std::string memory(text.size(), '-');
  char byte = 'b';
  const iovec from{text.data(), text.size()};
  const iovec to{memory.data(), memory.size()};
  const iovec small{&byte, 1};
  ASSERT_EQ(all[1].receive({.tag = 1, .pieces = {&to, 1}}), PostResult::kPosted);
  ASSERT_TRUE(all.send(0, {.peer = peer, .tag = 1, .pieces = {&from, 1}}));
  ASSERT_TRUE(all.until([&] { return all[0].peer_statistics(peer).pipelined == 1; }));
  constexpr int kShort = 16;
  int posted = 0;
  for (int round = 0; round < 64 && posted < kShort; ++round) {
    if (all[0].send({.peer = peer,
                     .tag = 2,
                     .pieces = {&small, 1},
                     .flags = kMessageSilent | kMessageCopied}) == PostResult::kPosted) {
      ++posted;
    }
    all.poll_all();
  }
  EXPECT_EQ(posted, kShort);
  EXPECT_TRUE(all.done(0).empty()) << "the long message was over before";
  ASSERT_TRUE(all.until([&] { return all.done(0).size() == 1 && all.done(1).size() == 1; }));
  EXPECT_TRUE(memory == text);
}

// The device has no more regions: for both sides, or for the receiver only.
TEST(RendezvousLimits, MemoryThatCannotBeRegisteredIsCopied) {
  for (const LongMessages method : {LongMessages::kRead, LongMessages::kWrite}) {
    MessengerOptions options;
    options.long_messages = method;
    MessengersForTest all(2, options);
    const PeerNumber peer = all.peer(0, 1);
    char byte = 0;
    const iovec small{&byte, 1};
    ASSERT_EQ(all[1].receive({.tag = 1, .pieces = {&small, 1}}), PostResult::kPosted);
    ASSERT_TRUE(all.send(0, {.peer = peer, .tag = 1, .pieces = {&small, 1}}));
    ASSERT_TRUE(all.until([&] { return all.done(0).size() == 1 && all.done(1).size() == 1; }));
    std::deque<MemoryRegion> regions;
    for (;;) {
      Result<MemoryRegion> region =
          MemoryRegion::create(all.node().domain, &byte, sizeof(byte), /*access=*/0);
      if (!region.ok()) {
        ASSERT_EQ(region.status().code(), StatusCode::kLimitExceeded);
        break;
      }
      regions.push_back(std::move(*region));
    }
    std::string text(60'000, ' ');
    std::string memory(text.size(), '-');
    const iovec from{text.data(), text.size()};
    const iovec to{memory.data(), memory.size()};
    for (uint32_t left = 0; left < 3; ++left) {
      for (char& one : text) one = static_cast<char>('a' + left);
      all.done(0).clear();
      all.done(1).clear();
      ASSERT_EQ(all[1].receive({.tag = 1, .pieces = {&to, 1}}), PostResult::kPosted);
      ASSERT_TRUE(all.send(0, {.peer = peer, .tag = 1, .pieces = {&from, 1}}));
      ASSERT_TRUE(all.until([&] { return all.done(0).size() == 1 && all.done(1).size() == 1; }));
      EXPECT_EQ(all.done(0)[0].outcome, MessageOutcome::kOk);
      EXPECT_EQ(all.done(1)[0].outcome, MessageOutcome::kOk);
      EXPECT_TRUE(memory == text);
      EXPECT_EQ(all[0].statistics().registrations, left < 1 ? 0 : 1);
      EXPECT_EQ(all[1].statistics().registrations, left < 2 ? 0 : 1);
      EXPECT_EQ(all[0].peer_statistics(peer).pipelined, left < 2 ? left + 1 : 2);
      regions.pop_back();
    }
  }
}

}  // namespace
}  // namespace verbena::message
