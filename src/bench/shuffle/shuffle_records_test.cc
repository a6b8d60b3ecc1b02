#include "src/bench/shuffle/shuffle_records.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace verbena::bench {
namespace {

constexpr uint32_t kRecordBytes = 53;
constexpr uint32_t kPhase = 3;
constexpr uint32_t kSenders = 2;
constexpr uint32_t kReceivers = 3;
constexpr uint32_t kReceiver = 1;

// What comes to one receiver of two senders, as they send it: the senders take turns.
class Records : public testing::Test {
 protected:
  struct Sent {
    uint32_t sender;
    std::string bytes;
  };

  void SetUp() override {
    std::vector<RecordSum> sums(kSenders);
    for (uint64_t number = 0; number < 60; ++number) {
      const uint64_t key = number * 77;
      for (uint32_t sender = 0; sender < kSenders; ++sender) {
        if (partition_of(record_key_hash(key), kReceivers) != kReceiver) continue;
        records_.push_back({sender, record_of(key, sender, number)});
        sums[sender].add(number);
      }
    }
    ASSERT_GT(records_.size(), 8u);
    for (uint32_t sender = 0; sender < kSenders; ++sender) {
      const LastRecord last{.stamp = {.sender = sender, .phase = kPhase | kLastRecord},
                            .sent = sums[sender]};
      std::string bytes(kRecordBytes, '\0');
      std::memcpy(bytes.data(), &last, sizeof(last));
      records_.push_back({sender, std::move(bytes)});
    }
  }

  static std::string record_of(uint64_t key, uint32_t sender, uint64_t number) {
    std::string record(kRecordBytes, '\0');
    fill_record(record, {.key = key, .sender = sender, .phase = kPhase, .number = number});
    return record;
  }

  uint64_t mismatches() const {
    RecordCheck check(kPhase, kReceiver, kReceivers, kSenders, kRecordBytes);
    for (const Sent& record : records_) check.take(record.sender, record.bytes);
    return check.mismatches();
  }

  std::vector<Sent> records_;
};

TEST_F(Records, ThatAllComeOnceAreRight) {
  EXPECT_EQ(mismatches(), 0u);
  RecordCheck check(kPhase, kReceiver, kReceivers, kSenders, kRecordBytes);
  uint64_t counted = 0;
  for (const Sent& record : records_) counted += check.take(record.sender, record.bytes) ? 1 : 0;
  EXPECT_EQ(counted, records_.size() - kSenders) << "without the last ones";
}

TEST_F(Records, ComeInAnyOrder) {
  std::swap(records_[0], records_[6]);
  std::swap(records_[2], records_[5]);
  EXPECT_EQ(mismatches(), 0u);
}

TEST_F(Records, AreMissed) {
  records_.erase(records_.begin() + 4);
  EXPECT_EQ(mismatches(), 1u);
}

TEST_F(Records, AreNotedTwice) {
  records_.insert(records_.begin(), records_[4]);
  EXPECT_EQ(mismatches(), 1u);
}

// The count alone would be right.
TEST_F(Records, DoNotTakeEachOthersPlace) {
  records_[2] = records_[0];
  EXPECT_EQ(records_[2].sender, 0u);
  EXPECT_EQ(mismatches(), 1u);
}

TEST_F(Records, ThatChangedAreNoted) {
  records_[3].bytes.back() ^= 1;
  EXPECT_EQ(mismatches(), 1u);
  records_[3].bytes.pop_back();
  EXPECT_EQ(mismatches(), 2u) << "the record, and its sender's sum";
}

TEST_F(Records, OfOthersAreNoted) {
  records_[0].sender = 1;
  EXPECT_EQ(mismatches(), 2u) << "the record, and the sum of the sender that it is from";
}

TEST_F(Records, OfAnotherReceiverAreNoted) {
  uint64_t key = 0;
  while (partition_of(record_key_hash(key), kReceivers) == kReceiver) ++key;
  records_[0].bytes = record_of(key, records_[0].sender, 0);
  EXPECT_GE(mismatches(), 1u);
}

TEST_F(Records, NeedTheirLastOne) {
  records_.pop_back();
  EXPECT_EQ(mismatches(), 1u);
}

TEST_F(Records, BehindTheLastOneAreNoted) {
  std::swap(records_[records_.size() - 3], records_.back());
  EXPECT_GE(mismatches(), 1u);
}

}  // namespace
}  // namespace verbena::bench
