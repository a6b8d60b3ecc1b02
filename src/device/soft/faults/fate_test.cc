#include "src/device/soft/faults/fate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace verbena::soft::faults {
namespace {

constexpr uint64_t kTimeoutNs = 1000;

Passage reliable(uint64_t packets = 1, uint32_t retry_count = 7) {
  return {.packets = packets, .timeout_ns = kTimeoutNs, .retry_count = retry_count};
}

std::vector<bool> losses(const FaultSettings& settings, uint32_t ordinal, size_t count,
                         uint64_t packets = 1) {
  FateDraws draws(settings, ordinal);
  std::vector<bool> lost;
  for (size_t i = 0; i < count; ++i) {
    lost.push_back(draws.draw({.reliable = false, .packets = packets}).ending == Ending::kLost);
  }
  return lost;
}

size_t count_lost(const std::vector<bool>& lost) {
  return static_cast<size_t>(std::count(lost.begin(), lost.end(), true));
}

TEST(FateTest, TheSameSeedAndOrdinalGiveTheSame) {
  FaultSettings settings{.seed = 7, .drop = 0.1};
  const std::vector<bool> first = losses(settings, 3, 1000);
  EXPECT_EQ(losses(settings, 3, 1000), first);
  EXPECT_NE(losses(settings, 4, 1000), first);
  settings.seed = 8;
  EXPECT_NE(losses(settings, 3, 1000), first);
}

TEST(FateTest, OtherKindsOfFaultsChangeNothing) {
  const FaultSettings alone{.seed = 7, .drop = 0.1};
  const FaultSettings together{
      .seed = 7, .drop = 0.1, .rnr = 0.5, .delay = 0.5, .longest_delay_ns = 10};
  EXPECT_EQ(losses(alone, 0, 1000), losses(together, 0, 1000));
}

TEST(FateTest, AboutTheShareIsLostThatWasAskedFor) {
  for (const double drop : {0.001, 0.1, 0.5, 0.9}) {
    const size_t lost = count_lost(losses({.seed = 7, .drop = drop}, 0, 100'000));
    EXPECT_NEAR(static_cast<double>(lost), drop * 1e5, 1000) << drop;
  }
  EXPECT_EQ(count_lost(losses({.drop = 0}, 0, 1000)), 0u);
  EXPECT_EQ(count_lost(losses({.drop = 1}, 0, 1000)), 1000u);
  EXPECT_EQ(count_lost(losses({.drop = 1}, 0, 1000, 3)), 1000u);
}

TEST(FateTest, AMessageIsLostWithAnyOfItsPackets) {
  constexpr size_t kPackets = 10;
  const FaultSettings settings{.seed = 7, .drop = 0.05};
  const std::vector<bool> packets = losses(settings, 0, 1000 * kPackets);
  const std::vector<bool> messages = losses(settings, 0, 1000, kPackets);
  for (size_t i = 0; i < messages.size(); ++i) {
    bool any = false;
    for (size_t k = 0; k < kPackets; ++k) any = any || packets[i * kPackets + k];
    ASSERT_EQ(messages[i], any) << i;
  }
}

TEST(FateTest, AReliablePacketCostsItsTimeOut) {
  FateDraws draws({.seed = 7, .drop = 0.1}, 0);
  uint32_t lost = 0;
  for (int i = 0; i < 10'000; ++i) {
    const Fate fate = draws.draw(reliable());
    ASSERT_EQ(fate.ending, Ending::kDelivered);
    ASSERT_EQ(fate.extra_ns, fate.lost_packets * kTimeoutNs);
    ASSERT_EQ(fate.harmless(), fate.lost_packets == 0);
    lost += fate.lost_packets;
  }
  // Those that are sent again are lost with the same probability: 1111 of 10,000.
  EXPECT_NEAR(lost, 1111, 100);
}

TEST(FateTest, LossesOfDifferentPacketsDoNotExhaustTheRetries) {
  FateDraws draws({.seed = 7, .drop = 0.1}, 0);
  const Fate fate = draws.draw(reliable(10'000));
  EXPECT_EQ(fate.ending, Ending::kDelivered);
  EXPECT_NEAR(fate.lost_packets, 1111, 100);
}

TEST(FateTest, RetriesEndAfterTheirCount) {
  for (const uint32_t retry_count : {0u, 1u, 7u}) {
    FateDraws draws({.drop = 1}, 0);
    const Fate fate = draws.draw(reliable(5, retry_count));
    EXPECT_EQ(fate.ending, Ending::kRetriesExceeded);
    EXPECT_EQ(fate.lost_packets, retry_count + 1);
    EXPECT_EQ(fate.extra_ns, (retry_count + 1) * kTimeoutNs);
  }
}

TEST(FateTest, WithoutATimeOutALossIsNeverMadeGood) {
  FateDraws draws({.drop = 1}, 0);
  const Fate fate = draws.draw({.timeout_ns = 0});
  EXPECT_EQ(fate.ending, Ending::kDelivered);
  EXPECT_EQ(fate.extra_ns, kNever);
}

TEST(FateTest, AReceiverIsNotReadyAsOftenAsItMayBe) {
  const Passage passage{.takes_receive = true, .rnr_timer_ns = 500, .rnr_retry = 3};
  const Fate last = FateDraws({.rnr = 1}, 0).draw(passage);
  EXPECT_EQ(last.ending, Ending::kRnrRetriesExceeded);
  EXPECT_EQ(last.extra_ns, 3 * 500u);

  Passage for_ever = passage;
  for_ever.rnr_retry = 7;
  EXPECT_EQ(FateDraws({.rnr = 1}, 0).draw(for_ever).extra_ns, kNever);
  FateDraws half({.seed = 7, .rnr = 0.5}, 0);
  for (int i = 0; i < 1000; ++i) {
    const Fate fate = half.draw(for_ever);
    ASSERT_EQ(fate.ending, Ending::kDelivered);
    ASSERT_EQ(fate.extra_ns, fate.rnr_naks * 500u);
  }

  Passage write = passage;
  write.takes_receive = false;
  EXPECT_TRUE(FateDraws({.rnr = 1}, 0).draw(write).harmless());
}

TEST(FateTest, DelaysAreFromOneToTheLongest) {
  FateDraws draws({.seed = 7, .delay = 0.5, .longest_delay_ns = 3}, 0);
  int delayed[4] = {};
  for (int i = 0; i < 10'000; ++i) {
    const Fate fate = draws.draw(reliable());
    ASSERT_LE(fate.extra_ns, 3u);
    ++delayed[fate.extra_ns];
  }
  EXPECT_NEAR(delayed[0], 5000, 300);
  for (int i = 1; i <= 3; ++i) EXPECT_NEAR(delayed[i], 1667, 200);
}

TEST(FateTest, AnErrorOfTheQueuePairComesFirst) {
  const Fate fate = FateDraws({.drop = 1, .queue_pair_error = 1}, 0).draw({.timeout_ns = 0});
  EXPECT_EQ(fate.ending, Ending::kQueuePairError);
  EXPECT_EQ(fate.extra_ns, 0u);
}

}  // namespace
}  // namespace verbena::soft::faults
