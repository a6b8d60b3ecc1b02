// Completion channels: an event comes when the queue is armed for what arrives, and only then.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include "src/device/verbs_control.h"
#include "tests/soft/places.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr int64_t kForeverNs = -1;

class EventTest : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    responder_.emplace(GetParam());
    responder_->connect(end_);
    responder_->add_buffer(8192);
    for (uint64_t id = 0; id < 16; ++id) {
      ASSERT_EQ(post_receive(end_.qp(), id, {buffer_.sge(0, 4096)}), 0);
    }
  }
  bool event_waits() {
    pollfd look{.fd = end_.channel().get()->fd, .events = POLLIN, .revents = 0};
    return poll(&look, 1, 0) == 1;
  }
  void arm(bool solicited_only) {
    ASSERT_EQ(ibv_req_notify_cq(end_.cq(), solicited_only ? 1 : 0), 0);
  }
  // Sends to this side and waits until it has been received.
  void arrival(unsigned flags = IBV_SEND_SIGNALED) {
    ASSERT_EQ(responder_->send(1, {{0, 0, 8}}, flags | IBV_SEND_SIGNALED), 0);
    ASSERT_EQ(responder_->wait_for_one().status, IBV_WC_SUCCESS);
  }
  void take() { ASSERT_EQ(wait_for_one(end_.cq()).status, IBV_WC_SUCCESS); }
  void expect_event() {
    Result<ibv_cq*> event = end_.channel().wait(static_cast<int64_t>(kPatienceNs));
    ASSERT_TRUE(event.ok()) << event.status().message();
    EXPECT_EQ(*event, end_.cq());
  }

  Node node_;
  Buffer buffer_{node_.domain, 8192};
  End end_{node_, {.with_channel = true}};
  std::optional<Responder> responder_;
};

INSTANTIATE_TEST_SUITE_P(Places, EventTest, all_places(), name_by_place);

TEST_P(EventTest, NoneUnlessArmed) {
  arrival();
  take();
  EXPECT_FALSE(event_waits());
}

TEST_P(EventTest, OneForEachArming) {
  for (int round = 0; round < 3; ++round) {
    arm(false);
    arrival();
    arrival();
    expect_event();
    EXPECT_FALSE(event_waits());
    take();
    take();
  }
}

TEST_P(EventTest, NoneForWhatArrivedBeforeArming) {
  arrival();
  arm(false);
  EXPECT_FALSE(event_waits());
  take();
  EXPECT_FALSE(event_waits());
  arrival();
  expect_event();
}

TEST_P(EventTest, SolicitedOnlyWaitsForASolicitedArrival) {
  arm(true);
  arrival();
  EXPECT_FALSE(event_waits());
  arrival(IBV_SEND_SOLICITED);
  expect_event();
  EXPECT_FALSE(event_waits());
}

TEST_P(EventTest, ArmingForAnyIsNotWeakenedByArmingForSolicited) {
  arm(false);
  arm(true);
  arrival();
  expect_event();
}

TEST_P(EventTest, OwnCompletionsAreEventsToo) {
  arm(false);
  ASSERT_EQ(responder_->post_receive(1, {{0, 0, 64}}), 0);
  ASSERT_EQ(post(end_.qp(), {.id = 5, .sges = {buffer_.sge(0, 8)}}), 0);
  expect_event();
  EXPECT_EQ(wait_for_one(end_.cq()).wr_id, 5u);
}

TEST_P(EventTest, OwnCompletionsAreNotSolicited) {
  arm(true);
  ASSERT_EQ(responder_->post_receive(1, {{0, 0, 64}}), 0);
  ASSERT_EQ(post(end_.qp(), {.sges = {buffer_.sge(0, 8)}}), 0);
  take();
  EXPECT_FALSE(event_waits());
}

// Errors wake whoever armed for anything at all.
TEST_P(EventTest, OwnErrorsCountAsSolicited) {
  arm(true);
  ASSERT_EQ(post(end_.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                             .sges = {buffer_.sge(0, 8)},
                             .remote_address = 0,
                             .rkey = 0}),
            0);
  expect_event();
}

TEST_P(EventTest, ArrivalsThatFailCountAsSolicited) {
  arm(true);
  // Longer than the receive it meets: an error here as well as there.
  ASSERT_EQ(responder_->send(1, {{0, 0, 4097}}, IBV_SEND_SIGNALED), 0);
  EXPECT_EQ(responder_->wait_for_one().status, IBV_WC_REM_INV_REQ_ERR);
  expect_event();
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_LOC_LEN_ERR);
}

