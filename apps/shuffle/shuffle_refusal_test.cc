// What a shuffle refuses, in one line and with its state unchanged; and what happens where an
// executor ends before the shuffle does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "shuffle/layout.h"
#include "shuffle/peer_messages.h"
#include "shuffle/shuffle_for_test.h"

namespace verbena::shuffle_app {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

#define EXPECT_REFUSED(status, expected_code, matcher)         \
  do {                                                         \
    const Status status_of_it = (status);                      \
    EXPECT_EQ(status_of_it.code(), StatusCode::expected_code); \
    EXPECT_THAT(status_of_it.message(), matcher);              \
    EXPECT_THAT(status_of_it.message(), Not(HasSubstr("\n"))); \
  } while (false)

TEST(ShuffleRefusalTest, OptionsOutOfRange) {
  const test::Node node;
  const auto refused = [&](const ShuffleReceiverOptions& options) {
    return ShuffleReceiver::expose(node.device, node.domain, options).status();
  };
  EXPECT_REFUSED(refused({.receivers = 0}), kInvalidArgument, HasSubstr("receivers is 0"));
  EXPECT_REFUSED(refused({.receiver = 2, .receivers = 2}), kInvalidArgument,
                 HasSubstr("receiver is 2; choose 0 to 1"));
  EXPECT_REFUSED(refused({.senders = 5000}), kInvalidArgument, HasSubstr("senders is 5000"));
  EXPECT_REFUSED(refused({.record_bytes = 2 << 20}), kInvalidArgument, HasSubstr("record_bytes"));
  EXPECT_REFUSED(refused({.buffer_bytes = 100}), kInvalidArgument,
                 HasSubstr("buffer_bytes is 100"));
  EXPECT_REFUSED(refused({.max_records = 3}), kInvalidArgument, HasSubstr("max_records is 3"));
  EXPECT_REFUSED(refused({.max_record_bytes = uint64_t{1} << 50}), kInvalidArgument,
                 HasSubstr("max_record_bytes"));
  EXPECT_REFUSED(refused({.record_bytes = 64, .max_record_bytes = 64}), kInvalidArgument,
                 HasSubstr("leave them 0 with record_bytes"));
  // 4 TiB.
  EXPECT_REFUSED(refused({.senders = 4096, .buffer_bytes = 1 << 30}), kLimitExceeded,
                 AllOf(HasSubstr("1073741824 bytes for each of 4096 senders"),
                       HasSubstr("lower buffer_bytes"), HasSubstr("memory of this machine")));

  ShuffleForTest shuffle(1, 1);
  const auto sender_refused = [&](const ShuffleSenderOptions& options) {
    std::vector<ControlConnection> controls;
    Thread accepting = start_thread(
        "accept", [&] { static_cast<void>(shuffle.listener(0).accept(kTestTimeoutNs)); });
    controls.push_back(shuffle.connect(shuffle.listener(0)));
    return open_shuffle_sender(node.device, node.domain, std::move(controls), options).status();
  };
  EXPECT_REFUSED(sender_refused({.batch = 0}), kInvalidArgument, HasSubstr("batch is 0"));
  EXPECT_REFUSED(sender_refused({.batch_bytes = 1}), kInvalidArgument,
                 HasSubstr("batch_bytes is 1"));
  EXPECT_REFUSED(sender_refused({.pending = 1000}), kInvalidArgument, HasSubstr("pending is 1000"));
  EXPECT_REFUSED(open_shuffle_sender(node.device, node.domain, {}).status(), kInvalidArgument,
                 HasSubstr("number of receivers is 0"));
}

TEST(ShuffleRefusalTest, ReceiversThatCannotBeReached) {
  const test::Node node;
  const JobSecret secret = JobSecret::random();
  uint16_t port = 0;
  {
    const ControlListener closed = must(ControlListener::listen("127.0.0.1", 0, secret));
    port = closed.port();
  }
  const std::vector<ShuffleAddress> addresses = {{"127.0.0.1", port}};
  EXPECT_REFUSED(open_shuffle_sender(node.device, node.domain, addresses, secret,
                                     {.handshake_timeout_ns = 50'000'000})
                     .status(),
                 kTimeout, HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_REFUSED(
      open_shuffle_sender(node.device, node.domain, std::vector<ShuffleAddress>{}, secret).status(),
      kInvalidArgument, HasSubstr("number of receivers is 0"));
}

TEST(ShuffleRefusalTest, SendersThatDoNotFit) {
  ShuffleForTest shuffle(2, 1);
  const auto both = [&](const ShuffleSenderOptions& options) {
    Status opened;
    const Status accepted =
        shuffle.while_accepting(0, [&] { opened = shuffle.open_sender(options).status(); });
    EXPECT_EQ(accepted.code(), opened.code());
    return opened;
  };
  EXPECT_REFUSED(both({.sender = 2}), kInvalidArgument,
                 AllOf(HasSubstr("is sender 2"), HasSubstr("has 2 senders")));
  // A gather list is shorter; the receiver has not accepted then.
  Status accepted;
  Status opened;
  accepted = shuffle.while_accepting(0, [&] {
    opened = shuffle.open_sender({.method = ShuffleMethod::kSgl, .batch = 200}).status();
  });
  EXPECT_REFUSED(
      opened, kLimitExceeded,
      AllOf(HasSubstr("200 records takes as many gather entries"), HasSubstr("lower batch")));
  EXPECT_FALSE(accepted.ok());

  // Nothing of them remains; the number is free.
  std::unique_ptr<ShuffleSender> first;
  ASSERT_TRUE(
      shuffle.while_accepting(0, [&] { first = must(shuffle.open_sender({.sender = 0})); }).ok());
  EXPECT_REFUSED(both({.sender = 0}), kInvalidArgument, HasSubstr("is already"));
  // All of that was nothing to the one that is there.
  EXPECT_TRUE(first->put(0, "a record").ok());
  EXPECT_TRUE(first->flush());
  EXPECT_EQ(must(shuffle.receiver().next()).count(), 1u);
}

TEST(ShuffleRefusalTest, PeersThatAreNotOfThisRelease) {
  ShuffleForTest shuffle(1, 1);
  const auto say = [&](const Hello& hello) {
    return shuffle.while_accepting(0, [&] {
      ControlConnection control = shuffle.connect(shuffle.listener(0));
      must(control.send_value(kHelloTag, hello));
      const Welcome welcome = must(control.receive_value<Welcome>(kWelcomeTag, kTestTimeoutNs));
      EXPECT_FALSE(welcome.ok());
    });
  };
  EXPECT_REFUSED(say({.version = kVersion + 1, .receivers = 1}), kProtocolViolation,
                 AllOf(HasSubstr("version 2"), HasSubstr("this release has 1"),
                       HasSubstr("run the same release")));
  EXPECT_REFUSED(say({.magic = 1, .receivers = 1}), kProtocolViolation,
                 HasSubstr("does not send to a shuffle"));
  EXPECT_REFUSED(say({.receivers = 2}), kInvalidArgument,
                 AllOf(HasSubstr("receiver 0 of 2"), HasSubstr("receiver 0 of 1")));
  // Something else altogether.
  EXPECT_REFUSED(shuffle.while_accepting(0,
                                         [&] {
                                           auto control = shuffle.connect(shuffle.listener(0));
                                           must(control.send_value(uint32_t{17}, uint64_t{17}));
                                         }),
                 kProtocolViolation, HasSubstr(""));
  // A receiver of another release.
  Status opened;
  Thread accepting = start_thread("accept", [&] {
    ControlConnection control = must(shuffle.listener(0).accept(kTestTimeoutNs));
    must(control.receive_value<Hello>(kHelloTag, kTestTimeoutNs).status());
    Welcome welcome;
    welcome.version = kVersion + 1;
    must(control.send_value(kWelcomeTag, welcome));
  });
  opened = shuffle.open_sender({}).status();
  accepting.join();
  EXPECT_REFUSED(opened, kProtocolViolation, HasSubstr("receiver 0 (127.0.0.1:"));
  EXPECT_TRUE(shuffle.receiver().status().ok());
}

TEST(ShuffleRefusalTest, SendersThatDoNotComeAreNamed) {
  ShuffleForTest shuffle(3, 1);
  const Status accepted = shuffle.receiver().accept_all(shuffle.listener(0), 1'000'000);
  EXPECT_REFUSED(accepted, kTimeout,
                 AllOf(HasSubstr("0 of 3 senders"), HasSubstr("missing: 0, 1, 2")));
  EXPECT_REFUSED(shuffle.receiver().wait_next().status(), kInvalidArgument,
                 HasSubstr("call accept_all() first"));
  EXPECT_TRUE(shuffle.receiver().status().ok());
}

TEST(ShuffleRefusalTest, RecordsThatCannotBeTaken) {
  ShuffleForTest shuffle(1, 1, {.buffer_bytes = 4096});
  shuffle.open();
  ShuffleSender& sender = shuffle.sender();
  const Registered memory(shuffle.node(), 4096);
  const std::string long_record(1025, 'x');
  const auto refused = [&](PostResult result) {
    EXPECT_EQ(result, PostResult::kFailed);
    return sender.error();
  };
  EXPECT_REFUSED(refused(sender.send(1, "x")), kInvalidArgument,
                 HasSubstr("no partition 1; choose 0 to 0"));
  EXPECT_REFUSED(refused(sender.send(0, long_record)), kLimitExceeded,
                 AllOf(HasSubstr("1025 bytes"), HasSubstr("at most 1024"),
                       HasSubstr("raise its max_record_bytes")));
  EXPECT_REFUSED(sender.put(0, long_record), kLimitExceeded, HasSubstr("at most 1024"));
  EXPECT_REFUSED(refused(sender.send_part(0, "x", true)), kInvalidArgument,
                 HasSubstr("takes whole ones only"));
  for (const LocalSlice& slice : {LocalSlice{nullptr, 0, 8}, LocalSlice{&memory.memory, 4090, 8},
                                  LocalSlice{&memory.memory, UINT64_MAX, 8}}) {
    EXPECT_REFUSED(refused(sender.send(0, slice)), kInvalidArgument,
                   HasSubstr("not inside of registered memory"));
    EXPECT_REFUSED(sender.put(0, slice), kInvalidArgument, HasSubstr("registered memory"));
  }
  EXPECT_EQ(sender.taken(), 0u);
  EXPECT_TRUE(sender.status().ok());
  ASSERT_TRUE(sender.put(0, "x").ok());
  ASSERT_TRUE(sender.finish().ok());
  EXPECT_REFUSED(refused(sender.send(0, "x")), kInvalidArgument, HasSubstr("after finish()"));
  EXPECT_REFUSED(sender.put(0, "x"), kInvalidArgument, HasSubstr("after finish()"));
  EXPECT_EQ(shuffle.receiver().received().records, 0u);
  EXPECT_EQ(must(shuffle.receiver().wait_next()).count(), 1u);
}

TEST(ShuffleRefusalTest, RecordsOfAnotherSize) {
  ShuffleForTest shuffle(1, 1, {.record_bytes = 16});
  shuffle.open();
  EXPECT_EQ(shuffle.sender().send(0, "15 bytes, no 16"), PostResult::kFailed);
  EXPECT_REFUSED(shuffle.sender().error(), kInvalidArgument,
                 AllOf(HasSubstr("a record of 15 bytes"), HasSubstr("have 16")));
  EXPECT_EQ(shuffle.sender().send_part(0, "these are 16 now", true), PostResult::kFailed);
  EXPECT_EQ(shuffle.sender().send(0, "these are 16 now"), PostResult::kPosted);
}

// More than a gather list takes, though no more of those that were expected fit a batch.
TEST(ShuffleRefusalTest, RecordsMayBeShorterThanIsTypical) {
  constexpr uint32_t kRecords = 200;
  for (const ShuffleMethod method : {ShuffleMethod::kSgl, ShuffleMethod::kAutomatic}) {
    ShuffleForTest shuffle(1, 1);
    shuffle.open({.method = method, .batch = 128, .typical_record_bytes = 32 * 1024});
    const Registered memory(shuffle.node(), kRecords);
    ShuffleSender& sender = shuffle.sender();
    Status sent;
    for (uint32_t i = 0; i < kRecords && sent.ok(); ++i) {
      sent =
          sender.put(0, LocalSlice{.memory = &memory.memory, .offset_bytes = i, .size_bytes = 1});
    }
    if (sent.ok()) sent = sender.finish();
    ASSERT_TRUE(sent.ok()) << sent.message();
    Received received(1);
    ASSERT_TRUE(received.take_until_end(shuffle.receiver()).ok());
    EXPECT_EQ(received.from(0).size(), kRecords);
  }
}

TEST(ShuffleRefusalTest, APartOfARecordIsFollowedByTheNext) {
  ShuffleForTest shuffle(1, 1, {.buffer_bytes = 4096, .max_record_bytes = 2000});
  shuffle.open();
  ShuffleSender& sender = shuffle.sender();
  const std::string part(1000, 'x');
  ASSERT_EQ(sender.send_part(0, part, true), PostResult::kPosted);
  EXPECT_REFUSED(sender.put(0, "another"), kInvalidArgument, HasSubstr("is not complete"));
  EXPECT_REFUSED(sender.finish(), kInvalidArgument, HasSubstr("send its last part first"));
  EXPECT_EQ(sender.send_part(0, part + "y", false), PostResult::kFailed);
  EXPECT_REFUSED(sender.error(), kLimitExceeded, HasSubstr("a record of 2001 bytes"));
  ASSERT_EQ(sender.send_part(0, part, false), PostResult::kPosted);
  EXPECT_EQ(sender.sent().records, 1u);
  EXPECT_EQ(sender.sent().bytes, 2000u);
  EXPECT_TRUE(sender.finish().ok());
}

// --- ends that come too early ---

// Until it fails, or has ended.
Status receive(ShuffleReceiver& receiver) {
  for (;;) {
    VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.wait_next());
    if (span.empty()) return Status::ok_status();
    receiver.release(span);
  }
}
Status send(ShuffleSender& sender) {
  for (uint64_t i = 0;; ++i) {
    VERBENA_RETURN_IF_ERROR(sender.put(static_cast<uint32_t>(i % sender.partitions()), "a record"));
  }
}

// One executor goes; all others, each in a thread of its own, learn of it.
std::vector<Status> statuses_when(ShuffleForTest& shuffle, uint32_t senders, uint32_t receivers,
                                  int lost_sender, int lost_receiver) {
  std::vector<Status> statuses(senders + receivers);
  std::vector<Thread> threads;
  for (uint32_t i = 0; i < senders; ++i) {
    if (static_cast<int>(i) == lost_sender) continue;
    threads.push_back(start_thread("send", [&, i] { statuses[i] = send(shuffle.sender(i)); }));
  }
  for (uint32_t i = 0; i < receivers; ++i) {
    if (static_cast<int>(i) == lost_receiver) continue;
    threads.push_back(
        start_thread("receive", [&, i] { statuses[senders + i] = receive(shuffle.receiver(i)); }));
  }
  sleep_ns(5'000'000);
  if (lost_sender >= 0) shuffle.close_sender(static_cast<uint32_t>(lost_sender));
  if (lost_receiver >= 0) shuffle.close_receiver(static_cast<uint32_t>(lost_receiver));
  threads.clear();
  return statuses;
}

TEST(ShuffleEndTest, ASenderThatEndsEarlyIsNamedToAll) {
  ShuffleForTest shuffle(3, 2, {.buffer_bytes = 8192});
  shuffle.open();
  const auto statuses = statuses_when(shuffle, 3, 2, 1, -1);
  for (const uint32_t i : {0, 2}) {
    EXPECT_REFUSED(
        statuses[i], kUnavailable,
        AllOf(HasSubstr("receiver "), HasSubstr("closed before the end of its records")));
  }
  for (const uint32_t i : {3, 4}) {
    EXPECT_REFUSED(statuses[i], kUnavailable, HasSubstr("closed before the end of its records"));
  }
}

TEST(ShuffleEndTest, AReceiverThatEndsEarlyIsNamedToAll) {
  ShuffleForTest shuffle(2, 3, {.buffer_bytes = 8192});
  shuffle.open();
  const auto statuses = statuses_when(shuffle, 2, 3, -1, 1);
  for (const uint32_t i : {0, 1, 2, 4}) {
    EXPECT_REFUSED(statuses[i], kUnavailable, HasSubstr("closed before the end of the shuffle"));
  }
}

// Who has no room learns of it, too.
TEST(ShuffleEndTest, AWaitingSenderLearnsOfALossElsewhere) {
  ShuffleForTest shuffle(2, 1, {.buffer_bytes = 4096});
  shuffle.open();
  ShuffleSender& waiting = shuffle.sender(0);
  while (waiting.send(0, "a record") == PostResult::kPosted) continue;
  shuffle.close_sender(1);
  EXPECT_EQ(receive(shuffle.receiver()).code(), StatusCode::kUnavailable);
  Waiter waiter;
  const uint64_t begun_ns = now_ns();
  while (waiting.send(0, "a record") != PostResult::kFailed) {
    waiter.idle();
    ASSERT_LT(now_ns() - begun_ns, static_cast<uint64_t>(kTestTimeoutNs)) << "it hangs";
  }
  EXPECT_REFUSED(waiting.status(), kUnavailable,
                 AllOf(HasSubstr("receiver 0 ("), HasSubstr("gave up: it was closed")));
  EXPECT_REFUSED(waiting.finish(), kUnavailable, HasSubstr("gave up"));
  EXPECT_FALSE(waiting.flush());
}

// --- a sender that does not keep to the protocol ---

class BrokenSenderTest : public testing::Test {
 protected:
  // A connection as that of a sender, by which anything can be written.
  void open(const ShuffleReceiverOptions& options) {
    region_.reset();
    control_.reset();
    shuffle_ = std::make_unique<ShuffleForTest>(1, 1, options);
    must(shuffle_->while_accepting(0, [&] {
      control_ = std::make_unique<ControlConnection>(shuffle_->connect(shuffle_->listener(0)));
      must(control_->send_value(kHelloTag, Hello{.receivers = 1}));
      shape_ = must(control_->receive_value<Welcome>(kWelcomeTag, kTestTimeoutNs)).shape;
      region_ = must(open_region(shuffle_->node().device, shuffle_->node().domain, *control_));
    }));
    layout_ = LaneLayout(shape_, 0);
  }
  template <typename T>
  void write(uint64_t offset_bytes, const T& value) {
    must(region_->write(RemotePointer<T>{offset_bytes}, value));
  }
  void announce(uint64_t entries) { write(layout_.announced_at(), entries); }
  void write_length(uint64_t entry, uint32_t length) {
    write(layout_.lengths_at() + entry * sizeof(uint32_t), length);
  }
  ShuffleReceiver& receiver() { return shuffle_->receiver(); }
  void expect_violation(const std::string& text) {
    const Status status = receiver().next().status();
    EXPECT_REFUSED(status, kProtocolViolation, HasSubstr(text));
    EXPECT_EQ(receiver().status().message(), status.message());
    EXPECT_EQ(receiver().next().status().message(), status.message());
  }

