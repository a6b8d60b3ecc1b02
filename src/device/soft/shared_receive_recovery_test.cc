// A peer may die between any two stores of its taking a shared receive. Each place is staged here
// by doing the stores up to there by hand; then the queue must have its full depth again.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <ostream>
#include <set>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/soft/control.h"
#include "src/device/soft/flight.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/peer_receives.h"
#include "src/device/verbs_for_test.h"
#include "verbena/device.h"

namespace verbena::soft {
namespace {

using verbena::test::connect;
using verbena::test::End;
using verbena::test::must;

constexpr uint64_t kPatienceNs = 120'000'000'000;
constexpr size_t kSlotBytes = 64;

enum class Death { kBeforeClaim, kClaimed, kHeadMoved, kPacketWritten, kPacketMarked };
std::ostream& operator<<(std::ostream& out, Death death) {
  const char* const names[] = {"BeforeClaim", "Claimed", "HeadMoved", "PacketWritten",
                               "PacketMarked"};
  return out << names[static_cast<int>(death)];
}

class SharedReceiveRecoveryTest : public testing::TestWithParam<std::tuple<Death, uint32_t>> {
 protected:
  std::unique_ptr<End> make_end(const SharedReceiveQueue* srq) const {
    return std::make_unique<End>(node_, verbena::test::EndOptions{.shared_receive_queue = srq});
  }
  ibv_sge sge(uint64_t slot, uint32_t length_bytes) const {
    return {reinterpret_cast<uint64_t>(memory_.data()) + slot * kSlotBytes, length_bytes,
            region_.lkey()};
  }
  int post(uint64_t slot) {
    return verbena::test::post_receive(srq_.get(), slot, {sge(slot, kSlotBytes)});
  }
  void send(End& end) {
    ASSERT_EQ(verbena::test::post(end.qp(), {.sges = {sge(depth(), 8)}}), 0);
    ASSERT_EQ(take(end).status, IBV_WC_SUCCESS);
  }
  static ibv_wc take(End& end) {
    const uint64_t start_ns = now_ns();
    ibv_wc wc{};
    Waiter waiter;
    while (ibv_poll_cq(end.cq(), 1, &wc) == 0) {
      if (now_ns() - start_ns > kPatienceNs) {
        ADD_FAILURE() << "no completion";
        wc.status = IBV_WC_GENERAL_ERR;
        return wc;
      }
      waiter.idle();
    }
    return wc;
  }

  Death death() const { return std::get<0>(GetParam()); }
  uint32_t depth() const { return std::get<1>(GetParam()); }

  // What take_shared_receive() and publish_packet() do, up to the death.
  void die_while_sending(Qp& receiver) {
    Srq& srq = as_srq(srq_.get());
    const uint64_t position = srq.shared->head.load();
    ASSERT_NE(position, srq.shared->tail.load());
    const auto index = static_cast<uint16_t>(srq.ring[position & srq.ring_mask].load());
    if (death() == Death::kBeforeClaim) return;
    srq.shared_receive(index).claim.store(make_claim(position, receiver.number));
    if (death() == Death::kClaimed) return;
    srq.shared->head.store(position + 1);
    if (death() == Death::kHeadMoved) return;
    Packet& packet = receiver.arrivals.packet(receiver.arrivals.next);
    packet.byte_count = 0;
    packet.receive_index = index;
    packet.kind = kPacketSend;
    packet.inline_bytes = 0;
    if (death() == Death::kPacketWritten) return;
    packet.mark.store(receiver.arrivals.next + 1);
  }