TEST_P(EventTest, FlushesAreEvents) {
  arm(true);
  must(end_.queue_pair().to_error());
  expect_event();
  EXPECT_EQ(wait_for_one(end_.cq()).status, IBV_WC_WR_FLUSH_ERR);
}

TEST_P(EventTest, WritesWithImmediateAreEventsAndPlainWritesAreNot) {
  const Responder::Memory remote{buffer_.address(), buffer_.key()};
  // The responder has no verb for this: a second end of this process writes instead.
  End writer(node_);
  End target(node_, {.with_channel = true});
  connect(writer, target);
  ASSERT_EQ(post_receive(target.qp(), 1, {}), 0);
  ASSERT_EQ(ibv_req_notify_cq(target.cq(), 0), 0);
  pollfd look{.fd = target.channel().get()->fd, .events = POLLIN, .revents = 0};
  SendRequest request{.opcode = IBV_WR_RDMA_WRITE,
                      .sges = {buffer_.sge(0, 8)},
                      .remote_address = remote.address + 64,
                      .rkey = remote.key};
  ASSERT_EQ(post(writer.qp(), request), 0);
  EXPECT_EQ(poll(&look, 1, 0), 0);
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  ASSERT_EQ(post(writer.qp(), request), 0);
  Result<ibv_cq*> event = target.channel().wait(static_cast<int64_t>(kPatienceNs));
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(*event, target.cq());
}

TEST_P(EventTest, ADestroyedQueuesEventIsNotDelivered) {
  CompletionQueue second =
      must(CompletionQueue::create(node_.device, {.channel = &end_.channel()}));
  {
    CompletionQueue third =
        must(CompletionQueue::create(node_.device, {.channel = &end_.channel()}));
    End a(node_, {.send_cq = &third, .recv_cq = &third});
    ASSERT_EQ(ibv_req_notify_cq(third.get(), 0), 0);
    must(a.queue_pair().to_error());
    ASSERT_EQ(post(a.qp(), {}), 0);
    EXPECT_TRUE(event_waits());
  }
  End b(node_, {.send_cq = &second, .recv_cq = &second});
  ASSERT_EQ(ibv_req_notify_cq(second.get(), 0), 0);
  must(b.queue_pair().to_error());
  ASSERT_EQ(post(b.qp(), {}), 0);
  Result<ibv_cq*> event = end_.channel().wait(static_cast<int64_t>(kPatienceNs));
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(*event, second.get());
}

TEST_P(EventTest, ADestroyedQueueLeavesNothingToWakeUpFor) {
  CompletionQueue second =
      must(CompletionQueue::create(node_.device, {.channel = &end_.channel()}));
  End b(node_, {.send_cq = &second, .recv_cq = &second});
  const auto ring = [](CompletionQueue& queue, End& end) {
    ASSERT_EQ(ibv_req_notify_cq(queue.get(), 0), 0);
    must(end.queue_pair().to_error());
    ASSERT_EQ(post(end.qp(), {}), 0);
  };
  for (const bool second_rings : {false, true}) {
    {
      CompletionQueue third =
          must(CompletionQueue::create(node_.device, {.channel = &end_.channel()}));
      End a(node_, {.send_cq = &third, .recv_cq = &third});
      ring(third, a);
      if (second_rings) ring(second, b);
      EXPECT_TRUE(event_waits());
    }
    EXPECT_EQ(event_waits(), second_rings);
  }
  Result<ibv_cq*> event = end_.channel().wait(static_cast<int64_t>(kPatienceNs));
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(*event, second.get());
  EXPECT_FALSE(event_waits());
}

TEST_P(EventTest, AChannelWithQueuesIsNotDestroyed) {
  EXPECT_EQ(node_.control().destroy_comp_channel(end_.channel().get()), EBUSY);
}

// ---- sleeping ----

// Sleeps between all arrivals and sends each back: any lost wake-up stops the exchange.
VERBENA_TEST_CHILD(sleeper) {
  Node node;
  End end(node, {.with_channel = true});
  Buffer buffer(node.domain, 4096);
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  const auto rounds = link.get<uint64_t>();
  for (int i = 0; i < 2; ++i) {
    if (post_receive(end.qp(), 0, {buffer.sge(0, 64)}) != 0) return 1;
  }
  link.put(true);
  for (uint64_t round = 0; round < rounds;) {
    if (ibv_req_notify_cq(end.cq(), 0) != 0) return 2;
    ibv_wc wc;
    int got = ibv_poll_cq(end.cq(), 1, &wc);
    if (got == 0) {
      if (!end.channel().wait(kForeverNs).ok()) return 3;
      continue;
    }
    if (got < 0 || wc.status != IBV_WC_SUCCESS) return 4;
    if (wc.opcode != IBV_WC_RECV) continue;
    ++round;
    if (post_receive(end.qp(), 0, {buffer.sge(0, 64)}) != 0) return 5;
    if (post(end.qp(), {.sges = {buffer.sge(64, 8)}, .flags = 0}) != 0) {
      // The send queue holds unsignaled sends only: a signaled one frees it.
      return 6;
    }
    if (round % 32 == 0 && post(end.qp(), {.sges = {}, .flags = IBV_SEND_SIGNALED}) != 0) return 7;
  }
  link.put(true);
  link.get<bool>();
  return 0;
}

