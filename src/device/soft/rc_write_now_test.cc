// WRITEs that the caller carries out itself, without a work request: they obey what posted ones
// obey, and leave to those what they cannot do.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "src/base/runtime.h"
#include "src/device/soft/objects.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

class WriteNowTest : public testing::Test {
 protected:
  static constexpr size_t kPlace = 4096;  // of the target

  void connect(unsigned access = verbena::test::kAllAccess) {
    a_.emplace(node_);
    b_.emplace(node_, verbena::test::EndOptions{.access = access});
    verbena::test::connect(*a_, *b_);
    // The first request opens the peer's gate.
    ASSERT_EQ(verbena::test::post(a_->qp(), {.id = 1, .sges = {buffer_.sge(0, 8)}}), 0);
    ASSERT_EQ(verbena::test::post_receive(b_->qp(), 2, {buffer_.sge(8, 8)}), 0);
    ASSERT_EQ(take(), IBV_WC_SUCCESS);
    write_now_ = node_.device.control().write_now(a_->qp());
    ASSERT_NE(write_now_, nullptr);
  }
  // The next completion of `a_`.
  ibv_wc_status take() {
    ibv_wc wc{};
    Waiter waiter;
    while (ibv_poll_cq(a_->cq(), 1, &wc) == 0) waiter.idle();
    return wc.status;
  }
  bool has_none() {
    ibv_wc wc{};
    return ibv_poll_cq(a_->cq(), 1, &wc) == 0;
  }
  bool write(size_t size_bytes, uint64_t address, uint32_t key, uint64_t next = 0) {
    return write_now_(a_->qp(), buffer_.data(), static_cast<uint32_t>(size_bytes), address, key,
                      next);
  }
  bool write(size_t size_bytes) {
    return write(size_bytes, target_.address(kPlace), target_.key());
  }
  // Nobody has seen anything of it.
  void expect_left_to_others(size_t size_bytes, uint64_t address, uint32_t key) {
    EXPECT_FALSE(write(size_bytes, address, key));
    for (size_t at = 0; at < target_.size(); ++at) ASSERT_EQ(target_.data()[at], std::byte{0});
    EXPECT_EQ(counters().requests[IBV_WR_RDMA_WRITE], 0u);
    EXPECT_EQ(counters().errors, 0u);
    EXPECT_TRUE(has_none());
  }
  const QpCounters& counters() { return *as_qp(a_->qp()).counters; }

  verbena::test::Node node_;
  verbena::test::Buffer buffer_{node_, 4096};
  verbena::test::Buffer target_{node_, 2 * kPlace};
  std::optional<verbena::test::End> a_;
  std::optional<verbena::test::End> b_;
  WriteNow write_now_ = nullptr;
};

TEST_F(WriteNowTest, ArriveWholeAndAreCountedAndTakeNoPlaceOfTheSendQueue) {
  connect();
  const uint32_t posted = as_qp(a_->qp()).send_posted;
  uint64_t bytes = counters().bytes;
  uint64_t requests = 0;
  for (size_t size_bytes = 8; size_bytes <= 4096; size_bytes += 8) {
    buffer_.fill(size_bytes, 0, size_bytes);
    // Wherever the next one goes.
    const uint64_t next = size_bytes % 16 == 0 ? target_.address(size_bytes) : size_bytes;
    ASSERT_TRUE(write(size_bytes, target_.address(kPlace), target_.key(), next));
    ASSERT_TRUE(target_.has(size_bytes, kPlace, size_bytes)) << size_bytes;
    if (size_bytes < kPlace) {
      ASSERT_EQ(target_.at<uint64_t>(kPlace + size_bytes), 0u);
    }
    ASSERT_EQ(target_.data()[kPlace - 1], std::byte{0});
    bytes += size_bytes;
    ++requests;
  }
  EXPECT_EQ(counters().requests[IBV_WR_RDMA_WRITE], requests);
  EXPECT_EQ(counters().bytes, bytes);
  EXPECT_EQ(as_qp(a_->qp()).send_posted, posted);
  EXPECT_TRUE(has_none());
}

TEST_F(WriteNowTest, AreLeftToOthersWhereTheMemoryIsNotOpenToThem) {
  connect();
  expect_left_to_others(8, target_.address(kPlace), target_.key() + 1);
  expect_left_to_others(8, target_.address(target_.size()), target_.key());
  expect_left_to_others(16, target_.address(target_.size() - 8), target_.key());
  expect_left_to_others(8, target_.address(kPlace + 4), target_.key());
  const verbena::test::Buffer constant(node_, 4096, IBV_ACCESS_REMOTE_READ);
  expect_left_to_others(8, constant.address(), constant.key());
}

TEST_F(WriteNowTest, AreLeftToOthersWhereThePeerIsNotToBeWrittenTo) {
  connect(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  expect_left_to_others(8, target_.address(kPlace), target_.key());
}

// Also by a queue pair that has written there before, and remembers where it is.
TEST_F(WriteNowTest, AreLeftToOthersOnceTheMemoryIsDeregistered) {
  connect();
  ASSERT_TRUE(write(8));
  target_.deregister();
  EXPECT_FALSE(write(8));
}

TEST_F(WriteNowTest, AreLeftToOthersInTheErrorState) {
  connect();
  ASSERT_TRUE(a_->queue_pair().to_error().ok());
  expect_left_to_others(8, target_.address(kPlace), target_.key());
}

TEST_F(WriteNowTest, DoNotOvertakeASendThatWaitsForAReceive) {
  connect();
  ASSERT_EQ(verbena::test::post(a_->qp(), {.id = 1, .sges = {buffer_.sge(0, 8)}}), 0);
  EXPECT_FALSE(write(8));
  ASSERT_EQ(verbena::test::post_receive(b_->qp(), 2, {target_.sge(0, 8)}), 0);
  EXPECT_EQ(take(), IBV_WC_SUCCESS);
  EXPECT_TRUE(write(8));
}

TEST_F(WriteNowTest, AreForReliableConnections) {
  const verbena::test::End unreliable(node_, {.transport = verbena::Transport::kUc});
  EXPECT_EQ(node_.device.control().write_now(unreliable.qp()), nullptr);
}

}  // namespace
}  // namespace verbena::soft
