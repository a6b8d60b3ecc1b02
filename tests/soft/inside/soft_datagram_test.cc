// Datagrams between processes: many senders and one receiver, ends that die at any moment or break
// every rule, multicast groups.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/datagram_end_for_test.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

using soft::test::DatagramEnd;

constexpr size_t kNumberedBytes = 4096;
constexpr size_t kNumberedSlotBytes = soft::kGrhBytes + kNumberedBytes;
constexpr uint32_t kDatagramReceives = 64;

// What each message begins with; its other bytes follow from it.
struct Stamp {
  uint32_t sender;
  uint32_t number;
};

size_t size_of_message(uint32_t number) {
  constexpr size_t kSizes[] = {8, 24, 96, 104, 112, 1000, 4096};
  return kSizes[number % std::size(kSizes)];
}

void fill_message(std::byte* bytes, uint32_t sender, uint32_t number) {
  const size_t size_bytes = size_of_message(number);
  fill_pattern(bytes, size_bytes, uint64_t{sender} << 32 | number);
  const Stamp stamp{sender, number};
  memcpy(bytes, &stamp, sizeof(stamp));
}

bool is_whole(const std::byte* bytes, const Stamp& stamp, size_t size_bytes) {
  std::vector<std::byte> expected(kNumberedBytes);
  fill_message(expected.data(), stamp.sender, stamp.number);
  return size_bytes == size_of_message(stamp.number) &&
         memcmp(bytes, expected.data(), size_bytes) == 0;
}

// A receiver that always has receives posted, and checks what comes.
class Sink {
 public:
  // The first `others` queue pairs of a completion queue are looked at by each poll of it.
  explicit Sink(uint32_t others = 0) {
    for (uint32_t i = 0; i < others; ++i) {
      others_.push_back(std::make_unique<DatagramEnd>(node_, 1, nullptr, cq_.get()));
    }
    end_ = std::make_unique<DatagramEnd>(node_, kDatagramReceives, nullptr, cq_.get());
    for (uint64_t i = 0; i < kDatagramReceives; ++i) post(i);
  }
  DatagramEnd& end() { return *end_; }
  const Node& node() const { return node_; }
  // Polls once; what comes is whole, and in the order of its sender.
  void poll() {
    ibv_wc wc;
    if (ibv_poll_cq(end_->cq(), 1, &wc) == 0) return;
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    const std::byte* bytes = buffer_.data() + wc.wr_id * kNumberedSlotBytes + soft::kGrhBytes;
    Stamp stamp;
    memcpy(&stamp, bytes, sizeof(stamp));
    ASSERT_EQ(stamp.sender, wc.src_qp);
    ASSERT_TRUE(is_whole(bytes, stamp, wc.byte_len - soft::kGrhBytes));
    uint32_t& next = next_[stamp.sender];
    ASSERT_GE(stamp.number, next) << "twice, or out of order";
    next = stamp.number + 1;
    ++count_[stamp.sender];
    post(wc.wr_id);
  }
  uint32_t count(uint32_t sender) { return count_[sender]; }
  // Until so many more have come from `sender`.
  void receive_from(uint32_t sender, uint32_t more) {
    const uint32_t wanted = count_[sender] + more;
    ASSERT_TRUE(wait_until([&] {
      for (int i = 0; i < 100 && !testing::Test::HasFatalFailure(); ++i) poll();
      return testing::Test::HasFatalFailure() || count_[sender] >= wanted;
    })) << "from "
        << sender;
  }
  void post_all() {
    for (uint64_t i = 0; i < kDatagramReceives; ++i) post(i);
  }

 private:
  void post(uint64_t slot) {
    static_cast<void>(post_receive(end_->qp(), slot,
                                   {buffer_.sge(slot * kNumberedSlotBytes, kNumberedSlotBytes)}));
  }
  Node node_;
  Buffer buffer_{node_, kDatagramReceives* kNumberedSlotBytes};
  std::unique_ptr<ibv_cq, int (*)(ibv_cq*)> cq_{
      soft::create_cq(node_.domain.get()->context, 4096, nullptr, nullptr, 0), soft::destroy_cq};
  std::vector<std::unique_ptr<DatagramEnd>> others_;
  std::unique_ptr<DatagramEnd> end_;
  std::map<uint32_t, uint32_t> next_;
  std::map<uint32_t, uint32_t> count_;
};

