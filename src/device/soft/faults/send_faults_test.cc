// Queue pairs of one process in a network with faults or with a link that takes time. What must not
// happen yet is tested with a time that no test lasts, what must happen by waiting for it.
#include "src/device/soft/faults/send_faults.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/soft/control.h"
#include "src/device/soft/datagram_end_for_test.h"
#include "src/device/soft/extended.h"
#include "src/device/soft/presentation.h"
#include "src/device/soft/rnic.h"
#include "src/device/soft/soft.h"
#include "src/device/soft/windows.h"
#include "src/device/verbs_for_test.h"

namespace verbena::soft::faults {
namespace {

using verbena::test::Buffer;
using verbena::test::End;
using verbena::test::EndOptions;
using verbena::test::Node;
using verbena::test::SendRequest;

constexpr const char* kFarAway = "latency=10s";
// The first packet is lost, and after the longest time-out, of hours, again.
constexpr const char* kLost = "drop=1";
constexpr ReliabilityOptions kHours = {.ack_timeout = 31};
constexpr uint64_t kPatienceNs = 120'000'000'000;
constexpr size_t kTargetAt = 64 * 1024;

// What nodes that are opened meanwhile have around them.
class Surroundings {
 public:
  Surroundings(const std::string& fault, const std::string& link) {
    setenv(kFaultVariable, fault.c_str(), 1);
    setenv(kLinkVariable, link.c_str(), 1);
  }
  Surroundings(const Surroundings&) = delete;
  Surroundings& operator=(const Surroundings&) = delete;
  ~Surroundings() {
    unsetenv(kFaultVariable);
    unsetenv(kLinkVariable);
    // The next one with the same settings begins anew.
    EXPECT_TRUE(network_from_environment().ok());
  }
};

// The next completion; status -1 where none comes.
ibv_wc take(ibv_cq* cq) {
  const uint64_t start_ns = now_ns();
  ibv_wc wc{};
  Waiter waiter;
  while (ibv_poll_cq(cq, 1, &wc) == 0) {
    if (now_ns() - start_ns > kPatienceNs) {
      wc.status = static_cast<ibv_wc_status>(-1);
      return wc;
    }
    waiter.idle();
  }
  return wc;
}

// Whether the word comes to have the value.
bool becomes(const uint64_t* word, uint64_t value) {
  const uint64_t start_ns = now_ns();
  for (Waiter waiter; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; waiter.idle()) {
    if (now_ns() - start_ns > kPatienceNs) return false;
  }
  return true;
}

bool has_none(ibv_cq* cq) {
  ibv_wc wc{};
  return ibv_poll_cq(cq, 1, &wc) == 0;
}

int to_error(ibv_qp* qp) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  return modify_qp(qp, &attributes, IBV_QP_STATE);
}

// What its queue pair draws, by the settings and its ordinal alone. Opening a device makes queue
// pairs, too.
FateDraws draws_of(const FaultSettings& settings, ibv_qp* qp) {
  return FateDraws(settings, as_qp(qp).faults->ordinal());
}

// Two connected queue pairs.
struct Pair {
  explicit Pair(const std::string& fault, const std::string& link = "",
                const ReliabilityOptions& reliability = {}, const EndOptions& options = {})
      : surroundings(fault, link), a(node, options), b(node, options) {
    connect(a, b, reliability);
  }
  SendRequest request(uint64_t id, ibv_wr_opcode opcode, size_t size_bytes, size_t from = 0) {
    return {.id = id,
            .opcode = opcode,
            .sges = {buffer.sge(from, size_bytes)},
            .remote_address = buffer.address(kTargetAt + from),
            .rkey = buffer.key()};
  }
  int post(const SendRequest& request) { return verbena::test::post(a.qp(), request); }
  bool target_is_zero(size_t size_bytes) {
    for (size_t i = 0; i < size_bytes; ++i) {
      if (buffer.data()[kTargetAt + i] != std::byte{0}) return false;
    }
    return true;
  }
  Surroundings surroundings;
  Node node;
  Buffer buffer{node, 2 * kTargetAt};
  End a;
  End b;
};

// ---- a link that takes time ----

TEST(LinkTest, NothingHappensBeforeItsTime) {
  constexpr uint32_t kDepth = 8;
  Pair pair(kLost, kFarAway, kHours, {.send_depth = kDepth});
  pair.buffer.fill(1, 0, 64);
  ASSERT_EQ(verbena::test::post_receive(pair.b.qp(), 50, {pair.buffer.sge(0, 64)}), 0);
  const ibv_wr_opcode opcodes[kDepth] = {
      IBV_WR_RDMA_WRITE, IBV_WR_SEND,       IBV_WR_RDMA_READ,  IBV_WR_ATOMIC_FETCH_AND_ADD,
      IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE};
  for (uint64_t id = 0; id < kDepth; ++id) {
    SendRequest request = pair.request(id, opcodes[id], 8);
    if (id % 2 != 0) request.flags = 0;
    ASSERT_EQ(pair.post(request), 0) << id;
  }
  EXPECT_EQ(pair.post(pair.request(99, IBV_WR_RDMA_WRITE, 8)), ENOMEM);
  EXPECT_TRUE(pair.target_is_zero(8));
  EXPECT_TRUE(has_none(pair.a.cq()));
  EXPECT_TRUE(has_none(pair.b.cq()));

  // What is on its way is flushed, what was not signaled, too.
  ASSERT_EQ(to_error(pair.a.qp()), 0);
  for (uint64_t id = 0; id < kDepth; ++id) {
    const ibv_wc wc = take(pair.a.cq());
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  }
  EXPECT_TRUE(has_none(pair.a.cq()));
  EXPECT_TRUE(pair.target_is_zero(8));
  // There is room again.
  ASSERT_EQ(pair.post(pair.request(100, IBV_WR_RDMA_WRITE, 8)), 0);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_WR_FLUSH_ERR);
}

