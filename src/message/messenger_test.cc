// Messengers of one process, over soft0.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/message/connector.h"
#include "src/message/messengers_for_test.h"

namespace verbena::message {
namespace {

class MessengerTest : public testing::Test {
 protected:
  void make(uint32_t count, const MessengerOptions& options = {}) {
    messengers_ = std::make_unique<MessengersForTest>(count, options);
  }
  MessengersForTest& all() { return *messengers_; }

  // Memory for a receive, and the receive.
  std::string& receive(uint32_t at, ReceiveRequest request, size_t room = 64) {
    std::string& memory = memory_.emplace_back(room, '-');
    const iovec piece{memory.data(), memory.size()};
    request.pieces = {&piece, 1};
    if (request.context == nullptr) request.context = &memory;
    EXPECT_EQ(all()[at].receive(request), PostResult::kPosted);
    return memory;
  }
  bool received(uint32_t at, size_t count) {
    return std::count_if(all().done(at).begin(), all().done(at).end(), [](const auto& done) {
             return done.event == MessageEvent::kReceived;
           }) >= static_cast<ptrdiff_t>(count);
  }

  std::unique_ptr<MessengersForTest> messengers_;
  std::list<std::string> memory_;
};

TEST_F(MessengerTest, AMessageGoesToTheReceiveWithItsTag) {
  make(2);
  std::string& other = receive(1, {.source = all().peer(1, 0), .tag = 8});
  std::string& memory = receive(1, {.source = all().peer(1, 0), .tag = 7});
  ASSERT_TRUE(all().send(0, 1, 7, "hello", kMessageData, 42));
  ASSERT_TRUE(all().until([this] { return received(1, 1) && !all().done(0).empty(); }));
  EXPECT_EQ(memory.substr(0, 6), "hello-");
  EXPECT_EQ(other[0], '-');
  const MessageCompletion& done = all().done(1)[0];
  EXPECT_EQ(done.context, &memory);
  EXPECT_EQ(done.outcome, MessageOutcome::kOk);
  EXPECT_EQ(done.tag, 7u);
  EXPECT_EQ(done.bytes, 5u);
  EXPECT_EQ(done.peer, all().peer(1, 0));
  EXPECT_EQ(done.flags, unsigned{kMessageData});
  EXPECT_EQ(done.data, 42u);
  EXPECT_EQ(all().done(0)[0].event, MessageEvent::kSent);
}

// Until both send by ring, and nothing is under way.
void use_rings(MessengersForTest& all) {
  for (uint64_t sent = 1;
       all[0].statistics().ring_messages == 0 || all[1].statistics().ring_messages == 0; ++sent) {
    ASSERT_LT(sent, 1000u);
    ASSERT_TRUE(all.send(0, 1, 7, "there"));
    ASSERT_TRUE(all.send(1, 0, 7, "back"));
    ASSERT_TRUE(all.until([&] {
      return all[0].statistics().unexpected == sent && all[1].statistics().unexpected == sent;
    }));
  }
}

TEST_F(MessengerTest, LooksForWhatComesByARingAndTakesNothing) {
  make(2);
  EXPECT_FALSE(all()[1].rings_have_messages(2));  // it polls no ring
  use_rings(all());
  EXPECT_FALSE(all()[1].rings_have_messages(2));
  const uint64_t unexpected = all()[1].statistics().unexpected;
  ASSERT_TRUE(all().send(0, 1, 7, "more"));
  EXPECT_TRUE(all()[1].rings_have_messages(1));
  EXPECT_TRUE(all()[1].rings_have_messages(1));
  EXPECT_EQ(all()[1].statistics().unexpected, unexpected);
  all()[1].progress();
  EXPECT_EQ(all()[1].statistics().unexpected, unexpected + 1);
  EXPECT_FALSE(all()[1].rings_have_messages(2));
}

// The software RNIC stores it in the ring at once.
TEST_F(MessengerTest, AMessageByARingNeedsNoWorkRequest) {
  static int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  static int posted = 0;
  make(2);
  use_rings(all());
  ibv_context_ops& ops = all().node().device.get()->ops;
  post_send = std::exchange(ops.post_send, [](ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    ++posted;
    return post_send(qp, wr, bad);
  });
  posted = 0;
  const uint64_t by_ring = all()[0].statistics().ring_messages;
  for (uint32_t i = 0; i < 20; ++i) {
    receive(1, {.source = all().peer(1, 0), .tag = 7});
    const size_t before = all().done(1).size();
    ASSERT_TRUE(all().send(0, 1, 7, "text"));
    ASSERT_TRUE(all().until([&] { return all().done(1).size() > before; }));
  }
  EXPECT_EQ(posted, 0);
  // One that is to be confirmed has a completion.
  ASSERT_TRUE(all().send(0, 1, 7, "text", kMessageDelivered));
  EXPECT_EQ(all()[0].statistics().ring_messages - by_ring, 21u);
  ops.post_send = post_send;
}

// What it waits for may come by the completion queue then, where looking at rings finds nothing.
TEST_F(MessengerTest, LooksForAConfirmationIfAllItsPeersHaveRings) {
  make(2);
  use_rings(all());
  ASSERT_TRUE(all().until([this] { return all().poll_all() == 0; }));
  ASSERT_TRUE(all().send(0, 1, 8, "there", kMessageDelivered));
  EXPECT_FALSE(all()[0].rings_have_messages(1));
  receive(1, {.source = all().peer(1, 0), .tag = 8});
  const uint64_t before = all().done(0).size();
  const uint64_t by_ring = all()[1].statistics().ring_messages;
  MessageCompletion some[1];
  const uint64_t end_ns = now_ns() + MessengersForTest::kPatienceNs;
  Waiter waiter;
  while (all()[1].poll(some) == 0) {
    ASSERT_LT(now_ns(), end_ns);
    waiter.idle();
  }
  EXPECT_EQ(all()[1].statistics().ring_messages, by_ring + 1);
  EXPECT_TRUE(all()[0].rings_have_messages(1));
  ASSERT_TRUE(all().until([&] { return all().done(0).size() > before; }));

  MessengerOptions options;
  options.polling_set = 1;
  make(3, options);
  use_rings(all());
  ASSERT_TRUE(all().send(2, 0, 7, "by SEND"));
  ASSERT_TRUE(all().send(1, 0, 7, "back"));
  EXPECT_TRUE(all()[0].rings_have_messages(1));
  ASSERT_TRUE(all().send(0, 2, 8, "there", kMessageDelivered));
  ASSERT_TRUE(all().send(1, 0, 7, "back"));
  EXPECT_FALSE(all()[0].rings_have_messages(1));
}

// It is in the ring behind messages that wait for memory, which may be there only once it was used.
TEST_F(MessengerTest, AConfirmationWaitsForNothingBeforeItInTheRing) {
  MessengerOptions options;
  options.max_unexpected = 8;
  make(2, options);
  // Until both send by ring.
  for (int sent = 0;
       all()[0].statistics().ring_messages == 0 || all()[1].statistics().ring_messages == 0;
       ++sent) {
    ASSERT_LT(sent, 1000);
    receive(0, {.tag = 7});
    receive(1, {.tag = 7});
    ASSERT_TRUE(all().send(0, 1, 7, "there"));
    ASSERT_TRUE(all().send(1, 0, 7, "back"));
    const auto count = static_cast<size_t>(sent) + 1;
    ASSERT_TRUE(all().until([&] { return received(0, count) && received(1, count); }));
  }
  const auto by_ring = [this] { return all()[1].statistics().ring_messages; };
  // More than the other one has places for.
  constexpr uint32_t kFlood = 20;
  uint64_t before = by_ring();
  for (uint32_t i = 0; i < kFlood; ++i) ASSERT_TRUE(all().send(1, 0, i, "waits"));
  ASSERT_EQ(by_ring(), before + kFlood);
  all().done(0).clear();
  before = by_ring();
  std::string& memory = receive(1, {.tag = 100});
  ASSERT_TRUE(all().send(0, 1, 100, "confirmed", kMessageDelivered));
  ASSERT_TRUE(all().until([&] { return all().done(0).size() == 1; }));
  EXPECT_EQ(all().done(0)[0].event, MessageEvent::kSent);
  EXPECT_EQ(all().done(0)[0].tag, 100u);
  EXPECT_EQ(memory.substr(0, 9), "confirmed");
  EXPECT_EQ(by_ring(), before + 1);
  // One more in between, which is looked at in its turn too.
  ASSERT_TRUE(all().send(1, 0, kFlood, "waits"));
  for (uint32_t i = 0; i <= kFlood; ++i) receive(0, {.tag = i});
  ASSERT_TRUE(all().until([&] { return received(0, kFlood + 1); }));
  receive(1, {.tag = 100});
  ASSERT_TRUE(all().send(0, 1, 100, "confirmed", kMessageDelivered));
  ASSERT_TRUE(all().until([&] { return all().done(0).size() == kFlood + 3; }));
  for (const MessageCompletion& done : all().done(0)) EXPECT_EQ(done.outcome, MessageOutcome::kOk);
}

// Each once and in order, around the end of their queue too, whatever was left of those before.
TEST_F(MessengerTest, CompletionsAreReadWhereTheyLie) {
  make(1, {.max_operations = 4, .max_completions = 7});
  EXPECT_TRUE(all()[0].poll_in_place().empty());
  uint64_t posted = 0;
  uint64_t read = 0;
  bool both_sides_of_the_end = false;
  for (int round = 0; round < 50; ++round) {
    // The receive's comes first, then the send's.
    char* const next = reinterpret_cast<char*>(posted + 1);
    const ReceiveRequest to_itself{.tag = posted, .context = next};
    ASSERT_EQ(all()[0].receive(to_itself), PostResult::kPosted);
    ASSERT_EQ(all()[0].send({.peer = all().peer(0, 0), .tag = posted, .context = next + 1}),
              PostResult::kPosted);
    posted += 2;
    const uint64_t left = 1 + static_cast<uint64_t>(round) % 2;
    while (posted - read > left) {
      const std::span<const MessageCompletion> done = all()[0].poll_in_place();
      ASSERT_FALSE(done.empty());
      ASSERT_LE(done.size(), posted - read);
      both_sides_of_the_end = both_sides_of_the_end || done.size() < posted - read;
      for (size_t i = 0; i < done.size(); ++i) {
        ASSERT_EQ(done[i].context, reinterpret_cast<void*>(read + 1 + i));
        ASSERT_EQ(done[i].outcome, MessageOutcome::kOk);
      }
      const auto some =
          static_cast<uint32_t>(std::min<uint64_t>(done.size(), posted - read - left));
      all()[0].drop_completions(some);
      read += some;
    }
  }
  EXPECT_TRUE(both_sides_of_the_end);
}

TEST_F(MessengerTest, MessagesThatComeEarlyWait) {
  make(2);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(all().send(0, 1, i % 2, std::to_string(i)));
  MessageInfo info;
  ASSERT_TRUE(all().until([&] { return all()[1].peek({.tag = 1, .ignore = 0}, &info); }));
  EXPECT_EQ(info.bytes, 1u);
  EXPECT_EQ(info.peer, all().peer(1, 0));
  ASSERT_TRUE(all().until([&] { return all()[1].statistics().unexpected == 5; }));
  EXPECT_EQ(receive(1, {.tag = 1})[0], '1');
  EXPECT_EQ(receive(1, {.tag = 0, .ignore = ~uint64_t{0}})[0], '0');
  EXPECT_EQ(receive(1, {.source = all().peer(1, 0), .tag = 1})[0], '3');
  // A claimed message is nobody else's.
  ASSERT_TRUE(all()[1].claim({.tag = 0}, &info));
  std::string& last = receive(1, {.tag = 0});
  EXPECT_EQ(last[0], '4');
  char byte = 0;
  const iovec piece{&byte, 1};
  ASSERT_EQ(all()[1].receive_claimed(info.claim, {.pieces = {&piece, 1}}), PostResult::kPosted);
  EXPECT_EQ(byte, '2');
  EXPECT_FALSE(all()[1].peek({.tag = 0, .ignore = ~uint64_t{0}}, &info));
  EXPECT_TRUE(all().until([this] { return received(1, 5); }));
}

TEST_F(MessengerTest, ALongMessageIsReadFromTheSendersMemory) {
  make(2);
  std::string text(300'000, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 % 251);
  const iovec from[] = {{text.data(), 100'001}, {text.data() + 100'001, 199'999}};
  int context = 0;
  // Received first, and received when it has been asked for.
  for (const bool early : {false, true}) {
    std::string memory(text.size() + 10, '-');
    const iovec to[] = {{memory.data(), 4},
                        {memory.data() + 4, 250'000},
                        {memory.data() + 250'004, memory.size() - 250'004}};
    const auto post = [&] {
      EXPECT_EQ(all()[1].receive({.tag = 5, .pieces = to, .context = &memory}),
                PostResult::kPosted);
    };
    if (!early) post();
    all().done(0).clear();
    all().done(1).clear();
    ASSERT_TRUE(
        all().send(0, {.peer = all().peer(0, 1), .tag = 5, .pieces = from, .context = &context}));
    if (early) {
      MessageInfo info;
      ASSERT_TRUE(all().until([&] { return all()[1].peek({.tag = 5}, &info); }));
      EXPECT_EQ(info.bytes, text.size());
      EXPECT_TRUE(all().done(0).empty());
      post();
    }
    ASSERT_TRUE(all().until([this] { return received(1, 1) && !all().done(0).empty(); }));
    EXPECT_EQ(all().done(0)[0].context, &context);
    EXPECT_EQ(all().done(1)[0].bytes, text.size());
    EXPECT_TRUE(memory.compare(0, text.size(), text) == 0);
    EXPECT_EQ(memory.substr(text.size()), "----------");
  }
}

TEST_F(MessengerTest, WhatDoesNotFitIsLost) {
  make(2);
  std::string& small = receive(1, {.tag = 1}, 3);
  std::string& smaller = receive(1, {.tag = 2}, 1000);
  receive(1, {.tag = 3}, 0);
  ASSERT_TRUE(all().send(0, 1, 1, "abcde"));
  const std::string text(5000, 'x');
  ASSERT_TRUE(all().send(0, 1, 2, text));
  ASSERT_TRUE(all().send(0, 1, 3, text));
  ASSERT_TRUE(all().until([this] { return received(1, 3) && all().done(0).size() == 3; }));
  EXPECT_EQ(small, "abc");
  EXPECT_EQ(smaller, text.substr(0, 1000));
  uint64_t lost = 0;
  for (const MessageCompletion& done : all().done(1)) {
    EXPECT_EQ(done.outcome, MessageOutcome::kTruncated);
    lost += done.lost_bytes;
  }
  EXPECT_EQ(lost, 2u + 4000u + 5000u);
}

TEST_F(MessengerTest, ADeliveredMessageIsConfirmed) {
  make(2);
  int context = 0;
  const std::string text = "confirmed";
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  ASSERT_TRUE(all().send(0, {.peer = all().peer(0, 1),
                             .tag = 1,
                             .pieces = {&piece, 1},
                             .context = &context,
                             .flags = kMessageDelivered}));
  ASSERT_TRUE(all().until([this] { return all()[1].statistics().unexpected == 1; }));
  for (int i = 0; i < 100; ++i) all().poll_all();
  EXPECT_TRUE(all().done(0).empty());
  EXPECT_EQ(receive(1, {.tag = 1}).substr(0, 9), text);
  ASSERT_TRUE(all().until([this] { return all().done(0).size() == 1; }));
  EXPECT_EQ(all().done(0)[0].context, &context);
}

TEST_F(MessengerTest, OneReceiveTakesSeveralMessages) {
  make(2);
  ASSERT_TRUE(all().send(0, 1, 0, "early", kMessageUntagged));
  ASSERT_TRUE(all().until([this] { return all()[1].statistics().unexpected == 1; }));
  std::string& memory =
      receive(1, {.least_bytes = 10, .flags = kMessageUntagged | kMessageMulti}, 30);
  ASSERT_TRUE(all().send(0, 1, 0, "second", kMessageUntagged));
  ASSERT_TRUE(all().send(0, 1, 7, "tagged"));
  ASSERT_TRUE(all().send(0, 1, 0, "and a third", kMessageUntagged));
  ASSERT_TRUE(all().until([this] { return received(1, 3); }));
  EXPECT_EQ(memory.substr(0, 22), "earlysecondand a third");
  const auto& done = all().done(1);
  EXPECT_EQ(done[0].buffer, memory.data());
  EXPECT_EQ(done[1].buffer, memory.data() + 5);
  EXPECT_EQ(done[1].bytes, 6u);
  EXPECT_EQ(done[1].flags, unsigned{kMessageUntagged});
  EXPECT_EQ(done[2].flags, kMessageUntagged | kMessageMulti);
  EXPECT_EQ(all()[1].statistics().unexpected, 2u);
}

// As of a program that wants one buffer for each message.
TEST_F(MessengerTest, AReceiveForSeveralThatNeedsMoreThanItHasTakesOne) {
  make(2);
  for (const uint64_t least_bytes : {uint64_t{31}, UINT64_MAX}) {
    all().done(1).clear();
    receive(1, {.least_bytes = least_bytes, .flags = kMessageUntagged | kMessageMulti}, 30);
    ASSERT_TRUE(all().send(0, 1, 0, "only", kMessageUntagged));
    ASSERT_TRUE(all().until([this] { return received(1, 1); }));
    EXPECT_EQ(all().done(1)[0].flags, kMessageUntagged | kMessageMulti) << least_bytes;
  }
}

// Of unexpected messages that find no more memory the slots stay in use, and then the sender waits;
// what it has to tell the peer beside messages gets through all the same.
TEST_F(MessengerTest, ASenderWaitsForMemoryOfItsReceiver) {
  for (const uint32_t places : {0u, 2u}) {
    MessengerOptions options;
    options.slot_bytes = 512;
    options.ring_slots = 4;
    options.queue_credits = 6;
    options.unexpected_bytes = 1024;
    options.max_unexpected = places == 0 ? 1000 : 7;
    options.polling_set = places;
    make(2, options);
    const std::string text(300, 'x');
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    const SendRequest request{.peer = all().peer(0, 1), .tag = 1, .pieces = {&piece, 1}};
    uint32_t sent = 0;
    const auto send_some = [&](uint32_t rounds) {
      for (uint32_t i = 0; i < rounds; ++i) {
        if (all()[0].send(request) == PostResult::kPosted) ++sent;
        all().poll_all();
      }
    };
    // As soon as the first one is there, nothing but the bounds decides.
    ASSERT_TRUE(all().until([&] {
      send_some(1);
      return all()[1].statistics().unexpected > 0;
    }));
    send_some(2000);
    EXPECT_GE(sent, 6u);
    EXPECT_LE(sent, 2 + 6 + 4 + 7u);
    EXPECT_GT(all()[1].statistics().held + (places > 0 ? 1 : 0), 0u);
    const uint32_t before = sent;
    send_some(100);
    EXPECT_EQ(sent, before);
    // The other direction, with a confirmation that takes a reserved credit.
    std::string& memory = receive(0, {.tag = 2});
    all().done(1).clear();
    ASSERT_TRUE(all().send(1, 0, 2, "confirmed", kMessageDelivered));
    ASSERT_TRUE(all().until([&] { return all().done(1).size() == 1; }));
    EXPECT_EQ(memory.substr(0, 9), "confirmed");
    // Receives let it go on, and every message comes.
    for (uint32_t i = 0; i < before; ++i) receive(1, {.tag = 1}, text.size());
    ASSERT_TRUE(all().until([&] { return received(1, before); }));
    send_some(1000);
    EXPECT_GT(sent, before) << all()[0].peer_status(all().peer(0, 1)).message()
                            << all()[1].peer_status(all().peer(1, 0)).message();
    for (const MessageCompletion& done : all().done(1)) {
      EXPECT_EQ(done.outcome, MessageOutcome::kOk);
    }
  }
}

// Their sum would be that of a message which is copied.
TEST_F(MessengerTest, PiecesOfMoreBytesThanCanBeCountedAreNoMessage) {
  make(2);
  char bytes[16] = {};
  const iovec pieces[] = {{bytes, SIZE_MAX - 7}, {bytes, sizeof(bytes)}};
  EXPECT_FALSE(all().send(0, {.peer = all().peer(0, 1), .tag = 1, .pieces = pieces}));
  ASSERT_TRUE(all().send(0, 1, 1, "a message"));
  std::string& memory = receive(1, {.tag = 1});
  ASSERT_TRUE(all().until([this] { return received(1, 1); }));
  EXPECT_EQ(memory.substr(0, 9), "a message");
}

TEST_F(MessengerTest, AReceiveIsCancelled) {
  make(1);
  std::string& memory = receive(0, {.tag = 1});
  EXPECT_FALSE(all()[0].cancel(&all()));
  EXPECT_TRUE(all()[0].cancel(&memory));
  EXPECT_FALSE(all()[0].cancel(&memory));
  ASSERT_TRUE(all().until([this] { return received(0, 1); }));
  EXPECT_EQ(all().done(0)[0].outcome, MessageOutcome::kCancelled);
}

// A long message is on its way into its memory meanwhile: the buffer's release is told behind that.
TEST_F(MessengerTest, AReceiveForSeveralIsCancelledWhileAMessageComes) {
  make(2, {.long_messages = LongMessages::kPipelined});
  const std::string text(50'000, 'x');
  std::string& memory =
      receive(1, {.least_bytes = 10, .flags = kMessageUntagged | kMessageMulti}, 100'000);
  std::string& behind = receive(1, {.tag = 7});
  ASSERT_TRUE(all().send(0, 1, 0, text, kMessageUntagged));
  ASSERT_TRUE(all().send(0, 1, 7, "behind"));
  // Its sender makes no progress, so the long one has begun and is not over.
  MessageCompletion done;
  const uint64_t end_ns = now_ns() + MessengersForTest::kPatienceNs;
  Waiter waiter;
  while (all()[1].poll({&done, 1}) == 0) {
    ASSERT_LT(now_ns(), end_ns);
    waiter.idle();
  }
  ASSERT_EQ(done.context, &behind);
  EXPECT_TRUE(all()[1].cancel(&memory));
  EXPECT_FALSE(all()[1].cancel(&memory));
  ASSERT_TRUE(all().until([this] { return received(1, 2); }));
  const auto& came = all().done(1);
  EXPECT_EQ(came[0].outcome, MessageOutcome::kOk);
  EXPECT_EQ(came[0].bytes, text.size());
  EXPECT_EQ(came[0].flags, unsigned{kMessageUntagged});
  EXPECT_EQ(memory.substr(0, text.size()), text);
  EXPECT_EQ(came[1].context, &memory);
  EXPECT_EQ(came[1].outcome, MessageOutcome::kCancelled);
  EXPECT_EQ(came[1].flags, kMessageUntagged | kMessageMulti);
  // It takes no more.
  ASSERT_TRUE(all().send(0, 1, 0, "later", kMessageUntagged));
  ASSERT_TRUE(all().until([this] { return all()[1].statistics().unexpected == 1; }));
}

// Some of its messages wait for room for their completions, so it is not posted yet.
TEST_F(MessengerTest, AReceiveForSeveralIsCancelledBeforeItHasAllThatWaits) {
  make(2, {.max_operations = 2, .max_completions = 3});
  for (const char* text : {"first", "second", "third"})
    ASSERT_TRUE(all().send(0, 1, 0, text, kMessageUntagged));
  ASSERT_TRUE(all().until([this] { return all()[1].statistics().unexpected == 3; }));
  std::string& memory =
      receive(1, {.least_bytes = 10, .flags = kMessageUntagged | kMessageMulti}, 100);
  EXPECT_TRUE(all()[1].cancel(&memory));
  ASSERT_TRUE(all().until([this] { return received(1, 3); }));
  EXPECT_EQ(all().done(1)[0].outcome, MessageOutcome::kOk);
  EXPECT_EQ(all().done(1)[1].outcome, MessageOutcome::kOk);
  EXPECT_EQ(all().done(1)[2].outcome, MessageOutcome::kCancelled);
  // The third one is another's.
  std::string& other = receive(1, {.flags = kMessageUntagged});
  ASSERT_TRUE(all().until([this] { return received(1, 4); }));
  EXPECT_EQ(other.substr(0, 5), "third");
}

TEST_F(MessengerTest, AMessengerSendsToItself) {
  make(1);
  const PeerNumber self = all().peer(0, 0);
  std::string& first = receive(0, {.source = self, .tag = 1});
  ASSERT_TRUE(all().send(0, 0, 1, "posted"));
  ASSERT_TRUE(all().send(0, 0, 2, "stored"));
  const std::string text(10'000, 'y');
  ASSERT_TRUE(all().send(0, 0, 3, text));
  EXPECT_EQ(receive(0, {.tag = 2}).substr(0, 6), "stored");
  EXPECT_EQ(receive(0, {.tag = 3}, text.size()), text);
  EXPECT_EQ(first.substr(0, 6), "posted");
  ASSERT_TRUE(all().until([this] { return all().done(0).size() == 6; }));
}

TEST_F(MessengerTest, WhatIsSentToOneselfIsCopiedAtOnce) {
  MessengerOptions options;
  options.unexpected_bytes = 1024;
  make(1, options);
  const PeerNumber self = all().peer(0, 0);
  std::string parts[] = {std::string(300, 'a'), std::string(100, 'b')};
  const iovec pieces[] = {{parts[0].data(), parts[0].size()}, {parts[1].data(), parts[1].size()}};
  const SendRequest request{.peer = self, .tag = 1, .pieces = pieces, .flags = kMessageSilent};
  ASSERT_EQ(all()[0].send(request), PostResult::kPosted);
  ASSERT_EQ(all()[0].send(request), PostResult::kPosted);
  // No memory is left to copy it to.
  EXPECT_EQ(all()[0].send(request), PostResult::kWouldBlock);
  const std::string sent = parts[0] + parts[1];
  for (std::string& part : parts) part.assign(part.size(), 'x');
  for (int i = 0; i < 2; ++i) EXPECT_EQ(receive(0, {.tag = 1}, sent.size()), sent);
  EXPECT_EQ(all()[0].send(request), PostResult::kPosted);
}

TEST_F(MessengerTest, WhatIsSentToOneselfAndConfirmedMayBeCopied) {
  make(1);
  const PeerNumber self = all().peer(0, 0);
  std::string text = "as it was";
  const iovec piece{text.data(), text.size()};
  SendRequest request{.peer = self, .tag = 1, .pieces = {&piece, 1}, .context = &text};
  request.flags = kMessageDelivered | kMessageCopied;
  ASSERT_EQ(all()[0].send(request), PostResult::kPosted);
  text.assign(text.size(), 'x');
  for (int i = 0; i < 100; ++i) all().poll_all();
  EXPECT_TRUE(all().done(0).empty());
  EXPECT_EQ(receive(0, {.tag = 1}).substr(0, 10), "as it was-");
  ASSERT_TRUE(all().until([this] { return all().done(0).size() == 2; }));
  const auto sent = std::find_if(all().done(0).begin(), all().done(0).end(), [](const auto& done) {
    return done.event == MessageEvent::kSent;
  });
  ASSERT_NE(sent, all().done(0).end());
  EXPECT_EQ(sent->context, &text);

  // One that is thrown away is confirmed, too.
  ASSERT_EQ(all()[0].send(request), PostResult::kPosted);
  MessageInfo info;
  ASSERT_TRUE(all()[0].claim({.source = self, .tag = 1}, &info));
  all()[0].discard_claimed(info.claim);
  ASSERT_TRUE(all().until([this] { return all().done(0).size() == 3; }));
  EXPECT_EQ(all().done(0)[2].event, MessageEvent::kSent);
}

TEST_F(MessengerTest, TwoThatConnectAtOnceHaveOneConnection) {
  for (int round = 0; round < 5; ++round) {
    make(2);
    receive(0, {.tag = 1});
    receive(1, {.tag = 1});
    PostResult first = PostResult::kWouldBlock;
    PostResult second = PostResult::kWouldBlock;
    const iovec piece{nullptr, 0};
    ASSERT_TRUE(all().until([&] {
      if (first == PostResult::kWouldBlock) {
        first = all()[0].send({.peer = all().peer(0, 1), .tag = 1, .pieces = {&piece, 1}});
      }
      if (second == PostResult::kWouldBlock) {
        second = all()[1].send({.peer = all().peer(1, 0), .tag = 1, .pieces = {&piece, 1}});
      }
      return received(0, 1) && received(1, 1);
    }));
    EXPECT_EQ(first, PostResult::kPosted);
    EXPECT_EQ(second, PostResult::kPosted);
  }
}

TEST_F(MessengerTest, RingsChangeHands) {
  MessengerOptions options;
  options.polling_set = 1;
  options.policy = PollingSetPolicy::kHints;
  make(3, options);
  uint64_t number[3] = {};
  for (uint32_t round = 0; round < 8; ++round) {
    const uint32_t favoured = 1 + round % 2;
    all()[0].hint(all().peer(0, favoured), 10 + round);
    const uint64_t before = all()[favoured].statistics().ring_messages;
    ASSERT_TRUE(all().until([&] {
      for (const uint32_t from : {1u, 2u}) {
        const iovec piece{&number[from], sizeof(number[from])};
        const SendRequest message{.peer = all().peer(from, 0), .tag = 1, .pieces = {&piece, 1}};
        if (all()[from].send(message) != PostResult::kPosted) continue;
        const std::string& memory = receive(0, {.source = all().peer(0, from), .tag = 1});
        EXPECT_TRUE(all().until([&] { return memory[0] != '-' || memory[7] != '-'; }));
        EXPECT_EQ(std::memcmp(memory.data(), &number[from], sizeof(number[from])), 0);
        ++number[from];
      }
      return all()[favoured].statistics().ring_messages > before;
    }));
  }
  EXPECT_EQ(all()[0].statistics().rings_given, 8u);
  EXPECT_EQ(all()[0].statistics().rings_taken, 7u);
}

// Each messenger in a thread of its own: what one sender has left in the ring, and the clearing of
// it, must not meet what the next one sends.
TEST_F(MessengerTest, RingsChangeHandsBetweenThreads) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  constexpr uint32_t kRounds = 12;
  constexpr uint32_t kMessages = 200;  // of a round, which go by the ring once there is one
  constexpr uint64_t kRoom = 600;
  MessengerOptions options;
  options.ring_slots = 4;
  options.polling_set = 1;
  options.policy = PollingSetPolicy::kHints;
  make(3, options);
  std::atomic<bool> stop = false;
  std::atomic<bool> failed = false;
  std::atomic<bool> has_used_ring[3] = {true, false, false};
  const auto run_sender = [&](uint32_t from) {
    Random random(seed + from);
    Messenger& own = all()[from];
    std::string text;
    MessageCompletion some[4];
    for (uint8_t number = 0; !stop; ++number) {
      text.assign(random.below(kRoom), static_cast<char>(number));
      const iovec piece{text.data(), text.size()};
      PostResult result = PostResult::kWouldBlock;
      while (result == PostResult::kWouldBlock && !stop) {
        result = own.send({.peer = all().peer(from, 0), .tag = 1, .pieces = {&piece, 1}});
        own.poll(some);
      }
      if (result == PostResult::kFailed) failed = true;
      if (own.statistics().ring_messages > 0) has_used_ring[from] = true;
    }
  };
  std::thread senders[] = {std::thread(run_sender, 1), std::thread(run_sender, 2)};
  Messenger& own = all()[0];
  std::string memory[3];
  uint8_t next[3] = {};
  const auto post = [&](uint32_t from) {
    memory[from].assign(kRoom, '-');
    const iovec piece{memory[from].data(), kRoom};
    EXPECT_EQ(own.receive({.source = all().peer(0, from),
                           .tag = 1,
                           .pieces = {&piece, 1},
                           .context = &memory[from]}),
              PostResult::kPosted);
  };
  post(1);
  post(2);
  const uint64_t end_ns = now_ns() + MessengersForTest::kPatienceNs;
  uint32_t favoured = 1;
  uint64_t hinted = 0;
  uint32_t since_hint = 0;
  own.hint(all().peer(0, favoured), 10);
  // On a busy machine a sender may sleep through all that it has the ring.
  const auto all_done = [&] {
    return own.statistics().rings_taken >= kRounds && has_used_ring[1] && has_used_ring[2];
  };
  while (!all_done() && !failed && now_ns() < end_ns) {
    MessageCompletion some[4];
    const uint32_t taken = own.poll(some);
    since_hint += taken;
    for (const MessageCompletion& done : std::span(some).first(taken)) {
      const uint32_t from = done.context == &memory[1] ? 1 : 2;
      const std::string expected(done.bytes, static_cast<char>(next[from]++));
      if (memory[from].compare(0, done.bytes, expected) != 0) failed = true;
      post(from);
    }
    if (own.statistics().rings_given == hinted || since_hint < kMessages) continue;
    // Somebody has used a ring, and the other one is to have it.
    since_hint = 0;
    hinted = own.statistics().rings_given;
    favoured = 3 - favoured;
    own.hint(all().peer(0, favoured), static_cast<uint32_t>(10 + hinted));
  }
  stop = true;
  for (std::thread& sender : senders) sender.join();
  EXPECT_FALSE(failed) << own.error().message();
  EXPECT_GE(own.statistics().rings_taken, kRounds);
  for (const uint32_t from : {1u, 2u}) EXPECT_GT(all()[from].statistics().ring_messages, 0u);
}

TEST_F(MessengerTest, ARingToSendFromGoesWhereMostMessagesGo) {
  MessengerOptions options;
  options.polling_set = 1;
  options.policy = PollingSetPolicy::kDynamic;
  make(3, options);
  uint64_t number = 0;
  const auto send_to = [&](uint32_t to) {
    const iovec piece{&number, sizeof(number)};
    const std::string& memory = receive(to, {.source = all().peer(to, 0), .tag = 1});
    ASSERT_TRUE(all().until([&] {
      return all()[0].send({.peer = all().peer(0, to), .tag = 1, .pieces = {&piece, 1}}) ==
             PostResult::kPosted;
    }));
    ASSERT_TRUE(all().until([&] { return memory[0] != '-' || memory[7] != '-'; }));
    EXPECT_EQ(std::memcmp(memory.data(), &number, sizeof(number)), 0);
    ++number;
  };
  for (const uint32_t to : {1u, 2u, 1u}) {
    SCOPED_TRACE("to " + std::to_string(to));
    uint64_t by_ring = 0;  // in a row
    for (int i = 0; i < 20000 && by_ring < 16; ++i) {
      const uint64_t before = all()[0].statistics().ring_messages;
      ASSERT_NO_FATAL_FAILURE(send_to(to));
      by_ring = all()[0].statistics().ring_messages > before ? by_ring + 1 : 0;
    }
    EXPECT_EQ(by_ring, 16u);
  }
}

// Also by who sends nothing else.
TEST_F(MessengerTest, CreditsComeBackByTheRing) {
  MessengerOptions options;
  options.ring_slots = 8;
  make(2, options);
  for (uint32_t i = 0; i < 40; ++i) {
    for (const uint32_t from : {0u, 1u}) {
      receive(1 - from, {.source = all().peer(1 - from, from), .tag = 1});
      const size_t before = all().done(1 - from).size();
      ASSERT_TRUE(all().send(from, 1 - from, 1, "text"));
      ASSERT_TRUE(all().until([&] { return all().done(1 - from).size() > before; }));
    }
  }
  const MessengerStatistics before = all()[1].statistics();
  for (uint32_t i = 0; i < 40; ++i) {
    receive(1, {.source = all().peer(1, 0), .tag = 1});
    const size_t done = all().done(1).size();
    ASSERT_TRUE(all().send(0, 1, 1, "text"));
    ASSERT_TRUE(all().until([&] { return all().done(1).size() > done; }));
  }
  const MessengerStatistics& after = all()[1].statistics();
  EXPECT_GT(after.credit_messages, before.credit_messages);
  EXPECT_EQ(after.ring_messages - before.ring_messages,
            after.credit_messages - before.credit_messages);
}

// Those that give way are one for each peer that has messages, and none has to be offered again.
TEST_F(MessengerTest, RingsToSendFromAllGoWhereMostMessagesGo) {
  constexpr uint32_t kRings = 4;
  MessengerOptions options;
  options.polling_set = kRings;
  options.policy = PollingSetPolicy::kDynamic;
  make(1 + 2 * kRings, options);
  uint64_t number = 0;
  // Whether it went by a ring.
  const auto send_to = [&](uint32_t to) {
    const uint64_t before = all()[0].statistics().ring_messages;
    ++number;
    const iovec piece{&number, sizeof(number)};
    const std::string& memory = receive(to, {.source = all().peer(to, 0), .tag = 1});
    EXPECT_TRUE(all().until([&] {
      return all()[0].send({.peer = all().peer(0, to), .tag = 1, .pieces = {&piece, 1}}) ==
             PostResult::kPosted;
    }));
    EXPECT_TRUE(all().until([&] { return memory[0] != '-' || memory[7] != '-'; }));
    return all()[0].statistics().ring_messages > before;
  };
  for (uint32_t i = 0; i < 64; ++i) send_to(1 + i % kRings);
  uint32_t rounds = 0;
  for (uint32_t by_ring = 0; by_ring < kRings && rounds < 1000; ++rounds) {
    by_ring = 0;
    for (uint32_t i = 0; i < kRings; ++i) by_ring += send_to(1 + kRings + i) ? 1 : 0;
  }
  EXPECT_LT(rounds, 100u);
}

// Which are all that it sends.
TEST_F(MessengerTest, ARingForConfirmationsGoesWhereMostOfThemGo) {
  MessengerOptions options;
  options.polling_set = 1;
  options.policy = PollingSetPolicy::kDynamic;
  make(3, options);
  const auto confirm_to = [&](uint32_t to) {
    receive(0, {.source = all().peer(0, to), .tag = 1});
    const size_t before = all().done(to).size();
    ASSERT_TRUE(all().send(to, 0, 1, "text", kMessageDelivered));
    ASSERT_TRUE(all().until([&] { return all().done(to).size() > before; }));
  };
  for (const uint32_t to : {1u, 2u, 1u}) {
    SCOPED_TRACE("to " + std::to_string(to));
    uint64_t by_ring = 0;  // in a row
    for (int i = 0; i < 20000 && by_ring < 16; ++i) {
      const uint64_t before = all()[0].statistics().ring_messages;
      ASSERT_NO_FATAL_FAILURE(confirm_to(to));
      by_ring = all()[0].statistics().ring_messages > before ? by_ring + 1 : 0;
    }
    EXPECT_EQ(by_ring, 16u);
  }
}

TEST_F(MessengerTest, ANumberThatIsNoPeerAndAnAddressThatIsNone) {
  make(1);
  EXPECT_EQ(all()[0].send({.peer = 99}), PostResult::kFailed);
  EXPECT_NE(all()[0].error().message().find("add_peer"), std::string::npos);
  EXPECT_EQ(all()[0].receive({.source = 99}), PostResult::kFailed);
  EXPECT_EQ(all()[0].add_peer({}).status().code(), StatusCode::kInvalidArgument);
  const iovec five[5] = {};
  EXPECT_EQ(all()[0].send({.peer = 0, .pieces = five}), PostResult::kFailed);
}

TEST_F(MessengerTest, OptionsOutOfRangeAreRefused) {
  test::Node node{test::must(Device::open("soft0"))};
  const auto code = [&](const MessengerOptions& options) {
    return open_messenger(node.device, node.domain, JobSecret::random(), options).status().code();
  };
  EXPECT_EQ(code({.host = "nowhere"}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.max_peers = 0}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.max_operations = 10, .max_completions = 10}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.slot_bytes = 1000}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.queue_credits = 2}), StatusCode::kInvalidArgument);
}

TEST_F(MessengerTest, BothSidesNeedTheSameSlots) {
  make(1);
  MessengerOptions other;
  other.ring_slots = 16;
  auto stranger =
      test::must(open_messenger(all().node().device, all().node().domain, all().secret(), other));
  const PeerNumber peer = test::must(all()[0].add_peer(stranger->address()));
  ASSERT_TRUE(all().until([&] { return all()[0].send({.peer = peer}) == PostResult::kFailed; }));
  EXPECT_EQ(all()[0].peer_status(peer).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(all()[0].peer_status(peer).message().find("ring_slots"), std::string::npos)
      << all()[0].peer_status(peer).message();
}

TEST_F(MessengerTest, ALostPeerEndsWhatInvolvesIt) {
  make(3);
  receive(0, {.source = all().peer(0, 1), .tag = 9});
  std::string& other = receive(0, {.source = all().peer(0, 2), .tag = 9});
  ASSERT_TRUE(all().send(0, 1, 1, "hello"));
  ASSERT_TRUE(all().send(2, 0, 1, "hello"));
  const std::string text(100'000, 'x');
  int context = 0;
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  ASSERT_TRUE(all().send(
      0, {.peer = all().peer(0, 1), .tag = 1, .pieces = {&piece, 1}, .context = &context}));
  ASSERT_TRUE(all().until([&] { return all()[1].statistics().unexpected == 2; }));
  all().done(0).clear();
  all().close(1);
  ASSERT_TRUE(all().until([&] { return all().done(0).size() >= 2; }));
  for (const MessageCompletion& done : all().done(0)) {
    EXPECT_EQ(done.outcome, MessageOutcome::kPeerLost);
    EXPECT_EQ(done.peer, all().peer(0, 1));
  }
  EXPECT_EQ(all()[0].peer_status(all().peer(0, 1)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(all()[0].send({.peer = all().peer(0, 1)}), PostResult::kFailed);
  // The others go on.
  ASSERT_TRUE(all().send(2, 0, 9, "still here"));
  ASSERT_TRUE(all().until([&] { return other.substr(0, 10) == "still here"; }));
}

class MostPeersTest : public MessengerTest {
 protected:
  static MessengerOptions three(uint32_t polling_set) {
    MessengerOptions options;
    options.max_peers = 3;
    options.polling_set = polling_set;
    return options;
  }
  // A message from each to the other one, `count` times.
  void exchange(uint32_t with, int count = 1) {
    for (int i = 0; i < count; ++i) {
      all().done(0).clear();
      all().done(with).clear();
      const std::string& here = receive(0, {.source = all().peer(0, with), .tag = with});
      const std::string& there = receive(with, {.source = all().peer(with, 0), .tag = with});
      ASSERT_TRUE(all().send(with, 0, with, "there"));
      ASSERT_TRUE(all().send(0, with, with, "here"));
      ASSERT_TRUE(all().until([&] { return received(0, 1) && received(with, 1); }));
      EXPECT_EQ(here.substr(0, 6), "there-");
      EXPECT_EQ(there.substr(0, 5), "here-");
    }
  }
  void end(uint32_t peer) {
    all().close(peer);
    ASSERT_TRUE(all().until([&] { return !all()[0].peer_status(all().peer(0, peer)).ok(); }));
  }
};

// One more is refused with the reason, at both ends, and those that there are go on.
TEST_F(MostPeersTest, OneMoreIsRefused) {
  make(5, three(2));
  for (const uint32_t peer : {1u, 2u, 3u}) ASSERT_NO_FATAL_FAILURE(exchange(peer));
  const auto refused = [this](uint32_t from, uint32_t to) {
    const std::string text = "more";
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    const SendRequest request{.peer = all().peer(from, to), .tag = 1, .pieces = {&piece, 1}};
    EXPECT_TRUE(all().until([&] { return all()[from].send(request) == PostResult::kFailed; }));
    const Status& status = all()[from].peer_status(request.peer);
    EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
    EXPECT_NE(status.message().find("max_peers"), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  };
  refused(4, 0);
  refused(0, 4);
  ASSERT_NO_FATAL_FAILURE(exchange(3));
}

// To raise what is as high as can be is no remedy.
TEST(MostPeersTextTest, TellsWhatCanBeDone) {
  const auto text = [](uint32_t max_peers) { return too_many_peers(max_peers).message(); };
  EXPECT_NE(text(MessengerOptions::kMostPeers - 1).find("raise it"), std::string::npos);
  EXPECT_EQ(text(MessengerOptions::kMostPeers).find("raise"), std::string::npos);
  EXPECT_NE(text(MessengerOptions::kMostPeers).find("fewer ranks"), std::string::npos);
}

// Many times more than are connected at once, by rings and by SENDs alone. Each sends more messages
// than there would be receives, if those of the ones before were gone.
TEST_F(MostPeersTest, ThoseThatHaveEndedMakeRoom) {
  for (const uint32_t polling_set : {2u, 0u}) {
    constexpr uint32_t kPeers = 30;
    make(2 + kPeers, three(polling_set));
    ASSERT_NO_FATAL_FAILURE(exchange(1));
    const uint64_t first_bytes = all()[0].statistics().pinned_bytes;
    uint64_t most_bytes = 0;
    for (uint32_t peer = 2; peer < 2 + kPeers; ++peer) {
      ASSERT_NO_FATAL_FAILURE(exchange(peer, peer % 5 == 0 ? 40 : 3)) << peer;
      most_bytes = std::max(most_bytes, all()[0].statistics().pinned_bytes);
      const PeerStatistics before = all()[0].peer_statistics(all().peer(0, peer));
      ASSERT_NO_FATAL_FAILURE(end(peer));
      EXPECT_EQ(all()[0].peer_statistics(all().peer(0, peer)).sent_bytes, before.sent_bytes);
      EXPECT_EQ(all()[0].send({.peer = all().peer(0, peer)}), PostResult::kFailed);
    }
    // Memory grows with the peers that there are at once.
    const uint64_t bytes_of_one = 64 * MessengerOptions{}.slot_bytes;
    EXPECT_LT(most_bytes, first_bytes + 3 * bytes_of_one);
    ASSERT_NO_FATAL_FAILURE(exchange(1, 40));
  }
}

// What they sent is received after their end, and after others have got their places.
TEST_F(MostPeersTest, MessagesOfThoseThatHaveEndedStay) {
  MessengerOptions options = three(0);
  options.unexpected_bytes = 4096;
  make(12, options);
  const std::string text(1500, 'x');
  // In the store, and as much as the credits allow in receives; delivery is to be confirmed.
  for (int i = 0; i < 6; ++i) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    ASSERT_TRUE(all().send(
        1,
        {.peer = all().peer(1, 0), .tag = 77, .pieces = {&piece, 1}, .flags = kMessageDelivered}));
  }
  ASSERT_TRUE(all().until([this] { return all()[0].statistics().unexpected == 6; }));
  EXPECT_GT(all()[0].statistics().held, 0u);
  ASSERT_NO_FATAL_FAILURE(end(1));
  for (uint32_t peer = 2; peer < 8; ++peer) {
    ASSERT_NO_FATAL_FAILURE(exchange(peer, 5)) << peer;
    ASSERT_NO_FATAL_FAILURE(end(peer));
  }
  all().done(0).clear();
  std::string memory(text.size(), '-');
  for (int i = 0; i < 6; ++i) {
    memory.assign(text.size(), '-');
    const iovec piece{memory.data(), memory.size()};
    ASSERT_EQ(all()[0].receive({.source = all().peer(0, 1), .tag = 77, .pieces = {&piece, 1}}),
              PostResult::kPosted);
    ASSERT_TRUE(all().until([&] { return received(0, static_cast<size_t>(i) + 1); }));
    EXPECT_EQ(memory, text);
  }
  for (uint32_t peer = 8; peer < 11; ++peer) ASSERT_NO_FATAL_FAILURE(exchange(peer, 5)) << peer;
}

// The same of those for which there is no memory yet when their sender ends.
TEST_F(MostPeersTest, MessagesThatWaitForMemoryStay) {
  for (const uint32_t polling_set : {0u, 2u}) {
    SCOPED_TRACE(polling_set);
    MessengerOptions options = three(polling_set);
    options.max_unexpected = 3;
    make(2, options);
    ASSERT_NO_FATAL_FAILURE(exchange(1, 10));
    constexpr int kMessages = 10;  // within the credits, so that they leave
    for (int i = 0; i < kMessages; ++i)
      ASSERT_TRUE(all().send(1, 0, 77, "number " + std::to_string(i)));
    ASSERT_TRUE(all().until([this] { return all()[0].statistics().unexpected == 3; }));
    all().close(1);
    // Long enough to notice that it has ended, twice over.
    const uint64_t start_ns = now_ns();
    while (now_ns() - start_ns < 100'000'000) all().poll_all();
    all().done(0).clear();
    for (int i = 0; i < kMessages; ++i) {
      const std::string& text = receive(0, {.source = all().peer(0, 1), .tag = 77});
      ASSERT_TRUE(all().until([&] { return received(0, static_cast<size_t>(i) + 1); }));
      EXPECT_EQ(text.substr(0, 8), "number " + std::to_string(i));
      EXPECT_EQ(all().done(0).back().outcome, MessageOutcome::kOk);
    }
    ASSERT_TRUE(all().until([this] { return !all()[0].peer_status(all().peer(0, 1)).ok(); }));
  }
}

// And of those of one receive for which there are no completions.
TEST_F(MostPeersTest, MessagesThatWaitForCompletionsStay) {
  MessengerOptions options = three(2);
  options.max_operations = 4;
  options.max_completions = 6;
  make(2, options);
  ASSERT_NO_FATAL_FAILURE(exchange(1, 10));
  all().done(0).clear();
  receive(0,
          {.source = all().peer(0, 1), .least_bytes = 8, .flags = kMessageMulti | kMessageUntagged},
          1024);
  constexpr size_t kMessages = 10;
  const std::string text = "message";
  const iovec piece{const_cast<char*>(text.data()), text.size()};
  const SendRequest request{
      .peer = all().peer(1, 0), .pieces = {&piece, 1}, .flags = kMessageUntagged | kMessageSilent};
  for (size_t i = 0; i < kMessages; ++i) ASSERT_EQ(all()[1].send(request), PostResult::kPosted);
  all().close(1);
  // Long enough to notice that it has ended, twice over.
  const uint64_t start_ns = now_ns();
  while (now_ns() - start_ns < 100'000'000) all()[0].progress();
  ASSERT_TRUE(all().until([this] { return !all()[0].peer_status(all().peer(0, 1)).ok(); }));
  ASSERT_TRUE(received(0, kMessages));
  for (size_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(all().done(0)[i].outcome, MessageOutcome::kOk);
    EXPECT_EQ(all().done(0)[i].bytes, text.size());
  }
}

TEST_F(MessengerTest, APeerThatEndedBeforeItWasConnectedIsLostAtOnce) {
  constexpr int64_t kHourNs = 3'600'000'000'000;  // a time-out would end the test first
  make(3, {.connect_timeout_ns = kHourNs});
  receive(0, {.source = all().peer(0, 1), .tag = 9});
  all().close(1);
  ASSERT_TRUE(all().until(
      [this] { return all()[0].send({.peer = all().peer(0, 1)}) == PostResult::kFailed; }));
  EXPECT_EQ(all()[0].peer_status(all().peer(0, 1)).code(), StatusCode::kUnavailable);
  ASSERT_TRUE(all().until([this] { return !all().done(0).empty(); }));
  EXPECT_EQ(all().done(0)[0].outcome, MessageOutcome::kPeerLost);
  ASSERT_TRUE(all().send(0, 2, 1, "to another one"));
}

class ConfirmationTest : public MessengerTest {
 protected:
  // Messenger 1 has received messages that messenger 0 has sent, and no credits to say so.
  void exchange();
  const uint32_t messages_ = MessengerOptions{}.queue_credits + 10;
  std::unique_ptr<Messenger> ending_;  // messenger 1
};

void ConfirmationTest::exchange() {
  make(2);
  // Until there is a ring, by which more messages go than there are credits for their answers.
  while (all()[0].statistics().ring_messages == 0) {
    receive(1, {.tag = 1});
    ASSERT_TRUE(all().send(0, 1, 1, "hello"));
  }
  ASSERT_TRUE(all().until([this] { return received(1, memory_.size()); }));
  all().done(0).clear();
  for (uint32_t i = 0; i < messages_; ++i) {
    receive(1, {.tag = 2});
    ASSERT_EQ(all()[0].send({.peer = all().peer(0, 1), .tag = 2, .flags = kMessageDelivered}),
              PostResult::kPosted);
  }
  // The sender looks at nothing meanwhile.
  const uint64_t end_ns = now_ns() + MessengersForTest::kPatienceNs;
  for (uint32_t taken = 0; taken < messages_ && now_ns() < end_ns;) {
    MessageCompletion some[4];
    taken += all()[1].poll(some);
  }
  ending_ = all().take(1);
}

TEST_F(ConfirmationTest, ComesBeforeTheEnd) {
  exchange();
  ASSERT_FALSE(HasFatalFailure());
  std::thread end([this] { ending_.reset(); });
  EXPECT_TRUE(all().until([this] { return all().done(0).size() >= messages_; }));
  end.join();
  for (const MessageCompletion& done : all().done(0)) {
    EXPECT_EQ(done.outcome, MessageOutcome::kOk);
  }
}

TEST_F(ConfirmationTest, ComesBeforeTheEndOfAMessengerThatItsPeersThreadWindsDown) {
  exchange();
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_FALSE(ending_->wind_down());
  ASSERT_TRUE(all().until([this] { return ending_->wind_down(); }));
  ending_.reset();
  EXPECT_TRUE(all().until([this] { return all().done(0).size() >= messages_; }));
  for (const MessageCompletion& done : all().done(0)) {
    EXPECT_EQ(done.outcome, MessageOutcome::kOk);
  }
}

// ---- random programs ----

struct RandomLoad {
  const char* name;
  MessengerOptions options;
};

// Every messenger sends messages of random sizes to random peers, whose tag, length and bytes
// follow from their number. The n-th receive for a sender and a tag has to get its n-th message.
class RandomTraffic {
 public:
  RandomTraffic(MessengersForTest& all, uint32_t count, uint64_t seed)
      : all_(all), count_(count), random_(seed), expected_(count), posted_(count) {}

  testing::AssertionResult run(uint32_t messages) {
    uint32_t sent = 0;
    uint32_t received = 0;
    bool failed = false;
    // One of each to each at first: while connections are made, the others would all be to oneself.
    for (uint32_t from = 0; from < count_; ++from) {
      for (uint32_t to = 0; to < count_; ++to, ++sent) {
        const auto connected = all_.until([&] { return send(from, to); });
        if (!connected) return testing::AssertionResult(connected) << "; connecting " << from;
      }
    }
    const auto step = [&] {
      if (random_.below(50) == 0) {
        const auto at = static_cast<uint32_t>(random_.below(count_));
        all_[at].hint(all_.peer(at, static_cast<uint32_t>(random_.below(count_))),
                      static_cast<uint32_t>(random_.below(10)));
      }
      for (int i = 0; i < 4; ++i) {
        if (sent < messages && random_.below(2) == 0) sent += send() ? 1 : 0;
        if (random_.below(2) == 0 || sent == messages) receive();
      }
      for (uint32_t at = 0; at < count_; ++at) {
        for (const MessageCompletion& done : all_.done(at)) {
          if (done.event == MessageEvent::kReceived) {
            ++received;
            if (!check(at, done)) failed = true;
          } else if (done.outcome != MessageOutcome::kOk) {
            failed = true;
          } else {
            sent_memory_.erase(static_cast<std::string*>(done.context));
          }
        }
        all_.done(at).clear();
      }
      return failed || (received == messages && sent == messages && sent_memory_.empty());
    };
    if (testing::AssertionResult waited = all_.until(step); !waited) {
      return waited << "; sent " << sent << ", received " << received << " of " << messages;
    }
    return failed ? testing::AssertionFailure() << wrong_ : testing::AssertionSuccess();
  }

 private:
  static constexpr uint32_t kTags = 3;
  struct Posted {
    std::string memory;
    uint32_t from = 0;
    uint64_t tag = 0;
    uint32_t number = 0;  // of the receives for this line, and so of the message
  };

  static std::string text_of(uint32_t from, uint64_t tag, uint32_t number) {
    Random random(uint64_t{from} << 40 | tag << 32 | number);
    const uint64_t most = random.below(20) == 0 ? 20'000 : random.below(3) == 0 ? 3000 : 60;
    std::string text(random.below(most) + 4, '\0');
    for (size_t i = 4; i < text.size(); ++i) text[i] = static_cast<char>(number * 7 + i);
    std::memcpy(text.data(), &number, sizeof(number));
    return text;
  }

  bool send() {
    const auto from = static_cast<uint32_t>(random_.below(count_));
    return send(from, static_cast<uint32_t>(random_.below(count_)));
  }
  bool send(uint32_t from, uint32_t to) {
    const uint64_t tag = random_.below(kTags);
    Line& line = expected_[to][{from, tag}];
    auto text = std::make_unique<std::string>(text_of(from, tag, line.sent));
    const iovec pieces[2] = {{text->data(), 3}, {text->data() + 3, text->size() - 3}};
    const PostResult result =
        all_[from].send({.peer = all_.peer(from, to),
                         .tag = tag,
                         .pieces = pieces,
                         .context = text.get(),
                         .flags = random_.below(4) == 0 ? unsigned{kMessageDelivered} : 0u});
    if (result != PostResult::kPosted) return false;
    std::string* const memory = text.get();
    sent_memory_.emplace(memory, std::move(text));
    ++line.sent;
    return true;
  }
  // For a message that was sent and that no receive is for yet, so that all end.
  void receive() {
    const auto at = static_cast<uint32_t>(random_.below(count_));
    for (auto& [key, line] : expected_[at]) {
      if (line.asked >= line.sent) continue;
      auto posted = std::make_unique<Posted>();
      posted->memory.assign(20'010, '\0');
      posted->from = key.first;
      posted->tag = key.second;
      posted->number = line.asked;
      const iovec piece{posted->memory.data(), posted->memory.size()};
      const PostResult result = all_[at].receive({.source = all_.peer(at, key.first),
                                                  .tag = key.second | random_.below(2) << 60,
                                                  .ignore = uint64_t{1} << 60,
                                                  .pieces = {&piece, 1},
                                                  .context = posted.get()});
      if (result == PostResult::kPosted) {
        ++line.asked;
        Posted* const memory = posted.get();
        posted_[at].emplace(memory, std::move(posted));
      }
      return;
    }
  }
  bool check(uint32_t at, const MessageCompletion& done) {
    const auto found = posted_[at].find(static_cast<Posted*>(done.context));
    if (found == posted_[at].end()) {
      wrong_ = "a completion of no receive";
      return false;
    }
    const Posted& posted = *found->second;
    uint32_t number = 0;
    std::memcpy(&number, posted.memory.data(), sizeof(number));
    const std::string text = text_of(posted.from, posted.tag, number);
    if (done.outcome != MessageOutcome::kOk || done.tag != posted.tag ||
        done.bytes != text.size() || posted.memory.compare(0, text.size(), text) != 0 ||
        number != posted.number) {
      wrong_ = "message " + std::to_string(number) + " of " + std::to_string(posted.from) +
               " is not as it was sent, or not in its turn";
      return false;
    }
    posted_[at].erase(found);
    return true;
  }

  struct Line {
    uint32_t sent = 0;
    uint32_t asked = 0;
  };

  MessengersForTest& all_;
  uint32_t count_;
  Random random_;
  std::vector<std::map<std::pair<uint32_t, uint64_t>, Line>> expected_;
  std::vector<std::map<Posted*, std::unique_ptr<Posted>>> posted_;
  std::map<std::string*, std::unique_ptr<std::string>> sent_memory_;
  std::string wrong_;
};

TEST_F(MessengerTest, RandomTrafficArrivesOnceAndWhole) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  MessengerOptions tight;
  tight.ring_slots = 4;
  tight.queue_credits = 6;
  tight.slot_bytes = 512;
  tight.max_unexpected = 40;
  tight.unexpected_bytes = 2048;
  tight.max_operations = 64;
  tight.max_completions = 70;
  tight.polling_set = 1;
  tight.policy = PollingSetPolicy::kDynamic;
  tight.order = PollingOrder::kCircular;
  MessengerOptions queue_only = tight;
  queue_only.polling_set = 0;
  MessengerOptions all_polled;
  all_polled.policy = PollingSetPolicy::kAll;
  all_polled.order = PollingOrder::kByTraffic;
  MessengerOptions hinted = tight;
  hinted.policy = PollingSetPolicy::kHints;
  const RandomLoad loads[] = {{"hints", hinted},
                              {"as it is", {}},
                              {"tight", tight},
                              {"SENDs only", queue_only},
                              {"all polled", all_polled}};
  uint64_t by_ring = 0;
  for (const RandomLoad& load : loads) {
    SCOPED_TRACE(load.name);
    make(3, load.options);
    RandomTraffic traffic(all(), 3, seed);
    ASSERT_TRUE(traffic.run(1500));
    for (uint32_t i = 0; i < 3; ++i) {
      by_ring += all()[i].statistics().ring_messages;
    }
  }
  EXPECT_GT(by_ring, 1000u);
}

// Who sends to itself finds completions whenever it reads them in place.
TEST_F(MessengerTest, CompletionsOfItsOwnDoNotKeepPeersWaiting) {
  make(2);
  char got[8] = {};
  const iovec into{got, sizeof(got)};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(all()[0].receive({.source = all().peer(0, 1), .tag = 7, .pieces = {&into, 1}}),
              PostResult::kPosted);
  }
  const std::string text = "text";
  ASSERT_TRUE(all().send(1, 0, 7, text));
  ASSERT_TRUE(all().until([&] { return !all().done(0).empty(); }));
  all().done(0).clear();
  ASSERT_TRUE(all().send(1, 0, 7, text));

  const PeerNumber self = all().peer(0, 0);
  char own[8] = {};
  const iovec own_into{own, sizeof(own)};
  const iovec own_from{const_cast<char*>(text.data()), text.size()};
  bool arrived = !all().done(0).empty();
  for (int i = 0; i < 10'000 && !arrived; ++i) {
    ASSERT_EQ(all()[0].receive({.source = self, .tag = 8, .pieces = {&own_into, 1}}),
              PostResult::kPosted);
    ASSERT_EQ(all()[0].send({.peer = self, .tag = 8, .pieces = {&own_from, 1}}),
              PostResult::kPosted);
    const std::span<const MessageCompletion> found = all()[0].poll_in_place();
    ASSERT_FALSE(found.empty());
    for (const MessageCompletion& done : found) arrived = arrived || done.tag == 7;
    all()[0].drop_completions(static_cast<uint32_t>(found.size()));
  }
  EXPECT_TRUE(arrived);
}

constexpr int64_t kAskNs = 30'000'000'000;

TEST(MessengerAddressTest, WhoListensAtAPlaceTellsItsAddress) {
  MessengersForTest all(1);
  const MessengerAddress address = all[0].address();
  const MessengerAddress place = test::must(place_at(host_of(address), port_of(address)));
  EXPECT_TRUE(is_place(place));
  EXPECT_FALSE(is_place(address));
  EXPECT_EQ(test::must(ask_address(place, all.secret(), kAskNs)), address);
  // Another job's messenger tells nothing, and neither does nobody.
  EXPECT_EQ(ask_address(place, JobSecret::random(), kAskNs).status().code(),
            StatusCode::kPermissionDenied);
  all.close(0);
  EXPECT_FALSE(ask_address(place, all.secret(), 1'000'000).ok());
}

TEST(MessengerAddressTest, APlaceIsNoPeer) {
  MessengersForTest all(1);
  const MessengerAddress place = test::must(place_at("127.0.0.1", port_of(all[0].address())));
  EXPECT_EQ(all[0].add_peer(place).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(place_at("no number", 1).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace verbena::message
