// Many queue pairs: on one completion queue, from several processes, and none is forgotten.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "src/base/runtime.h"
#include "tests/soft/process.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

struct Job {
  uint64_t queue_pairs;
  uint64_t messages;
  uint64_t seed;
};

// Sends numbered messages on its queue pairs in random order.
VERBENA_TEST_CHILD(numbers) {
  Node node;
  const auto job = link.get<Job>();
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 4096}));
  Buffer buffer(node.domain, 4096);
  std::vector<std::unique_ptr<End>> ends;
  for (uint64_t i = 0; i < job.queue_pairs; ++i) {
    ends.push_back(std::make_unique<End>(node, EndOptions{.send_cq = &cq, .recv_cq = &cq}));
    link.put(ends.back()->address());
    ends.back()->connect(link.get<QueuePairAddress>());
  }
  link.put(true);
  link.get<bool>();
  Random random(job.seed);
  std::vector<uint64_t> next(job.queue_pairs, 0);
  for (uint64_t left = job.queue_pairs * job.messages; left > 0;) {
    const uint64_t i = random.below(job.queue_pairs);
    if (next[i] == job.messages) continue;
    uint64_t number = next[i]++;
    --left;
    if (post(ends[i]->qp(), {.sges = {{reinterpret_cast<uint64_t>(&number), 8, 0}},
                             .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED}) != 0) {
      return 1;
    }
    if (wait_for_one(cq.get()).status != IBV_WC_SUCCESS) return 2;
  }
  link.put(true);
  link.get<bool>();
  ends.clear();
  return 0;
}

class ScaleTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(PollCounts, ScaleTest, testing::Values(1, 16),
                         [](const auto& info) { return std::to_string(info.param) + "AtATime"; });

TEST_P(ScaleTest, FortyQueuePairsOfFiveProcessesOnOneCompletionQueue) {
  constexpr uint64_t kProcesses = 5;
  constexpr uint64_t kPerProcess = 8;
  constexpr uint64_t kReceives = 8;
  const uint64_t messages = iterations(1000);
  Node node;
  Buffer buffer(node.domain, kProcesses * kPerProcess * kReceives * 8);
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 4096}));
  std::vector<Child> children;
  std::vector<std::unique_ptr<End>> ends;
  std::unordered_map<uint32_t, size_t> index_of;
  // wr_id: the place of the receive's eight bytes.
  const auto post_place = [&](size_t end, uint64_t place) {
    return post_receive(ends[end]->qp(), place, {buffer.sge(place * 8, 8)});
  };
  for (uint64_t i = 0; i < kProcesses; ++i) {
    children.emplace_back("numbers");
    Link& link = children.back().link();
    link.put(Job{kPerProcess, messages, run_seed() + i});
    for (uint64_t j = 0; j < kPerProcess; ++j) {
      ends.push_back(std::make_unique<End>(
          node, EndOptions{.send_cq = &cq, .recv_cq = &cq, .recv_depth = kReceives}));
      ends.back()->connect(link.get<QueuePairAddress>());
      link.put(ends.back()->address());
      index_of[ends.back()->qp()->qp_num] = ends.size() - 1;
      for (uint64_t k = 0; k < kReceives; ++k) {
        ASSERT_EQ(post_place(ends.size() - 1, (ends.size() - 1) * kReceives + k), 0);
      }
    }
  }
  for (Child& child : children) child.link().get<bool>();
  for (Child& child : children) child.link().put(true);
  std::vector<uint64_t> next(ends.size(), 0);
  Deadline deadline;
  for (uint64_t left = ends.size() * messages; left > 0;) {
    ibv_wc wcs[16];
    const int got = ibv_poll_cq(cq.get(), GetParam(), wcs);
    ASSERT_GE(got, 0);
    if (got == 0) {
      ASSERT_TRUE(deadline.wait()) << left << " messages are missing";
      continue;
    }
    for (int i = 0; i < got; ++i, --left) {
      ASSERT_EQ(wcs[i].status, IBV_WC_SUCCESS);
      const size_t end = index_of.at(wcs[i].qp_num);
      ASSERT_EQ(wcs[i].wr_id / kReceives, end);
      ASSERT_EQ(buffer.at<uint64_t>(wcs[i].wr_id * 8), next[end]++);
      ASSERT_EQ(post_place(end, wcs[i].wr_id), 0);
    }
  }
  for (Child& child : children) {
    child.link().get<bool>();
    child.link().put(true);
    EXPECT_EQ(child.wait(), 0);
  }
  ends.clear();
}