TEST(SleepTest, TwoSleepingProcessesWakeEachOther) {
  Node node;
  End end(node, {.with_channel = true});
  Buffer buffer(node.domain, 4096);
  Child child("sleeper");
  end.connect(child.link().get<QueuePairAddress>());
  child.link().put(end.address());
  const uint64_t rounds = iterations(5000);
  child.link().put(rounds);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(post_receive(end.qp(), 0, {buffer.sge(0, 64)}), 0);
  child.link().get<bool>();
  uint64_t echoes = 0;
  ASSERT_EQ(post(end.qp(), {.sges = {buffer.sge(64, 8)}}), 0);
  while (echoes < rounds) {
    ASSERT_EQ(ibv_req_notify_cq(end.cq(), 0), 0);
    ibv_wc wc;
    const int got = ibv_poll_cq(end.cq(), 1, &wc);
    ASSERT_GE(got, 0);
    if (got == 0) {
      Result<ibv_cq*> event = end.channel().wait(static_cast<int64_t>(kPatienceNs));
      ASSERT_TRUE(event.ok()) << "round " << echoes << ": " << event.status().message();
      continue;
    }
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.opcode != IBV_WC_RECV) continue;
    ASSERT_EQ(post_receive(end.qp(), 0, {buffer.sge(0, 64)}), 0);
    if (wc.byte_len == 0) continue;  // the one that frees the other side's send queue
    if (++echoes == rounds) break;
    ASSERT_EQ(post(end.qp(), {.sges = {buffer.sge(64, 8)}}), 0);
  }
  child.link().get<bool>();
  child.link().put(true);
  EXPECT_EQ(child.wait(), 0);
}

// The sender has nothing to poll for but its own completion, and sleeps for it; the receiver posts
// late and sleeps too.
VERBENA_TEST_CHILD(late_receiver) {
  Node node;
  End end(node, {.with_channel = true});
  Buffer buffer(node.domain, 4096);
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  link.put(true);
  link.get<bool>();  // the sender waits
  if (ibv_req_notify_cq(end.cq(), 0) != 0) return 1;
  if (post_receive(end.qp(), 9, {buffer.sge(0, 64)}) != 0) return 2;
  if (!end.channel().wait(kForeverNs).ok()) return 3;
  const ibv_wc wc = wait_for_one(end.cq());
  link.put(wc.status == IBV_WC_SUCCESS && wc.wr_id == 9);
  link.get<bool>();
  return 0;
}

TEST(SleepTest, ASenderThatWaitsForAReceiveMakesProgressWhileBothSleep) {
  Node node;
  End end(node, {.with_channel = true});
  Buffer buffer(node.domain, 4096);
  Child child("late_receiver");
  end.connect(child.link().get<QueuePairAddress>());
  child.link().put(end.address());
  child.link().get<bool>();
  ASSERT_EQ(ibv_req_notify_cq(end.cq(), 0), 0);
  ASSERT_EQ(post(end.qp(), {.id = 4, .sges = {buffer.sge(0, 8)}}), 0);
  ASSERT_TRUE(is_empty(end.cq()));
  child.link().put(true);
  Result<ibv_cq*> event = end.channel().wait(static_cast<int64_t>(kPatienceNs));
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(wait_for_one(end.cq()).wr_id, 4u);
  EXPECT_TRUE(child.link().get<bool>());
  child.link().put(true);
  EXPECT_EQ(child.wait(), 0);
}

// A sender without a descriptor to ring with leaves the queue armed, for who can.
VERBENA_TEST_CHILD(sender_without_descriptors) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node);
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  link.put(true);
  link.get<bool>();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
  rlimit none = limit;
  none.rlim_cur = 3;
  if (setrlimit(RLIMIT_NOFILE, &none) != 0) return 2;
  if (post(end.qp(), {.sges = {buffer.sge(0, 8)}}) != 0) return 3;
  if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 4;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 5;
  if (post(end.qp(), {.sges = {buffer.sge(0, 8)}}) != 0) return 6;
  if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 7;
  link.put(true);
  link.get<bool>();
  return 0;
}