  std::unique_ptr<ShuffleForTest> shuffle_;
  std::unique_ptr<ControlConnection> control_;
  LaneShape shape_;
  LaneLayout layout_;
  std::unique_ptr<RemoteRegion> region_;
};

TEST_F(BrokenSenderTest, MoreEntriesThanFit) {
  open({.buffer_bytes = 4096, .max_records = 16});
  announce(17);
  expect_violation("announced 17 entries");
}
TEST_F(BrokenSenderTest, FewerEntriesThanBefore) {
  open({.record_bytes = 64, .buffer_bytes = 4096});
  announce(3);
  EXPECT_EQ(must(receiver().next()).count(), 3u);
  announce(2);
  expect_violation("announced 2 entries after 3");
}
TEST_F(BrokenSenderTest, AnEntryThatIsTooLong) {
  for (const uint32_t length : {1025u, 1u << 30, kMore - 2}) {
    open({.buffer_bytes = 4096});
    write_length(0, length);
    announce(1);
    expect_violation("not in its buffer of 4096 bytes");
  }
}
TEST_F(BrokenSenderTest, MoreBytesThanTheBufferHas) {
  open({.buffer_bytes = 4096});
  for (uint32_t i = 0; i < 5; ++i) write_length(i, 1024);
  announce(5);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(must(receiver().next()).count(), 1u);
  expect_violation("not in its buffer");
}
TEST_F(BrokenSenderTest, NothingButMarks) {
  open({.buffer_bytes = 4096});
  for (uint32_t i = 0; i < 3; ++i) write_length(i, kSkip);
  announce(3);
  expect_violation("not in its buffer");
}
TEST_F(BrokenSenderTest, SumsThatAreNotThoseOfTheRecords) {
  for (const bool other_contents : {false, true}) {
    open({.record_bytes = 64, .buffer_bytes = 4096, .checksum = true});
    announce(2);
    EXPECT_EQ(must(receiver().next()).count(), 2u);
    write(0, Sums{.ended = 1,
                  .records = other_contents ? 2u : 3u,
                  .bytes = other_contents ? 128u : 192u,
                  .checksum = 1});
    expect_violation(other_contents ? "with other contents" : "sent 3 records of 192 bytes");
    EXPECT_FALSE(receiver().finished());
  }
}
TEST_F(BrokenSenderTest, WhoDiesIsNamed) {
  open({});
  region_.reset();
  control_.reset();
  const Status status = receiver().wait_next().status();
  EXPECT_REFUSED(
      status, kUnavailable,
      AllOf(HasSubstr("sender 0 (127.0.0.1:"), HasSubstr("died before the end of the shuffle")));
}

}  // namespace
}  // namespace verbena::shuffle_app
