// Processes that are killed at any moment: their peers get an end of all their work, keep what is
// theirs, and nothing stays behind.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

constexpr size_t kSlotBytes = 64 * 1024;
constexpr uint64_t kSharedDepth = 16;
constexpr uint64_t kOwnDepth = 8;
constexpr size_t kTargetBytes = 2 << 20;
constexpr size_t kQueuePairs = 3;

struct Ends {
  QueuePairAddress peers[kQueuePairs];
  uint64_t address;
  uint32_t key;
  uint64_t seed;
};

SendRequest random_request(Random& random, const Buffer& buffer, uint64_t address, uint32_t key) {
  SendRequest request{.sges = {buffer.sge(0, 1 + random.below(kSlotBytes))}};
  if (random.below(2) == 0) request.sges = {buffer.sge(0, random.below(200))};
  switch (random.below(6)) {
    case 0:
      request.opcode = IBV_WR_RDMA_WRITE;
      request.sges = {buffer.sge(0, 1 + random.below(kTargetBytes))};
      break;
    case 1:
      request.opcode = IBV_WR_RDMA_READ;
      request.sges = {buffer.sge(0, 1 + random.below(kTargetBytes))};
      break;
    case 2:
      request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      request.sges = {buffer.sge(0, 8)};
      break;
    case 3:
      request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      break;
    default:
      break;
  }
  request.remote_address = address;
  request.rkey = key;
  return request;
}

// As programs connect where one side is passive: that one is ready before the other has begun.
TEST(DeathTest, APeerThatWasResetAfterThisSideConnectedIsMissedToo) {
  Node node;
  Buffer buffer(node.domain, 4096);
  End end(node);
  Responder responder(Place::kOtherProcess);
  end.connect(responder.address());
  responder.reset();
  responder.connect(end.address());
  ASSERT_EQ(post_receive(end.qp(), 7, {buffer.sge(0, 64)}), 0);
  responder.end(SIGKILL);
  const ibv_wc wc = wait_for_one(end.cq());
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 7u);
  EXPECT_EQ(state_of(node, end.qp()), IBV_QPS_ERR);
}

// Does all it can on three queue pairs, until it is killed.
VERBENA_TEST_CHILD(victim) {
  Node node;
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 4096}));
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kSharedDepth}));
  Buffer source(node.domain, kTargetBytes);
  Buffer target(node.domain, kTargetBytes);
  std::vector<std::unique_ptr<End>> ends;
  Ends mine{};
  for (size_t i = 0; i < kQueuePairs; ++i) {
    ends.push_back(
        std::make_unique<End>(node, EndOptions{.send_cq = &cq,
                                               .recv_cq = &cq,
                                               .shared_receive_queue = i == 0 ? &srq : nullptr,
                                               .send_depth = 32}));
    mine.peers[i] = ends.back()->address();
  }
  mine.address = target.address();
  mine.key = target.key();
  link.put(mine);
  const auto theirs = link.get<Ends>();
  for (size_t i = 0; i < kQueuePairs; ++i) ends[i]->connect(theirs.peers[i]);
  link.put(true);
  Random random(theirs.seed);
  for (;;) {
    const uint64_t i = random.below(kQueuePairs);
    post(ends[i]->qp(), random_request(random, source, theirs.address, theirs.key));
    while (post_receive(srq.get(), 1, {target.sge(0, kSlotBytes)}) == 0) {
    }
    for (size_t k = 1; k < kQueuePairs; ++k) {
      while (post_receive(ends[k]->qp(), 1, {target.sge(0, kSlotBytes)}) == 0) {
      }
    }
    ibv_wc wc[8];
    const int got = ibv_poll_cq(cq.get(), 8, wc);
    for (int k = 0; k < got; ++k) {
      if (wc[k].status != IBV_WC_SUCCESS) return 1;
    }
  }
}

// As on systems without pidfd_open(), and under valgrind.
bool refuse_pidfds() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_send_signal, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = sizeof(program) / sizeof(program[0]), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0 &&
         syscall(SYS_pidfd_open, getpid(), 0) == -1 && errno == ENOSYS;
}

// Gets one message, and then the end of its peer.
VERBENA_TEST_CHILD(survivor_without_pidfds) {
  if (!refuse_pidfds()) return 2;
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node, {});
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  if (post_receive(end.qp(), 1, {buffer.sge(0, 32)}) != 0) return 3;
  if (post_receive(end.qp(), 2, {buffer.sge(32, 32)}) != 0) return 3;
  link.put(true);
  for (const ibv_wc_status expected : {IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR}) {
    ibv_wc wc{};
    if (!wait_until([&] { return ibv_poll_cq(end.cq(), 1, &wc) == 1; })) return 4;
    if (wc.status != expected) return 5;
    link.put(true);
  }
  return wait_until([&] { return state_of(node, end.qp()) == IBV_QPS_ERR; }) ? 0 : 6;
}

