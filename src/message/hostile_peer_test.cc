// A peer that sends what no messenger sends: it is reported, and nothing else happens.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/wire.h"
#include "src/channel/receive_pool.h"
#include "src/channel/send_queue.h"
#include "src/connect/endpoint.h"
#include "src/connect/exchange.h"
#include "src/message/connector.h"
#include "src/message/layer.h"
#include "src/message/message_header.h"
#include "src/message/messengers_for_test.h"
#include "src/message/one_sided_wire.h"
#include "src/message/queue_channel.h"
#include "src/message/ring_mark.h"

namespace verbena::message {
namespace {

constexpr int64_t kHostilePatienceNs = 60'000'000'000;

// Joins a messenger as a peer would, and then sends any bytes.
class HostilePeer {
 public:
  // How far it goes in the handshake.
  enum class Joins { kWhole, kNoFurtherThanItsEndpoint };

  HostilePeer(MessengersForTest& all, const MessengerOptions& options, Joins joins = Joins::kWhole)
      : options_(options) {
    const MessengerAddress target = all[0].address();
    control_.emplace(test::must(ControlConnection::connect(host_of(target), port_of(target),
                                                           all.secret(), kHostilePatienceNs)));
    address_ = target;
    secure_random(address_.bytes + 24, 8);
    WireWriter hello;
    connect::begin_step(hello, kLayer, connect::kFirstStepOfLayer, Status::ok_status());
    hello.raw(std::as_bytes(std::span(address_.bytes)));
    hello.raw(std::as_bytes(std::span(target.bytes)));
    EXPECT_TRUE(control_->send(hello.bytes()).ok());
    static_cast<void>(test::must(control_->receive(kHostilePatienceNs)));

    connect::EndpointPlan plan;
    plan.arena_bytes = uint64_t{kBuffers + kReceives} * options.slot_bytes;
    plan.other_access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    plan.send_depth_wrs = 2 * kBuffers;
    plan.own_receives = kReceives;
    endpoint_.emplace(
        test::must(connect::make_endpoint(all.node().device, all.node().domain, plan)));
    buffers_ = channel::SlotArray::carve(endpoint_->arena, {options.slot_bytes, options.slot_bytes},
                                         kBuffers);
    channel::ReceiveBuffers receive_buffers{
        endpoint_->arena.carve(uint64_t{kReceives} * options.slot_bytes), options.slot_bytes,
        endpoint_->arena.lkey()};
    receive_base_ = receive_buffers.base;
    receives_ = channel::ReceivePool<channel::OwnReceiveQueue>(
        {endpoint_->queue_pair.get()}, receive_buffers,
        channel::ReceivePoolSizes{.receives = kReceives, .repost_batch = 1});
    EXPECT_EQ(receives_.post_all(), 0);
    sends_ = channel::SendQueue(endpoint_->queue_pair.get(), endpoint_->send_completions.get(),
                                {.depth_wrs = 2 * kBuffers, .signal_interval = 1});

    WireWriter mine;
    for (const uint32_t value :
         {uint32_t{0}, options.slot_bytes, options.ring_slots, options.queue_credits}) {
      mine.u32(value);
    }
    if (joins == Joins::kNoFurtherThanItsEndpoint) {
      // The peer has made its own when it tells of it.
      static_cast<void>(test::must(control_->receive(kHostilePatienceNs)));
      return;
    }
    uint32_t their_number = 0;
    const Status joined = connect::join(
        *control_, kLayer, &*endpoint_,
        std::vector<std::byte>(mine.bytes().begin(), mine.bytes().end()),
        [&](WireReader& reader) {
          their_number = reader.u32();
          for (int i = 0; i < 3; ++i) reader.u32();
          return Status::ok_status();
        },
        kHostilePatienceNs);
    EXPECT_TRUE(joined.ok()) << joined.message();
    number_ = their_number;
    requests_ = channel::SlotRequests(kBuffers);
  }

  const MessengerAddress& address() const { return address_; }

  void send(const void* bytes, uint32_t size) { send(bytes, size, number_); }
  void send(const void* bytes, uint32_t size, uint32_t immediate) {
    channel::SlotRequest& request = requests_[next_];
    char* const buffer = buffers_.slot(next_);
    std::memcpy(buffer, bytes, size);
    channel::set_send(request, reinterpret_cast<uint64_t>(buffer), endpoint_->arena.lkey(),
                      immediate);
    channel::set_size_or_empty(request, size, 0);
    if (sends_.has_room()) sends_.push(request.request);
    next_ = (next_ + 1) % kBuffers;
  }
  void send(const MessageHeader& header, const std::string& rest = "") {
    std::string bytes(sizeof(header), '\0');
    std::memcpy(bytes.data(), &header, sizeof(header));
    bytes += rest;
    send(bytes.data(), static_cast<uint32_t>(bytes.size()));
  }

  // Whether it was offered a ring; looks at the next message that has come.
  bool has_ring() {
    ibv_wc completion;
    if (ibv_poll_cq(endpoint_->receive_completions.get(), 1, &completion) != 1) return ring_ != 0;
    ParsedMessage message;
    EXPECT_TRUE(parse(receive_base_ + completion.wr_id * options_.slot_bytes, completion.byte_len,
                      &message));
    if (message.header.kind == Kind::kRingOffer) {
      ring_ = message.header.tag;
      ring_key_ = static_cast<uint32_t>(message.data);
    }
    return ring_ != 0;
  }
  // Into the given slot, whatever is there: over before the messenger polls again.
  void write(uint32_t slot, const MessageHeader& header, const std::string& rest = "",
             uint32_t lap = RingMark::kFirstLap) {
    channel::SlotRequest& request = requests_[next_];
    char* const buffer = buffers_.slot(next_);
    const auto size = static_cast<uint32_t>(sizeof(header) + rest.size());
    std::memset(buffer, 0, options_.slot_bytes);
    std::memcpy(buffer + RingMark::kPayloadOffset, &header, sizeof(header));
    rest.copy(buffer + RingMark::kPayloadOffset + sizeof(header), rest.size());
    RingMark::seal(buffer, RingMark::shape(options_.slot_bytes - 2 * channel::kWordBytes), size,
                   lap);
    channel::set_write(request, reinterpret_cast<uint64_t>(buffer), endpoint_->arena.lkey(),
                       ring_ + uint64_t{slot} * options_.slot_bytes, ring_key_);
    channel::set_size(request, RingMark::sealed_bytes(size), 0);
    if (sends_.has_room()) sends_.push(request.request);
    next_ = (next_ + 1) % kBuffers;
  }

  // The ring that it was offered: the messenger is in this process.
  std::string bytes_of_ring(uint32_t slot) const {
    return {reinterpret_cast<const char*>(ring_) + uint64_t{slot} * options_.slot_bytes,
            options_.slot_bytes};
  }