// Sends numbered messages to the queue pair that it is told.
class Source {
 public:
  DatagramEnd& end() { return end_; }
  const Node& node() const { return node_; }
  // False if it completes otherwise than with success.
  bool send(uint32_t to) {
    fill_message(buffer_.data(), end_.number(), number_);
    if (end_.send({.sges = {buffer_.sge(0, size_of_message(number_))}, .to = to}) != 0)
      return false;
    ++number_;
    return end_.take().status == IBV_WC_SUCCESS;
  }

 private:
  Node node_;
  Buffer buffer_{node_, kNumberedBytes};
  DatagramEnd end_{node_};
  uint32_t number_ = 0;
};

VERBENA_TEST_CHILD(datagram_source) {
  Source source;
  link.put(source.end().number());
  const auto to = link.get<uint32_t>();
  while (!link.readable()) {
    for (int i = 0; i < 16; ++i) {
      if (!source.send(to)) return 1;
    }
  }
  return 0;
}

TEST(DatagramProcessTest, ManySendersReachOneReceiver) {
  Sink sink;
  constexpr size_t kSenders = 5;
  std::vector<std::unique_ptr<Child>> children;
  std::vector<uint32_t> numbers;
  for (size_t i = 0; i < kSenders; ++i) {
    children.push_back(std::make_unique<Child>("datagram_source"));
    numbers.push_back(children.back()->link().get<uint32_t>());
    children.back()->link().put(sink.end().number());
  }
  for (const uint32_t number : numbers) {
    sink.receive_from(number, static_cast<uint32_t>(iterations(200)));
    ASSERT_FALSE(HasFatalFailure());
  }
  for (auto& child : children) {
    child->link().put(true);
    EXPECT_EQ(child->wait(), 0);
  }
}

TEST(DatagramProcessTest, SendersThatAreKilledHoldUpNobody) {
  Sink sink;
  Child steady("datagram_source");
  const auto number = steady.link().get<uint32_t>();
  steady.link().put(sink.end().number());
  sink.receive_from(number, 1);
  Random random(run_seed());
  for (size_t round = 0; round < iterations(20); ++round) {
    Child victim("datagram_source");
    const auto doomed = victim.link().get<uint32_t>();
    victim.link().put(sink.end().number());
    sink.receive_from(doomed, 1 + static_cast<uint32_t>(random.below(50)));
    victim.kill();
    sink.receive_from(number, 2 * soft::DatagramRing::kLookAhead);
    ASSERT_FALSE(HasFatalFailure());
  }
  steady.link().put(true);
  EXPECT_EQ(steady.wait(), 0);
}

// Takes the next position of the ring, as a sender does, and ends before it is filled.
VERBENA_TEST_CHILD(dies_in_the_middle) {
  Source source;
  const auto to = link.get<uint32_t>();
  soft::Destination* destination =
      source.end().inside().destinations->find(*source.end().inside().rnic, to);
  if (destination == nullptr) return 1;
  const uint32_t position = destination->shared->datagram.next_hint.load();
  destination->claims[position & destination->mask].store(
      soft::make_datagram_claim(position, source.end().number()));
  destination->shared->datagram.next_hint.store(position + 1);
  _exit(0);
}

void expect_no_hold_up(Sink& sink) {
  Source source;
  for (int round = 0; round < 5; ++round) {
    Child child("dies_in_the_middle");
    child.link().put(sink.end().number());
    EXPECT_EQ(child.wait(), 0);
    // More than can be taken before its position.
    const uint32_t before = sink.count(source.end().number());
    ASSERT_TRUE(wait_until([&] {
      for (int i = 0; i < 32 && !testing::Test::HasFatalFailure(); ++i) {
        EXPECT_TRUE(source.send(sink.end().number()));
        for (int polls = 0; polls < 100; ++polls) sink.poll();
      }
      return testing::Test::HasFatalFailure() || sink.count(source.end().number()) >= before + 500;
    }));
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
}

TEST(DatagramProcessTest, ASenderThatEndsInTheMiddleHoldsUpNobody) {
  Sink sink;
  expect_no_hold_up(sink);
}

TEST(DatagramProcessTest, ASenderThatEndsInTheMiddleHoldsUpNobodyBehindReadyBits) {
  Sink sink(soft::Cq::kScanned);
  ASSERT_NE(sink.end().inside().ready_bit, soft::kNoReadyBit);
  expect_no_hold_up(sink);
}

// Ends with `count` receives of the other end taken.
VERBENA_TEST_CHILD(takes_and_dies) {
  Source source;
  const auto to = link.get<uint32_t>();
  const auto count = link.get<uint32_t>();
  soft::Destination* destination =
      source.end().inside().destinations->find(*source.end().inside().rnic, to);
  if (destination == nullptr) return 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t position = destination->shared->datagram.next_hint.load();
    destination->claims[position & destination->mask].store(
        soft::make_datagram_claim(position, source.end().number()));
    destination->shared->datagram.next_hint.store(position + 1);
  }
  _exit(0);
}

