// What stands in the public part of a verbs object can be overwritten by the program. soft0 tells
// the program there, and believes nothing that it reads there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "src/device/soft/control.h"
#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/soft/objects.h"
#include "src/device/soft/ud.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft {
namespace {

using verbena::test::connect;
using verbena::test::End;
using verbena::test::must;
using verbena::test::post;
using verbena::test::post_receive;

constexpr uint32_t kOtherNumber = 0x123456;

class OverwrittenTest : public testing::Test {
 protected:
  static ibv_wc take(ibv_cq* cq) {
    ibv_wc wc{};
    wc.status = IBV_WC_GENERAL_ERR;
    EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 1);
    return wc;
  }
  // One that is intact.
  static ibv_async_event next_event(ibv_context* context) {
    ibv_async_event event{};
    EXPECT_EQ(get_async_event(context, &event), 0);
    return event;
  }
  ibv_context* context() { return node_.domain.get()->context; }

  verbena::test::Node node_;
  verbena::test::Buffer buffer_{node_, 4096};
};

TEST_F(OverwrittenTest, AConnectionKeepsItsNumber) {
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node_.domain, {.depth_wrs = 2, .max_sges = 1}));
  for (const bool before : {true, false}) {
    End sender(node_);
    End receiver(node_, {.shared_receive_queue = &srq});
    const uint32_t sends = sender.qp()->qp_num;
    const uint32_t receives = receiver.qp()->qp_num;
    const QueuePairAddress to = receiver.address();
    const QueuePairAddress from = sender.address();
    const auto overwrite = [&] { sender.qp()->qp_num = receiver.qp()->qp_num = kOtherNumber; };
    if (before) overwrite();
    sender.connect(to);
    receiver.connect(from);
    overwrite();
    // Control calls look for it, others do not.
    const uint32_t sender_handle = std::exchange(sender.qp()->handle, kOtherNumber);
    const uint32_t receiver_handle = std::exchange(receiver.qp()->handle, kOtherNumber);
    for (int round = 0; round < 4; ++round) {
      ASSERT_EQ(post_receive(srq.get(), 7, {buffer_.sge(0, 64)}), 0);
      ASSERT_EQ(post(sender.qp(), {.sges = {buffer_.sge(64, 8)}}), 0);
      const ibv_wc sent = take(sender.cq());
      EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
      EXPECT_EQ(sent.qp_num, sends);
      const ibv_wc received = take(receiver.cq());
      EXPECT_EQ(received.status, IBV_WC_SUCCESS);
      EXPECT_EQ(received.qp_num, receives);
    }
    sender.qp()->handle = sender_handle;
    receiver.qp()->handle = receiver_handle;
  }
}

// A receive that its taker did not deliver would be lost to the queue.
TEST_F(OverwrittenTest, ReceivesComeBackFromADestroyedQueuePair) {
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node_.domain, {.depth_wrs = 1, .max_sges = 1}));
  std::optional<End> sender(node_);
  std::optional<End> receiver;
  receiver.emplace(node_, verbena::test::EndOptions{.shared_receive_queue = &srq});
  connect(*sender, *receiver);
  ASSERT_EQ(post_receive(srq.get(), 7, {buffer_.sge(0, 64)}), 0);
  ASSERT_EQ(post(sender->qp(), {.sges = {buffer_.sge(64, 8)}}), 0);
  receiver->qp()->qp_num = kOtherNumber;
  receiver.reset();
  sender.emplace(node_);
  receiver.emplace(node_, verbena::test::EndOptions{.shared_receive_queue = &srq});
  connect(*sender, *receiver);
  ASSERT_EQ(post(sender->qp(), {.sges = {buffer_.sge(64, 8)}}), 0);
  EXPECT_EQ(take(receiver->cq()).wr_id, 7u);
}

TEST_F(OverwrittenTest, ADatagramNamesItsSender) {
  test::DatagramEnd a(node_);
  test::DatagramEnd b(node_);
  const uint32_t from = a.number();
  const uint32_t to = b.number();
  a.qp()->qp_num = b.qp()->qp_num = kOtherNumber;
  ASSERT_EQ(post_receive(b.qp(), 1, {buffer_.sge(0, 256)}), 0);
  ASSERT_EQ(a.send({.sges = {buffer_.sge(256, 8)}, .to = to}), 0);
  const ibv_wc wc = b.take();
  EXPECT_EQ(wc.src_qp, from);
  EXPECT_EQ(wc.qp_num, to);
}

TEST_F(OverwrittenTest, AQueuePairLeavesItsGroups) {
  const Registry& registry = as_context(context()).rnic->registry();
  ibv_gid gid{};
  gid.raw[0] = 0xff;
  gid.raw[15] = 0x21;
  const std::string name = "ff000000000000000000000000000021";
  {
    const test::DatagramEnd member(node_);
    ASSERT_EQ(attach_mcast(member.qp(), &gid, 0), 0);
    ASSERT_EQ(must(registry.members_of(name)).size(), 1u);
    member.qp()->qp_num = kOtherNumber;
  }
  EXPECT_TRUE(must(registry.members_of(name)).empty());
}