 private:
  static constexpr uint32_t kBuffers = 64;
  static constexpr uint32_t kReceives = 64;

  const MessengerOptions options_;
  std::optional<ControlConnection> control_;
  MessengerAddress address_;
  std::optional<connect::Endpoint> endpoint_;
  channel::SlotArray buffers_;
  channel::ReceivePool<channel::OwnReceiveQueue> receives_;
  channel::SendQueue sends_;
  channel::SlotRequests requests_;
  const char* receive_base_ = nullptr;
  uint64_t ring_ = 0;
  uint32_t ring_key_ = 0;
  uint32_t number_ = 0;
  uint32_t next_ = 0;
};

class HostilePeerTest : public testing::Test {
 protected:
  HostilePeerTest() {
    options_.slot_bytes = 512;
    options_.ring_slots = 8;
    options_.queue_credits = 6;
    options_.max_unexpected = 16;
    options_.polling_set = 2;
    // What the peer proposes.
    options_.long_messages = LongMessages::kRead;
    all_ = std::make_unique<MessengersForTest>(1, options_);
    hostile_ = std::make_unique<HostilePeer>(*all_, options_);
    peer_ = test::must((*all_)[0].add_peer(hostile_->address()));
  }
  const Status& status() { return (*all_)[0].peer_status(peer_); }
  std::string text_for_peer_ = "text";
  // A messenger can join, and send as much as it has credits for.
  void expect_room_for_others() {
    const std::unique_ptr<Messenger> other = test::must(
        open_messenger(all_->node().device, all_->node().domain, all_->secret(), options_));
    const PeerNumber to = test::must(other->add_peer((*all_)[0].address()));
    const uint64_t before = (*all_)[0].statistics().unexpected;
    for (uint32_t sent = 0; sent < 3 * options_.queue_credits;) {
      const uint64_t end_ns = now_ns() + MessengersForTest::kPatienceNs;
      PostResult result = PostResult::kWouldBlock;
      while (result == PostResult::kWouldBlock && now_ns() < end_ns) {
        MessageInfo info;
        // Room for the next one.
        if ((*all_)[0].claim({.tag = 5}, &info)) (*all_)[0].discard_claimed(info.claim);
        other->progress();
        all_->poll_all();
        result = other->send({.peer = to, .tag = 5});
      }
      ASSERT_EQ(result, PostResult::kPosted) << other->peer_status(to).message();
      ++sent;
    }
    ASSERT_TRUE(all_->until([&] {
      other->progress();
      MessageInfo info;
      if ((*all_)[0].claim({.tag = 5}, &info)) (*all_)[0].discard_claimed(info.claim);
      return (*all_)[0].statistics().unexpected - before == 3 * options_.queue_credits;
    }));
  }
  // The peer is reported, and says what it did.
  void expect_violation(const char* what) {
    ASSERT_TRUE(all_->until([&] { return !status().ok(); }));
    EXPECT_EQ(status().code(), StatusCode::kProtocolViolation);
    EXPECT_NE(status().message().find(what), std::string::npos) << status().message();
  }
  // The hostile peer's request, with the body.
  static std::string request_of(OneSidedHeader header, std::vector<RemoteRange> ranges,
                                std::vector<RemotePiece> pieces = {},
                                const std::string& body = "") {
    std::string bytes(
        sizeof(header) + ranges.size() * sizeof(RemoteRange) + pieces.size() * sizeof(RemotePiece),
        '\0');
    if (header.ranges == 0) header.ranges = static_cast<uint8_t>(ranges.size());
    if (header.pieces == 0) header.pieces = static_cast<uint8_t>(pieces.size());
    put_one_sided(bytes.data(), header, ranges, pieces);
    return bytes + body;
  }
  uint64_t expose(std::string& memory) {
    const iovec piece{memory.data(), memory.size()};
    return test::must(
        (*all_)[0].exposed().expose({.pieces = {&piece, 1}, .access = kMemoryReadWrite}));
  }
  static std::string bytes_of(const RemoteMemory& memory) {
    std::string bytes(sizeof(uint64_t) + sizeof(memory), '\0');
    std::memcpy(bytes.data() + sizeof(uint64_t), &memory, sizeof(memory));
    return bytes;
  }

  static std::string bytes_of_target(const Target& target) {
    std::string bytes(sizeof(target), '\0');
    std::memcpy(bytes.data(), &target, sizeof(target));
    return bytes;
  }