// No datagram can come then that would show who holds the receives.
void expect_receives_again(Sink& sink) {
  Child child("takes_and_dies");
  child.link().put(sink.end().number());
  child.link().put(kDatagramReceives);
  EXPECT_EQ(child.wait(), 0);
  Source source;
  ASSERT_TRUE(wait_until([&] {
    EXPECT_TRUE(source.send(sink.end().number()));
    sink.poll();
    return testing::Test::HasFatalFailure() || sink.count(source.end().number()) > 0;
  }));
}

TEST(DatagramProcessTest, ReceivesThatKilledSendersHeldAreUsedAgain) {
  Sink sink;
  expect_receives_again(sink);
}

TEST(DatagramProcessTest, ReceivesThatKilledSendersHeldAreUsedAgainBehindReadyBits) {
  Sink sink(soft::Cq::kScanned);
  ASSERT_NE(sink.end().inside().ready_bit, soft::kNoReadyBit);
  expect_receives_again(sink);
}

VERBENA_TEST_CHILD(datagram_sink) {
  Sink sink;
  link.put(sink.end().number());
  while (!link.readable()) sink.poll();
  return testing::Test::HasFatalFailure() ? 1 : 0;
}

TEST(DatagramProcessTest, WhatIsSentToADeadReceiverVanishes) {
  Source source;
  for (int round = 0; round < 3; ++round) {
    Child child("datagram_sink");
    const auto to = child.link().get<uint32_t>();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(source.send(to));
    child.kill();
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(source.send(to));
  }
}

TEST(DatagramProcessTest, NothingOfADeadReceiverStaysMapped) {
  Source source;
  const auto round = [&] {
    Child child("datagram_sink");
    const auto to = child.link().get<uint32_t>();
    ASSERT_TRUE(source.send(to));
    child.kill();
  };
  round();
  const size_t before = open_descriptors();
  for (int i = 0; i < 5; ++i) round();
  EXPECT_TRUE(wait_until([&] { return open_descriptors() <= before; })) << open_descriptors();
}

// Writes anything anywhere where senders can write.
VERBENA_TEST_CHILD(datagram_attacker) {
  Source source;
  const auto to = link.get<uint32_t>();
  Random random(link.get<uint64_t>());
  soft::Destination* destination =
      source.end().inside().destinations->find(*source.end().inside().rnic, to);
  if (destination == nullptr) return 1;
  const uint32_t slots = destination->mask + 1;
  struct Area {
    void* begin;
    size_t size_bytes;
  };
  const Area areas[] = {
      {&destination->shared->datagram, sizeof(soft::DatagramShared)},
      {&destination->shared->connection, sizeof(soft::ConnectionShared)},
      {destination->claims, slots * sizeof(uint64_t)},
      {destination->datagrams, slots * sizeof(soft::Datagram)},
      {destination->payloads, slots * soft::kDatagramPayloadBytes},
      {destination->cq.shared, 2 * soft::kCacheLineBytes},
  };
  link.put(true);
  while (!link.readable()) {
    for (int i = 0; i < 8; ++i) {
      const Area& area = areas[random.below(std::size(areas))];
      auto* words = static_cast<uint32_t*>(area.begin);
      const size_t word = random.below(area.size_bytes / sizeof(uint32_t));
      // What nearly could be is worse than noise.
      const uint32_t value = random.below(2) == 0
                                 ? static_cast<uint32_t>(random.next())
                                 : words[word] + static_cast<uint32_t>(random.below(3)) - 1;
      __atomic_store_n(&words[word], value, __ATOMIC_RELAXED);
    }
    source.send(to);
  }
  return 0;
}