VERBENA_TEST_CHILD(sender) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node, {});
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  link.get<bool>();
  post(end.qp(), {.sges = {buffer.sge(0, 8)}});
  link.get<bool>();
  return 0;
}

TEST(DeathTestWithoutPidfds, ASurvivorNoticesAllTheSame) {
  Child survivor("survivor_without_pidfds");
  Child sender("sender");
  sender.link().put(survivor.link().get<QueuePairAddress>());
  survivor.link().put(sender.link().get<QueuePairAddress>());
  survivor.link().get<bool>();
  sender.link().put(true);
  survivor.link().get<bool>();  // has the message
  sender.kill();
  survivor.link().get<bool>();
  EXPECT_EQ(survivor.wait(), 0);
}

enum class Way { kKill, kStopAndKill, kKillUnreaped };

std::ostream& operator<<(std::ostream& out, Way way) {
  const char* const names[] = {"Killed", "StoppedAndKilled", "KilledAndNotWaitedFor"};
  return out << names[static_cast<int>(way)];
}

class DeathTest : public testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, DeathTest,
                         testing::Values(Way::kKill, Way::kStopAndKill, Way::kKillUnreaped),
                         testing::PrintToStringParamName());

// The survivor's books: what it has posted and has not got back.
struct Books {
  std::set<uint64_t> sends;
  std::set<uint64_t> receives;
  std::set<uint64_t> shared;

  // False if a completion is for nothing that was posted.
  bool take(const ibv_wc& wc) {
    return sends.erase(wc.wr_id) + receives.erase(wc.wr_id) + shared.erase(wc.wr_id) == 1;
  }
};

TEST_P(DeathTest, ASurvivorGetsAnEndOfAllItsWork) {
  const size_t rounds = iterations(GetParam() == Way::kStopAndKill ? 80 : 160);
  Random random(run_seed());
  Node node;
  Buffer source(node.domain, kTargetBytes);
  Buffer slots(node.domain, (kSharedDepth + 2 * kOwnDepth) * kSlotBytes);
  SharedReceiveQueue srq =
      must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kSharedDepth}));
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 4096}));
  Books books;
  // Shared receives have the numbers of their slots, sends and others count up from 1000.
  const auto post_shared = [&](uint64_t slot) {
    ASSERT_EQ(post_receive(srq.get(), slot, {slots.sge(slot * kSlotBytes, kSlotBytes)}), 0);
    books.shared.insert(slot);
  };
  for (uint64_t slot = 0; slot < kSharedDepth; ++slot) post_shared(slot);
  uint64_t next_id = 1000;

  for (size_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(testing::Message() << "VERBENA_SEED=" << run_seed() << " round " << round);
    Buffer target(node.domain, kTargetBytes);
    Child child("victim");
    const auto theirs = child.link().get<Ends>();
    std::vector<std::unique_ptr<End>> ends;
    Ends mine{};
    for (size_t i = 0; i < kQueuePairs; ++i) {
      ends.push_back(
          std::make_unique<End>(node, EndOptions{.send_cq = &cq,
                                                 .recv_cq = &cq,
                                                 .shared_receive_queue = i == 0 ? &srq : nullptr,
                                                 .send_depth = 16,
                                                 .recv_depth = kOwnDepth}));
      mine.peers[i] = ends.back()->address();
      // Without end: what does not work must end by the peer's death alone.
      ends.back()->connect(theirs.peers[i], {.retry_count = 7, .ack_timeout = 0});
    }
    mine.address = target.address();
    mine.key = target.key();
    mine.seed = random.next();
    child.link().put(mine);
    child.link().get<bool>();

    const auto work = [&] {
      const uint64_t i = random.below(kQueuePairs);
      SendRequest request = random_request(random, source, theirs.address, theirs.key);
      request.id = next_id++;
      if (post(ends[i]->qp(), request) == 0) books.sends.insert(request.id);
      for (size_t k = 1; k < kQueuePairs; ++k) {
        const uint64_t slot = kSharedDepth + (k - 1) * kOwnDepth;
        while (post_receive(ends[k]->qp(), next_id, {slots.sge(slot * kSlotBytes, kSlotBytes)}) ==
               0) {
          books.receives.insert(next_id++);
        }
      }
    };
    const auto poll = [&] {
      ibv_wc wc[8];
      const int got = ibv_poll_cq(cq.get(), 8, wc);
      EXPECT_GE(got, 0);
      for (int i = 0; i < got; ++i) {
        EXPECT_TRUE(books.take(wc[i])) << "unknown completion " << wc[i].wr_id;
        if (wc[i].wr_id < kSharedDepth) post_shared(wc[i].wr_id);
      }
      return got;
    };

    // Some are killed at once, some in full work.
    const uint64_t before = random.below(4) == 0 ? 0 : random.below(300);
    for (uint64_t i = 0; i < before; ++i) {
      work();
      poll();
    }
    if (GetParam() == Way::kStopAndKill) {
      child.signal(SIGSTOP);
      for (uint64_t i = random.below(50); i > 0; --i) {
        work();
        poll();
      }
    }
    if (GetParam() == Way::kKillUnreaped) {
      child.signal(SIGKILL);
    } else {
      child.kill();
    }
    for (uint64_t i = random.below(20); i > 0; --i) {
      work();
      poll();
    }

    // Everything ends, and all queue pairs know why.
    ASSERT_TRUE(wait_until([&] {
      poll();
      return books.sends.empty() && books.receives.empty();
    })) << books.sends.size()
        << " sends and " << books.receives.size() << " receives are left";
    for (const auto& end : ends) {
      ASSERT_TRUE(wait_until([&] { return state_of(node, end->qp()) == IBV_QPS_ERR; }));
    }
    while (poll() > 0) {
    }
    ends.clear();
    if (testing::Test::HasFailure()) return;

    // The shared receives are all there.
    ASSERT_EQ(books.shared.size(), kSharedDepth);
    ASSERT_EQ(post_receive(srq.get(), 0, {}), ENOMEM);
    if (round % 4 != 3) continue;
    End a(node);
    End b(node, {.shared_receive_queue = &srq});
    connect(a, b);
    for (uint64_t i = 0; i < kSharedDepth; ++i) {
      ASSERT_EQ(post(a.qp(), {.sges = {source.sge(0, 64)}}), 0);
      ASSERT_EQ(wait_for_one(a.cq()).status, IBV_WC_SUCCESS);
      const ibv_wc wc = wait_for_one(b.cq());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(books.shared.erase(wc.wr_id), 1u);
    }
    for (uint64_t slot = 0; slot < kSharedDepth; ++slot) post_shared(slot);
  }
}

