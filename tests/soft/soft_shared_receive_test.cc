// Shared receive queues: many senders take from one queue, each receive is used once.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr size_t kReceiveBytes = 64 * 1024;

// What each message begins with, if it is large enough; the rest is the pattern of `number`.
struct Heading {
  uint64_t sender;
  uint64_t number;
};

size_t size_of(uint64_t seed, uint64_t sender, uint64_t number) {
  Random random(seed ^ (sender << 32) ^ number);
  switch (random.below(8)) {
    case 0:
      return random.below(3) == 0 ? 0 : sizeof(Heading);
    case 1:
      return 100 + random.below(30);
    case 2:
      return random.below(kReceiveBytes - sizeof(Heading)) + sizeof(Heading);
    default:
      return sizeof(Heading) + random.below(200);
  }
}

void write_message(std::byte* at, size_t size, uint64_t sender, uint64_t number) {
  if (size < sizeof(Heading)) return;
  const Heading heading{sender, number};
  memcpy(at, &heading, sizeof(heading));
  fill_pattern(at + sizeof(heading), size - sizeof(heading), sender * 1000003 + number);
}

bool is_message(const std::byte* at, size_t size, uint64_t sender, uint64_t number) {
  if (size < sizeof(Heading)) return true;
  Heading heading{};
  memcpy(&heading, at, sizeof(heading));
  return heading.sender == sender && heading.number == number &&
         has_pattern(at + sizeof(heading), size - sizeof(heading), sender * 1000003 + number);
}

struct SenderJob {
  uint64_t first_sender;
  uint64_t queue_pairs;
  uint64_t messages;
  uint64_t seed;
};

// Sends on several queue pairs in turn.
VERBENA_TEST_CHILD(senders) {
  Node node;
  const auto job = link.get<SenderJob>();
  Buffer buffer(node.domain, kReceiveBytes);
  std::vector<std::unique_ptr<End>> ends;
  for (uint64_t i = 0; i < job.queue_pairs; ++i) {
    ends.push_back(std::make_unique<End>(node));
    link.put(ends.back()->address());
    ends.back()->connect(link.get<QueuePairAddress>());
  }
  link.put(true);
  link.get<bool>();
  for (uint64_t number = 0; number < job.messages; ++number) {
    for (uint64_t i = 0; i < job.queue_pairs; ++i) {
      const uint64_t sender = job.first_sender + i;
      const size_t size = size_of(job.seed, sender, number);
      write_message(buffer.data(), size, sender, number);
      if (post(ends[i]->qp(), {.sges = {buffer.sge(0, size)}}) != 0) return 1;
      if (wait_for_one(ends[i]->cq()).status != IBV_WC_SUCCESS) return 2;
    }
  }
  link.put(true);
  link.get<bool>();
  return 0;
}