TEST(DatagramProcessTest, ASenderThatBreaksEveryRuleBreaksThatQueuePairAtMost) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  for (uint64_t round = 0; round < 4; ++round) {
    Node node;
    Buffer buffer(node, kDatagramReceives * kNumberedSlotBytes);
    DatagramEnd victim(node, kDatagramReceives);
    Source honest;
    Child child("datagram_attacker");
    child.link().put(victim.number());
    child.link().put(seed + round);
    ASSERT_TRUE(child.link().get<bool>());
    for (size_t step = 0; step < iterations(20'000); ++step) {
      static_cast<void>(post_receive(
          victim.qp(), step % kDatagramReceives,
          {buffer.sge(step % kDatagramReceives * kNumberedSlotBytes, kNumberedSlotBytes)}));
      ASSERT_TRUE(honest.send(victim.number()));
      ibv_wc wc[4];
      const int count = ibv_poll_cq(victim.cq(), 4, wc);
      ASSERT_GE(count, 0);
      for (int i = 0; i < count; ++i) {
        ASSERT_LT(wc[i].wr_id, kDatagramReceives);
        ASSERT_LE(wc[i].byte_len, kNumberedSlotBytes);
      }
    }
    child.link().put(true);
    EXPECT_EQ(child.wait(), 0);
    // Others are not concerned.
    DatagramEnd next(node, kDatagramReceives / 2);
    ASSERT_EQ(post_receive(next.qp(), 1, {buffer.sge(0, kNumberedSlotBytes)}), 0);
    ASSERT_TRUE(honest.send(next.number()));
    EXPECT_EQ(next.take().status, IBV_WC_SUCCESS);
  }
}

ibv_gid test_group() {
  ibv_gid group{};
  group.raw[0] = 0xff;
  group.raw[15] = 1;
  return group;
}
constexpr uint16_t kGroupLid = 0xc001;

VERBENA_TEST_CHILD(group_member) {
  Node node;
  Buffer buffer(node, kDatagramReceives * kNumberedSlotBytes);
  DatagramEnd end(node, kDatagramReceives);
  for (uint64_t i = 0; i < kDatagramReceives; ++i) {
    if (post_receive(end.qp(), i, {buffer.sge(i * kNumberedSlotBytes, kNumberedSlotBytes)}) != 0)
      return 1;
  }
  const ibv_gid group = test_group();
  if (soft::attach_mcast(end.qp(), &group, kGroupLid) != 0) return 2;
  link.put(true);
  while (!link.readable()) {
    ibv_wc wc;
    if (ibv_poll_cq(end.cq(), 1, &wc) != 0) link.put(wc.byte_len);
  }
  return 0;
}

TEST(DatagramProcessTest, GroupsReachTheirMembersInAllProcesses) {
  Node node;
  Buffer buffer(node, 4096);
  DatagramEnd sender(node);
  const ibv_gid group = test_group();
  ibv_ah_attr attributes{};
  attributes.port_num = 1;
  attributes.dlid = kGroupLid;
  attributes.is_global = 1;
  attributes.grh.dgid = group;
  ibv_ah* handle = soft::create_ah(node.domain.get(), &attributes);
  ASSERT_NE(handle, nullptr);
  const auto send = [&](uint32_t size_bytes) {
    ASSERT_EQ(sender.send({.sges = {buffer.sge(0, size_bytes)},
                           .to = soft::kMulticastQpNumber,
                           .handle = handle}),
              0);
    EXPECT_EQ(sender.take().status, IBV_WC_SUCCESS);
  };
  send(1);  // to nobody
  Child one("group_member");
  ASSERT_TRUE(one.link().get<bool>());
  send(2);
  EXPECT_EQ(one.link().get<uint32_t>(), soft::kGrhBytes + 2);
  Child two("group_member");
  ASSERT_TRUE(two.link().get<bool>());
  send(3);
  EXPECT_EQ(one.link().get<uint32_t>(), soft::kGrhBytes + 3);
  EXPECT_EQ(two.link().get<uint32_t>(), soft::kGrhBytes + 3);
  one.kill();
  send(4);
  EXPECT_EQ(two.link().get<uint32_t>(), soft::kGrhBytes + 4);
  two.link().put(true);
  EXPECT_EQ(two.wait(), 0);
  send(5);
  EXPECT_EQ(soft::destroy_ah(handle), 0);
}

}  // namespace
}  // namespace verbena::soft_test