  MessengerOptions options_;
  std::unique_ptr<MessengersForTest> all_;
  std::unique_ptr<HostilePeer> hostile_;
  PeerNumber peer_ = 0;
};

TEST_F(HostilePeerTest, AMessageWithoutAHeader) {
  hostile_->send("short", 5);
  expect_violation("header");
}

TEST_F(HostilePeerTest, AKindThatIsNone) {
  hostile_->send({.kind = static_cast<Kind>(99)});
  expect_violation("header");
}

TEST_F(HostilePeerTest, MoreMessagesThanCredits) {
  // The first is ahead of one that never comes, so none of them frees its credit.
  for (uint32_t i = 0; i < 7; ++i) hostile_->send({.sequence = i + 1});
  expect_violation("without a credit");
}

TEST_F(HostilePeerTest, ASequenceNumberThatWasUsed) {
  hostile_->send({.sequence = 0});
  hostile_->send({.sequence = 0});
  expect_violation("follows");
}

TEST_F(HostilePeerTest, CreditsThatItNeverHad) {
  hostile_->send({.sequence = 0, .kind = Kind::kCredits, .queue_credits = 200});
  expect_violation("credits");
}

// It would lie where messages are kept, and in the receive that its connection gives back.
TEST_F(HostilePeerTest, AMessageWithCreditsThatItNeverHadIsNotKept) {
  hostile_->send({.sequence = 0, .kind = Kind::kEager, .queue_credits = 200}, "a message");
  expect_violation("message");
  EXPECT_EQ((*all_)[0].statistics().unexpected, 0u);
}

TEST_F(HostilePeerTest, AnEndOfAnOperationThatIsNone) {
  hostile_->send({.kind = Kind::kFinish, .tag = 12345});
  expect_violation("operation");
}

// By the ring, in its turn, and behind a message that has to wait.
TEST_F(HostilePeerTest, AnEndByTheRingOfAnOperationThatIsNone) {
  hostile_->send({.sequence = 0, .kind = Kind::kEager}, "a message");
  ASSERT_TRUE(all_->until([this] { return hostile_->has_ring(); }));
  hostile_->write(0, {.sequence = 1, .kind = Kind::kFinish, .tag = 12345});
  expect_violation("follows");
}

TEST_F(HostilePeerTest, AnEndByTheRingAheadOfItsTurn) {
  hostile_->send({.sequence = 0, .kind = Kind::kEager}, "a message");
  ASSERT_TRUE(all_->until([this] { return hostile_->has_ring(); }));
  // One that never comes is before these.
  hostile_->write(0, {.sequence = 2, .kind = Kind::kEager}, "waits");
  hostile_->write(1, {.sequence = 3, .kind = Kind::kAnswer, .tag = 12345}, std::string(8, '\0'));
  expect_violation("follows");
}

TEST_F(HostilePeerTest, AnEndByTheRingThatReturnsCreditsThatItNeverHad) {
  hostile_->send({.sequence = 0, .kind = Kind::kEager}, "a message");
  ASSERT_TRUE(all_->until([this] { return hostile_->has_ring(); }));
  const iovec piece{text_for_peer_.data(), text_for_peer_.size()};
  const SendRequest request{
      .peer = peer_, .tag = 1, .pieces = {&piece, 1}, .flags = kMessageDelivered};
  ASSERT_EQ((*all_)[0].send(request), PostResult::kPosted);
  // Its first operation.
  hostile_->write(
      0, {.sequence = 2, .kind = Kind::kFinish, .queue_credits = 200, .tag = uint64_t{1} << 32});
  expect_violation("follows");
}

// An end by the ring that is used early, and is another message when its turn comes.
class HostileSlotTest : public HostilePeerTest {
 protected:
  // In slot 1. Then the next message is that of number ring_slots + 2, in slot 0.
  void replace_what_was_used_early() {
    hostile_->send({.sequence = 0, .kind = Kind::kEager}, "a message");
    ASSERT_TRUE(all_->until([this] { return hostile_->has_ring(); }));
    const iovec piece{text_for_peer_.data(), text_for_peer_.size()};
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(all_->send(
          0, {.peer = peer_, .tag = 1, .pieces = {&piece, 1}, .flags = kMessageDelivered}));
    }
    // One that comes later is before these.
    hostile_->write(0, {.sequence = 2, .kind = Kind::kEager}, "waits");
    hostile_->write(1, {.sequence = 3, .kind = Kind::kFinish, .tag = kFirst});
    ASSERT_TRUE(all_->until([this] { return all_->done(0).size() == 1; }));
    receive(5);
    hostile_->write(1, {.sequence = 3, .kind = Kind::kEager, .tag = 5}, "other");
    hostile_->send({.sequence = 1, .kind = Kind::kEager}, "comes");
    expect_received(5);
    for (uint32_t slot = 2; slot < options_.ring_slots; ++slot) {
      hostile_->write(slot, {.sequence = slot + 2, .kind = Kind::kEager});
    }
    ASSERT_TRUE(all_->until(
        [this] { return !status().ok() || (*all_)[0].statistics().unexpected == kUnexpected; }));
    ASSERT_TRUE(status().ok()) << status().message();
  }
  // The third slot's message is the last one.
  void expect_last(uint32_t sequence, uint64_t unexpected) {
    receive(6);
    hostile_->write(2, {.sequence = sequence, .kind = Kind::kEager, .tag = 6}, "last", kNextLap);
    expect_received(6);
    EXPECT_EQ((*all_)[0].statistics().unexpected, unexpected);
    EXPECT_TRUE(status().ok()) << status().message();
  }
  void receive(uint64_t tag) {
    const iovec into{got_, sizeof(got_)};
    ASSERT_EQ((*all_)[0].receive({.source = peer_, .tag = tag, .pieces = {&into, 1}}),
              PostResult::kPosted);
  }
  void expect_received(uint64_t tag) {
    const auto& done = all_->done(0);
    ASSERT_TRUE(all_->until([&] {
      return !status().ok() || (!done.empty() && done.back().event == MessageEvent::kReceived &&
                                done.back().tag == tag);
    }));
    ASSERT_TRUE(status().ok()) << status().message();
  }

  static constexpr uint32_t kNextLap = RingMark::lap_after(RingMark::kFirstLap);
  // The operations that the hostile peer ends.
  static constexpr uint64_t kFirst = uint64_t{1} << 32;
  static constexpr uint64_t kSecond = kFirst + 1;
  // By SEND two, by the ring all but the one that is received.
  static constexpr uint64_t kUnexpected = 2 + 8 - 1;
  char got_[8] = {};
};

TEST_F(HostileSlotTest, TheNextMessageThereIsReceived) {
  ASSERT_NO_FATAL_FAILURE(replace_what_was_used_early());
  const uint32_t next = options_.ring_slots + 2;
  hostile_->write(0, {.sequence = next, .kind = Kind::kEager}, "", kNextLap);
  hostile_->write(1, {.sequence = next + 1, .kind = Kind::kEager}, "", kNextLap);
  expect_last(next + 2, kUnexpected + 2);
}

TEST_F(HostileSlotTest, TheNextEndThereIsUsedEarly) {
  ASSERT_NO_FATAL_FAILURE(replace_what_was_used_early());
  const uint32_t next = options_.ring_slots + 2;
  hostile_->write(0, {.sequence = next + 1, .kind = Kind::kEager}, "", kNextLap);
  hostile_->write(1, {.sequence = next + 2, .kind = Kind::kFinish, .tag = kSecond}, "", kNextLap);
  ASSERT_TRUE(all_->until([this] { return all_->done(0).size() == 3; }));
  EXPECT_EQ(all_->done(0).back().event, MessageEvent::kSent);
  hostile_->send({.sequence = next, .kind = Kind::kEager});
  expect_last(next + 3, kUnexpected + 2);
}

// One ring, which the hostile peer has first.
class HostileRingTest : public HostilePeerTest {
 protected:
  HostileRingTest() {
    hostile_.reset();
    options_.polling_set = 1;
    all_ = std::make_unique<MessengersForTest>(2, options_);
    hostile_ = std::make_unique<HostilePeer>(*all_, options_);
    peer_ = test::must((*all_)[0].add_peer(hostile_->address()));
  }
  // Messages of a number that was used, in slots whose turn has not come.
  void write_ahead() {
    hostile_->send({.sequence = 0, .kind = Kind::kEager}, "a message");
    ASSERT_TRUE(all_->until([this] { return hostile_->has_ring(); }));
    for (uint32_t slot = 1; slot <= 3; ++slot) {
      hostile_->write(slot, {.sequence = 0, .kind = Kind::kEager},
                      std::string(kWrittenAhead, '\x5a'));
      ASSERT_NE(hostile_->bytes_of_ring(slot), std::string(options_.slot_bytes, '\0'));
    }
  }
  // A proper peer has the ring, and all that it sends arrives.
  void expect_useful_ring() {
    for (uint64_t i = 0; (*all_)[1].statistics().ring_messages < 3 * options_.ring_slots; ++i) {
      ASSERT_LT(i, 1000u);
      const std::string text = std::to_string(i);
      char got[8] = {};
      const iovec into{got, sizeof(got)};
      const size_t before = all_->done(0).size();
      ASSERT_EQ((*all_)[0].receive({.source = all_->peer(0, 1), .tag = i, .pieces = {&into, 1}}),
                PostResult::kPosted);
      ASSERT_TRUE(all_->send(1, 0, i, text));
      const Status& proper = (*all_)[0].peer_status(all_->peer(0, 1));
      ASSERT_TRUE(all_->until([&] { return all_->done(0).size() > before || !proper.ok(); }));
      ASSERT_TRUE(proper.ok()) << proper.message();
      ASSERT_EQ(got, text);
    }
  }