TEST(LinkTest, ACompletionComesAfterARoundTrip) {
  constexpr uint64_t kLatencyNs = 5'000'000;
  Pair pair("", "latency=5ms");
  ASSERT_EQ(verbena::test::post_receive(pair.b.qp(), 50, {pair.buffer.sge(0, 64)}), 0);
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP}) {
    const uint64_t start_ns = now_ns();
    ASSERT_EQ(pair.post(pair.request(7, opcode, 8)), 0);
    EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_SUCCESS);
    EXPECT_GE(now_ns() - start_ns, 2 * kLatencyNs) << opcode;
  }
  EXPECT_EQ(take(pair.b.cq()).status, IBV_WC_SUCCESS);
}

TEST(LinkTest, WhoLooksAtMemoryNeedNotPoll) {
  constexpr uint64_t kLatencyNs = 2'000'000;
  Pair pair("", "latency=2ms");
  pair.buffer.fill(1, 0, 8);
  const uint64_t start_ns = now_ns();
  ASSERT_EQ(pair.post(pair.request(7, IBV_WR_RDMA_WRITE, 8)), 0);
  auto* const word = reinterpret_cast<uint64_t*>(pair.buffer.data() + kTargetAt);
  ASSERT_TRUE(becomes(word, pair.buffer.at<uint64_t>(0)));
  EXPECT_GE(now_ns() - start_ns, kLatencyNs);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_SUCCESS);
}

