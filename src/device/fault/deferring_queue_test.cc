#include "src/device/fault/deferring_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace verbena::fault {
namespace {

constexpr uint64_t kLongNs = 3'600'000'000'000;  // never over in a test
constexpr uint32_t kDepth = 4;

// A send queue whose device writes down what it is given.
class DeferringQueueTest : public testing::Test {
 protected:
  struct Posted {
    uint64_t wr_id;
    std::string bytes;
  };

  DeferringQueue<ibv_send_wr> queue(double probability, uint64_t duration_ns, uint64_t seed = 1) {
    DeferringQueue<ibv_send_wr>::Device device;
    device.post = [this](ibv_send_wr* list, ibv_send_wr** rejected) {
      for (; list != nullptr; list = list->next) {
        if (error_ != 0) {
          *rejected = list;
          return error_;
        }
        std::string bytes;
        for (int i = 0; i < list->num_sge; ++i) {
          bytes.append(reinterpret_cast<const char*>(list->sg_list[i].addr),
                       list->sg_list[i].length);
        }
        posted_.push_back({list->wr_id, bytes});
      }
      return 0;
    };
    device.check = [](const ibv_send_wr& request) { return request.num_sge > 2 ? EINVAL : 0; };
    device.signaled = [](const ibv_send_wr& request) {
      return (request.send_flags & IBV_SEND_SIGNALED) != 0;
    };
    device.release_at = [this](uint64_t due_ns) { wake_ns_ = due_ns; };
    return {{probability, duration_ns}, Dice(seed, Stream::kDelay, 0), kDepth, std::move(device)};
  }

  static ibv_send_wr request(uint64_t wr_id, ibv_sge* entries, int count, unsigned flags = 0) {
    ibv_send_wr request{};
    request.wr_id = wr_id;
    request.sg_list = entries;
    request.num_sge = count;
    request.send_flags = flags;
    return request;
  }
  int post(DeferringQueue<ibv_send_wr>& queue, ibv_send_wr* list) {
    rejected_ = nullptr;
    return queue.post(list, &rejected_, deferred_count_);
  }
  std::vector<uint64_t> posted() const {
    std::vector<uint64_t> numbers;
    for (const Posted& each : posted_) numbers.push_back(each.wr_id);
    return numbers;
  }

  std::vector<Posted> posted_;
  int error_ = 0;
  uint64_t wake_ns_ = 0;
  ibv_send_wr* rejected_ = nullptr;
  uint64_t deferred_count_ = 0;
};

using Numbers = std::vector<uint64_t>;

TEST_F(DeferringQueueTest, NothingIsHeldUntilItIsTurnedOn) {
  auto queue = this->queue(1, kLongNs);
  ibv_send_wr one = request(1, nullptr, 0);
  EXPECT_EQ(post(queue, &one), 0);
  EXPECT_EQ(posted(), Numbers{1});
  queue.set_deferring(true);
  EXPECT_EQ(post(queue, &one), 0);
  EXPECT_EQ(posted(), Numbers{1});
  EXPECT_EQ(deferred_count_, 1u);
}

TEST_F(DeferringQueueTest, WhatIsHeldIsCopiedWithGatherListAndInlineBytes) {
  auto queue = this->queue(1, kLongNs);
  queue.set_deferring(true);
  char first[] = "abc";
  char second[] = "defg";
  ibv_sge entries[2] = {{reinterpret_cast<uint64_t>(first), 3, 0},
                        {reinterpret_cast<uint64_t>(second), 4, 0}};
  {
    ibv_send_wr inlined = request(1, entries, 2, IBV_SEND_INLINE);
    EXPECT_EQ(post(queue, &inlined), 0);
    ibv_send_wr gathered = request(2, entries, 2);
    EXPECT_EQ(post(queue, &gathered), 0);
  }
  std::copy_n("xyz", 3, first);  // inline bytes are free at once, others are read when posted
  entries[1].length = 0;         // the list is free at once
  EXPECT_TRUE(queue.release(true).empty());
  ASSERT_EQ(posted_.size(), 2u);
  EXPECT_EQ(posted_[0].bytes, "abcdefg");
  EXPECT_EQ(posted_[1].bytes, "xyzdefg");
}

TEST_F(DeferringQueueTest, OrderIsKeptAndTimeIsKept) {
  auto queue = this->queue(1, 1'000'000);
  queue.set_deferring(true);
  ibv_send_wr second = request(2, nullptr, 0);
  ibv_send_wr first = request(1, nullptr, 0);
  first.next = &second;
  const uint64_t start_ns = now_ns();
  EXPECT_EQ(post(queue, &first), 0);
  EXPECT_GE(wake_ns_, start_ns + 1'000'000);
  while (posted_.size() < 2) {
    queue.release();
    if (!posted_.empty()) {
      EXPECT_GE(now_ns(), start_ns + 1'000'000);
    }
  }
  EXPECT_EQ(posted(), (Numbers{1, 2}));
}

// Some requests of a list go to the device at once: those before the first that is deferred.
TEST_F(DeferringQueueTest, RandomHoldsKeepTheOrder) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    posted_.clear();
    auto queue = this->queue(0.3, 0, seed);
    queue.set_deferring(true);
    ibv_send_wr list[kDepth] = {};
    for (uint32_t i = 0; i < kDepth; ++i) {
      list[i] = request(i, nullptr, 0);
      list[i].next = i + 1 < kDepth ? &list[i + 1] : nullptr;
    }
    ASSERT_EQ(post(queue, list), 0);
    for (uint32_t i = 0; i + 1 < kDepth; ++i) ASSERT_EQ(list[i].next, &list[i + 1]) << "not cut";
    queue.release();
    EXPECT_EQ(posted(), (Numbers{0, 1, 2, 3})) << "seed " << seed;
  }
  EXPECT_GT(deferred_count_, 0u);
  EXPECT_LT(deferred_count_, 50u * kDepth);
}