TEST_F(OverwrittenTest, AWindowNeverGetsAKeyAgain) {
  MemoryRegion region =
      must(MemoryRegion::create(node_.domain, buffer_.data(), buffer_.size(),
                                verbena::test::kAllAccess | unsigned{IBV_ACCESS_MW_BIND}));
  End end(node_);
  End peer(node_);
  connect(end, peer);
  ibv_mw* window = alloc_mw(node_.domain.get(), IBV_MW_TYPE_1);
  ASSERT_NE(window, nullptr);
  ibv_mw_bind bind{};
  bind.bind_info = {.mr = region.get(),
                    .addr = buffer_.address(),
                    .length = 64,
                    .mw_access_flags = IBV_ACCESS_REMOTE_READ};
  end.qp()->qp_type = IBV_QPT_UD;
  const uint32_t key_before = window->rkey;
  ASSERT_EQ(bind_mw(end.qp(), window, &bind), 0) << last_error();
  const uint32_t key = window->rkey;
  window->rkey = key_before;
  ASSERT_EQ(bind_mw(end.qp(), window, &bind), 0) << last_error();
  EXPECT_NE(window->rkey, key);
  EXPECT_EQ(region_index(window->rkey), region_index(key));
  EXPECT_EQ(dealloc_mw(window), 0);
}

TEST_F(OverwrittenTest, ARegionIsFoundByItsOwnKey) {
  MemoryRegion region =
      must(MemoryRegion::create(node_.domain, buffer_.data(), 64, verbena::test::kAllAccess));
  const uint32_t key = std::exchange(region.get()->lkey, ~0u);
  EXPECT_EQ(region_memory(region.get()), RegionMemory::kSame);
  region.get()->lkey = key;
}

// --- events ---

TEST_F(OverwrittenTest, AChannelKeepsItsDescriptor) {
  ibv_comp_channel* channel = create_comp_channel(context());
  ASSERT_NE(channel, nullptr);
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
  const int own = channel->fd;
  const int other = dup(own);
  channel->fd = other;
  ibv_cq* queue = create_cq(context(), 4, channel, channel, 0);
  ASSERT_NE(queue, nullptr);
  ASSERT_EQ(as_cq(queue).shared->channel_fd, own);
  channel->fd = 1 << 20;
  queue->channel = nullptr;
  ASSERT_EQ(ibv_req_notify_cq(queue, 0), 0);
  ring_own_channel(as_cq(queue), true);
  ibv_cq* rung = nullptr;
  void* text = nullptr;
  ASSERT_EQ(get_cq_event(channel, &rung, &text), 0);
  EXPECT_EQ(rung, queue);
  queue->channel = channel;
  ack_cq_events(queue, 1);
  EXPECT_EQ(destroy_cq(queue), 0);
  channel->fd = other;
  EXPECT_EQ(destroy_comp_channel(channel), 0);
  EXPECT_EQ(close(other), 0);  // nobody else closed it
}

TEST_F(OverwrittenTest, AContextKeepsItsDescriptor) {
  ibv_context* context = open_device(device());
  ASSERT_NE(context, nullptr);
  const int other = dup(0);
  ASSERT_EQ(fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
  context->async_fd = other;
  ibv_async_event event{};
  EXPECT_EQ(get_async_event(context, &event), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(close_device(context), 0);
  EXPECT_EQ(close(other), 0);  // nobody else closed it
}

TEST_F(OverwrittenTest, AContextKeepsItsDevice) {
  ibv_context* context = open_device(soft::device(1));
  ASSERT_NE(context, nullptr);
  ibv_context* const of_other = open_device(device());
  ASSERT_NE(of_other, nullptr);
  union ibv_gid before;
  union ibv_gid after;
  ASSERT_EQ(query_gid(of_other, 1, 0, &after), 0);
  ASSERT_EQ(query_gid(context, 1, 0, &before), 0);
  ASSERT_NE(memcmp(&before, &after, sizeof(before)), 0);  // else it would show nothing
  context->device = device();
  EXPECT_EQ(query_gid(context, 1, 0, &after), 0);
  EXPECT_EQ(memcmp(&before, &after, sizeof(before)), 0);
  EXPECT_EQ(close_device(context), 0);
  EXPECT_EQ(close_device(of_other), 0);
}

// Whether one thread or another raises them.
TEST_F(OverwrittenTest, AnErrorIsToldInTheOwnContext) {
  End end(node_);
  ibv_context* const stray = reinterpret_cast<ibv_context*>(8);
  ibv_context* const own = std::exchange(end.qp()->context, stray);
  fail_queue_pair(as_qp(end.qp()), IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
  end.qp()->context = own;
  ibv_async_event event = next_event(own);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(event.element.qp, end.qp());
  ack_async_event(&event);
}

TEST_F(OverwrittenTest, EventsAreCountedElsewhere) {
  std::optional<End> end(std::in_place, node_);
  memset(&context()->mutex, 0xff, sizeof(context()->mutex));
  memset(&end->qp()->mutex, 0xff, sizeof(end->qp()->mutex));
  memset(&end->qp()->cond, 0xff, sizeof(end->qp()->cond));
  fail_queue_pair(as_qp(end->qp()), IBV_WC_WR_FLUSH_ERR, IBV_EVENT_QP_FATAL);
  ibv_async_event event = next_event(context());
  ack_async_event(&event);
  end->qp()->events_completed = 7;
  end.reset();  // does not wait

  ibv_comp_channel* channel = create_comp_channel(context());
  ibv_cq* queue = create_cq(context(), 4, nullptr, channel, 0);
  ASSERT_NE(queue, nullptr);
  memset(&queue->mutex, 0xff, sizeof(queue->mutex));
  memset(&queue->cond, 0xff, sizeof(queue->cond));
  ASSERT_EQ(ibv_req_notify_cq(queue, 0), 0);
  ring_own_channel(as_cq(queue), true);
  ibv_cq* rung = nullptr;
  void* text = nullptr;
  ASSERT_EQ(get_cq_event(channel, &rung, &text), 0);
  ack_cq_events(queue, 1);
  queue->comp_events_completed = 7;
  EXPECT_EQ(destroy_cq(queue), 0);
  EXPECT_EQ(destroy_comp_channel(channel), 0);
}

}  // namespace
}  // namespace verbena::soft