// Polls and the network's thread take turns; neither may leave the other one's work undone.
TEST(LinkTest, NothingIsForgottenBetweenPollsAndTheThread) {
  Pair pair("delay=50us,seed=3", "latency=1us");
  End c(pair.node);
  End d(pair.node);
  connect(c, d);
  Random random(3);
  auto* const words = reinterpret_cast<uint64_t*>(pair.buffer.data() + kTargetAt);
  for (uint64_t round = 1; round <= 2000; ++round) {
    pair.buffer.at<uint64_t>(0) = round;
    pair.buffer.at<uint64_t>(8) = round;
    const bool signaled = round % 32 == 0;
    for (uint64_t i = 0; i < 2; ++i) {
      SendRequest request = pair.request(round, IBV_WR_RDMA_WRITE, 8, 8 * i);
      if (!signaled) request.flags = 0;
      ASSERT_EQ(verbena::test::post(i == 0 ? pair.a.qp() : c.qp(), request), 0);
      if (signaled) {
        ASSERT_EQ(take(i == 0 ? pair.a.cq() : c.cq()).status, IBV_WC_SUCCESS);
      }
    }
    const uint64_t until_ns = now_ns() + random.below(100'000);
    while (!signaled && now_ns() < until_ns) ASSERT_TRUE(has_none(pair.b.cq()));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(becomes(words + i, round));
  }
}

TEST(LinkTest, WhoSleepsOnAChannelIsWoken) {
  Pair pair("", "latency=1ms", {}, {.with_channel = true});
  ASSERT_EQ(verbena::test::post_receive(pair.b.qp(), 50, {pair.buffer.sge(0, 64)}), 0);
  for (const End* end : {&pair.a, &pair.b}) ASSERT_EQ(ibv_req_notify_cq(end->cq(), 0), 0);
  ASSERT_EQ(pair.post(pair.request(7, IBV_WR_SEND, 8)), 0);
  for (const End* end : {&pair.b, &pair.a}) {
    pollfd event{.fd = end->cq()->channel->fd, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&event, 1, 120'000), 1);
    ibv_wc wc{};
    EXPECT_EQ(ibv_poll_cq(end->cq(), 1, &wc), 1);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  }
}

TEST(LinkTest, InlineDataMayBeOverwrittenAtOnce) {
  Pair pair("", "latency=1ms");
  pair.buffer.fill(1, 0, 64);
  SendRequest request = pair.request(7, IBV_WR_RDMA_WRITE, 64);
  request.flags |= IBV_SEND_INLINE;
  ASSERT_EQ(pair.post(request), 0);
  std::memset(pair.buffer.data(), 0, 64);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(pair.buffer.has(1, kTargetAt, 64));
}

TEST(LinkTest, ARateLimitsThePort) {
  constexpr uint64_t kRequests = 10;
  constexpr uint64_t kBytes = 10'000;
  Pair pair("", "rate=80Mbps");  // 0.1 us per byte
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    const uint64_t start_ns = now_ns();
    for (uint64_t id = 0; id < kRequests; ++id) {
      ASSERT_EQ(pair.post(pair.request(id, opcode, kBytes)), 0);
    }
    for (uint64_t id = 0; id < kRequests; ++id) EXPECT_EQ(take(pair.a.cq()).wr_id, id);
    EXPECT_GE(now_ns() - start_ns, kRequests * kBytes * 100);
  }
}

TEST(LinkTest, KeepsTheOrderOfAQueuePair) {
  Pair pair("delay=0.5:200us,rnr=0.2,seed=5", "latency=20us,rate=1Gbps", {.min_rnr_timer = 1});
  Random random(3);
  const ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ};
  constexpr uint64_t kRequests = 600;
  constexpr uint64_t kAtATime = 32;
  uint64_t received = 0;
  for (uint64_t id = 0; id < kRequests;) {
    // The last WRITE of several to one place stays.
    uint64_t writes = 0;
    uint64_t sends = 0;
    for (uint64_t i = 0; i < kAtATime; ++i) {
      const ibv_wr_opcode opcode = opcodes[random.below(3)];
      SendRequest request = pair.request(id + i, opcode, 1 + random.below(2000), 4096);
      if (opcode == IBV_WR_RDMA_WRITE) {
        std::memcpy(pair.buffer.data() + 8 * i, &(writes = id + i), 8);
        request = pair.request(id + i, opcode, 8);
        request.sges = {pair.buffer.sge(8 * i, 8)};
      }
      if (opcode == IBV_WR_SEND) {
        ASSERT_EQ(
            verbena::test::post_receive(pair.b.qp(), sends++, {pair.buffer.sge(16'384, 4096)}), 0);
      }
      ASSERT_EQ(pair.post(request), 0);
    }
    for (uint64_t i = 0; i < kAtATime; ++i, ++id) {
      const ibv_wc wc = take(pair.a.cq());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.wr_id, id);
    }
    for (uint64_t i = 0; i < sends; ++i, ++received) ASSERT_EQ(take(pair.b.cq()).wr_id, i);
    if (writes != 0) {
      EXPECT_EQ(pair.buffer.at<uint64_t>(kTargetAt), writes);
    }
  }
  EXPECT_GT(received, 0u);
}

TEST(LinkTest, AReceiveThatComesLateIsWaitedFor) {
  Pair pair("", "latency=100us");
  pair.buffer.fill(1, 0, 64);
  ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_WRITE, 64)), 0);
  ASSERT_EQ(pair.post(pair.request(2, IBV_WR_SEND, 64)), 0);
  ASSERT_EQ(pair.post(pair.request(3, IBV_WR_RDMA_WRITE, 64, 64)), 0);
  EXPECT_EQ(take(pair.a.cq()).wr_id, 1u);
  EXPECT_TRUE(has_none(pair.a.cq()));
  ASSERT_EQ(verbena::test::post_receive(pair.b.qp(), 50, {pair.buffer.sge(4096, 64)}), 0);
  EXPECT_EQ(take(pair.a.cq()).wr_id, 2u);
  EXPECT_EQ(take(pair.a.cq()).wr_id, 3u);
  EXPECT_EQ(take(pair.b.cq()).wr_id, 50u);
  EXPECT_TRUE(pair.buffer.has(1, 4096, 64));
}