TEST(SharedReceiveTest, ManySendersOfManyProcessesEachReceiveOnce) {
  constexpr uint64_t kProcesses = 3;
  constexpr uint64_t kPerProcess = 4;
  constexpr uint64_t kLocal = 2;
  constexpr uint64_t kSenders = kProcesses * kPerProcess + kLocal;
  constexpr uint64_t kDepth = 16;
  const uint64_t messages = iterations(1500);
  Node node;
  Buffer slots(node.domain, kDepth * kReceiveBytes);
  Buffer source(node.domain, kLocal * kReceiveBytes);
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kDepth, .max_sges = 2}));
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 1024}));
  const EndOptions options{.send_cq = &cq, .recv_cq = &cq, .shared_receive_queue = &srq};

  std::vector<Child> children;
  std::vector<std::unique_ptr<End>> ends;
  std::vector<std::unique_ptr<End>> local;
  for (uint64_t i = 0; i < kProcesses; ++i) {
    children.emplace_back("senders");
    Link& link = children.back().link();
    link.put(SenderJob{i * kPerProcess, kPerProcess, messages, run_seed()});
    for (uint64_t j = 0; j < kPerProcess; ++j) {
      ends.push_back(std::make_unique<End>(node, options));
      ends.back()->connect(link.get<QueuePairAddress>());
      link.put(ends.back()->address());
    }
  }
  for (uint64_t i = 0; i < kLocal; ++i) {
    ends.push_back(std::make_unique<End>(node, options));
    local.push_back(std::make_unique<End>(node));
    connect(*ends.back(), *local.back());
  }
  // Each receive's buffer is split in two at a place of its own.
  const auto post_slot = [&](uint64_t slot) {
    const size_t first = 1 + slot * 37 % 200;
    return post_receive(srq.get(), slot,
                        {slots.sge(slot * kReceiveBytes, first),
                         slots.sge(slot * kReceiveBytes + first, kReceiveBytes - first)});
  };
  std::set<uint64_t> posted;
  for (uint64_t slot = 0; slot < kDepth; ++slot) {
    ASSERT_EQ(post_slot(slot), 0);
    posted.insert(slot);
  }
  for (Child& child : children) child.link().get<bool>();
  for (Child& child : children) child.link().put(true);

  std::vector<uint64_t> next(kSenders, 0);
  std::vector<uint64_t> sent(kLocal, 0);
  std::vector<bool> busy(kLocal, false);
  uint64_t received = 0;
  Deadline deadline;
  while (received < kSenders * messages) {
    for (uint64_t i = 0; i < kLocal; ++i) {
      ibv_wc wc;
      if (busy[i] && ibv_poll_cq(local[i]->cq(), 1, &wc) == 1) busy[i] = false;
      if (busy[i] || sent[i] == messages) continue;
      const uint64_t sender = kProcesses * kPerProcess + i;
      const size_t size = size_of(run_seed(), sender, sent[i]);
      write_message(source.data() + i * kReceiveBytes, size, sender, sent[i]++);
      ASSERT_EQ(post(local[i]->qp(), {.sges = {source.sge(i * kReceiveBytes, size)}}), 0);
      busy[i] = true;
    }
    ibv_wc wcs[8];
    const int got = ibv_poll_cq(cq.get(), 8, wcs);
    ASSERT_GE(got, 0);
    if (got == 0) {
      ASSERT_TRUE(deadline.wait());
      continue;
    }
    deadline = Deadline();
    for (int i = 0; i < got; ++i) {
      const ibv_wc& wc = wcs[i];
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
      const auto end = std::find_if(ends.begin(), ends.end(), [&](const auto& candidate) {
        return candidate->qp()->qp_num == wc.qp_num;
      });
      ASSERT_NE(end, ends.end());
      const auto sender = static_cast<uint64_t>(end - ends.begin());
      ASSERT_EQ(posted.erase(wc.wr_id), 1u) << "receive " << wc.wr_id << " came twice";
      ASSERT_EQ(wc.byte_len, size_of(run_seed(), sender, next[sender]));
      ASSERT_TRUE(
          is_message(slots.data() + wc.wr_id * kReceiveBytes, wc.byte_len, sender, next[sender]))
          << "sender " << sender << " message " << next[sender] << " VERBENA_SEED=" << run_seed();
      ++next[sender];
      ++received;
      memset(slots.data() + wc.wr_id * kReceiveBytes, 0xee, std::min<size_t>(wc.byte_len, 64));
      ASSERT_EQ(post_slot(wc.wr_id), 0);
      posted.insert(wc.wr_id);
    }
  }
  EXPECT_EQ(posted.size(), kDepth);
  for (Child& child : children) {
    child.link().get<bool>();
    child.link().put(true);
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_TRUE(is_empty(cq.get()));
  ends.clear();
}

TEST(SharedReceiveTest, OneSenderCanUseAllReceivesOfADeepQueue) {
  constexpr uint32_t kReceives = 8192;
  Node node;
  Buffer buffer(node.domain, 4096);
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = kReceives}));
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kReceives}));
  End sender(node);
  End receiver(node, {.recv_cq = &cq, .shared_receive_queue = &srq});
  receiver.connect(sender.address());
  sender.connect(receiver.address(), {.rnr_retry_count = 0});
  for (uint64_t i = 0; i < kReceives; ++i) {
    ASSERT_EQ(post_receive(srq.get(), i, {buffer.sge(0, 8)}), 0);
  }
  for (uint64_t i = 0; i < kReceives; ++i) {
    ASSERT_EQ(post(sender.qp(), {.sges = {buffer.sge(64, 8)}}), 0);
    ASSERT_EQ(wait_for_one(sender.cq()).status, IBV_WC_SUCCESS) << i;
  }
  for (uint64_t i = 0; i < kReceives; ++i) {
    const ibv_wc wc = wait_for_one(cq.get());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, i);
  }
}

TEST(SharedReceiveTest, QueuePairsWithDifferentCompletionQueuesShareOne) {
  Node node;
  Buffer buffer(node.domain, 8192);
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 4}));
  End a(node);
  End b(node);
  End to_a(node, {.shared_receive_queue = &srq});
  End to_b(node, {.shared_receive_queue = &srq});
  connect(a, to_a);
  connect(b, to_b);
  for (uint64_t round = 0; round < 100; ++round) {
    ASSERT_EQ(post_receive(srq.get(), 2 * round, {buffer.sge(0, 64)}), 0);
    ASSERT_EQ(post_receive(srq.get(), 2 * round + 1, {buffer.sge(64, 64)}), 0);
    ASSERT_EQ(post(b.qp(), {.sges = {buffer.sge(4096, 8)}}), 0);
    ASSERT_EQ(post(a.qp(), {.sges = {buffer.sge(4096, 16)}}), 0);
    // In the order in which they were posted, whoever takes them.
    const ibv_wc at_a = wait_for_one(to_a.cq());
    const ibv_wc at_b = wait_for_one(to_b.cq());
    ASSERT_EQ(at_b.wr_id, 2 * round);
    ASSERT_EQ(at_a.wr_id, 2 * round + 1);
    ASSERT_EQ(at_b.byte_len, 8u);
    ASSERT_EQ(at_a.byte_len, 16u);
    ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(wait_for_one(b.cq()).status, IBV_WC_SUCCESS);
  }
  to_a.close();
  to_b.close();
}

