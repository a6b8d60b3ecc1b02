// Sender and receiver of a DenseChannel, with a queue that carries the posted WRITEs out itself.
#include "src/channel/dense_channel.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/channel/fake_queue_for_test.h"

namespace verbena::channel {
namespace {

class DenseChannelTest : public testing::Test {
 protected:
  using Found = std::vector<std::pair<uint32_t, std::string>>;

  void connect(uint32_t count, uint32_t post_batch = 1) {
    fake_.arrivals.clear();  // of an earlier connection
    local_ = make_slots(count);
    remote_ = make_slots(count);
    notifications_ = allocate(kCacheLineBytes * 8);
    SenderSetup setup;
    setup.slots = local_;
    setup.lkey = 7;
    setup.remote = {reinterpret_cast<uint64_t>(remote_.base), 9};
    setup.remote_notifications = {reinterpret_cast<uint64_t>(notifications_), 11};
    setup.inline_limit_bytes = 16;
    setup.queue_pair = fake_.queue_pair();
    setup.send_completions = fake_.completions();
    setup.sizes = {
        .depth_wrs = 64, .signal_interval = 5, .post_batch = post_batch, .requests_per_message = 2};
    sender_ = DenseChannel::Sender(setup);
    ReceiverSetup receiving;
    receiving.slots = remote_;
    receiving.notifications = notifications_;
    receiver_ = DenseChannel::Receiver(receiving);
  }

  void post(uint32_t slot, const std::string& text) {
    std::memcpy(sender_.payload(slot), text.data(), text.size());
    ASSERT_TRUE(sender_.queue().has_room());
    ASSERT_TRUE(sender_.post(slot, static_cast<uint32_t>(text.size())));
  }

  // Carries out the posted WRITEs, in order, until `writes` are done in all.
  void place(size_t writes) {
    size_t number = 0;
    for (const auto& list : fake_.sends) {
      for (const ibv_send_wr& write : list) {
        if (number == writes) return;
        if (number++ < placed_) continue;
        ++placed_;
        std::memcpy(reinterpret_cast<char*>(write.wr.rdma.remote_addr),
                    reinterpret_cast<const char*>(write.sg_list[0].addr), write.sg_list[0].length);
      }
    }
    fake_.complete_sends();
  }

  Found poll(uint32_t limit = 64) {
    Found found;
    receiver_.poll(
        limit, [this](uint32_t slot) { return slot != ineligible_; },
        [&](uint32_t slot, const char* payload, uint32_t bytes) {
          found.emplace_back(slot, std::string(payload, bytes));
        });
    return found;
  }

  char* allocate(uint64_t bytes) {
    memory_.emplace_back(static_cast<char*>(std::aligned_alloc(kCacheLineBytes, bytes)));
    std::memset(memory_.back().get(), 0, bytes);
    return memory_.back().get();
  }
  SlotArray make_slots(uint32_t count) {
    const SlotShape shape = DenseChannel::shape(100);
    return {allocate(SlotArray::size_bytes(shape, count)), shape, count};
  }