  static constexpr uint32_t kWrittenAhead = 300;
};

TEST_F(HostileRingTest, WhatItWroteAheadIsNoMessageOnceItHasLeft) {
  ASSERT_NO_FATAL_FAILURE(write_ahead());
  hostile_->send({.sequence = 1, .kind = Kind::kRingLeft});
  ASSERT_TRUE(all_->until([this] { return (*all_)[0].statistics().rings_taken == 1; }));
  expect_useful_ring();
  EXPECT_TRUE(status().ok()) << status().message();
}

TEST_F(HostileRingTest, NothingThatItWroteIsThereOnceItWasLost) {
  ASSERT_NO_FATAL_FAILURE(write_ahead());
  hostile_->send({.kind = Kind::kFinish, .tag = 12345});
  expect_violation("operation");
  ASSERT_NO_FATAL_FAILURE(expect_useful_ring());
  // Behind the few bytes of the proper peer's.
  constexpr uint32_t kShort = 64;
  for (uint32_t slot = 0; slot < options_.ring_slots; ++slot) {
    EXPECT_EQ(hostile_->bytes_of_ring(slot).substr(kShort),
              std::string(options_.slot_bytes - kShort, '\0'))
        << "slot " << slot;
  }
}

TEST_F(HostilePeerTest, APlaceForAMessageThatIsNone) {
  hostile_->send({.kind = Kind::kTarget, .tag = 12345}, bytes_of_target({}));
  expect_violation("operation");
}

TEST_F(HostilePeerTest, BytesThatNobodyWaitsFor) {
  hostile_->send({.kind = Kind::kChunk, .tag = 0}, "bytes");
  expect_violation("operation");
}

TEST_F(HostilePeerTest, TheEndOfAWriteThatIsNone) {
  hostile_->send({.kind = Kind::kWritten, .tag = uint64_t{1} << 32});
  expect_violation("operation");
}

TEST_F(HostilePeerTest, ALongMessageThatIsToComeInAWayThatIsNone) {
  RemoteMemory memory{.bytes = 100, .method = static_cast<Method>(kMethods)};
  hostile_->send({.sequence = 0, .kind = Kind::kRendezvous, .flags = kWantsFinish},
                 bytes_of(memory));
  expect_violation("follows");
}

TEST_F(HostilePeerTest, PiecesOfAMessageThatComesInChunks) {
  RemoteMemory memory{
      .bytes = 100, .count = 1, .method = Method::kPipelined, .pieces = {{4096, 100, 1, 0}}};
  hostile_->send({.sequence = 0, .kind = Kind::kRendezvous, .flags = kWantsFinish},
                 bytes_of(memory));
  expect_violation("follows");
}

// Of a message that is awaited in chunks. The first transfer has number 0, used once.
class HostileChunksTest : public HostilePeerTest {
 protected:
  void offer(Method method) {
    text_.assign(100, '-');
    const iovec piece{text_.data(), text_.size()};
    ASSERT_EQ((*all_)[0].receive({.tag = 0, .pieces = {&piece, 1}}), PostResult::kPosted);
    hostile_->send({.sequence = 0, .kind = Kind::kRendezvous, .flags = kWantsFinish},
                   bytes_of({.bytes = 100, .method = method}));
    ASSERT_TRUE(all_->until([&] { return (*all_)[0].statistics().queue_messages > 0; }));
  }
  void expect_lost(const char* what) {
    expect_violation(what);
    ASSERT_TRUE(all_->until([&] { return all_->done(0).size() == 1; }));
    EXPECT_EQ(all_->done(0)[0].outcome, MessageOutcome::kPeerLost);
  }

  static constexpr uint64_t kFirst = uint64_t{1} << 32;
  std::string text_;
};

TEST_F(HostileChunksTest, InTheRightWay) {
  offer(Method::kPipelined);
  hostile_->send({.kind = Kind::kChunk, .tag = kFirst}, std::string(60, 'a'));
  hostile_->send({.kind = Kind::kChunk, .tag = kFirst}, std::string(40, 'b'));
  ASSERT_TRUE(all_->until([&] { return all_->done(0).size() == 1; }));
  EXPECT_EQ(all_->done(0)[0].outcome, MessageOutcome::kOk);
  EXPECT_EQ(text_, std::string(60, 'a') + std::string(40, 'b'));
  EXPECT_TRUE(status().ok());
  hostile_->send({.kind = Kind::kChunk, .tag = kFirst}, "more");
  expect_violation("operation");
}

TEST_F(HostileChunksTest, MoreThanTheMessageHas) {
  offer(Method::kPipelined);
  hostile_->send({.kind = Kind::kChunk, .tag = kFirst}, std::string(60, 'a'));
  hostile_->send({.kind = Kind::kChunk, .tag = kFirst}, std::string(41, 'b'));
  expect_lost("operation");
}

TEST_F(HostileChunksTest, NoBytes) {
  offer(Method::kPipelined);
  hostile_->send({.kind = Kind::kChunk, .tag = kFirst});
  expect_lost("operation");
}

TEST_F(HostileChunksTest, OfAnEarlierUseOfTheNumber) {
  offer(Method::kPipelined);
  hostile_->send({.kind = Kind::kChunk, .tag = 0}, "bytes");
  expect_lost("operation");
}

TEST_F(HostileChunksTest, WrittenInsteadOfSent) {
  offer(Method::kPipelined);
  hostile_->send({.kind = Kind::kWritten, .tag = kFirst});
  expect_lost("operation");
}

TEST_F(HostileChunksTest, SentInsteadOfWritten) {
  offer(Method::kWrite);
  hostile_->send({.kind = Kind::kChunk, .tag = kFirst}, "bytes");
  expect_lost("operation");
}

TEST_F(HostileChunksTest, WrittenWithBytes) {
  offer(Method::kWrite);
  hostile_->send({.kind = Kind::kWritten, .tag = kFirst}, "bytes");
  expect_lost("operation");
}

// Answers to a long message of the messenger. Its first operation has number 0, used once.
class HostileTargetTest : public HostilePeerTest {
 protected:
  // Offers it by the method, and has it answered so.
  void answer(LongMessages method, const Target& target, uint32_t surplus_bytes = 0) {
    options_.long_messages = method;
    hostile_.reset();
    all_ = std::make_unique<MessengersForTest>(1, options_);
    hostile_ = std::make_unique<HostilePeer>(*all_, options_);
    peer_ = test::must((*all_)[0].add_peer(hostile_->address()));
    const iovec piece{text_.data(), text_.size()};
    ASSERT_TRUE(all_->send(0, {.peer = peer_, .tag = 0, .pieces = {&piece, 1}}));
    hostile_->send({.kind = Kind::kTarget, .tag = uint64_t{1} << 32},
                   bytes_of_target(target) + std::string(surplus_bytes, '-'));
  }
  void expect_lost() {
    expect_violation("operation");
    ASSERT_TRUE(all_->until([&] { return all_->done(0).size() == 1; }));
    EXPECT_EQ(all_->done(0)[0].outcome, MessageOutcome::kPeerLost);
  }
  static Target chunks(uint64_t bytes) {
    Target target;
    target.memory = {.bytes = bytes, .method = Method::kPipelined};
    return target;
  }
  static Target place(uint64_t bytes, uint64_t bytes_of_piece) {
    Target target;
    target.memory = {.bytes = bytes,
                     .count = 1,
                     .method = Method::kWrite,
                     .pieces = {{4096, bytes_of_piece, 77, 0}}};
    return target;
  }

