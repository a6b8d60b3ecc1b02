// The ring of datagrams as its owner reads it, whatever senders leave in it: each store of a sender
// is done by hand here.
#include "src/device/soft/datagram_ring.h"

#include <gtest/gtest.h>

#include <vector>

namespace verbena::soft {
namespace {

constexpr uint32_t kSlots = 128;
constexpr uint32_t kSender = 0x4001;
constexpr uint32_t kOtherSender = 0x8001;

class DatagramRingTest : public testing::Test {
 protected:
  static constexpr size_t kStrideBytes = sizeof(SharedReceive);
  void claim(uint32_t position, uint32_t taker = kSender) {
    std::atomic<uint64_t>& word = ring_.claims()[position % kSlots];
    ASSERT_EQ(claimed_position(word.load()), position - kSlots) << "another lap's claim";
    word.store(make_datagram_claim(position, taker));
  }
  void publish(uint32_t position) { ring_.datagrams()[position % kSlots].mark.store(position + 1); }
  void send(uint32_t position) {
    claim(position);
    publish(position);
  }
  // Takes all that can be taken, and tells which positions.
  std::vector<uint32_t> take_all() {
    std::vector<uint32_t> taken;
    for (uint32_t position = 0; ring_.find(&position);) {
      taken.push_back(position);
      ring_.retire(position, false);
    }
    return taken;
  }
  uint32_t retired() const { return ring_.shared()->datagram.retired.load(); }
  uint32_t voided() const { return ring_.shared()->datagram.voided.load(); }

  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> memory_ =
      std::vector<Page>(DatagramRing::bytes_for(kSlots, 0, kStrideBytes) / sizeof(Page) + 1);
  DatagramRing ring_{memory_.data(), kSlots, 0, kStrideBytes};
};

TEST_F(DatagramRingTest, GivesDatagramsInTheirOrderLapAfterLap) {
  uint32_t sent = 0;
  uint32_t expected = 0;
  for (int lap = 0; lap < 5; ++lap) {
    EXPECT_TRUE(take_all().empty());
    for (uint32_t i = 0; i < kSlots - 1; ++i) send(sent++);
    for (const uint32_t position : take_all()) EXPECT_EQ(position, expected++);
    EXPECT_EQ(expected, sent);
    EXPECT_EQ(retired(), sent);
  }
  EXPECT_EQ(voided(), 0u);
}

TEST_F(DatagramRingTest, TakesOthersBeforeOneThatIsNotFinished) {
  claim(0);
  send(1);
  claim(2, kOtherSender);
  send(3);
  EXPECT_EQ(take_all(), (std::vector<uint32_t>{1, 3}));
  EXPECT_TRUE(ring_.held_up());
  EXPECT_EQ(retired(), 0u);
  publish(2);
  publish(0);
  EXPECT_EQ(take_all(), (std::vector<uint32_t>{0, 2}));
  EXPECT_FALSE(ring_.held_up());
  EXPECT_EQ(retired(), 4u);
}

TEST_F(DatagramRingTest, GivesUpThePositionOfASenderThatEnded) {
  claim(0);
  send(1);
  EXPECT_EQ(take_all(), (std::vector<uint32_t>{1}));
  uint32_t asked = 0;
  EXPECT_TRUE(ring_.give_up([&](uint32_t taker) {
    asked = taker;
    return false;
  }));
  EXPECT_EQ(asked, kSender);
  EXPECT_TRUE(take_all().empty());
  EXPECT_EQ(retired(), 0u);
  EXPECT_TRUE(ring_.give_up([](uint32_t) { return true; }));
  EXPECT_TRUE(take_all().empty());
  EXPECT_EQ(retired(), 2u);
  EXPECT_EQ(voided(), 1u);  // so that others can take the receive that it did not consume
  EXPECT_FALSE(ring_.give_up([](uint32_t) { return true; }));
  // The next lap finds the place as any other.
  for (uint32_t position = 2; position < 2 * kSlots; ++position) {
    send(position);
    EXPECT_EQ(take_all(), (std::vector<uint32_t>{position}));
  }
}

TEST_F(DatagramRingTest, ASenderThatEndedHoldsUpNobodyBehindManyOthers) {
  claim(0);
  for (uint32_t position = 1; position < 100; ++position) send(position);
  EXPECT_EQ(take_all().size(), DatagramRing::kLookAhead);
  EXPECT_TRUE(ring_.give_up([](uint32_t) { return true; }));
  EXPECT_EQ(take_all().size(), 99 - DatagramRing::kLookAhead);
  EXPECT_EQ(retired(), 100u);
}

TEST_F(DatagramRingTest, GivesUpAllPositionsOfSendersThatEnded) {
  for (const uint32_t position : {0u, 1u, 3u}) claim(position);
  claim(2, kOtherSender);
  publish(1);
  const auto ended = [](uint32_t taker) { return taker == kSender; };
  EXPECT_EQ(ring_.give_up_all(ended), 2u);
  EXPECT_EQ(ring_.give_up_all(ended), 0u);
  EXPECT_EQ(take_all(), (std::vector<uint32_t>{1}));
  EXPECT_EQ(retired(), 2u);
  publish(2);
  EXPECT_EQ(take_all(), (std::vector<uint32_t>{2}));
  EXPECT_EQ(retired(), 4u);
  EXPECT_EQ(voided(), 2u);
}

// Each question is system calls, and the claims are what senders wrote.
TEST_F(DatagramRingTest, AsksOnlySoOftenWhoHasEnded) {
  uint32_t asked = 0;
  const auto ended = [&asked](uint32_t) {
    ++asked;
    return true;
  };
  for (uint32_t position = 0; position < 20; ++position) claim(position);
  EXPECT_EQ(ring_.give_up_all(ended), 20u);
  EXPECT_EQ(asked, 1u);
  EXPECT_TRUE(take_all().empty());
  asked = 0;
  for (uint32_t position = 20; position < 120; ++position) claim(position, kSender + position);
  EXPECT_EQ(ring_.give_up_all(ended), DatagramRing::kMostAsked);
  EXPECT_EQ(asked, DatagramRing::kMostAsked);
  EXPECT_TRUE(take_all().empty());
  EXPECT_EQ(ring_.give_up_all(ended), 100 - DatagramRing::kMostAsked);
  EXPECT_TRUE(take_all().empty());
  EXPECT_EQ(retired(), 120u);
  EXPECT_EQ(voided(), 120u);
}

TEST_F(DatagramRingTest, SetsClaimsRightThatCannotBe) {
  for (uint32_t i = 0; i < kSlots; ++i) ring_.claims()[i].store(0x123456789abcdef0 + i * 77777);
  EXPECT_TRUE(take_all().empty());
  EXPECT_EQ(retired(), voided());
  EXPECT_GT(retired(), 0u);
  for (uint32_t round = 0; round < 2 * kSlots; ++round) take_all();
  const uint32_t next = retired();
  send(next);
  EXPECT_EQ(take_all(), (std::vector<uint32_t>{next}));
}

TEST_F(DatagramRingTest, RenewedAllowsWhatIsPostedFromThenOn) {
  send(0);
  claim(1);
  send(2);
  EXPECT_EQ(take_all(), (std::vector<uint32_t>{0, 2}));
  ring_.renew();
  // Position 1 is still to come; nothing behind position 2 is allowed without a receive.
  EXPECT_EQ(retired(), 1u);
  EXPECT_EQ(voided(), 2u);
  uint32_t position = 0;
  publish(1);
  ASSERT_TRUE(ring_.find(&position));
  ring_.retire(position, true);
  EXPECT_EQ(retired(), 3u);
  EXPECT_EQ(voided(), 3u);
}

TEST(DatagramRingsTest, UseTheMemoryOfAnEndedQueuePairForAnotherOfItsSizeOnly) {
  DatagramRings rings;
  std::vector<std::unique_ptr<std::byte[]>> memory;
  const auto allocate = [&](size_t size_bytes) -> Result<void*> {
    memory.push_back(std::make_unique<std::byte[]>(size_bytes + kCacheLineBytes));
    const auto start = reinterpret_cast<uintptr_t>(memory.back().get());
    return reinterpret_cast<void*>((start + kCacheLineBytes - 1) / kCacheLineBytes *
                                   kCacheLineBytes);
  };
  auto first = rings.take(4, 4, 64, allocate);
  ASSERT_TRUE(first.ok());
  const QpShared* place = (*first)->shared();
  rings.put(std::move(*first), 4, 64);
  auto other = rings.take(8, 8, 64, allocate);
  ASSERT_TRUE(other.ok());
  EXPECT_NE((*other)->shared(), place);
  auto second = rings.take(4, 4, 64, allocate);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->shared(), place);
  EXPECT_EQ(memory.size(), 2u);
}

}  // namespace
}  // namespace verbena::soft