TEST(LinkTest, AnErrorOfTheResponderEndsTheRest) {
  Pair pair("", "latency=100us");
  SendRequest wrong = pair.request(2, IBV_WR_RDMA_WRITE, 64);
  wrong.rkey ^= 1;
  pair.buffer.fill(1, 0, 64);
  ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_READ, 64, 1024)), 0);
  ASSERT_EQ(pair.post(wrong), 0);
  ASSERT_EQ(pair.post(pair.request(3, IBV_WR_RDMA_WRITE, 64)), 0);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(pair.target_is_zero(64));
}

// The request that was refused has ended the queue pair, whatever else ends it before the answer.
TEST(LinkTest, OneRequestOfAllTellsWhyTheQueuePairFailed) {
  constexpr uint64_t kArrivedAfterNs = 15'000'000'000;
  for (const bool has_others : {true, false}) {
    Pair pair("", kFarAway);
    SendRequest refused = pair.request(1, IBV_WR_RDMA_WRITE, 64);
    refused.rkey ^= 1;
    ASSERT_EQ(pair.post(refused), 0);
    if (has_others) {
      ASSERT_EQ(pair.post(pair.request(2, IBV_WR_RDMA_WRITE, 64)), 0);
    }
    Qp& qp = as_qp(pair.a.qp());
    qp.faults->run(now_ns() + kArrivedAfterNs);
    fail_queue_pair(qp, IBV_WC_RETRY_EXC_ERR, kNoEvent);
    EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_REM_ACCESS_ERR);
    if (!has_others) {
      ASSERT_EQ(pair.post(pair.request(2, IBV_WR_RDMA_WRITE, 64)), 0);
    }
    EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_WR_FLUSH_ERR) << has_others;
  }
}

TEST(LinkTest, AResetDropsWhatIsOnItsWay) {
  Pair pair(kLost, kFarAway, kHours);
  pair.buffer.fill(1, 0, 64);
  for (uint64_t id = 0; id < 5; ++id) {
    ASSERT_EQ(pair.post(pair.request(id, IBV_WR_RDMA_WRITE, 64)), 0);
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(modify_qp(pair.a.qp(), &attributes, IBV_QP_STATE), 0);
  EXPECT_TRUE(has_none(pair.a.cq()));
  EXPECT_TRUE(pair.target_is_zero(64));
}

TEST(LinkTest, ObjectsCanBeDestroyedWithRequestsOnTheirWay) {
  for (const char* link : {kFarAway, "latency=1us"}) {
    for (int i = 0; i < 50; ++i) {
      Pair pair("", link);
      ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_WRITE, 1000)), 0);
      ASSERT_EQ(pair.post(pair.request(2, IBV_WR_RDMA_READ, 1000, 1000)), 0);
      if (i % 2 == 0) pair.buffer.deregister();
    }
  }
}

// As without a network: `verbena top` and sysfs show them.
TEST(LinkTest, RequestsBytesAndErrorsAreCounted) {
  Pair pair("", "latency=100us");
  const QpCounters& counters = *as_qp(pair.a.qp()).counters;
  ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_WRITE, 64)), 0);
  ASSERT_EQ(pair.post(pair.request(2, IBV_WR_RDMA_READ, 36)), 0);
  for (uint64_t id = 1; id <= 2; ++id) EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_SUCCESS);
  EXPECT_EQ(counters.requests[IBV_WR_RDMA_WRITE], 1u);
  EXPECT_EQ(counters.requests[IBV_WR_RDMA_READ], 1u);
  EXPECT_EQ(counters.bytes, 100u);
  EXPECT_EQ(counters.errors, 0u);
  // One that fails, and one that is flushed behind it; then one that finds the error state.
  SendRequest wrong = pair.request(3, IBV_WR_RDMA_WRITE, 64);
  wrong.rkey ^= 1;
  ASSERT_EQ(pair.post(wrong), 0);
  ASSERT_EQ(pair.post(pair.request(4, IBV_WR_RDMA_WRITE, 64)), 0);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(counters.errors, 2u);
  ASSERT_EQ(pair.post(pair.request(5, IBV_WR_SEND, 64)), 0);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(counters.errors, 3u);
  EXPECT_EQ(counters.requests[IBV_WR_RDMA_WRITE], 3u);
  EXPECT_EQ(counters.requests[IBV_WR_SEND], 1u);
  EXPECT_EQ(counters.bytes, 100u);
}

