#include "src/device/sim/usage.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/device/sim/cluster_for_test.h"

namespace verbena::sim {
namespace {

constexpr size_t kBytes = 1 << 20;

class UsageTest : public testing::Test {
 protected:
  static double share(const NodeUsage& usage, NodeUnit unit) {
    return usage.share[static_cast<size_t>(unit)];
  }
  // A WRITE from the first node to the second, or a fetch-and-add there.
  void post_write() { ASSERT_EQ(post(a_, request(IBV_WR_RDMA_WRITE, kBytes)), 0); }
  void post_atomic() { ASSERT_EQ(post(a_, request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8)), 0); }

  Cluster cluster_;
  Buffer here_{cluster_[0], kBytes};
  Buffer there_{cluster_[1], kBytes};
  End a_{cluster_[0]};
  End b_{cluster_[1]};

 private:
  SendRequest request(ibv_wr_opcode opcode, size_t bytes) {
    return {.id = 1,
            .opcode = opcode,
            .sges = {here_.sge(0, bytes)},
            .remote_address = there_.address(0),
            .rkey = there_.key(),
            .compare_add = 1};
  }
};

TEST_F(UsageTest, NothingIsUsedWhereNothingHappens) {
  connect(a_, b_);
  const UsageMeter meter(cluster_.simulation());
  cluster_.pass(1000);
  for (const NodeUsage& usage : meter.read()) {
    for (const double one : usage.share) EXPECT_EQ(one, 0);
  }
}

TEST_F(UsageTest, ALongWriteFillsOneDirectionOfTheLink) {
  connect(a_, b_);
  const UsageMeter meter(cluster_.simulation());
  post_write();
  // It takes longer than that.
  cluster_.pass(50'000);
  const std::vector<NodeUsage> usage = meter.read();
  EXPECT_GT(share(usage[0], NodeUnit::kLinkOut), 0.9);
  EXPECT_LE(share(usage[0], NodeUnit::kLinkOut), 1.0);
  EXPECT_GT(share(usage[1], NodeUnit::kLinkIn), 0.9);
  EXPECT_LT(share(usage[0], NodeUnit::kLinkIn), 0.05);
  EXPECT_GT(share(usage[0], NodeUnit::kBusDown), 0.5);
  EXPECT_LT(share(usage[0], NodeUnit::kBusUp), 0.05);
  EXPECT_GT(share(usage[1], NodeUnit::kBusUp), 0.5);
  EXPECT_EQ(share(usage[1], NodeUnit::kAtomics), 0);
}

TEST_F(UsageTest, CountsFromWhenTheMeterWasMade) {
  connect(a_, b_);
  post_write();
  cluster_.settle();
  const UsageMeter meter(cluster_.simulation());
  cluster_.pass(1000);
  // Time goes on by whole nanoseconds here.
  EXPECT_NEAR(static_cast<double>(meter.elapsed()), 1000 * kPsPerNs, kPsPerNs);
  EXPECT_EQ(share(meter.read()[0], NodeUnit::kLinkOut), 0);
}

TEST_F(UsageTest, AnAtomicIsTheTargetsWork) {
  connect(a_, b_);
  const UsageMeter meter(cluster_.simulation());
  post_atomic();
  cluster_.pass(20'000);
  const std::vector<NodeUsage> usage = meter.read();
  EXPECT_EQ(share(usage[0], NodeUnit::kAtomics), 0);
  EXPECT_NEAR(share(usage[1], NodeUnit::kAtomics) * 20'000,
              static_cast<double>(test_profile().atomic_operation) / kPsPerNs, 0.01);
}

TEST_F(UsageTest, NamesTheBusiestThread) {
  Thread idle = cluster_.start(0, [] { sleep_ns(40'000); });
  Thread busy = cluster_.start(0, [this] {
    for (int i = 0; i < 20; ++i) {
      cluster_.simulation().charge(1000 * kPsPerNs);
      sleep_ns(1000);
    }
  });
  cluster_.pass(1);  // both have begun
  const UsageMeter meter(cluster_.simulation());
  cluster_.pass(20'000);
  const std::vector<NodeUsage> usage = meter.read();
  EXPECT_NEAR(share(usage[0], NodeUnit::kProcessor), 0.5, 0.2);
  EXPECT_EQ(usage[0].thread, "test");
  EXPECT_EQ(share(usage[1], NodeUnit::kProcessor), 0);
  cluster_.settle();
}

}  // namespace
}  // namespace verbena::sim