TEST(SharedReceiveTest, TheLimitIsToldOnce) {
  Node node;
  Buffer buffer(node.domain, 4096);
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 8}));
  End a(node);
  End b(node, {.shared_receive_queue = &srq});
  connect(a, b);
  for (uint64_t id = 0; id < 8; ++id) {
    ASSERT_EQ(post_receive(srq.get(), id, {buffer.sge(0, 64)}), 0);
  }
  ibv_srq_attr attributes{};
  attributes.srq_limit = 6;
  ASSERT_EQ(node.control().modify_srq(srq.get(), &attributes, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(node.control().query_srq(srq.get(), &attributes), 0);
  EXPECT_EQ(attributes.srq_limit, 6u);
  EXPECT_EQ(attributes.max_wr, 8u);
  const auto exchange = [&] {
    ASSERT_EQ(post(a.qp(), {.sges = {buffer.sge(64, 8)}}), 0);
    ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(wait_for_one(b.cq()).status, IBV_WC_SUCCESS);
  };
  exchange();
  exchange();
  EXPECT_FALSE(has_event(node));  // six are left
  exchange();
  EXPECT_EQ(wait_for_event(node), IBV_EVENT_SRQ_LIMIT_REACHED);
  exchange();
  EXPECT_FALSE(has_event(node));
  ASSERT_EQ(node.control().query_srq(srq.get(), &attributes), 0);
  EXPECT_EQ(attributes.srq_limit, 0u);
  attributes.srq_limit = 9;
  EXPECT_EQ(node.control().modify_srq(srq.get(), &attributes, IBV_SRQ_LIMIT), EINVAL);
  b.close();
}

// The receives' memory belongs to the queue's domain, remote access to that of the queue pair.
TEST(SharedReceiveTest, TheQueueMayBeOfAnotherDomainThanTheQueuePair) {
  Node node;
  ProtectionDomain other = must(ProtectionDomain::create(node.device));
  Buffer mine(node.domain, 8192);
  Buffer theirs(other, 8192);
  for (const size_t size : {8, 4096}) {
    SharedReceiveQueue srq = must(SharedReceiveQueue::create(other, {.depth_wrs = 4}));
    End a(node);
    End b(node, {.shared_receive_queue = &srq});
    connect(a, b);
    fill_pattern(mine.data(), size, size);
    ASSERT_EQ(post_receive(srq.get(), 1, {theirs.sge(0, 4096)}), 0);
    ASSERT_EQ(post(a.qp(), {.sges = {mine.sge(0, size)}}), 0);
    EXPECT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(wait_for_one(b.cq()).status, IBV_WC_SUCCESS);
    EXPECT_TRUE(has_pattern(theirs.data(), size, size));
    SendRequest write{.opcode = IBV_WR_RDMA_WRITE,
                      .sges = {mine.sge(0, size)},
                      .remote_address = mine.address(4096),
                      .rkey = mine.key()};
    ASSERT_EQ(post(a.qp(), write), 0);
    EXPECT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
    EXPECT_TRUE(has_pattern(mine.data() + 4096, size, size));
    write.remote_address = theirs.address();
    write.rkey = theirs.key();
    ASSERT_EQ(post(a.qp(), write), 0);
    EXPECT_EQ(wait_for_one(a.cq()).status, IBV_WC_REM_ACCESS_ERR);
    b.close();
  }
}

TEST(SharedReceiveTest, DepthOneAndOddDepths) {
  Node node;
  Buffer buffer(node.domain, 4096);
  for (const uint32_t depth : {1u, 3u, 5u}) {
    SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = depth}));
    End a(node);
    End b(node, {.shared_receive_queue = &srq});
    connect(a, b);
    for (uint64_t lap = 0; lap < 20; ++lap) {
      for (uint64_t id = 0; id < depth; ++id) {
        ASSERT_EQ(post_receive(srq.get(), id, {buffer.sge(0, 64)}), 0);
      }
      ASSERT_EQ(post_receive(srq.get(), depth, {buffer.sge(0, 64)}), ENOMEM);
      for (uint64_t id = 0; id < depth; ++id) {
        ASSERT_EQ(post(a.qp(), {.sges = {buffer.sge(64, 8)}}), 0);
        ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
      }
      for (uint64_t id = 0; id < depth; ++id) ASSERT_EQ(wait_for_one(b.cq()).wr_id, id);
    }
    b.close();
  }
}

}  // namespace
}  // namespace verbena::soft_test
