// Inline WRITEs of one piece that leave no completion: most messages of the layers above, which the
// send queue carries out in a way of their own. They obey what all requests obey.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

constexpr size_t kPlace = 4096;  // of the target, within a buffer whose beginning is the source
constexpr uint32_t kMostInline = 256;

class InlineWriteTest : public testing::Test {
 protected:
  void connect(const verbena::test::EndOptions& options = {}) {
    a_.emplace(node_, options);
    b_.emplace(node_, verbena::test::EndOptions{.access = access_});
    verbena::test::connect(*a_, *b_);
  }
  verbena::test::SendRequest write(size_t size_bytes, unsigned flags = 0) {
    return {.id = 9,
            .opcode = IBV_WR_RDMA_WRITE,
            .sges = {buffer_.sge(0, size_bytes)},
            .flags = IBV_SEND_INLINE | flags,
            .remote_address = target_.address(kPlace),
            .rkey = target_.key()};
  }
  int post(const verbena::test::SendRequest& request) {
    return verbena::test::post(a_->qp(), request);
  }
  int poll(ibv_wc* wc) { return ibv_poll_cq(a_->cq(), 1, wc); }
  const QpCounters& counters() { return *as_qp(a_->qp()).counters; }
  // An error completes, whatever was asked for, and nothing is written.
  void expect_refused(const verbena::test::SendRequest& request) {
    ASSERT_EQ(post(request), 0);
    ibv_wc wc{};
    ASSERT_EQ(poll(&wc), 1);
    EXPECT_EQ(wc.wr_id, 9u);
    EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(counters().errors, 1u);
    for (size_t at = 0; at < target_.size(); ++at) ASSERT_EQ(target_.data()[at], std::byte{0});
  }

  unsigned access_ = verbena::test::kAllAccess;
  verbena::test::Node node_;
  verbena::test::Buffer buffer_{node_, 4096};
  verbena::test::Buffer target_{node_, 8192};
  std::optional<verbena::test::End> a_;
  std::optional<verbena::test::End> b_;
};

TEST_F(InlineWriteTest, ArriveWholeAndAreCounted) {
  connect({.send_depth = 512});
  uint64_t bytes = 0;
  for (uint32_t size_bytes = 1; size_bytes <= kMostInline; ++size_bytes) {
    buffer_.fill(size_bytes, 0, size_bytes);
    target_.at<uint8_t>(kPlace + size_bytes) = 0xee;
    ASSERT_EQ(post(write(size_bytes)), 0);
    // The source may change at once.
    buffer_.fill(size_bytes + 1000, 0, size_bytes);
    ASSERT_TRUE(target_.has(size_bytes, kPlace, size_bytes)) << size_bytes;
    ASSERT_EQ(target_.at<uint8_t>(kPlace + size_bytes), 0xee) << size_bytes;
    ASSERT_EQ(target_.data()[kPlace - 1], std::byte{0});
    bytes += size_bytes;
  }
  ibv_wc wc{};
  EXPECT_EQ(poll(&wc), 0);
  EXPECT_EQ(counters().requests[IBV_WR_RDMA_WRITE], kMostInline);
  EXPECT_EQ(counters().bytes, bytes);
  EXPECT_EQ(counters().errors, 0u);
}

TEST_F(InlineWriteTest, TakePlacesThatTheNextCompletionFrees) {
  constexpr uint32_t kDepth = 8;
  connect({.send_depth = kDepth});
  const uint32_t depth = as_qp(a_->qp()).send_depth;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < depth; ++i) ASSERT_EQ(post(write(8)), 0);
    ASSERT_EQ(post(write(8, IBV_SEND_SIGNALED)), 0);
    buffer_.fill(5, 0, 8);
    EXPECT_EQ(post(write(8)), ENOMEM);
    EXPECT_FALSE(target_.has(5, kPlace, 8));
    ibv_wc wc{};
    ASSERT_EQ(poll(&wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    buffer_.fill(0, 0, 8);
    EXPECT_EQ(poll(&wc), 0);
  }
}

TEST_F(InlineWriteTest, CompleteWhereTheQueuePairSaysSo) {
  connect({.signal_all = true});
  ASSERT_EQ(post(write(8)), 0);
  ibv_wc wc{};
  ASSERT_EQ(poll(&wc), 1);
  EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
}

TEST_F(InlineWriteTest, BeyondTheInlineLimitAreRefused) {
  connect({.max_inline_bytes = 64});
  const uint32_t limit_bytes = as_qp(a_->qp()).init.cap.max_inline_data;
  EXPECT_EQ(post(write(limit_bytes)), 0);
  EXPECT_EQ(post(write(limit_bytes + 1)), EINVAL);
  EXPECT_EQ(counters().requests[IBV_WR_RDMA_WRITE], 1u);
}

TEST_F(InlineWriteTest, AreRefusedWithoutAKeyForTheMemory) {
  connect();
  verbena::test::SendRequest wrong = write(8);
  wrong.rkey += 1;
  expect_refused(wrong);
}

TEST_F(InlineWriteTest, AreRefusedBehindTheEndOfTheMemory) {
  connect();
  verbena::test::SendRequest wrong = write(8);
  wrong.remote_address = target_.address(target_.size() - 7);
  expect_refused(wrong);
}

TEST_F(InlineWriteTest, AreRefusedWhereTheMemoryMayNotBeWritten) {
  connect();
  const verbena::test::Buffer constant(node_, 4096, IBV_ACCESS_REMOTE_READ);
  verbena::test::SendRequest wrong = write(8);
  wrong.remote_address = constant.address();
  wrong.rkey = constant.key();
  expect_refused(wrong);
}

TEST_F(InlineWriteTest, AreRefusedWhereThePeerIsNotToBeWrittenTo) {
  access_ = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  connect();
  expect_refused(write(8));
}

// Also by a queue pair that has written there before, and remembers where it is.
TEST_F(InlineWriteTest, AreRefusedOnceTheMemoryIsDeregistered) {
  connect();
  ASSERT_EQ(post(write(8)), 0);
  const verbena::test::SendRequest late = write(8);
  target_.deregister();
  ASSERT_EQ(post(late), 0);
  ibv_wc wc{};
  ASSERT_EQ(poll(&wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(InlineWriteTest, AreFlushedInTheErrorState) {
  connect();
  ASSERT_TRUE(a_->queue_pair().to_error().ok());
  buffer_.fill(5, 0, 8);
  ASSERT_EQ(post(write(8)), 0);
  ibv_wc wc{};
  ASSERT_EQ(poll(&wc), 1);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_FALSE(target_.has(5, kPlace, 8));
}

}  // namespace
}  // namespace verbena::soft