// ---- who learns of a death, and how ----

TEST(DeathNoticeTest, AProcessAsleepOnACompletionChannelWakesUp) {
  Node node;
  Buffer buffer(node.domain, 4096);
  for (const bool shared : {false, true}) {
    SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 4}));
    End end(node, {.with_channel = true, .shared_receive_queue = shared ? &srq : nullptr});
    Responder responder(Place::kOtherProcess);
    responder.connect(end);
    if (!shared) {
      ASSERT_EQ(post_receive(end.qp(), 1, {buffer.sge(0, 64)}), 0);
    }
    ASSERT_EQ(ibv_req_notify_cq(end.cq(), 1), 0);
    ASSERT_TRUE(is_empty(end.cq()));
    responder.end(SIGKILL);
    Result<ibv_cq*> event = end.channel().wait(static_cast<int64_t>(kPatienceNs));
    ASSERT_TRUE(event.ok()) << event.status().message();
    if (!shared) {
      EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_WR_FLUSH_ERR);
    }
    EXPECT_EQ(state_of(node, end.qp()), IBV_QPS_ERR);
    end.close();
  }
}

// From here on, what it writes to a pipe kills it.
bool die_of_writing() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, nr))),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = sizeof(program) / sizeof(program[0]), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

VERBENA_TEST_CHILD(killed_while_it_rings) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node);
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  link.put(true);
  link.get<bool>();  // the receiver sleeps
  if (!die_of_writing()) return 2;
  return post(end.qp(), {.sges = {buffer.sge(0, 8)}}) == 0 ? 0 : 3;
}

// The sender has disarmed the queue, and has not written the event yet.
TEST(DeathNoticeTest, ASenderThatIsKilledWhileItRingsWakesTheSleeper) {
  Node node;
  Buffer buffer(node.domain, 64);
  End end(node, {.with_channel = true});
  Child child("killed_while_it_rings");
  end.connect(child.link().get<QueuePairAddress>());
  child.link().put(end.address());
  child.link().get<bool>();
  ASSERT_EQ(post_receive(end.qp(), 7, {buffer.sge(0, 64)}), 0);
  ASSERT_EQ(ibv_req_notify_cq(end.cq(), 0), 0);
  ASSERT_TRUE(is_empty(end.cq()));
  child.link().put(true);
  EXPECT_EQ(child.wait(), 128 + SIGSYS);
  Result<ibv_cq*> event = end.channel().wait(static_cast<int64_t>(kPatienceNs));
  ASSERT_TRUE(event.ok()) << event.status().message();
  const ibv_wc wc = wait_for_one(end.cq());
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 7u);
}