  verbena::test::Node node_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(kSlotBytes * (depth() + 1));
  MemoryRegion region_ = must(MemoryRegion::create(node_.domain, memory_.data(), memory_.size(),
                                                   verbena::test::kAllAccess));
  SharedReceiveQueue srq_ =
      must(SharedReceiveQueue::create(node_.domain, {.depth_wrs = depth(), .max_sges = 1}));
};

std::string name_of(const testing::TestParamInfo<std::tuple<Death, uint32_t>>& info) {
  const auto [death, depth] = info.param;
  return testing::PrintToString(death) + "Depth" + std::to_string(depth);
}

INSTANTIATE_TEST_SUITE_P(Deaths, SharedReceiveRecoveryTest,
                         testing::Combine(testing::Values(Death::kBeforeClaim, Death::kClaimed,
                                                          Death::kHeadMoved, Death::kPacketWritten,
                                                          Death::kPacketMarked),
                                          testing::Values(1u, 2u, 3u, 4u, 8u)),
                         name_of);

TEST_P(SharedReceiveRecoveryTest, TheQueueKeepsItsFullDepth) {
  const auto sender = make_end(nullptr);
  const auto receiver = make_end(&srq_);
  const auto other_sender = make_end(nullptr);
  const auto other_receiver = make_end(&srq_);
  connect(*sender, *receiver);
  connect(*other_sender, *other_receiver);
  std::set<uint64_t> posted;
  for (uint64_t slot = 0; slot < depth(); ++slot) {
    ASSERT_EQ(post(slot), 0);
    posted.insert(slot);
  }
  for (int round = 0; round < 5; ++round) {
    die_while_sending(as_qp(receiver->qp()));
    reclaim_shared_receives(as_qp(receiver->qp()), false);
    if (death() == Death::kPacketMarked) {
      // It got as far as to deliver, so this is delivered.
      const ibv_wc wc = take(*receiver);
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(posted.erase(wc.wr_id), 1u);
      ASSERT_EQ(post(wc.wr_id), 0);
      posted.insert(wc.wr_id);
    }
    // The owner thinks that all are posted, and all can be used, each once.
    ASSERT_EQ(posted.size(), depth());
    ASSERT_EQ(post(depth()), ENOMEM);
    for (uint32_t i = 0; i < depth(); ++i) {
      send(*other_sender);
      const ibv_wc wc = take(*other_receiver);
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(posted.erase(wc.wr_id), 1u) << "receive " << wc.wr_id;
    }
    for (uint64_t slot = 0; slot < depth(); ++slot) {
      ASSERT_EQ(post(slot), 0);
      posted.insert(slot);
    }
    // The next round's victim stands at the same place as if nothing had been.
    if (death() == Death::kPacketWritten) {
      ibv_wc wc;
      ASSERT_EQ(ibv_poll_cq(receiver->cq(), 1, &wc), 0);
    }
  }
}

// The one that helps may be another sender that finds the claimed WQE at the head.
TEST_P(SharedReceiveRecoveryTest, OtherSendersPassADeadOne) {
  const auto sender = make_end(nullptr);
  const auto receiver = make_end(&srq_);
  const auto other_sender = make_end(nullptr);
  const auto other_receiver = make_end(&srq_);
  connect(*sender, *receiver);
  connect(*other_sender, *other_receiver);
  for (uint64_t slot = 0; slot < depth(); ++slot) ASSERT_EQ(post(slot), 0);
  die_while_sending(as_qp(receiver->qp()));
  const uint32_t free = death() == Death::kBeforeClaim ? depth() : depth() - 1;
  for (uint32_t i = 0; i < free; ++i) {
    send(*other_sender);
    ASSERT_EQ(take(*other_receiver).status, IBV_WC_SUCCESS);
  }
  reclaim_shared_receives(as_qp(receiver->qp()), false);
  if (death() == Death::kBeforeClaim) return;
  if (death() != Death::kPacketMarked) send(*other_sender);
  EXPECT_EQ(take(death() == Death::kPacketMarked ? *receiver : *other_receiver).status,
            IBV_WC_SUCCESS);
}

// A queue pair that sends to another one of the same shared receive queue than before is in the
// middle of a message when the one before takes back what was left to it.
TEST(SharedReceiveOwnersTest, TakeBackNothingThatAnotherQueuePairReceives) {
  const verbena::test::Node node;
  verbena::test::Buffer buffer(node, 4096);
  const auto srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 4, .max_sges = 1}));
  const auto make_end = [&](const SharedReceiveQueue* receives) {
    return std::make_unique<End>(node, verbena::test::EndOptions{.shared_receive_queue = receives});
  };
  auto before = make_end(&srq);
  const auto now = make_end(&srq);
  const auto sender = make_end(nullptr);
  connect(*sender, *before);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(modify_qp(sender->qp(), &attributes, IBV_QP_STATE), 0);
  must(sender->queue_pair().init(verbena::test::kAllAccess));
  connect(*sender, *now);
  ASSERT_EQ(verbena::test::post_receive(srq.get(), 7, {buffer.sge(0, kSlotBytes)}), 0);

  Qp& sending = as_qp(sender->qp());
  Taken taken;
  ASSERT_TRUE(take_receive(sending, taken));
  reclaim_shared_receives(as_qp(before->qp()), false);
  before.reset();
  {
    Flight flight(sending);
    publish_packet(sending, kPacketSend, taken, 0, 0, 0);
  }
  ibv_wc wc{};
  ASSERT_EQ(ibv_poll_cq(now->cq(), 1, &wc), 1);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  // Nor is it there twice.
  EXPECT_FALSE(take_receive(sending, taken));
}