  std::string text_ = std::string(3000, 'x');
};

TEST_F(HostileTargetTest, MoreThanTheMessageHas) {
  answer(LongMessages::kPipelined, chunks(text_.size() + 1));
  expect_lost();
}

TEST_F(HostileTargetTest, Nothing) {
  answer(LongMessages::kPipelined, chunks(0));
  expect_lost();
}

TEST_F(HostileTargetTest, APlaceThatWasNotAskedFor) {
  answer(LongMessages::kPipelined, place(3000, 3000));
  expect_lost();
}

TEST_F(HostileTargetTest, APlaceOfAMessageThatIsToBeRead) {
  answer(LongMessages::kRead, place(3000, 3000));
  expect_lost();
}

TEST_F(HostileTargetTest, PiecesThatDoNotAddUp) {
  answer(LongMessages::kWrite, place(3000, 2999));
  expect_lost();
}

TEST_F(HostileTargetTest, AnAnswerOfAnotherLength) {
  answer(LongMessages::kWrite, place(3000, 3000), 1);
  expect_lost();
}

TEST_F(HostileTargetTest, AKeyThatIsNone) {
  answer(LongMessages::kWrite, place(3000, 3000));
  ASSERT_TRUE(all_->until([&] { return !status().ok(); }));
  ASSERT_TRUE(all_->until([&] { return all_->done(0).size() == 1; }));
  EXPECT_EQ(all_->done(0)[0].outcome, MessageOutcome::kPeerLost);
}

TEST_F(HostileTargetTest, TwoAnswers) {
  answer(LongMessages::kPipelined, chunks(1000));
  hostile_->send({.kind = Kind::kTarget, .tag = uint64_t{1} << 32}, bytes_of_target(chunks(1000)));
  expect_lost();
}

// An end before all has gone out: the memory is still the device's.
TEST_F(HostileTargetTest, AnEndBeforeAllIsSent) {
  text_.assign(100'000, 'x');
  answer(LongMessages::kPipelined, chunks(text_.size()));
  // Its credits are not returned, so that it does not get far.
  hostile_->send({.kind = Kind::kFinish, .tag = uint64_t{1} << 32});
  expect_lost();
}

TEST_F(HostilePeerTest, LongMessagesWhoseSizesDoNotAddUp) {
  RemoteMemory memory{
      .bytes = 100, .count = 2, .pieces = {{1, ~uint64_t{0}, 1, 0}, {1, 101, 1, 0}}};
  hostile_->send({.sequence = 0, .kind = Kind::kRendezvous, .flags = kWantsFinish},
                 bytes_of(memory));
  expect_violation("follows");
}

TEST_F(HostilePeerTest, LeavingARingThatItNeverHad) {
  hostile_->send({.sequence = 0, .kind = Kind::kRingLeft});
  expect_violation("follows");
}

TEST_F(HostilePeerTest, LeavingARingThatItWasNotToldOfYet) {
  // Without credits the ring cannot be offered.
  std::string text = "text";
  const iovec piece{text.data(), text.size()};
  const auto send = [&] {
    return (*all_)[0].send({.peer = peer_, .tag = 1, .pieces = {&piece, 1}});
  };
  ASSERT_TRUE(all_->until([&] { return send() == PostResult::kPosted; }));
  for (int i = 0; i < 64 && send() == PostResult::kPosted; ++i) continue;
  ASSERT_EQ(send(), PostResult::kWouldBlock);
  const uint64_t given = (*all_)[0].statistics().rings_given;
  hostile_->send({.sequence = 0, .kind = Kind::kEager}, "a message");
  ASSERT_TRUE(all_->until([&] { return (*all_)[0].statistics().rings_given > given; }));
  hostile_->send({.sequence = 1, .kind = Kind::kRingLeft});
  expect_violation("follows");
}

TEST_F(HostilePeerTest, AMemoryKeyThatIsNone) {
  RemoteMemory memory{.bytes = 100, .count = 1, .pieces = {{4096, 100, 77, 0}}};
  std::string text(200, '-');
  const iovec piece{text.data(), text.size()};
  ASSERT_EQ((*all_)[0].receive({.tag = 0, .pieces = {&piece, 1}}), PostResult::kPosted);
  hostile_->send({.sequence = 0, .kind = Kind::kRendezvous, .flags = kWantsFinish},
                 bytes_of(memory));
  ASSERT_TRUE(all_->until([&] { return !status().ok(); }));
  ASSERT_TRUE(all_->until([&] { return all_->done(0).size() == 1; }));
  EXPECT_EQ(all_->done(0)[0].outcome, MessageOutcome::kPeerLost);
}

// The receives that it takes serve all peers.
TEST_F(HostilePeerTest, MessagesToAConnectionThatIsNone) {
  for (int i = 0; i < 60; ++i) hostile_->send("0123456789012345", 16, 3);
  expect_violation("connection");
  ASSERT_NO_FATAL_FAILURE(expect_room_for_others());
}

TEST_F(HostilePeerTest, AMessageToAConnectionThatCannotBe) {
  hostile_->send("0123456789012345", 16, ~0u);
  expect_violation("connection");
}

// It joins anew and again, and does not finish.
TEST_F(HostilePeerTest, JoinsThatAreNotFinished) {
  options_.max_peers = 4;
  hostile_.reset();
  all_ = std::make_unique<MessengersForTest>(1, options_);
  for (uint32_t i = 0; i < 2 * options_.max_peers; ++i) {
    HostilePeer another(*all_, options_, HostilePeer::Joins::kNoFurtherThanItsEndpoint);
  }
  ASSERT_NO_FATAL_FAILURE(expect_room_for_others());
}

TEST_F(HostilePeerTest, OneSidedRequestsThatAreNone) {
  std::string memory(64, '-');
  const uint64_t key = expose(memory);
  const RemoteRange range{0, 8, key};
  const RemotePiece piece{4096, 8, 77, 0};
  const auto sum = static_cast<uint8_t>(AtomicOperation::kSum);
  const auto swap = static_cast<uint8_t>(AtomicOperation::kSwapIfEqual);
  const auto read = static_cast<uint8_t>(AtomicOperation::kRead);
  const auto word = static_cast<uint8_t>(AtomicType::kUint64);
  using Action = OneSidedAction;
  const std::string requests[] = {
      "",
      "fifteen bytes..",
      request_of({.action = static_cast<Action>(0), .bytes = 8}, {range}, {}, "12345678"),
      request_of({.action = static_cast<Action>(7), .bytes = 8}, {range}, {}, "12345678"),
      request_of({.action = Action::kPut, .ranges = 5, .bytes = 8}, {range}, {}, "12345678"),
      request_of({.action = Action::kPut, .ranges = 2, .bytes = 8}, {range}),
      request_of({.action = Action::kPut, .bytes = 8}, {range}, {}, "1234567"),
      request_of({.action = Action::kPut, .bytes = 9}, {range}, {}, "123456789"),
      request_of({.action = Action::kPut, .bytes = 8}, {range}, {piece}, "12345678"),
      request_of({.action = Action::kPut, .bytes = 7}, {{0, 8, key}, {0, ~uint64_t{0}, key}}, {},
                 "1234567"),
      request_of({.action = Action::kGet, .bytes = 8}, {range}, {}, "12345678"),
      request_of({.action = Action::kGet, .bytes = 4000}, {{0, 4000, key}}),
      request_of({.action = Action::kFetch, .bytes = 8}, {range}),
      request_of({.action = Action::kFetch, .pieces = 9, .bytes = 8}, {range}, {piece}),
      request_of({.action = Action::kFetch, .bytes = 0}, {}, {}),
      request_of({.action = Action::kStore, .bytes = 8}, {range}, {piece, piece}),
      request_of({.action = Action::kStore, .bytes = 8}, {range}, {piece}, "x"),
      request_of({.action = Action::kAtomic, .type = 14, .operation = sum, .bytes = 8}, {range}, {},
                 "12345678"),
      request_of({.action = Action::kAtomic, .type = word, .operation = 19, .bytes = 8}, {range},
                 {}, "12345678"),
      request_of({.action = Action::kAtomic, .type = word, .operation = read, .bytes = 8}, {range}),
      request_of({.action = Action::kAtomic, .type = word, .operation = sum, .bytes = 8}, {range}),
      request_of({.action = Action::kAtomic, .type = word, .operation = sum, .bytes = 7},
                 {{0, 7, key}}, {}, "1234567"),
      request_of({.action = Action::kFetchingAtomic, .type = word, .operation = swap, .bytes = 8},
                 {range}, {}, "12345678"),
      request_of({.action = Action::kFetchingAtomic, .type = word, .operation = read, .bytes = 800},
                 {{0, 800, key}}),
  };
  for (const std::string& request : requests) {
    SCOPED_TRACE("request " + std::to_string(&request - requests));
    hostile_ = std::make_unique<HostilePeer>(*all_, options_);
    peer_ = test::must((*all_)[0].add_peer(hostile_->address()));
    hostile_->send({.sequence = 0, .kind = Kind::kOneSided}, request);
    expect_violation("follows");
  }
  // Flags that it cannot have.
  for (const uint8_t flags : {uint8_t{kWantsFinish}, uint8_t{kHasData}}) {
    hostile_ = std::make_unique<HostilePeer>(*all_, options_);
    peer_ = test::must((*all_)[0].add_peer(hostile_->address()));
    hostile_->send(
        {.sequence = 0, .kind = Kind::kOneSided, .flags = flags},
        std::string(8, '\0') + request_of({.action = Action::kGet, .bytes = 8}, {range}));
    expect_violation("follows");
  }
  EXPECT_EQ(memory, std::string(64, '-'));
  EXPECT_TRUE((*all_)[0].exposed().revoke(key));
}

TEST_F(HostilePeerTest, AKeyThatIsNoneIsAnswered) {
  std::string memory(64, '-');
  const uint64_t key = expose(memory);
  hostile_->send(
      {.sequence = 0, .kind = Kind::kOneSided},
      request_of({.action = OneSidedAction::kPut, .bytes = 8}, {{0, 8, key + 1}}, {}, "12345678"));
  hostile_->send({.sequence = 1, .kind = Kind::kOneSided},
                 request_of({.action = OneSidedAction::kFetch, .bytes = 8}, {{60, 8, key}},
                            {{4096, 8, 77, 0}}));
  ASSERT_TRUE(all_->until([&] { return (*all_)[0].statistics().remote_refused == 2; }));
  EXPECT_TRUE(status().ok());
  EXPECT_EQ(memory, std::string(64, '-'));
}

// The device finds out, and the connection breaks; the memory can be had back.
TEST_F(HostilePeerTest, MemoryForALongPutThatIsNone) {
  for (const OneSidedAction action : {OneSidedAction::kFetch, OneSidedAction::kStore}) {
    hostile_ = std::make_unique<HostilePeer>(*all_, options_);
    peer_ = test::must((*all_)[0].add_peer(hostile_->address()));
    std::string memory(5000, '-');
    const uint64_t key = expose(memory);
    hostile_->send(
        {.sequence = 0, .kind = Kind::kOneSided},
        request_of({.action = action, .bytes = 5000}, {{0, 5000, key}}, {{4096, 5000, 77, 0}}));
    ASSERT_TRUE(all_->until([&] { return !status().ok(); }));
    EXPECT_EQ(memory, std::string(5000, '-'));
    EXPECT_TRUE((*all_)[0].exposed().revoke(key));
  }
}

TEST_F(HostilePeerTest, AnswersThatAreNone) {
  const auto ok = std::string(8, '\0');
  const struct {
    uint64_t operation;
    std::string answer;
  } answers[] = {{12345, ok},
                 {uint64_t{1} << 32, "short"},
                 {uint64_t{1} << 32, ok + "1234567"},  // of a get of 8 bytes
                 {uint64_t{1} << 32, ok + "123456789"},
                 {uint64_t{1} << 32, std::string(1, '\1') + std::string(7, '\0')},
                 {uint64_t{1} << 32, std::string(8, '\7')},
                 {uint64_t{2} << 32, ok + "12345678"}};
  for (const auto& [operation, answer] : answers) {
    SCOPED_TRACE("operation " + std::to_string(operation) + ", " + std::to_string(answer.size()));
    hostile_.reset();  // before its domain
    all_ = std::make_unique<MessengersForTest>(1, options_);
    hostile_ = std::make_unique<HostilePeer>(*all_, options_);
    peer_ = test::must((*all_)[0].add_peer(hostile_->address()));
    char bytes[8] = {};
    const iovec piece{bytes, sizeof(bytes)};
    const RemoteRange range{0, sizeof(bytes), 1};
    ASSERT_TRUE(all_->until([&] {
      return (*all_)[0].get({.peer = peer_, .pieces = {&piece, 1}, .remote = {&range, 1}}) ==
             PostResult::kPosted;
    }));
    hostile_->send({.kind = Kind::kAnswer, .tag = operation}, answer);
    expect_violation("operation");
    ASSERT_EQ(all_->done(0).size(), 1u);
    EXPECT_EQ(all_->done(0)[0].outcome, MessageOutcome::kPeerLost);
    EXPECT_EQ(bytes[0], 0);
  }
}

// Headers of valid kinds with everything else random: the messenger goes on, or reports the peer.
TEST_F(HostilePeerTest, RandomHeadersEndOrAreMessages) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  std::string exposed(64, '-');
  const uint64_t key = expose(exposed);
  uint32_t violations = 0;
  for (int round = 0; round < 40; ++round) {
    auto peer = std::make_unique<HostilePeer>(*all_, options_);
    const PeerNumber number = test::must((*all_)[0].add_peer(peer->address()));
    std::string memory(300, '-');
    const iovec piece{memory.data(), memory.size()};
    const ReceiveRequest request{.source = number, .tag = 1, .pieces = {&piece, 1}};
    // The messenger has its connection once it has received something by it.
    ASSERT_EQ((*all_)[0].receive(request), PostResult::kPosted);
    all_->done(0).clear();
    peer->send({.sequence = 0, .tag = 1});
    ASSERT_TRUE(all_->until([&] { return !all_->done(0).empty(); }));
    static_cast<void>((*all_)[0].receive(request));
    uint32_t sequence = 1;
    for (int i = 0; i < 30 && (*all_)[0].peer_status(number).ok(); ++i) {
      MessageHeader header;
      header.sequence = random.below(8) == 0 ? static_cast<uint32_t>(random.next()) : sequence++;
      const uint64_t kind = random.below(12);
      header.kind = static_cast<Kind>(kind < 8 ? 1 + kind : 16 + kind - 8);
      header.flags = static_cast<uint8_t>(random.below(16));
      if (random.below(6) == 0) header.ring_credits = static_cast<uint8_t>(random.below(256));
      if (random.below(6) == 0) header.queue_credits = static_cast<uint8_t>(random.below(256));
      header.tag = random.below(3) == 0 ? random.next() : random.below(3);
      std::string rest(random.below(300), '\0');
      for (char& byte : rest) byte = static_cast<char>(random.next());
      if (header.kind == Kind::kOneSided && random.below(2) == 0) {
        // Nearly one that is right.
        const uint64_t bytes = random.below(64);
        rest = request_of({.action = static_cast<OneSidedAction>(random.below(8)),
                           .type = static_cast<uint8_t>(random.below(16)),
                           .operation = static_cast<uint8_t>(random.below(21)),
                           .bytes = random.below(4) == 0 ? random.next() : bytes},
                          {{random.below(80), bytes, random.below(4) == 0 ? key + 1 : key}},
                          std::vector<RemotePiece>(random.below(3), {random.next(), bytes, 5, 0}),
                          std::string(random.below(3) * bytes, 'b'));
      }
      peer->send(header, rest);
      for (int polls = 0; polls < 3; ++polls) all_->poll_all();
    }
    if (!(*all_)[0].peer_status(number).ok()) ++violations;
    peer.reset();
    ASSERT_TRUE(all_->until([&] { return !(*all_)[0].peer_status(number).ok(); }));
  }
  EXPECT_GT(violations, 20u);
  // It still works.
  ASSERT_TRUE(all_->send(0, 0, 1, "to itself"));
}

// A process that has been stopped: its system takes connections, and nothing else happens.
class StoppedPeerTest : public testing::Test {
 protected:
  static constexpr int64_t kHourNs = 3'600'000'000'000;  // a time-out would end the test first
  StoppedPeerTest() : all_(1, {.connect_timeout_ns = kHourNs}) {}