TEST(DeathNoticeTest, AQueuePairThatOnlyReceivesIsFlushed) {
  Node node;
  Buffer buffer(node.domain, 4096);
  End end(node);
  Responder responder(Place::kOtherProcess);
  responder.connect(end.address());
  ASSERT_EQ(post_receive(end.qp(), 1, {buffer.sge(0, 64)}), 0);
  // Ready to receive, and no further.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = responder.address().queue_pair_number;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.dlid = 1;
  ASSERT_EQ(node.control().modify_qp(end.qp(), &attributes,
                                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                         IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                         IBV_QP_MIN_RNR_TIMER),
            0);
  responder.end(SIGKILL);
  EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wait_for_event(node), IBV_EVENT_QP_FATAL);
}

TEST(DeathNoticeTest, WhatHadArrivedIsDeliveredFirst) {
  Node node;
  Buffer buffer(node.domain, 8192);
  End end(node);
  Responder responder(Place::kOtherProcess);
  responder.connect(end);
  responder.add_buffer(4096);
  responder.fill({0, 0, 4096}, 1);
  for (uint64_t id = 0; id < 4; ++id) {
    ASSERT_EQ(post_receive(end.qp(), id, {buffer.sge(id * 2048, 2048)}), 0);
  }
  ASSERT_EQ(responder.send(1, {{0, 0, 8}}), 0);
  ASSERT_EQ(responder.send(1, {{0, 0, 2048}}), 0);
  responder.end(SIGKILL);
  ASSERT_TRUE(wait_until([&] { return state_of(node, end.qp()) == IBV_QPS_ERR; }));
  const std::vector<ibv_wc> got = wait_for(end.cq(), 4);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_EQ(got[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(got[1].status, IBV_WC_SUCCESS);
  EXPECT_EQ(got[2].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(got[3].status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(has_pattern(buffer.data() + 2048, 2048, 1));
}

// As after an RNIC's retries; what is posted then comes too late.
TEST(DeathNoticeTest, TheFirstRequestAfterADeathTellsOfIt) {
  Node node;
  Buffer buffer(node.domain, 4096);
  for (const bool failed_by_its_owner : {false, true}) {
    End end(node);
    Responder responder(Place::kOtherProcess);
    responder.connect(end);
    responder.end(SIGKILL);
    ASSERT_TRUE(wait_until([&] { return state_of(node, end.qp()) == IBV_QPS_ERR; }));
    if (failed_by_its_owner) must(end.queue_pair().to_error());
    for (const bool first : {true, false, false}) {
      // Also without a wish to be told of success.
      ASSERT_EQ(post(end.qp(), {.id = 7, .sges = {buffer.sge(0, 8)}, .flags = 0}), 0);
      const ibv_wc wc = wait_for_one(end.cq());
      EXPECT_EQ(wc.wr_id, 7u);
      EXPECT_EQ(wc.status,
                first && !failed_by_its_owner ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR);
    }
    // The next generation has nothing of it.
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    ASSERT_EQ(node.control().modify_qp(end.qp(), &attributes, IBV_QP_STATE), 0);
    must(end.queue_pair().init(kAllAccess));
    must(end.queue_pair().to_error());
    ASSERT_EQ(post(end.qp(), {.sges = {buffer.sge(0, 8)}}), 0);
    EXPECT_EQ(wait_for_one(end.cq()).status, IBV_WC_WR_FLUSH_ERR);
  }
}

// An end in order, or the survivor's own error before, is no reason for more errors.
TEST(DeathNoticeTest, APeerThatDestroyedItsQueuePairFirstHasLeftInOrder) {
  Node node;
  Buffer buffer(node.domain, 4096);
  End end(node);
  End other(node);
  Responder leaving(Place::kOtherProcess);
  Responder dying(Place::kOtherProcess);
  leaving.connect(end);
  dying.connect(other);
  ASSERT_EQ(post_receive(end.qp(), 1, {buffer.sge(0, 64)}), 0);
  leaving.destroy_queue_pair();
  leaving.end(0);
  dying.end(SIGKILL);
  ASSERT_TRUE(wait_until([&] { return state_of(node, other.qp()) == IBV_QPS_ERR; }));
  EXPECT_EQ(state_of(node, end.qp()), IBV_QPS_RTS);
  EXPECT_TRUE(is_empty(end.cq()));
}

// The survivor's queue pair is in the error state already when its peer dies with a receive taken.
VERBENA_TEST_CHILD(large_sender) {
  Node node;
  End end(node);
  Buffer buffer(node.domain, 8 << 20);
  link.put(end.address());
  end.connect(link.get<QueuePairAddress>());
  link.put(true);
  for (;;) {
    if (post(end.qp(), {.sges = {buffer.sge(0, buffer.size())}}) != 0) return 1;
    if (wait_for_one(end.cq()).status != IBV_WC_SUCCESS) {
      link.get<bool>();
      return 0;
    }
  }
}

TEST(DeathNoticeTest, ReceivesTakenFromAFailedQueuePairComeBack) {
  Node node;
  Random random(run_seed());
  Buffer landing(node.domain, 8 << 20);
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = 1}));
  ASSERT_EQ(post_receive(srq.get(), 1, {landing.sge(0, landing.size())}), 0);
  const size_t rounds = iterations(40);
  for (size_t round = 0; round < rounds; ++round) {
    Child child("large_sender");
    auto end = std::make_unique<End>(node, EndOptions{.shared_receive_queue = &srq});
    end->connect(child.link().get<QueuePairAddress>());
    child.link().put(end->address());
    child.link().get<bool>();
    const auto take = [&] {
      ibv_wc wc;
      if (ibv_poll_cq(end->cq(), 1, &wc) != 1) return;
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(post_receive(srq.get(), 1, {landing.sge(0, landing.size())}), 0);
    };
    for (uint64_t i = random.below(2000); i > 0; --i) take();
    must(end->queue_pair().to_error());
    child.kill();
    // While the failed queue pair is still there, others can use the receive.
    End a(node);
    End b(node, {.shared_receive_queue = &srq});
    connect(a, b);
    ASSERT_EQ(post(a.qp(), {.sges = {landing.sge(0, 64)}}), 0);
    ASSERT_TRUE(wait_until([&] {
      take();
      ibv_wc wc;
      return ibv_poll_cq(a.cq(), 1, &wc) == 1;
    })) << "VERBENA_SEED="
        << run_seed() << " round " << round;
    ASSERT_EQ(wait_for_one(b.cq()).status, IBV_WC_SUCCESS);
    ASSERT_EQ(post_receive(srq.get(), 1, {landing.sge(0, landing.size())}), 0);
    b.close();
    end->close();
  }
}

// ---- what stays behind ----

constexpr const char* kCounters = "counters.";

// All, or those of counters, which stay until the next process has added them up.
std::set<std::string> registry_files(bool of_counters = false) {
  std::set<std::string> names;
  const std::string directory =
      std::string(getenv("VERBENA_RUNTIME_DIR")) + "/verbena-" + std::to_string(geteuid());
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(kCounters) == of_counters) names.insert(name);
  }
  return names;
}

