// Sender and receiver of a WriteChannel, with a queue that carries the posted WRITEs out itself.
#include "src/channel/write_channel.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/channel/fake_queue_for_test.h"
#include "src/channel/head_tail_mark.h"
#include "src/channel/last_bit_mark.h"
#include "src/channel/length_markers_mark.h"

namespace verbena::channel {
namespace {

template <typename Mark>
class WriteChannelTest : public testing::Test {
 protected:
  using Channel = WriteChannel<Mark>;

  SlotArray make_slots(uint32_t count, uint32_t capacity) {
    const SlotShape shape = Channel::shape(capacity);
    const uint64_t bytes = SlotArray::size_bytes(shape, count);
    memory_.emplace_back(static_cast<char*>(std::aligned_alloc(kCacheLineBytes, bytes)));
    std::memset(memory_.back().get(), 0, bytes);
    return {memory_.back().get(), shape, count};
  }

  void connect(uint32_t count, uint32_t capacity, uint32_t inline_limit_bytes = 0) {
    remote_ = make_slots(count, capacity);
    SenderSetup setup;
    setup.slots = make_slots(count, capacity);
    setup.lkey = 7;
    setup.remote = {reinterpret_cast<uint64_t>(remote_.base), 9};
    setup.inline_limit_bytes = inline_limit_bytes;
    setup.queue_pair = fake_.queue_pair();
    setup.send_completions = fake_.completions();
    setup.sizes = {.depth_wrs = 64, .signal_interval = 16, .post_batch = 1};
    sender_ = typename Channel::Sender(setup);
    receiver_ = typename Channel::Receiver(remote_);
  }

  void send(uint32_t slot, const std::string& text) {
    std::memcpy(sender_.payload(slot), text.data(), text.size());
    ASSERT_TRUE(sender_.queue().has_room());
    ASSERT_TRUE(sender_.post(slot, static_cast<uint32_t>(text.size())));
    const ibv_send_wr& write = fake_.sends.back()[0];
    ASSERT_EQ(write.opcode, IBV_WR_RDMA_WRITE);
    ASSERT_EQ(write.wr.rdma.rkey, 9u);
    ASSERT_EQ(write.sg_list[0].lkey, 7u);
    char* to = reinterpret_cast<char*>(write.wr.rdma.remote_addr);
    ASSERT_GE(to, remote_.slot(slot));
    ASSERT_LE(to + write.sg_list[0].length, remote_.slot(slot) + remote_.shape.slot_bytes);
    std::memcpy(to, reinterpret_cast<const char*>(write.sg_list[0].addr), write.sg_list[0].length);
    fake_.complete_sends();
  }

  std::vector<std::pair<uint32_t, std::string>> poll(uint32_t limit = 64) {
    std::vector<std::pair<uint32_t, std::string>> found;
    const uint32_t count = receiver_.poll(
        limit, [this](uint32_t slot) { return ineligible_.count(slot) == 0; },
        [&](uint32_t slot, const char* payload, uint32_t bytes) {
          found.emplace_back(slot, std::string(payload, bytes));
        });
    EXPECT_EQ(count, found.size());
    for (const auto& [slot, text] : found) receiver_.release(slot);
    return found;
  }

  using Found = std::vector<std::pair<uint32_t, std::string>>;

  std::vector<std::unique_ptr<char, Free>> memory_;
  FakeQueue fake_;
  SlotArray remote_;
  typename Channel::Sender sender_;
  typename Channel::Receiver receiver_;
  std::set<uint32_t> ineligible_;
};

using Marks = testing::Types<LastBitMark, LengthMarkersMark, HeadTailMark>;
TYPED_TEST_SUITE(WriteChannelTest, Marks);

TYPED_TEST(WriteChannelTest, MessagesInTurnAreFoundByOnePoll) {
  this->connect(4, 30);
  EXPECT_TRUE(this->poll().empty());
  this->send(0, "zero");
  this->send(1, "");
  this->send(2, std::string(30, 'x'));
  EXPECT_EQ(this->poll(2), (typename TestFixture::Found{{0, "zero"}, {1, ""}}));
  EXPECT_EQ(this->poll(), (typename TestFixture::Found{{2, std::string(30, 'x')}}));
  this->send(3, "three");
  this->send(0, "again");
  EXPECT_EQ(this->poll(), (typename TestFixture::Found{{3, "three"}, {0, "again"}}));
  EXPECT_TRUE(this->poll().empty());
}

TYPED_TEST(WriteChannelTest, MessagesOutOfTurnAreFoundWithinOneRound) {
  constexpr uint32_t kSlots = 7;
  this->connect(kSlots, 30);
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto slot = static_cast<uint32_t>(random.below(kSlots));
    this->send(slot, "out of turn");
    typename TestFixture::Found found;
    for (uint32_t polls = 0; polls <= kSlots && found.empty(); ++polls) found = this->poll();
    ASSERT_EQ(found, (typename TestFixture::Found{{slot, "out of turn"}}));
  }
}

TYPED_TEST(WriteChannelTest, IneligibleSlotsAreLeftAlone) {
  this->connect(2, 30);
  this->ineligible_ = {0};
  this->send(0, "too early");
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(this->poll().empty());
  this->ineligible_.clear();
  EXPECT_EQ(this->poll(), (typename TestFixture::Found{{0, "too early"}}));
}

TYPED_TEST(WriteChannelTest, SmallMessagesTravelInline) {
  this->connect(2, 200, 100);
  this->send(0, "small");
  EXPECT_NE(this->fake_.sends.back()[0].send_flags & IBV_SEND_INLINE, 0u);
  this->send(1, std::string(98, 'x'));  // 98 and the mark do not fit
  EXPECT_EQ(this->fake_.sends.back()[0].send_flags & IBV_SEND_INLINE, 0u);
}

TYPED_TEST(WriteChannelTest, GarbageInASlotIsAViolation) {
  this->connect(1, 30);
  std::memset(this->remote_.base, 0xee, this->remote_.shape.slot_bytes);
  EXPECT_TRUE(this->poll().empty());
  EXPECT_EQ(this->receiver_.error().kind, ChannelError::Kind::kViolation);
}

}  // namespace
}  // namespace verbena::channel