TEST(SleepTest, ASenderThatCannotRingLeavesTheQueueArmed) {
  Node node;
  Buffer buffer(node.domain, 128);
  End end(node, {.with_channel = true});
  Child child("sender_without_descriptors");
  end.connect(child.link().get<QueuePairAddress>());
  child.link().put(end.address());
  child.link().get<bool>();
  for (uint64_t id = 0; id < 2; ++id) {
    ASSERT_EQ(post_receive(end.qp(), id, {buffer.sge(id * 64, 64)}), 0);
  }
  ASSERT_EQ(ibv_req_notify_cq(end.cq(), 0), 0);
  ASSERT_TRUE(is_empty(end.cq()));
  child.link().put(true);
  Result<ibv_cq*> event = end.channel().wait(static_cast<int64_t>(kPatienceNs));
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(wait_for(end.cq(), 2).size(), 2u);
  child.link().get<bool>();
  child.link().put(true);
  EXPECT_EQ(child.wait(), 0);
}

// Many channels of one peer come and go; this process must not collect their descriptors.
VERBENA_TEST_CHILD(channels) {
  Node node;
  Buffer buffer(node.domain, 64);
  const auto rounds = link.get<uint64_t>();
  for (uint64_t round = 0; round < rounds; ++round) {
    End end(node, {.with_channel = true});
    link.put(end.address());
    end.connect(link.get<QueuePairAddress>());
    if (post_receive(end.qp(), 0, {buffer.sge(0, 64)}) != 0) return 1;
    if (ibv_req_notify_cq(end.cq(), 0) != 0) return 2;
    link.put(true);
    if (!end.channel().wait(kForeverNs).ok()) return 3;
    if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) return 4;
    link.put(true);
    link.get<bool>();
  }
  return 0;
}

TEST(SleepTest, ChannelsOfAPeerThatAreGoneLeaveFewDescriptors) {
  Node node;
  Buffer buffer(node.domain, 64);
  Child child("channels");
  // Keeps the peer attached all the time.
  std::optional<End> previous;
  const uint64_t rounds = 600;
  child.link().put(rounds);
  const size_t before = open_descriptors();
  for (uint64_t round = 0; round < rounds; ++round) {
    std::optional<End> end(std::in_place, node);
    const auto address = child.link().get<QueuePairAddress>();
    end->connect(address);
    child.link().put(end->address());
    child.link().get<bool>();
    ASSERT_EQ(post(end->qp(), {.sges = {buffer.sge(0, 8)}}), 0);
    ASSERT_EQ(wait_for_one(end->cq()).status, IBV_WC_SUCCESS);
    child.link().get<bool>();
    previous.reset();
    previous.swap(end);
    child.link().put(true);
  }
  EXPECT_LT(open_descriptors(), before + 300);
  EXPECT_EQ(child.wait(), 0);
}

// Whoever may open this process's descriptors can write into them.
TEST(AsyncEventTest, WhatIsNoEventOnlyWakes) {
  Node node;
  const int read_end = node.device.get()->async_fd;
  fcntl(read_end, F_SETFL, O_NONBLOCK);
  const std::string path = "/proc/self/fd/" + std::to_string(read_end);
  const int write_end = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ASSERT_GE(write_end, 0);
  ibv_async_event event{};
  for (const size_t bytes : {1u, 8u, 16u, 33u}) {
    const std::string garbage(bytes, '\x42');
    ASSERT_EQ(write(write_end, garbage.data(), bytes), static_cast<ssize_t>(bytes));
    EXPECT_TRUE(has_event(node));
    errno = 0;
    EXPECT_EQ(node.control().get_async_event(node.device.get(), &event), -1);
    EXPECT_EQ(errno, EAGAIN);
    EXPECT_FALSE(has_event(node));
  }
  // Events that come after it, or before, are not lost.
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 4}));
  End receiver(node, {.shared_receive_queue = &srq});
  ASSERT_EQ(write(write_end, "abc", 3), 3);
  must(receiver.queue_pair().to_error());
  ASSERT_EQ(write(write_end, "abc", 3), 3);
  ASSERT_EQ(node.control().get_async_event(node.device.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, receiver.qp());
  node.control().ack_async_event(&event);
  EXPECT_FALSE(has_event(node));
  close(write_end);
}

}  // namespace
}  // namespace verbena::soft_test
