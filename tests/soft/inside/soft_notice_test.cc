// What a process without file descriptors has to tell its peers is not lost.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>

#include <cstdint>

#include "src/base/runtime.h"
#include "src/device/soft/control.h"
#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/soft/no_descriptors_for_test.h"
#include "src/device/soft/objects.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

using soft::test::NoDescriptors;

// Ends when its queue pair has learnt that the peer's request was refused.
VERBENA_TEST_CHILD(blamed_peer) {
  Node node;
  End end(node);
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  link.put(true);
  const uint64_t limit_ns = now_ns() + kPatienceNs / 10;
  for (Waiter waiter; now_ns() < limit_ns; waiter.idle()) {
    if (soft::as_qp(end.qp()).state.load() == IBV_QPS_ERR) return 0;
  }
  return 1;
}

TEST(NoticeTest, ARefusedPeerLearnsItWithoutADescriptor) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node);
  Child child("blamed_peer");
  end.connect(child.link().get<QueuePairAddress>());
  child.link().put(end.address());
  child.link().get<bool>();
  {
    const NoDescriptors none;
    SendRequest request{.opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 8)}};
    request.remote_address = buffer.address();
    request.rkey = 0x7fffff00;
    ASSERT_EQ(post(end.qp(), request), 0);
    EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_REM_ACCESS_ERR);
  }
  EXPECT_EQ(child.wait(), 0);
}

bool wakes_up(ibv_comp_channel* channel) {
  pollfd readable{.fd = channel->fd, .events = POLLIN, .revents = 0};
  return poll(&readable, 1, static_cast<int>(kPatienceNs / 10 / 1'000'000)) == 1;
}

void arm_receiver(End& end, Buffer& buffer) {
  ASSERT_EQ(post_receive(end.qp(), 1, {buffer.sge(0, 8)}), 0);
  ASSERT_EQ(ibv_req_notify_cq(end.cq(), 0), 0);
}

// Ends when it has been woken by one SEND.
VERBENA_TEST_CHILD(sleeping_receiver) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node, {.with_channel = true});
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  arm_receiver(end, buffer);
  link.put(true);
  return wakes_up(end.cq()->channel) ? 0 : 1;
}

TEST(NoticeTest, ASleepingReceiverIsWokenWithoutADescriptor) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node);
  Child child("sleeping_receiver");
  end.connect(child.link().get<QueuePairAddress>());
  child.link().put(end.address());
  child.link().get<bool>();
  {
    const NoDescriptors none;
    ASSERT_EQ(post(end.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
    EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_SUCCESS);
  }
  EXPECT_EQ(child.wait(), 0);
}

TEST(NoticeTest, AThreadOfTheSameProcessIsWokenWithoutADescriptor) {
  Node node;
  Buffer buffer(node.domain, 64);
  End sender(node);
  End receiver(node, {.with_channel = true});
  sender.connect(receiver.address());
  receiver.connect(sender.address());
  arm_receiver(receiver, buffer);
  {
    const NoDescriptors none;
    ASSERT_EQ(post(sender.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
  }
  EXPECT_TRUE(wakes_up(receiver.cq()->channel));
}

uint64_t group_epoch(const Node& node) {
  return soft::as_context(node.domain.get()->context).rnic->header().group_epoch.load();
}

// Ends when somebody has told it that a group has changed once more.
VERBENA_TEST_CHILD(group_observer) {
  Node node;
  link.put(true);
  link.get<bool>();
  const uint64_t before = group_epoch(node);
  link.put(true);
  const uint64_t limit_ns = now_ns() + kPatienceNs / 10;
  for (Waiter waiter; now_ns() < limit_ns; waiter.idle()) {
    if (group_epoch(node) != before) return 0;
  }
  return 1;
}

TEST(NoticeTest, AMemberThatLeavesWithoutADescriptorIsForgottenLater) {
  Node node;
  soft::test::DatagramEnd end(node);
  ibv_gid group{};
  group.raw[0] = 0xff;
  group.raw[15] = 7;
  constexpr uint16_t kLid = 0xc007;
  Child child("group_observer");
  child.link().get<bool>();
  ASSERT_EQ(soft::attach_mcast(end.qp(), &group, kLid), 0);
  child.link().put(true);
  child.link().get<bool>();
  {
    const NoDescriptors none;
    ASSERT_EQ(soft::detach_mcast(end.qp(), &group, kLid), 0);
  }
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace verbena::soft_test