TEST(LeftoverTest, TheNextProcessRemovesWhatKilledOnesLeft) {
  Node node;
  {
    std::vector<std::unique_ptr<Responder>> responders;
    for (int i = 0; i < 5; ++i) {
      responders.push_back(std::make_unique<Responder>(Place::kOtherProcess));
      responders.back()->address();  // it runs
    }
    EXPECT_EQ(registry_files().size(), 7u);
    for (const auto& responder : responders) responder->end(SIGKILL);
    EXPECT_EQ(registry_files().size(), 7u);
  }
  Responder next(Place::kOtherProcess);
  next.address();
  // The lock, this process and the new one.
  EXPECT_EQ(registry_files().size(), 3u);
  EXPECT_EQ(registry_files().count("lock"), 1u);
  EXPECT_EQ(registry_files(true).size(), 3u) << "of this process, the new one, and all that ended";
  next.end(0);
  EXPECT_EQ(registry_files().size(), 2u);
}

// Killed between its steps of joining.
VERBENA_TEST_CHILD(joiner) {
  link.put(true);
  Node node;
  link.put(true);
  link.get<bool>();
  return 0;
}

TEST(LeftoverTest, ProcessesKilledWhileTheyJoinBlockNobody) {
  Node node;
  Random random(run_seed());
  const size_t rounds = iterations(60);
  for (size_t round = 0; round < rounds; ++round) {
    Child child("joiner");
    child.link().get<bool>();
    sleep_ns(random.below(3'000'000));
    child.kill();
  }
  Responder last(Place::kOtherProcess);
  last.address();
  EXPECT_EQ(registry_files().size(), 3u);
}

}  // namespace
}  // namespace verbena::soft_test
