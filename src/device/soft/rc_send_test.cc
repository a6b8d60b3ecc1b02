// SENDs that travel in their packet: most messages of programs, which the send queue and the
// receiver's poll carry out in ways of their own. They obey what all requests obey.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

using verbena::test::EndOptions;
using verbena::test::SendRequest;

constexpr size_t kSendOffset = 4096;  // in the sender's buffer

class ShortSendTest : public testing::Test {
 protected:
  void connect(const EndOptions& sender = {}, const EndOptions& receiver = {},
               const ReliabilityOptions& reliability = {}) {
    a_.emplace(node_, sender);
    b_.emplace(node_, receiver);
    verbena::test::connect(*a_, *b_, reliability);
    // The first arrival tells that the connection is in use, and goes the general way.
    receive(64);
    ASSERT_EQ(post(send(8)), 0);
    ASSERT_EQ(poll(*b_).status, IBV_WC_SUCCESS);
    ASSERT_EQ(poll(*a_).status, IBV_WC_SUCCESS);
  }
  SendRequest send(uint32_t size_bytes, unsigned flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED) {
    return {.id = 9, .sges = {buffer_.sge(kSendOffset, size_bytes)}, .flags = flags};
  }
  int post(const SendRequest& request) { return verbena::test::post(a_->qp(), request); }
  void receive(uint32_t size_bytes, uint64_t id = 5) {
    ASSERT_EQ(verbena::test::post_receive(b_->qp(), id, {landing_.sge(0, size_bytes)}), 0);
  }
  // The next completion; with the opcode IBV_WC_DRIVER1 if there is none.
  static ibv_wc poll(const verbena::test::End& end) {
    ibv_wc wc{};
    wc.opcode = IBV_WC_DRIVER1;
    EXPECT_GE(ibv_poll_cq(end.cq(), 1, &wc), 0);
    return wc;
  }
  static void expect_nothing(const verbena::test::End& end) {
    EXPECT_EQ(poll(end).opcode, IBV_WC_DRIVER1);
  }
  static const QpCounters& counters(const verbena::test::End& end) {
    return *as_qp(end.qp()).counters;
  }
  // The packet that the receiver's poll will look at.
  Packet& next_packet() {
    const PacketRing& ring = as_qp(b_->qp()).arrivals;
    return ring.packet(ring.next);
  }
  // What the receiver makes of a packet that no sender writes.
  void expect_distrusted() {
    const ibv_wc wc = poll(*b_);
    EXPECT_EQ(wc.wr_id, 5u);
    EXPECT_EQ(wc.status, IBV_WC_LOC_LEN_ERR);
    EXPECT_EQ(counters(*b_).receive_errors, 1u);
    for (size_t at = 64; at < landing_.size(); ++at) ASSERT_EQ(landing_.data()[at], std::byte{0});
  }

  verbena::test::Node node_;
  verbena::test::Buffer buffer_{node_, 8192};
  verbena::test::Buffer landing_{node_, 4096};
  std::optional<verbena::test::End> a_;
  std::optional<verbena::test::End> b_;
};

// As RNICs: what takes the place of gather entries is there without being asked for.
TEST_F(ShortSendTest, InlineDataHasTheRoomOfTheGatherEntries) {
  for (const uint32_t sges : {1u, 4u, kMaxSges}) {
    const EndOptions options{.max_sges = sges, .max_inline_bytes = 0};
    connect(options);
    ibv_qp_attr now{};
    ibv_qp_init_attr made{};
    ASSERT_EQ(node_.control().query_qp(a_->qp(), &now, IBV_QP_CAP, &made), 0);
    EXPECT_EQ(made.cap.max_inline_data, sges * sizeof(ibv_sge));
    EXPECT_EQ(now.cap.max_inline_data, made.cap.max_inline_data);
    receive(512);
    ASSERT_EQ(post(send(made.cap.max_inline_data)), 0);
    EXPECT_EQ(poll(*b_).byte_len, made.cap.max_inline_data);
    EXPECT_NE(post(send(made.cap.max_inline_data + 1)), 0);
    a_.reset();
    b_.reset();
  }
}