TEST_F(DeferringQueueTest, TheSameSeedHoldsTheSame) {
  std::vector<uint64_t> counts;
  for (uint64_t seed : {5, 5, 6}) {
    auto queue = this->queue(0.5, 0, seed);
    queue.set_deferring(true);
    uint64_t pattern = 0;
    for (int i = 0; i < 64; ++i) {
      deferred_count_ = 0;
      ibv_send_wr one = request(1, nullptr, 0);
      ASSERT_EQ(post(queue, &one), 0);
      pattern = pattern << 1 | deferred_count_;
      queue.release(true);
      queue.stop_counting();
    }
    counts.push_back(pattern);
  }
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_NE(counts[0], counts[2]);
}

TEST_F(DeferringQueueTest, HeldWorkCountsTowardsTheDepth) {
  auto queue = this->queue(1, kLongNs);
  ibv_send_wr signaled = request(1, nullptr, 0, IBV_SEND_SIGNALED);
  ASSERT_EQ(post(queue, &signaled), 0);  // with the device
  queue.set_deferring(true);
  for (uint32_t i = 1; i < kDepth; ++i) {
    ibv_send_wr deferred = request(1 + i, nullptr, 0);
    ASSERT_EQ(post(queue, &deferred), 0);
  }
  ibv_send_wr one_more = request(9, nullptr, 0);
  EXPECT_EQ(post(queue, &one_more), ENOMEM);
  EXPECT_EQ(rejected_, &one_more);
  queue.retire();  // the device completed the first one
  EXPECT_EQ(post(queue, &one_more), 0);
  EXPECT_EQ(post(queue, &one_more), ENOMEM);
}

TEST_F(DeferringQueueTest, WhatNoDeviceTakesIsRefusedAtOnce) {
  auto queue = this->queue(1, kLongNs);
  queue.set_deferring(true);
  ibv_sge entries[3] = {};
  ibv_send_wr bad = request(2, entries, 3);
  ibv_send_wr good = request(1, entries, 2);
  good.next = &bad;
  EXPECT_EQ(post(queue, &good), EINVAL);
  EXPECT_EQ(rejected_, &bad);
  queue.release(true);
  EXPECT_EQ(posted(), Numbers{1});
}

TEST_F(DeferringQueueTest, TheDevicesRefusalNamesTheCallersRequest) {
  for (double probability : {0.0, 0.5}) {
    auto queue = this->queue(probability, kLongNs, 3);
    queue.set_deferring(true);
    error_ = EINVAL;
    ibv_send_wr second = request(2, nullptr, 0);
    ibv_send_wr first = request(1, nullptr, 0);
    first.next = &second;
    int error = 0;
    for (int i = 0; i < 100 && error == 0; ++i) {
      error = post(queue, &first);
      queue.drop();
      queue.set_deferring(true);
    }
    EXPECT_EQ(error, EINVAL);
    EXPECT_EQ(rejected_, &first);
  }
}

TEST_F(DeferringQueueTest, LateErrorsAreReturnedAndAFullDeviceIsTriedAgain) {
  auto queue = this->queue(1, 0);
  queue.set_deferring(true);
  ibv_send_wr second = request(2, nullptr, 0);
  ibv_send_wr first = request(1, nullptr, 0);
  first.next = &second;
  ASSERT_EQ(post(queue, &first), 0);
  error_ = ENOMEM;
  wake_ns_ = 0;
  EXPECT_TRUE(queue.release().empty());
  EXPECT_GT(wake_ns_, 0u) << "to try again";
  error_ = EINVAL;
  EXPECT_EQ(queue.release(true), (Numbers{1, 2}));
  EXPECT_TRUE(posted_.empty());
}

TEST_F(DeferringQueueTest, DroppedWorkIsNeverPosted) {
  auto queue = this->queue(1, 0);
  queue.set_deferring(true);
  ibv_send_wr one = request(1, nullptr, 0);
  ASSERT_EQ(post(queue, &one), 0);
  queue.drop();
  EXPECT_TRUE(queue.release(true).empty());
  EXPECT_TRUE(posted_.empty());
}

}  // namespace
}  // namespace verbena::fault