  FakeQueue fake_;
  size_t placed_ = 0;
  std::vector<std::unique_ptr<char, Free>> memory_;
  SlotArray local_;
  SlotArray remote_;
  char* notifications_ = nullptr;
  DenseChannel::Sender sender_;
  DenseChannel::Receiver receiver_;
  uint32_t ineligible_ = ~0u;
};

TEST_F(DenseChannelTest, PayloadAndSignalGoOutTogether) {
  connect(3);
  post(1, "hello");
  ASSERT_EQ(fake_.sends.size(), 1u);
  ASSERT_EQ(fake_.sends[0].size(), 2u);
  EXPECT_EQ(fake_.sends[0][0].wr.rdma.rkey, 9u);
  EXPECT_EQ(fake_.sends[0][1].wr.rdma.rkey, 11u);
  EXPECT_EQ(fake_.sends[0][1].sg_list[0].length, 1u);
  EXPECT_NE(fake_.sends[0][1].send_flags & IBV_SEND_INLINE, 0u);
  place(1);
  EXPECT_EQ(poll(), Found{});
  place(2);
  EXPECT_EQ(poll(), (Found{{1, "hello"}}));
  EXPECT_EQ(poll(), Found{});
}

TEST_F(DenseChannelTest, EveryNumberOfSlots) {
  for (const uint32_t count : {1u, 2u, 3u, 5u, 8u, 9u, 17u}) {
    connect(count);
    for (int round = 0; round < 3; ++round) {
      Found expected;
      for (uint32_t slot = 0; slot < count; ++slot) {
        expected.emplace_back(slot, std::string(slot * 5 + static_cast<uint32_t>(round), 'a'));
        post(slot, expected.back().second);
      }
      place(~size_t{0});
      EXPECT_EQ(poll(), expected) << count;
    }
  }
}

TEST_F(DenseChannelTest, TakesNoMoreThanAskedAndOnlyWhatIsDue) {
  connect(4);
  for (uint32_t slot = 0; slot < 4; ++slot) post(slot, "x");
  place(~size_t{0});
  ineligible_ = 1;
  EXPECT_EQ(poll(2), (Found{{0, "x"}, {2, "x"}}));
  EXPECT_EQ(poll(), (Found{{3, "x"}}));
  ineligible_ = ~0u;
  EXPECT_EQ(poll(), (Found{{1, "x"}}));
}

TEST_F(DenseChannelTest, BatchesHoldWholeMessages) {
  connect(4, /*post_batch=*/4);
  post(0, "a");
  EXPECT_TRUE(fake_.sends.empty());
  post(1, "b");
  ASSERT_EQ(fake_.sends.size(), 1u);
  EXPECT_EQ(fake_.sends[0].size(), 4u);
  post(2, "c");
  sender_.queue().flush();
  place(~size_t{0});
  EXPECT_EQ(poll().size(), 3u);
}

TEST_F(DenseChannelTest, ASignalThatNoSenderMakesIsAViolation) {
  connect(2);
  notifications_[1] = 3;
  EXPECT_EQ(poll(), Found{});
  EXPECT_EQ(receiver_.error().kind, ChannelError::Kind::kViolation);
}

TEST_F(DenseChannelTest, ALengthBeyondTheSlotIsAViolation) {
  connect(2);
  const uint32_t bytes = 101;
  std::memcpy(remote_.slot(0), &bytes, sizeof(bytes));
  notifications_[0] = 1;
  EXPECT_EQ(poll(), Found{});
  EXPECT_EQ(receiver_.error().kind, ChannelError::Kind::kViolation);
}

TEST(NotificationArrayTest, VisitsEveryConnectionWithASignalOnce) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 2000; ++round) {
    const uint32_t slots = 1 + static_cast<uint32_t>(random.below(20));
    const uint32_t stride = NotificationArray::stride_bytes(slots);
    const uint32_t connections = 1 + static_cast<uint32_t>(random.below(40));
    const uint32_t looked_at = static_cast<uint32_t>(random.below(connections + 1));
    std::vector<uint64_t> words((connections * stride + 7) / 8);
    char* notifications = reinterpret_cast<char*>(words.data());
    std::vector<uint32_t> expected;
    for (uint32_t number = 0; number < connections; ++number) {
      if (random.below(3) != 0) continue;
      notifications[number * stride + random.below(slots)] = 1;
      notifications[number * stride + random.below(slots)] = 1;
      if (number < looked_at) expected.push_back(number);
    }
    std::vector<uint32_t> visited;
    NotificationArray::for_each_notified(notifications, stride, looked_at,
                                         [&](uint32_t number) { visited.push_back(number); });
    ASSERT_EQ(visited, expected) << "slots " << slots << ", connections " << connections;
  }
}

}  // namespace
}  // namespace verbena::channel