TEST_F(ShortSendTest, ArriveWholeAndAreCounted) {
  connect();
  for (const unsigned flags : {unsigned{IBV_SEND_INLINE}, 0u}) {
    for (uint32_t size_bytes = 1; size_bytes <= 256; ++size_bytes) {
      const uint64_t before = counters(*b_).received_bytes;
      buffer_.fill(size_bytes, kSendOffset, size_bytes);
      landing_.at<uint8_t>(size_bytes) = 0xee;
      receive(size_bytes, size_bytes);
      ASSERT_EQ(post(send(size_bytes, flags)), 0);
      if (flags != 0) buffer_.fill(1000, kSendOffset, size_bytes);
      const ibv_wc wc = poll(*b_);
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.opcode, IBV_WC_RECV);
      EXPECT_EQ(wc.wr_id, size_bytes);
      EXPECT_EQ(wc.byte_len, size_bytes);
      EXPECT_EQ(wc.qp_num, b_->qp()->qp_num);
      EXPECT_EQ(wc.src_qp, a_->qp()->qp_num);
      EXPECT_EQ(wc.wc_flags, 0u);
      EXPECT_EQ(counters(*b_).received_bytes, before + size_bytes);
      ASSERT_TRUE(landing_.has(size_bytes, 0, size_bytes)) << size_bytes;
      ASSERT_EQ(landing_.at<uint8_t>(size_bytes), 0xee) << size_bytes;
      if (size_bytes % 64 == 0) {
        receive(8);
        ASSERT_EQ(post(send(8)), 0);
        ASSERT_EQ(poll(*b_).status, IBV_WC_SUCCESS);
        ASSERT_EQ(poll(*a_).status, IBV_WC_SUCCESS);
      }
      expect_nothing(*a_);
    }
  }
  EXPECT_EQ(counters(*a_).requests[IBV_WR_SEND], 2 * 256 + 2 * 4 + 1u);
  EXPECT_EQ(counters(*a_).bytes, counters(*b_).received_bytes);
  EXPECT_EQ(counters(*a_).errors, 0u);
}

TEST_F(ShortSendTest, AreGatheredAndScattered) {
  connect();
  buffer_.fill(7, kSendOffset, 100);
  for (const unsigned flags : {unsigned{IBV_SEND_INLINE}, 0u}) {
    SendRequest request = send(10, flags | IBV_SEND_SIGNALED);
    request.sges = {buffer_.sge(kSendOffset, 24), buffer_.sge(kSendOffset + 24, 0),
                    buffer_.sge(kSendOffset + 24, 8), buffer_.sge(kSendOffset + 32, 68)};
    ASSERT_EQ(verbena::test::post_receive(
                  b_->qp(), 5, {landing_.sge(0, 56), landing_.sge(1000, 0), landing_.sge(56, 50)}),
              0);
    ASSERT_EQ(post(request), 0);
    EXPECT_EQ(poll(*b_).byte_len, 100u);
    EXPECT_TRUE(landing_.has(7, 0, 100));
    EXPECT_EQ(poll(*a_).status, IBV_WC_SUCCESS);
    std::fill_n(landing_.data(), 100, std::byte{0});
  }
}

TEST_F(ShortSendTest, CompleteWhereThatIsAskedFor) {
  connect({.signal_all = true});
  receive(8);
  ASSERT_EQ(post(send(8, IBV_SEND_INLINE)), 0);
  const ibv_wc wc = poll(*a_);
  EXPECT_EQ(wc.opcode, IBV_WC_SEND);
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  expect_nothing(*a_);
}

TEST_F(ShortSendTest, TakePlacesThatTheNextCompletionFrees) {
  connect({.send_depth = 8});
  const uint32_t depth = as_qp(a_->qp()).send_depth;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < depth; ++i) {
      receive(8);
      ASSERT_EQ(post(send(8, IBV_SEND_INLINE)), 0);
    }
    receive(8);
    ASSERT_EQ(post(send(8)), 0);
    EXPECT_EQ(post(send(8)), ENOMEM);
    for (uint32_t i = 0; i < depth; ++i) ASSERT_EQ(poll(*b_).status, IBV_WC_SUCCESS);
    expect_nothing(*b_);
    EXPECT_EQ(poll(*a_).status, IBV_WC_SUCCESS);
  }
}