TEST(LinkTest, BindingAWindowKeepsItsPlace) {
  Pair pair(kLost, kFarAway, kHours);
  Buffer memory(pair.node, 4096, verbena::test::kAllAccess | IBV_ACCESS_MW_BIND);
  ibv_mr* region = reg_mr(pair.node.domain.get(), memory.data(), 4096, memory.address(),
                          verbena::test::kAllAccess | IBV_ACCESS_MW_BIND);
  ASSERT_NE(region, nullptr);
  ibv_mw* window = ibv_alloc_mw(pair.node.domain.get(), IBV_MW_TYPE_1);
  ASSERT_NE(window, nullptr);
  ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_WRITE, 64)), 0);
  ibv_mw_bind bind{.wr_id = 2,
                   .send_flags = IBV_SEND_SIGNALED,
                   .bind_info = {.mr = region,
                                 .addr = memory.address(),
                                 .length = 4096,
                                 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
  ASSERT_EQ(ibv_bind_mw(pair.a.qp(), window, &bind), 0);
  EXPECT_TRUE(has_none(pair.a.cq()));
  ASSERT_EQ(to_error(pair.a.qp()), 0);
  EXPECT_EQ(take(pair.a.cq()).wr_id, 1u);
  EXPECT_EQ(take(pair.a.cq()).wr_id, 2u);
  EXPECT_EQ(ibv_dealloc_mw(window), 0);
  EXPECT_EQ(dereg_mr(region), 0);
}

TEST(LinkTest, ManyThreadsShareACompletionQueue) {
  constexpr int kThreads = 4;
  constexpr uint64_t kRequests = 200;
  const Surroundings surroundings("delay=0.2:20us,seed=3", "latency=5us,rate=10Gbps");
  const Node node;
  Buffer buffer(node, 2 * kTargetAt);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> completed{0};
  End shared(node);
  const CompletionQueue cq = verbena::test::must(CompletionQueue::create(node.device, {}));
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      End a(node, {.send_cq = &cq, .recv_cq = &cq, .send_depth = 16});
      End b(node);
      connect(a, b);
      uint64_t posted = 0;
      ibv_wc wc[8];
      const uint64_t start_ns = now_ns();
      while (completed.load() < kThreads * kRequests) {
        ASSERT_LT(now_ns() - start_ns, kPatienceNs);
        const size_t at = static_cast<size_t>(i) * 4096;
        if (posted < kRequests &&
            verbena::test::post(a.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                         .sges = {buffer.sge(at, 256)},
                                         .remote_address = buffer.address(kTargetAt + at),
                                         .rkey = buffer.key()}) == 0) {
          ++posted;
        }
        const int taken = ibv_poll_cq(cq.get(), 8, wc);
        ASSERT_GE(taken, 0);
        for (int k = 0; k < taken; ++k) ASSERT_EQ(wc[k].status, IBV_WC_SUCCESS);
        completed.fetch_add(static_cast<uint64_t>(taken));
        if (taken == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(completed.load(), kThreads * kRequests);
}

// ---- faults ----

TEST(FaultTest, LostPacketsCostTheirTimeOut) {
  constexpr uint64_t kRequests = 100;
  constexpr uint64_t kTimeoutNs = 4096 << 8;
  Pair pair("drop=0.2,seed=7", "", {.ack_timeout = 8});
  FateDraws draws = draws_of({.seed = 7, .drop = 0.2}, pair.a.qp());
  uint64_t lost = 0;
  for (uint64_t i = 0; i < kRequests; ++i) {
    const Fate fate = draws.draw({.timeout_ns = kTimeoutNs});
    ASSERT_EQ(fate.ending, Ending::kDelivered);
    lost += fate.lost_packets;
  }
  ASSERT_GT(lost, 10u);
  const uint64_t start_ns = now_ns();
  for (uint64_t id = 0; id < kRequests; ++id) {
    ASSERT_EQ(pair.post(pair.request(id, IBV_WR_RDMA_WRITE, 64)), 0);
    const ibv_wc wc = take(pair.a.cq());
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, id);
  }
  EXPECT_GE(now_ns() - start_ns, lost * kTimeoutNs);
}

TEST(FaultTest, LossesInARowEndTheQueuePair) {
  constexpr uint64_t kTimeoutNs = 4096 << 8;
  Pair pair("drop=1", "", {.retry_count = 3, .ack_timeout = 8});
  pair.buffer.fill(1, 0, 64);
  const uint64_t start_ns = now_ns();
  ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_WRITE, 64)), 0);
  ASSERT_EQ(pair.post(pair.request(2, IBV_WR_RDMA_WRITE, 64)), 0);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_GE(now_ns() - start_ns, 4 * kTimeoutNs);
  const ibv_wc wc = take(pair.a.cq());
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 2u);
  EXPECT_EQ(pair.a.qp()->state, IBV_QPS_ERR);
  EXPECT_TRUE(pair.target_is_zero(64));
}