// Some queue pairs always have an arrival ready; the others must get their turn all the same,
// within a number of polls that depends on the number of queue pairs only.
TEST_P(ScaleTest, BusyQueuePairsDoNotStarveTheOthers) {
  constexpr size_t kPairs = 150;
  Node node;
  Random random(run_seed());
  Buffer buffer(node.domain, 4096);
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 4096}));
  CompletionQueue send_cq = must(CompletionQueue::create(node.device, {.depth_cqes = 65536}));
  std::vector<std::unique_ptr<End>> senders;
  std::vector<std::unique_ptr<End>> receivers;
  std::unordered_map<uint32_t, size_t> index_of;
  const auto send = [&](size_t i) {
    ASSERT_EQ(post_receive(receivers[i]->qp(), i, {buffer.sge(0, 8)}), 0);
    ASSERT_EQ(post(senders[i]->qp(), {.sges = {buffer.sge(64, 8)}}), 0);
    ASSERT_EQ(wait_for_one(send_cq.get()).status, IBV_WC_SUCCESS);
  };
  for (size_t i = 0; i < kPairs; ++i) {
    senders.push_back(
        std::make_unique<End>(node, EndOptions{.send_cq = &send_cq, .recv_cq = &send_cq}));
    receivers.push_back(std::make_unique<End>(node, EndOptions{.send_cq = &cq, .recv_cq = &cq}));
    connect(*senders[i], *receivers[i]);
    index_of[receivers[i]->qp()->qp_num] = i;
  }
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << run_seed() << " round " << round);
    std::vector<bool> busy(kPairs);
    std::vector<bool> served(kPairs, false);
    for (size_t i = 0; i < kPairs; ++i) {
      busy[i] = random.below(round % 4 + 2) != 0;
      const size_t messages = busy[i] ? 1 + 2 * static_cast<size_t>(GetParam()) : 1;
      for (size_t k = 0; k < messages; ++k) send(i);
    }
    for (size_t polls = 0; polls < 8 * kPairs; ++polls) {
      ibv_wc wcs[16];
      const int got = ibv_poll_cq(cq.get(), GetParam(), wcs);
      ASSERT_GE(got, 0);
      for (int k = 0; k < got; ++k) {
        const size_t i = index_of.at(wcs[k].qp_num);
        served[i] = true;
        if (busy[i]) send(i);
      }
    }
    EXPECT_EQ(std::count(served.begin(), served.end(), false), 0);
    ibv_wc wcs[16];
    while (ibv_poll_cq(cq.get(), 16, wcs) > 0) {
    }
  }
  senders.clear();
  receivers.clear();
}

// Own completions and arrivals share a queue.
TEST(FairnessTest, ArrivalsAndOwnCompletionsTakeTurns) {
  Node node;
  Buffer buffer(node.domain, 4096);
  End a(node);
  End b(node);
  connect(a, b);
  const auto write = [&] {
    ASSERT_EQ(post(b.qp(), {.id = 1,
                            .opcode = IBV_WR_RDMA_WRITE,
                            .sges = {buffer.sge(0, 8)},
                            .remote_address = buffer.address(64),
                            .rkey = buffer.key()}),
              0);
  };
  const auto arrive = [&] {
    ASSERT_EQ(post_receive(b.qp(), 2, {buffer.sge(128, 8)}), 0);
    ASSERT_EQ(post(a.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
    ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
  };
  for (const bool own_is_busy : {true, false}) {
    for (int i = 0; i < 2; ++i) write();
    for (int i = 0; i < 2; ++i) arrive();
    // Whichever is always there, the other one comes within two polls.
    for (int i = 0; i < 20; ++i) {
      bool other = false;
      for (int poll = 0; poll < 2; ++poll) {
        const ibv_wc wc = wait_for_one(b.cq());
        const bool own = wc.opcode == IBV_WC_RDMA_WRITE;
        other |= own != own_is_busy;
        if (own) {
          write();
        } else {
          arrive();
        }
      }
      ASSERT_TRUE(other);
    }
    wait_for(b.cq(), 4);
  }
}

// The failed one's flushes come although another one is always busy.
TEST(FairnessTest, FlushesAreNotStarved) {
  Node node;
  Buffer buffer(node.domain, 4096);
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 256}));
  End a(node);
  End busy(node, {.send_cq = &cq, .recv_cq = &cq});
  End failed(node, {.send_cq = &cq, .recv_cq = &cq});
  connect(a, busy);
  const auto arrive = [&] {
    ASSERT_EQ(post_receive(busy.qp(), 1, {buffer.sge(128, 8)}), 0);
    ASSERT_EQ(post(a.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
    ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
  };
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_EQ(post_receive(failed.qp(), 2, {buffer.sge(0, 8)}), 0);
  }
  arrive();
  arrive();
  must(failed.queue_pair().to_error());
  uint64_t flushed = 0;
  for (int polls = 0; polls < 100 && flushed < 10; ++polls) {
    const ibv_wc wc = wait_for_one(cq.get());
    if (wc.wr_id == 2) {
      EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
      ++flushed;
    } else {
      arrive();
    }
  }
  EXPECT_EQ(flushed, 10u);
  busy.close();
  failed.close();
}

TEST(ManyTest, AThousandQueuePairsComeWorkAndGo) {
  constexpr size_t kPairs = 500;
  Node node;
  Buffer buffer(node.domain, 4096);
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 4096}));
  for (int round = 0; round < 2; ++round) {
    std::vector<std::unique_ptr<End>> ends;
    const EndOptions options{.send_cq = &cq, .recv_cq = &cq, .send_depth = 4, .recv_depth = 4};
    for (size_t i = 0; i < 2 * kPairs; ++i) {
      ends.push_back(std::make_unique<End>(node, options));
    }
    for (size_t i = 0; i < kPairs; ++i) connect(*ends[2 * i], *ends[2 * i + 1]);
    // Half of them find no receive at first.
    for (size_t i = 0; i < kPairs; ++i) {
      if (i % 2 == 0) {
        ASSERT_EQ(post_receive(ends[2 * i + 1]->qp(), 1, {buffer.sge(0, 64)}), 0);
      }
      ASSERT_EQ(post(ends[2 * i]->qp(), {.id = 2, .sges = {buffer.sge(64, 8)}}), 0);
    }
    EXPECT_EQ(wait_for(cq.get(), kPairs).size(), kPairs);
    EXPECT_TRUE(is_empty(cq.get()));
    for (size_t i = 1; i < kPairs; i += 2) {
      ASSERT_EQ(post_receive(ends[2 * i + 1]->qp(), 1, {buffer.sge(0, 64)}), 0);
    }
    EXPECT_EQ(wait_for(cq.get(), kPairs).size(), kPairs);
  }
}

}  // namespace
}  // namespace verbena::soft_test