TEST_F(ShortSendTest, BeyondTheInlineLimitAreRefused) {
  connect({.max_inline_bytes = 64});
  const uint32_t limit_bytes = as_qp(a_->qp()).init.cap.max_inline_data;
  ASSERT_LT(limit_bytes, kPacketInlineBytes);
  receive(limit_bytes);
  EXPECT_EQ(post(send(limit_bytes + 1)), EINVAL);
  SendRequest halves = send(8);
  halves.sges = {buffer_.sge(0, limit_bytes), buffer_.sge(0, 1)};
  EXPECT_EQ(post(halves), EINVAL);
  expect_nothing(*b_);
  EXPECT_EQ(post(send(limit_bytes)), 0);
  EXPECT_EQ(poll(*b_).byte_len, limit_bytes);
}

TEST_F(ShortSendTest, WithMorePiecesThanTheQueuePairHasAreRefused) {
  connect({.max_sges = 2});
  receive(64);
  SendRequest pieces = send(8);
  pieces.sges = {buffer_.sge(0, 8), buffer_.sge(8, 8), buffer_.sge(16, 8)};
  EXPECT_EQ(post(pieces), EINVAL);
  expect_nothing(*b_);
}

TEST_F(ShortSendTest, LongerThanTheReceiveFailBothEnds) {
  connect();
  receive(15);
  ASSERT_EQ(post(send(16)), 0);
  EXPECT_EQ(poll(*a_).status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(poll(*b_).status, IBV_WC_LOC_LEN_ERR);
}

// The shortest receive ever decides whether a SEND may skip reading its own one.
TEST_F(ShortSendTest, MeetTheirOwnReceive) {
  connect();
  receive(4, 1);
  receive(64, 2);
  ASSERT_EQ(post(send(4)), 0);
  ASSERT_EQ(post(send(64)), 0);
  EXPECT_EQ(poll(*b_).wr_id, 1u);
  const ibv_wc wc = poll(*b_);
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(wc.byte_len, 64u);
}

TEST_F(ShortSendTest, NeedAKeyForTheirSource) {
  connect();
  receive(64);
  SendRequest wrong = send(8, IBV_SEND_SIGNALED);
  wrong.sges[0].lkey += 1;
  ASSERT_EQ(post(wrong), 0);
  EXPECT_EQ(poll(*a_).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_NE(poll(*b_).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(counters(*b_).received, 1u);
}

// What was copied into the packet before the second piece was looked at goes nowhere.
TEST_F(ShortSendTest, NeedKeysForAllPieces) {
  connect();
  receive(64);
  SendRequest wrong = send(8, IBV_SEND_SIGNALED);
  wrong.sges.push_back(buffer_.sge(buffer_.size() - 4, 8));
  ASSERT_EQ(post(wrong), 0);
  EXPECT_EQ(poll(*a_).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(counters(*b_).received, 1u);
}

TEST_F(ShortSendTest, WaitForAReceiveInTheirOrder) {
  connect();
  for (uint64_t i = 1; i <= 3; ++i) {
    buffer_.at<uint64_t>(kSendOffset) = i;
    ASSERT_EQ(post(send(8)), 0);
  }
  expect_nothing(*b_);
  for (uint64_t i = 1; i <= 3; ++i) {
    receive(8, i);
    ibv_wc wc{};
    while (ibv_poll_cq(a_->cq(), 1, &wc) == 0) {
    }
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(poll(*b_).wr_id, i);
    EXPECT_EQ(landing_.at<uint64_t>(0), i);
  }
}

TEST_F(ShortSendTest, AreRefusedByMemoryThatWasDeregistered) {
  connect();
  receive(64);
  ASSERT_EQ(post(send(8)), 0);
  landing_.deregister();
  EXPECT_EQ(poll(*b_).status, IBV_WC_LOC_PROT_ERR);
}

TEST_F(ShortSendTest, AreFlushedInTheErrorState) {
  connect();
  receive(64);
  ASSERT_TRUE(a_->queue_pair().to_error().ok());
  ASSERT_EQ(post(send(8)), 0);
  EXPECT_EQ(poll(*a_).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(counters(*b_).received, 1u);
}

TEST_F(ShortSendTest, WakeThoseWhoWaitForSolicitedArrivals) {
  connect({}, {.with_channel = true});
  const auto has_event = [&] { return b_->channel().wait(0).ok(); };
  receive(64);
  receive(64);
  ASSERT_EQ(ibv_req_notify_cq(b_->cq(), 1), 0);
  ASSERT_EQ(post(send(8)), 0);
  EXPECT_NE(as_cq(b_->cq()).shared->armed.load(), 0u);
  ASSERT_EQ(post(send(8, IBV_SEND_INLINE | IBV_SEND_SOLICITED)), 0);
  EXPECT_EQ(as_cq(b_->cq()).shared->armed.load(), 0u);
  EXPECT_TRUE(has_event());
}

// One at a time, own completions and arrivals take turns: those that arrive in their packet, and
// longer ones, which the poll leaves to its general way.
TEST_F(ShortSendTest, TakeTurnsWithOwnCompletions) {
  connect();
  for (const uint32_t size_bytes : {8u, 200u}) {
    for (int i = 0; i < 3; ++i) {
      receive(size_bytes);
      ASSERT_EQ(post(send(size_bytes)), 0);
      ASSERT_EQ(verbena::test::post(b_->qp(), {.id = 7,
                                               .opcode = IBV_WR_RDMA_WRITE,
                                               .sges = {landing_.sge(0, 8)},
                                               .remote_address = buffer_.address(0),
                                               .rkey = buffer_.key()}),
                0);
    }
    ibv_wc_opcode last = poll(*b_).opcode;
    for (int i = 1; i < 6; ++i) {
      const ibv_wc_opcode opcode = poll(*b_).opcode;
      EXPECT_TRUE(opcode == IBV_WC_RECV || opcode == IBV_WC_RDMA_WRITE);
      EXPECT_NE(opcode, last) << size_bytes << " B, poll " << i;
      last = opcode;
    }
    expect_nothing(*b_);
  }
}

// Own completions that fill each poll leave the next one to what has arrived.
TEST_F(ShortSendTest, TakeTurnsWithManyOwnCompletions) {
  connect();
  receive(8);
  ASSERT_EQ(post(send(8)), 0);
  constexpr int kMost = 4;
  int arrivals = 0;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kMost; ++i) {
      ASSERT_EQ(verbena::test::post(b_->qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                               .sges = {landing_.sge(0, 8)},
                                               .remote_address = buffer_.address(0),
                                               .rkey = buffer_.key()}),
                0);
    }
    ibv_wc wc[kMost]{};
    ASSERT_EQ(ibv_poll_cq(b_->cq(), kMost, wc), kMost);
    for (const ibv_wc& completion : wc) arrivals += completion.opcode == IBV_WC_RECV ? 1 : 0;
  }
  EXPECT_EQ(arrivals, 1);
}

TEST_F(ShortSendTest, ArriveManyAtATime) {
  connect();
  for (uint64_t i = 1; i <= 20; ++i) {
    receive(8, i);
    ASSERT_EQ(post(send(8, IBV_SEND_INLINE)), 0);
  }
  ibv_wc wc[32]{};
  ASSERT_EQ(ibv_poll_cq(b_->cq(), 32, wc), 20);
  for (uint64_t i = 1; i <= 20; ++i) EXPECT_EQ(wc[i - 1].wr_id, i);
}

// What another process writes into the ring is not believed.
TEST_F(ShortSendTest, OfMoreBytesThanAPacketHasAreDistrusted) {
  connect();
  receive(4096);
  ASSERT_EQ(post(send(64)), 0);
  next_packet().inline_bytes = kPacketInlineBytes + 1;
  next_packet().byte_count = kPacketInlineBytes + 1;
  expect_distrusted();
}

TEST_F(ShortSendTest, OfAnotherLengthThanTheirPacketSaysAreDistrusted) {
  connect();
  receive(4096);
  ASSERT_EQ(post(send(64)), 0);
  next_packet().byte_count = 65;
  expect_distrusted();
}

TEST_F(ShortSendTest, LongerThanTheReceiveTheyClaimAreDistrusted) {
  connect();
  receive(64);
  ASSERT_EQ(post(send(64)), 0);
  next_packet().inline_bytes = 65;
  next_packet().byte_count = 65;
  expect_distrusted();
}

TEST_F(ShortSendTest, WithoutAReceiveAreDistrusted) {
  connect();
  // No sender comes so far: a mark without a receive behind it.
  Packet& packet = next_packet();
  packet.kind = kPacketSend;
  packet.inline_bytes = 8;
  packet.byte_count = 8;
  packet.mark.store(as_qp(b_->qp()).arrivals.next + 1);
  expect_nothing(*b_);
  EXPECT_EQ(as_qp(b_->qp()).state.load(), IBV_QPS_ERR);
}

}  // namespace
}  // namespace verbena::soft