TEST(FaultTest, AReceiverThatIsNeverReadyEndsTheQueuePair) {
  constexpr uint64_t kTimerNs = 640'000;
  Pair pair("rnr=1", "", {.rnr_retry_count = 3, .min_rnr_timer = 12});
  ASSERT_EQ(verbena::test::post_receive(pair.b.qp(), 50, {pair.buffer.sge(0, 64)}), 0);
  const uint64_t start_ns = now_ns();
  ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_WRITE, 64)), 0);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_SUCCESS) << "takes no receive";
  ASSERT_EQ(pair.post(pair.request(2, IBV_WR_SEND, 64)), 0);
  EXPECT_EQ(take(pair.a.cq()).status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_GE(now_ns() - start_ns, 3 * kTimerNs);
  EXPECT_TRUE(has_none(pair.b.cq()));
}

TEST(FaultTest, AQueuePairErrorIsTold) {
  Pair pair("qp-error=1");
  ASSERT_EQ(verbena::test::post_receive(pair.a.qp(), 50, {pair.buffer.sge(0, 64)}), 0);
  ASSERT_EQ(pair.post(pair.request(1, IBV_WR_RDMA_WRITE, 64)), 0);
  ibv_async_event event{};
  ASSERT_EQ(get_async_event(pair.node.device.get(), &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(event.element.qp, pair.a.qp());
  ack_async_event(&event);
  std::map<uint64_t, ibv_wc_status> completed;
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = take(pair.a.cq());
    completed[wc.wr_id] = wc.status;
  }
  EXPECT_EQ(completed[1], IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(completed[50], IBV_WC_WR_FLUSH_ERR);
}

TEST(FaultTest, ExtendedPostsMeetThemToo) {
  for (const bool far : {false, true}) {
    const Surroundings surroundings(far ? "" : "qp-error=1", far ? kFarAway : "");
    const Node node;
    Buffer buffer(node, 2 * kTargetAt);
    End peer(node);
    ibv_cq_init_attr_ex cq_init{};
    cq_init.cqe = 64;
    ibv_cq_ex* const cq = ibv_create_cq_ex(node.device.get(), &cq_init);
    ASSERT_NE(cq, nullptr);
    ibv_qp_init_attr_ex init{};
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
    init.qp_type = IBV_QPT_RC;
    init.cap = {.max_send_wr = 4,
                .max_recv_wr = 4,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = 64};
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.pd = node.domain.get();
    init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    ibv_qp* const qp = ibv_create_qp_ex(node.device.get(), &init);
    ASSERT_NE(qp, nullptr);
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    ASSERT_EQ(modify_qp(qp, &attributes,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              0);
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = IBV_MTU_4096;
    attributes.dest_qp_num = peer.qp()->qp_num;
    ASSERT_EQ(modify_qp(qp, &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              0);
    attributes.qp_state = IBV_QPS_RTS;
    ASSERT_EQ(modify_qp(qp, &attributes,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
              0);

    ibv_qp_ex* const ex = qp_to_qp_ex(qp);
    const auto write = [&](uint64_t id) {
      ex->wr_id = id;
      ex->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_rdma_write(ex, buffer.key(), buffer.address(kTargetAt));
      ibv_wr_set_inline_data(ex, buffer.data(), 64);
    };
    ibv_wr_start(ex);
    for (uint64_t id = 0; id < 4; ++id) write(id);
    ASSERT_EQ(ibv_wr_complete(ex), 0);
    ibv_wr_start(ex);
    write(4);
    EXPECT_EQ(ibv_wr_complete(ex), ENOMEM);
    ibv_poll_cq_attr poll_attributes{};
    if (far) {
      EXPECT_EQ(ibv_start_poll(cq, &poll_attributes), ENOENT);
      ASSERT_EQ(to_error(qp), 0);
    }
    for (uint64_t id = 0; id < 4; ++id) {
      ASSERT_EQ(ibv_start_poll(cq, &poll_attributes), 0);
      EXPECT_EQ(cq->wr_id, id);
      EXPECT_EQ(cq->status, IBV_WC_WR_FLUSH_ERR);
      ibv_end_poll(cq);
    }
    EXPECT_EQ(destroy_qp(qp), 0);
    EXPECT_EQ(destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
  }
}

TEST(FaultTest, DatagramsAreLostAsDrawn) {
  constexpr uint32_t kMessages = 1000;
  for (const char* link : {"", "latency=1us"}) {
    const Surroundings surroundings("drop=0.3,seed=7", link);
    const Node node;
    Buffer buffer(node, 4096);
    test::DatagramEnd sender(node);
    test::DatagramEnd receiver(node, kMessages);
    for (uint32_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(test::post_receive(receiver.qp(), i, {buffer.sge(0, 64)}), 0);
    }
    FateDraws draws = draws_of({.seed = 7, .drop = 0.3}, sender.qp());
    uint32_t received = 0;
    for (uint32_t i = 0; i < kMessages; ++i) {
      ASSERT_EQ(sender.send({.sges = {buffer.sge(512, 8)},
                             .to = receiver.number(),
                             .opcode = IBV_WR_SEND_WITH_IMM,
                             .immediate = i}),
                0);
      // Completed, and so delivered or lost.
      ASSERT_EQ(sender.take().status, IBV_WC_SUCCESS);
      ibv_wc wc{};
      const bool arrived = ibv_poll_cq(receiver.cq(), 1, &wc) == 1;
      ASSERT_EQ(arrived, draws.draw({.reliable = false}).ending == Ending::kDelivered) << i;
      if (arrived) {
        EXPECT_EQ(wc.imm_data, i);
        ++received;
      }
    }
    EXPECT_NEAR(received, 0.7 * kMessages, 50);
  }
}

// A connected UC queue pair.
ibv_qp* make_unreliable(const Node& node, ibv_cq* cq) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {.max_send_wr = 16,
              .max_recv_wr = 16,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 64};
  init.qp_type = IBV_QPT_UC;
  return create_qp(node.domain.get(), &init);
}
int connect_unreliable(ibv_qp* qp, uint32_t peer) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = peer;
  int error = modify_qp(qp, &attributes,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  attributes.qp_state = IBV_QPS_RTR;
  if (error == 0) {
    error = modify_qp(qp, &attributes,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  }
  attributes.qp_state = IBV_QPS_RTS;
  return error != 0 ? error : modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

TEST(FaultTest, UnreliableMessagesAreLostWithTheirPackets) {
  const Surroundings surroundings("drop=0.1,seed=7", "");
  const Node node;
  Buffer buffer(node, 2 * kTargetAt);
  ibv_cq* const cq = create_cq(node.device.get(), 64, nullptr, nullptr, 0);
  ibv_qp* const a = make_unreliable(node, cq);
  ibv_qp* const b = make_unreliable(node, cq);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  ASSERT_EQ(connect_unreliable(a, b->qp_num), 0);
  ASSERT_EQ(connect_unreliable(b, a->qp_num), 0);
  FateDraws draws = draws_of({.seed = 7, .drop = 0.1}, a);
  constexpr uint64_t kMessages = 500;
  constexpr size_t kBytes = 2500;  // three packets
  uint64_t lost = 0;
  for (uint64_t i = 1; i <= kMessages; ++i) {
    buffer.at<uint64_t>(0) = i;
    ASSERT_EQ(verbena::test::post(a, {.id = i,
                                      .opcode = IBV_WR_RDMA_WRITE,
                                      .sges = {buffer.sge(0, kBytes)},
                                      .remote_address = buffer.address(kTargetAt),
                                      .rkey = buffer.key()}),
              0);
    const ibv_wc wc = take(cq);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    ASSERT_EQ(wc.wr_id, i);
    const bool arrives = draws.draw({.reliable = false, .packets = 3}).ending == Ending::kDelivered;
    ASSERT_EQ(buffer.at<uint64_t>(kTargetAt) == i, arrives) << i;
    lost += arrives ? 0 : 1;
  }
  // By the sender, who does not know what is lost.
  EXPECT_EQ(as_qp(a).counters->requests[IBV_WR_RDMA_WRITE], kMessages);
  EXPECT_EQ(as_qp(a).counters->bytes, kMessages * kBytes);
  EXPECT_NEAR(static_cast<double>(lost), 0.271 * kMessages, 40);

  // A sender's own mistake is found, lost or not.
  ibv_sge wrong = buffer.sge(0, 64);
  wrong.lkey ^= 1;
  ASSERT_EQ(verbena::test::post(a, {.opcode = IBV_WR_RDMA_WRITE,
                                    .sges = {wrong},
                                    .remote_address = buffer.address(kTargetAt),
                                    .rkey = buffer.key()}),
            0);
  EXPECT_EQ(take(cq).status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(destroy_qp(a), 0);
  EXPECT_EQ(destroy_qp(b), 0);
  EXPECT_EQ(destroy_cq(cq), 0);
}

TEST(FaultTest, QueuePairsAreNumberedInTheirOrder) {
  for (int i = 0; i < 2; ++i) {
    const Surroundings surroundings("drop=0.5", "");
    const Node first;
    const Node second;  // of the same device
    const End a(first);
    const End b(second);
    const uint32_t ordinal = as_qp(a.qp()).faults->ordinal();
    EXPECT_EQ(as_qp(b.qp()).faults->ordinal(), ordinal + 1);
    EXPECT_LT(ordinal, 16u) << "begins anew with other surroundings";
  }
}

// A write between queue pairs of this process; false where it fails.
bool write_once(const Node& node, Buffer& buffer) {
  End a(node);
  End b(node);
  connect(a, b);
  return verbena::test::post(a.qp(), {.opcode = IBV_WR_RDMA_WRITE,
                                      .sges = {buffer.sge(0, 8)},
                                      .remote_address = buffer.address(kTargetAt),
                                      .rkey = buffer.key()}) == 0 &&
         take(a.cq()).status == IBV_WC_SUCCESS;
}

TEST(FaultTest, AChildCountsItsOwnRequestsAndQueuePairs) {
  if (VERBENA_THREAD_SANITIZER) GTEST_SKIP() << "ThreadSanitizer starts no threads after a fork()";
  constexpr uint64_t kRequests = 1000;
  Pair pair("kill-after=" + std::to_string(kRequests));
  const Network& network = *as_context(pair.node.device.get()).network;
  while (network.requests.load() + 1 < kRequests) {
    ASSERT_EQ(pair.post(pair.request(7, IBV_WR_RDMA_WRITE, 8)), 0);
    ASSERT_EQ(take(pair.a.cq()).status, IBV_WC_SUCCESS);
  }
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Node node;
    Buffer buffer{node, 2 * kTargetAt};
    const bool written = write_once(node, buffer);
    const uint32_t queue_pairs = as_context(node.device.get()).network->queue_pairs.load();
    _exit(written && queue_pairs < 16 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(FaultTest, AWrongVariableIsRefusedWhenTheDeviceIsOpened) {
  setenv(kFaultVariable, "drop=often", 1);
  const Result<Device> device = Device::open("soft0");
  unsetenv(kFaultVariable);
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.status().message().find("'drop=often'"), std::string::npos)
      << device.status().message();
}

// In a child, which has no such thread yet.
TEST(FaultTest, WithoutItsThreadTheDeviceIsNotOpened) {
  if (VERBENA_THREAD_SANITIZER) GTEST_SKIP() << "ThreadSanitizer starts no threads after a fork()";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Result<Rnic*> rnic = Rnic::get();
    setenv(kFaultVariable, "drop=0.5", 1);
    pthread_attr_t no_room_for_stacks;
    const bool prepared = rnic.ok() && pthread_attr_init(&no_room_for_stacks) == 0 &&
                          pthread_attr_setstacksize(&no_room_for_stacks, size_t{1} << 48) == 0 &&
                          pthread_setattr_default_np(&no_room_for_stacks) == 0;
    if (!prepared) _exit(2);
    if (open_device(device(0)) != nullptr || errno != ENOMEM) _exit(3);
    _exit(std::strstr(control().last_error(), "network with faults") != nullptr ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

TEST(FaultTest, WritesGoThroughTheNetworkAlways) {
  const Pair pair("drop=0.5,seed=1");
  EXPECT_EQ(control().write_now(pair.a.qp()), nullptr);
}

TEST(FaultTest, WithoutAnyTheOperationsAreThoseOfTheDevice) {
  const Node node;
  EXPECT_EQ(node.device.get()->ops.post_send, post_send);
  EXPECT_EQ(node.device.get()->ops.poll_cq, poll_cq);
  const End end(node);
  EXPECT_EQ(as_qp(end.qp()).faults, nullptr);
  EXPECT_NE(control().write_now(end.qp()), nullptr);
}

}  // namespace
}  // namespace verbena::soft::faults