// A sender that delivers to one queue pair of the shared receive queue, is reset, and goes on with
// another one. The first keeps what has arrived at it, whatever happens to the second.
class MovedSenderTest : public SharedReceiveRecoveryTest {
 protected:
  void SetUp() override {
    connect(*sender_, *first_);
    for (uint64_t slot = 0; slot < depth(); ++slot) ASSERT_EQ(post(slot), 0);
    send(*sender_);  // not polled yet
    set_to_reset(*sender_);
    must(sender_->queue_pair().init(verbena::test::kAllAccess));
    connect(*sender_, *second_);
    connect(*other_sender_, *other_receiver_);
  }
  static void set_to_reset(End& end) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    ASSERT_EQ(modify_qp(end.qp(), &attributes, IBV_QP_STATE), 0);
  }
  // What was not taken back by mistake is there for other senders, and no more.
  void use_the_others(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      send(*other_sender_);
      const ibv_wc wc = take(*other_receiver_);
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_NE(wc.wr_id, 0u) << "the receive of another message";
    }
    Srq& srq = as_srq(srq_.get());
    EXPECT_EQ(srq.shared->head.load(), srq.shared->tail.load());
  }
  std::unique_ptr<End> sender_ = make_end(nullptr);
  std::unique_ptr<End> first_ = make_end(&srq_);
  std::unique_ptr<End> second_ = make_end(&srq_);
  std::unique_ptr<End> other_sender_ = make_end(nullptr);
  std::unique_ptr<End> other_receiver_ = make_end(&srq_);
};

INSTANTIATE_TEST_SUITE_P(Depths, MovedSenderTest,
                         testing::Combine(testing::Values(Death::kPacketMarked),
                                          testing::Values(1u, 2u, 4u)),
                         name_of);

TEST_P(MovedSenderTest, AResetOfTheSecondLeavesTheFirstItsMessage) {
  set_to_reset(*second_);
  use_the_others(depth() - 1);
  const ibv_wc wc = take(*first_);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 0u);
}

TEST_P(MovedSenderTest, SoDoesTheEndOfTheSecondsPeer) {
  reclaim_shared_receives(as_qp(second_->qp()), false);
  use_the_others(depth() - 1);
  EXPECT_EQ(take(*first_).status, IBV_WC_SUCCESS);
}

TEST_P(MovedSenderTest, AResetOfTheFirstTakesBackItsOwnMessageOnly) {
  if (depth() > 1) send(*sender_);
  set_to_reset(*first_);
  if (depth() > 1) {
    EXPECT_EQ(take(*second_).status, IBV_WC_SUCCESS);
  }
  ASSERT_EQ(post(depth()), depth() > 1 ? 0 : ENOMEM);
  for (uint32_t i = 0; i < depth(); ++i) {
    send(*other_sender_);
    EXPECT_EQ(take(*other_receiver_).status, IBV_WC_SUCCESS);
  }
}

// On a network, a queue pair may be connected before its peer is there.
TEST(SharedReceiveTest, APeerThatCameLaterGivesReceivesBackToo) {
  const verbena::test::Node node;
  verbena::test::Buffer buffer(node, 4096);
  const SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 1}));
  End a(node, {.shared_receive_queue = &srq});
  ASSERT_EQ(verbena::test::post_receive(srq.get(), 1, {buffer.sge(0, 64)}), 0);
  QueuePairAddress next = a.address();
  ++next.queue_pair_number;
  a.connect(next);
  End b(node);
  ASSERT_EQ(b.address().queue_pair_number, next.queue_pair_number);
  b.connect(a.address());
  ASSERT_EQ(verbena::test::post(b.qp(), {.sges = {buffer.sge(64, 8)}}), 0);
  const SrqShared& shared = *as_srq(srq.get()).shared;
  ASSERT_EQ(shared.tail.load() - shared.head.load(), 0u);
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(modify_qp(a.qp(), &attributes, IBV_QP_STATE), 0);
  EXPECT_EQ(shared.tail.load() - shared.head.load(), 1u);
}

}  // namespace
}  // namespace verbena::soft