  ControlConnection connect() {
    const MessengerAddress target = all_[0].address();
    return test::must(ControlConnection::connect(host_of(target), port_of(target), all_.secret(),
                                                 kHostilePatienceNs));
  }
  WireWriter hello() {
    MessengerAddress own = all_[0].address();
    secure_random(own.bytes + 24, 8);
    const MessengerAddress target = all_[0].address();
    WireWriter writer;
    connect::begin_step(writer, kLayer, connect::kFirstStepOfLayer, Status::ok_status());
    writer.raw(std::as_bytes(std::span(own.bytes)));
    writer.raw(std::as_bytes(std::span(target.bytes)));
    return writer;
  }
  // Of one that listens.
  MessengerAddress address(uint16_t port) {
    MessengerAddress address = all_[0].address();
    address.bytes[16] = static_cast<uint8_t>(port >> 8);
    address.bytes[17] = static_cast<uint8_t>(port);
    secure_random(address.bytes + 24, 8);
    return address;
  }

  MessengersForTest all_;
};

TEST_F(StoppedPeerTest, DoesNotKeepAMessengerBeforeItsHello) {
  const ControlConnection control = connect();
  // It has been accepted, and the messenger waits for what it says.
  sleep_ns(200'000'000);
  all_.close(0);
}

TEST_F(StoppedPeerTest, DoesNotKeepAMessengerBeforeItsEndpoint) {
  ControlConnection control = connect();
  ASSERT_TRUE(control.send(hello().bytes()).ok());
  static_cast<void>(test::must(control.receive(kHostilePatienceNs)));  // go on
  static_cast<void>(test::must(control.receive(kHostilePatienceNs)));  // the messenger's endpoint
  all_.close(0);
}

TEST_F(StoppedPeerTest, DoesNotKeepAMessengerThatHasConnectedToIt) {
  ControlListener listener = test::must(ControlListener::listen("127.0.0.1", 0, all_.secret()));
  const PeerNumber peer = test::must(all_[0].add_peer(address(listener.port())));
  EXPECT_EQ(all_[0].send({.peer = peer}), PostResult::kWouldBlock);
  ControlConnection control = test::must(listener.accept(kHostilePatienceNs));
  static_cast<void>(test::must(control.receive(kHostilePatienceNs)));  // its hello
  all_.close(0);
}

class SlowlyConnectingTest : public testing::Test {
 protected:
  // Of two messengers: the one whose own connection stays where both connect at once.
  static uint32_t lower_of(MessengersForTest& all) {
    return all[0].address() < all[1].address() ? 0 : 1;
  }
  // Of a peer that has stopped at `listener`.
  static PeerNumber add_stopped(MessengersForTest& all, uint32_t to,
                                const ControlListener& listener) {
    MessengerAddress address = all[to].address();
    address.bytes[16] = static_cast<uint8_t>(listener.port() >> 8);
    address.bytes[17] = static_cast<uint8_t>(listener.port());
    secure_random(address.bytes + 24, 8);
    return test::must(all[to].add_peer(address));
  }
  static ControlListener listen(MessengersForTest& all) {
    return test::must(ControlListener::listen("127.0.0.1", 0, all.secret()));
  }
};

// The lower address first waits for others, longer than a peer waits for an answer.
TEST_F(SlowlyConnectingTest, APeerThatSaysItWillConnectIsWaitedForWhileItLives) {
  MessengersForTest all(2, {.connect_timeout_ns = 2'000'000'000});
  const uint32_t lower = lower_of(all);
  const uint32_t higher = 1 - lower;
  const ControlListener stopped[2] = {listen(all), listen(all)};
  for (const ControlListener& listener : stopped) {
    const PeerNumber peer = add_stopped(all, lower, listener);
    EXPECT_EQ(all[lower].send({.peer = peer}), PostResult::kWouldBlock);
  }
  EXPECT_EQ(all[lower].send({.peer = all.peer(lower, higher)}), PostResult::kWouldBlock);
  EXPECT_TRUE(all.send(higher, lower, 1, "waits"));
  EXPECT_TRUE(all.send(lower, higher, 1, "came"));
}

// And meanwhile others are connected to.
TEST_F(SlowlyConnectingTest, APeerThatSaysItWillConnectDelaysNoOther) {
  MessengersForTest all(3, {.connect_timeout_ns = 3'600'000'000'000});
  const uint32_t lower = lower_of(all);
  const uint32_t higher = 1 - lower;
  const ControlListener stopped = listen(all);
  const PeerNumber peer = add_stopped(all, lower, stopped);
  EXPECT_EQ(all[lower].send({.peer = peer}), PostResult::kWouldBlock);
  EXPECT_EQ(all[lower].send({.peer = all.peer(lower, higher)}), PostResult::kWouldBlock);
  EXPECT_EQ(all[higher].send({.peer = all.peer(higher, lower)}), PostResult::kWouldBlock);
  EXPECT_TRUE(all.send(higher, 2, 1, "is served"));
}

// Its acceptor is kept for longer than the peer has patience, and connects to it afterwards.
TEST_F(SlowlyConnectingTest, WhoGaveUpAPeerTellsItWhenItConnects) {
  MessengersForTest patient(1, {.connect_timeout_ns = 3'600'000'000'000});
  const JobSecret& secret = patient.secret();
  const std::unique_ptr<Messenger> hasty = test::must(open_messenger(
      patient.node().device, patient.node().domain, secret, {.connect_timeout_ns = 200'000'000}));
  const MessengerAddress address = patient[0].address();
  std::optional<ControlConnection> keeps(test::must(
      ControlConnection::connect(host_of(address), port_of(address), secret, kHostilePatienceNs)));
  const PeerNumber lost = test::must(hasty->add_peer(address));
  const PeerNumber there = test::must(patient[0].add_peer(hasty->address()));
  ASSERT_TRUE(patient.until([&] {
    hasty->progress();
    return hasty->send({.peer = lost}) == PostResult::kFailed;
  }));
  keeps.reset();
  // Its first messages may still be posted.
  EXPECT_TRUE(patient.until([&] {
    hasty->progress();
    static_cast<void>(patient[0].send({.peer = there}));
    return !patient[0].peer_status(there).ok();
  }));
  EXPECT_FALSE(hasty->peer_status(lost).ok());
}

// The peer connects and gives up, while the own connection waits for its answer.
TEST_F(SlowlyConnectingTest, AnAttemptOfThePeerThatFailsLeavesTheOwnOne) {
  // Whose address is the higher one: it does not refuse the peer's attempt.
  MessengersForTest all(1, {.host = "127.0.0.2", .connect_timeout_ns = 3'600'000'000'000});
  ControlListener listener = listen(all);
  MessengerAddress own = test::must(place_at("127.0.0.1", listener.port()));
  secure_random(own.bytes + 24, 8);
  const MessengerAddress target = all[0].address();
  const PeerNumber peer = test::must(all[0].add_peer(own));
  EXPECT_EQ(all[0].send({.peer = peer}), PostResult::kWouldBlock);
  const ControlConnection waits = test::must(listener.accept(kHostilePatienceNs));
  // When the second is answered, the first has failed.
  for (int i = 0; i < 2; ++i) {
    ControlConnection gives_up = test::must(ControlConnection::connect(
        host_of(target), port_of(target), all.secret(), kHostilePatienceNs));
    WireWriter hello;
    connect::begin_step(hello, kLayer, connect::kFirstStepOfLayer, Status::ok_status());
    hello.raw(std::as_bytes(std::span(own.bytes)));
    hello.raw(std::as_bytes(std::span(target.bytes)));
    ASSERT_TRUE(gives_up.send(hello.bytes()).ok());
    static_cast<void>(test::must(gives_up.receive(kHostilePatienceNs)));  // go on
  }
  all.poll_all();
  EXPECT_EQ(all[0].send({.peer = peer}), PostResult::kWouldBlock);
  EXPECT_TRUE(all[0].peer_status(peer).ok()) << all[0].peer_status(peer).message();
}

// A process of another release listens where the address says.
TEST(OtherReleaseTest, APeerOfAnotherVersionIsReportedWithBothVersions) {
  MessengersForTest all(1);
  ControlListener listener = test::must(ControlListener::listen("127.0.0.1", 0, all.secret()));
  MessengerAddress address = all[0].address();
  address.bytes[16] = static_cast<uint8_t>(listener.port() >> 8);
  address.bytes[17] = static_cast<uint8_t>(listener.port());
  secure_random(address.bytes + 24, 8);
  Thread answering = start_thread("other release", [&] {
    ControlConnection control = test::must(listener.accept(kHostilePatienceNs));
    static_cast<void>(test::must(control.receive(kHostilePatienceNs)));
    const connect::Layer later{kLayer.name, kLayer.magic,
                               static_cast<uint16_t>(kLayer.version + 1)};
    WireWriter answer;
    connect::begin_step(answer, later, connect::kFirstStepOfLayer + 1, Status::ok_status());
    answer.u8(1);
    EXPECT_TRUE(control.send(answer.bytes()).ok());
    static_cast<void>(control.receive(kHostilePatienceNs));
  });
  const PeerNumber peer = test::must(all[0].add_peer(address));
  ASSERT_TRUE(all.until([&] { return all[0].send({.peer = peer}) == PostResult::kFailed; }));
  EXPECT_EQ(all[0].peer_status(peer).code(), StatusCode::kProtocolViolation);
  EXPECT_NE(all[0].peer_status(peer).message().find("version"), std::string::npos)
      << all[0].peer_status(peer).message();
  answering.join();
}

}  // namespace
}  // namespace verbena::message
