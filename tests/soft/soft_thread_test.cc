// Verbs objects used by several threads at once, as the verbs API allows.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_control.h"
#include "tests/soft/process.h"
#include "tests/soft/responder.h"
#include "tests/soft/verbs.h"

namespace verbena::soft_test {
namespace {

// One queue pair at each side; at both, several threads post and several poll.
TEST(ThreadTest, SeveralThreadsPostAndPollOneQueuePairAndQueue) {
  constexpr uint64_t kPosters = 3;
  constexpr uint64_t kPollers = 2;
  // Many more than receives can be posted, so that no two of these ever have the same memory.
  constexpr uint64_t kSlots = 1024;
  constexpr uint64_t kSlotBytes = 512;
  const uint64_t per_poster = iterations(20'000);
  const uint64_t total = kPosters * per_poster;
  Node node;
  Buffer buffer(node.domain, (kSlots + 1) * kSlotBytes);
  End a(node, {.send_depth = 64});
  End b(node, {.recv_depth = 64});
  connect(a, b);
  std::vector<std::atomic<uint32_t>> sent(total);
  std::vector<std::atomic<uint32_t>> received(total);
  std::atomic<uint64_t> sends_done{0};
  std::atomic<uint64_t> receives_done{0};
  std::atomic<uint64_t> receives_posted{0};
  std::atomic<uint64_t> failures{0};
  std::vector<Thread> threads;
  for (uint64_t t = 0; t < kPosters; ++t) {
    threads.push_back(start_thread("sender", [&, t] {
      Deadline deadline;
      for (uint64_t i = 0; i < per_poster; ++i) {
        const uint64_t id = t * per_poster + i;
        const uint32_t size = i % 4 == 0 ? 512 : 8;
        for (;;) {
          const int error = post(a.qp(), {.id = id,
                                          .opcode = IBV_WR_SEND_WITH_IMM,
                                          .sges = {buffer.sge(0, size)},
                                          .immediate = static_cast<uint32_t>(id)});
          if (error == 0) break;
          if (error != ENOMEM || !deadline.wait()) ++failures;
          if (failures != 0) return;
        }
      }
    }));
    threads.push_back(start_thread("receiver", [&] {
      Deadline deadline;
      while (receives_posted.load() < total && failures == 0) {
        const uint64_t mine = receives_posted.fetch_add(1);
        if (mine >= total) return;
        const ibv_sge slot = buffer.sge((1 + mine % kSlots) * kSlotBytes, kSlotBytes);
        while (post_receive(b.qp(), mine, {slot}) != 0) {
          if (!deadline.wait() || failures != 0) {
            ++failures;
            return;
          }
        }
      }
    }));
  }
  for (uint64_t t = 0; t < kPollers; ++t) {
    for (const bool sends : {true, false}) {
      threads.push_back(start_thread("poller", [&, sends, t] {
        Deadline deadline;
        std::atomic<uint64_t>& done = sends ? sends_done : receives_done;
        while (done.load() < total && failures == 0) {
          ibv_wc wc[8];
          const int got = ibv_poll_cq(sends ? a.cq() : b.cq(), t == 0 ? 1 : 8, wc);
          for (int i = 0; i < got; ++i) {
            if (wc[i].status != IBV_WC_SUCCESS) ++failures;
            if (sends) {
              sent[wc[i].wr_id].fetch_add(1);
            } else {
              received[wc[i].imm_data].fetch_add(1);
            }
          }
          if (got > 0) done.fetch_add(static_cast<uint64_t>(got));
          if (got < 0 || (got == 0 && !deadline.wait())) ++failures;
        }
      }));
    }
  }
  threads.clear();
  EXPECT_EQ(failures.load(), 0u);
  uint64_t wrong = 0;
  for (uint64_t id = 0; id < total; ++id) wrong += sent[id] != 1 || received[id] != 1 ? 1 : 0;
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(is_empty(a.cq()));
  EXPECT_TRUE(is_empty(b.cq()));
}

// Threads with queue pairs of their own share a completion queue and a shared receive queue.
TEST(ThreadTest, ThreadsWithTheirOwnQueuePairsShareTheOtherQueues) {
  constexpr uint64_t kThreads = 3;
  constexpr uint64_t kDepth = 32;
  const uint64_t per_thread = iterations(10'000);
  const uint64_t total = kThreads * per_thread;
  Node node;
  Buffer buffer(node.domain, 64 * 1024);
  SharedReceiveQueue srq = must(SharedReceiveQueue::create(node.domain, {.depth_wrs = kDepth}));
  CompletionQueue cq = must(CompletionQueue::create(node.device, {.depth_cqes = 1024}));
  std::vector<std::unique_ptr<End>> senders;
  std::vector<std::unique_ptr<End>> receivers;
  for (uint64_t t = 0; t < kThreads; ++t) {
    senders.push_back(std::make_unique<End>(node));
    receivers.push_back(std::make_unique<End>(
        node, EndOptions{.send_cq = &cq, .recv_cq = &cq, .shared_receive_queue = &srq}));
    connect(*senders[t], *receivers[t]);
  }
  for (uint64_t id = 0; id < kDepth; ++id) {
    ASSERT_EQ(post_receive(srq.get(), id, {buffer.sge(id * 1024, 1024)}), 0);
  }
  std::atomic<uint64_t> received{0};
  std::atomic<uint64_t> failures{0};
  std::vector<std::atomic<uint64_t>> bytes(kThreads);
  std::vector<Thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("sender", [&, t] {
      for (uint64_t i = 0; i < per_thread && failures == 0; ++i) {
        const uint32_t size = static_cast<uint32_t>(1 + (i * 7 + t) % 300);
        if (post(senders[t]->qp(), {.opcode = IBV_WR_SEND_WITH_IMM,
                                    .sges = {buffer.sge(48 * 1024, size)},
                                    .immediate = static_cast<uint32_t>(t)}) != 0 ||
            wait_for_one(senders[t]->cq()).status != IBV_WC_SUCCESS) {
          ++failures;
        }
      }
    }));
    threads.push_back(start_thread("poller", [&] {
      Deadline deadline;
      while (received.load() < total && failures == 0) {
        ibv_wc wc;
        const int got = ibv_poll_cq(cq.get(), 1, &wc);
        if (got == 0 && deadline.wait()) continue;
        if (got != 1 || wc.status != IBV_WC_SUCCESS ||
            post_receive(srq.get(), wc.wr_id, {buffer.sge(wc.wr_id * 1024, 1024)}) != 0) {
          ++failures;
          continue;
        }
        bytes[wc.imm_data].fetch_add(wc.byte_len);
        received.fetch_add(1);
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(failures.load(), 0u);
  for (uint64_t t = 0; t < kThreads; ++t) {
    uint64_t wanted = 0;
    for (uint64_t i = 0; i < per_thread; ++i) wanted += 1 + (i * 7 + t) % 300;
    EXPECT_EQ(bytes[t].load(), wanted);
  }
  receivers.clear();
}

// Control calls of several threads: objects are made, connected, used and destroyed side by side,
// among them both ends of one connection at the same time.
TEST(ThreadTest, ThreadsMakeConnectAndDestroySideBySide) {
  constexpr int kThreads = 3;
  const uint64_t rounds = iterations(200);
  Node node;
  std::atomic<uint64_t> failures{0};
  std::vector<Thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(start_thread("worker", [&] {
      for (uint64_t round = 0; round < rounds; ++round) {
        Buffer buffer(node.domain, 8192);
        auto a = std::make_unique<End>(node);
        auto b = std::make_unique<End>(node);
        connect(*a, *b);
        if (post_receive(b->qp(), 1, {buffer.sge(0, 64)}) != 0 ||
            post(a->qp(), {.sges = {buffer.sge(64, 8)}}) != 0 ||
            wait_for_one(b->cq()).status != IBV_WC_SUCCESS) {
          ++failures;
        }
        Thread other = start_thread("destroyer", [&a] { a.reset(); });
        b.reset();
        other.join();
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(failures.load(), 0u);
}

// A queue pair is reset again and again while its peer, in another thread, sends without a pause.
TEST(ThreadTest, ResettingUnderFire) {
  Node node;
  Buffer buffer(node.domain, 64 * 1024);
  End target(node);
  std::atomic<uint64_t> failures{0};
  std::optional<End> source(std::in_place, node);
  const VerbsControl& control = node.control();
  const auto reset = [&](ibv_qp* qp) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RESET;
    if (control.modify_qp(qp, &attributes, IBV_QP_STATE) != 0) ++failures;
  };
  connect(*source, target, kImpatient);
  const uint64_t rounds = iterations(300);
  for (uint64_t round = 0; round < rounds; ++round) {
    Thread sender = start_thread("sender", [&] {
      for (;;) {
        if (post(source->qp(), {.sges = {buffer.sge(0, 2048)}}) != 0) {
          ++failures;
          return;
        }
        const ibv_wc wc = wait_for_one(source->cq());
        if (wc.status == IBV_WC_SUCCESS) continue;
        if (wc.status != IBV_WC_RETRY_EXC_ERR && wc.status != IBV_WC_RNR_RETRY_EXC_ERR) ++failures;
        return;
      }
    });
    for (uint64_t i = 0; i < round % 40; ++i) {
      if (post_receive(target.qp(), 1, {buffer.sge(4096, 4096)}) != 0) ++failures;
    }
    reset(target.qp());
    must(target.queue_pair().init(kAllAccess));
    sender.join();
    reset(source->qp());
    must(source->queue_pair().init(kAllAccess));
    connect(*source, target, kImpatient);
  }
  EXPECT_EQ(failures.load(), 0u);
}

// One thread waits for asynchronous events, another one destroys what they are about.
TEST(ThreadTest, EventsAndDestruction) {
  Node node;
  Buffer buffer(node.domain, 4096);
  std::atomic<uint64_t> events{0};
  std::atomic<uint64_t> failures{0};
  Thread listener = start_thread("events", [&] {
    for (;;) {
      ibv_async_event event{};
      if (node.control().get_async_event(node.device.get(), &event) != 0) {
        ++failures;
        return;
      }
      const bool last = event.event_type == IBV_EVENT_CQ_ERR;
      events.fetch_add(1);
      node.control().ack_async_event(&event);
      if (last) return;
    }
  });
  const uint64_t rounds = iterations(300);
  for (uint64_t round = 0; round < rounds; ++round) {
    End a(node);
    End b(node);
    connect(a, b);
    // b's queue pair gets an access error event, whenever; a and b go at once.
    if (post(a.qp(), {.opcode = IBV_WR_RDMA_WRITE, .sges = {buffer.sge(0, 8)}, .rkey = 0}) != 0 ||
        wait_for_one(a.cq()).status != IBV_WC_REM_ACCESS_ERR) {
      ++failures;
    }
    if (round % 2 == 0) continue;
    wait_until([&] { return state_of(node, b.qp()) == IBV_QPS_ERR || failures != 0; });
  }
  // An overrun is the sign to end.
  CompletionQueue small = must(CompletionQueue::create(node.device, {.depth_cqes = 1}));
  {
    End last(node, {.send_cq = &small, .recv_cq = &small});
    must(last.queue_pair().to_error());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(post(last.qp(), {}), 0);
    listener.join();
  }
  EXPECT_EQ(failures.load(), 0u);
}

// A completion queue goes only when the program has said that it has done with what told of it.
TEST(AsyncEventTest, ACompletionQueueWaitsForItsAcknowledgement) {
  Node node;
  std::optional<CompletionQueue> small =
      must(CompletionQueue::create(node.device, {.depth_cqes = 1}));
  {
    End end(node, {.send_cq = &*small, .recv_cq = &*small});
    must(end.queue_pair().to_error());
    for (int i = 0; i < 3; ++i) ASSERT_EQ(post(end.qp(), {}), 0);
  }
  ibv_async_event event{};
  ASSERT_EQ(node.control().get_async_event(node.device.get(), &event), 0);
  ASSERT_EQ(event.event_type, IBV_EVENT_CQ_ERR);
  std::atomic<bool> acknowledged{false};
  std::atomic<bool> early{false};
  std::atomic<bool> begun{false};
  Thread destroyer = start_thread("destroyer", [&] {
    begun = true;
    small.reset();
    early = !acknowledged;
  });
  ASSERT_TRUE(wait_until([&] { return begun.load(); }));
  sleep_ns(20'000'000);  // an early end shows, a late one is not one
  acknowledged = true;
  node.control().ack_async_event(&event);
  destroyer.join();
  EXPECT_FALSE(early.load());
}

// By a handler that does not ask for system calls to go on, as programs end such a thread.
TEST(AsyncEventTest, ASignalEndsTheWaitForAnEvent) {
  Node node;
  struct sigaction handler {};
  handler.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &handler, &before), 0);
  std::atomic<pthread_t> waiter{};
  std::atomic<bool> ended{false};
  int result = 0;
  int error = 0;
  Thread thread = start_thread("waiter", [&] {
    sigset_t wanted;  // threads of the library have all signals blocked
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &wanted, nullptr);
    waiter = pthread_self();
    ibv_async_event event{};
    result = node.control().get_async_event(node.device.get(), &event);
    error = errno;
    ended = true;
  });
  ASSERT_TRUE(wait_until([&] { return waiter.load() != pthread_t{}; }));
  // One that comes before it waits is lost.
  EXPECT_TRUE(wait_until([&] {
    if (!ended) pthread_kill(waiter, SIGUSR1);
    sleep_ns(1'000'000);
    return ended.load();
  }));
  thread.join();
  EXPECT_EQ(result, -1);
  EXPECT_EQ(error, EINTR);
  ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

}  // namespace
}  // namespace verbena::soft_test
