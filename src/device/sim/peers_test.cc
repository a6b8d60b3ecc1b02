// One node that sends to many: what a context for each of them costs, and that datagrams need one.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "src/device/sim/simulated_datagram_end_for_test.h"

namespace verbena::sim {
namespace {

constexpr uint32_t kPostingThreads = 4;
constexpr uint64_t kMessagesOfThread = 5'000;
constexpr uint32_t kPendingOfThread = 32;
constexpr size_t kPeerRoomBytes = 128;
constexpr uint64_t kReceivesOfPeer = 128;

// What a thread of the node that sends needs: connections to its share of the peers, or one
// datagram queue pair for them.
struct PostingThread {
  explicit PostingThread(Cluster& cluster)
      : cq(must(CompletionQueue::create(cluster[0].device, {.depth_cqes = 4096}))),
        source(cluster[0], 64) {}

  int post(Transport transport, uint64_t number) {
    const SendRequest request{.sges = {source.sge(0, 32)}};
    const uint64_t peer = number % receivers.size();
    if (transport != Transport::kUd) return sim::post(*senders[peer], request);
    return static_cast<DatagramEnd&>(*senders[0]).send(request, addresses[peer]);
  }
  void run(Transport transport) {
    uint64_t posted = 0;
    uint64_t completed = 0;
    Waiter waiter;
    while (completed < kMessagesOfThread) {
      for (; posted < kMessagesOfThread && posted - completed < kPendingOfThread; ++posted) {
        ASSERT_EQ(post(transport, posted), 0);
      }
      ibv_wc completions[16];
      const int found = ibv_poll_cq(cq.get(), 16, completions);
      for (int i = 0; i < found; ++i) ASSERT_EQ(completions[i].status, IBV_WC_SUCCESS);
      completed += static_cast<uint64_t>(found);
      if (found > 0) {
        waiter.progress();
      } else {
        waiter.idle();
      }
    }
  }

  CompletionQueue cq;
  Buffer source;
  std::vector<std::unique_ptr<End>> senders;
  std::vector<std::unique_ptr<End>> receivers;
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<DatagramEnd::To> addresses;
};

// SENDs of 32 B from a node to so many others in turn, per microsecond.
double messages_per_us(Transport transport, uint32_t peers) {
  Cluster cluster(1 + peers);
  const bool datagrams = transport == Transport::kUd;
  std::vector<std::unique_ptr<PostingThread>> threads;
  for (uint32_t number = 0; number < kPostingThreads; ++number) {
    threads.push_back(std::make_unique<PostingThread>(cluster));
    PostingThread& thread = *threads.back();
    const EndOptions mine{.transport = transport, .send_cq = &thread.cq, .recv_cq = &thread.cq};
    const EndOptions theirs{.transport = transport};
    if (datagrams) thread.senders.push_back(std::make_unique<DatagramEnd>(cluster[0], mine));
    for (uint32_t peer = 1 + number; peer <= peers; peer += kPostingThreads) {
      if (datagrams) {
        thread.receivers.push_back(std::make_unique<DatagramEnd>(cluster[peer], theirs));
        thread.addresses.push_back({static_cast<DatagramEnd&>(*thread.senders[0]).handle(peer),
                                    thread.receivers.back()->qp()->qp_num});
      } else {
        thread.senders.push_back(std::make_unique<End>(cluster[0], mine));
        thread.receivers.push_back(std::make_unique<End>(cluster[peer], theirs));
        connect(*thread.senders.back(), *thread.receivers.back());
      }
      thread.buffers.push_back(std::make_unique<Buffer>(cluster[peer], kPeerRoomBytes));
      // As many as it is sent.
      const uint64_t receives = kMessagesOfThread * kPostingThreads / peers + 2;
      EXPECT_LE(receives, kReceivesOfPeer);
      for (uint64_t i = 0; i < receives; ++i) {
        EXPECT_EQ(post_receive(*thread.receivers.back(), i,
                               {thread.buffers.back()->sge(0, kPeerRoomBytes)}),
                  0);
      }
    }
  }
  const uint64_t begin_ns = now_ns();
  uint32_t ended = 0;
  std::vector<Thread> running;
  for (auto& thread : threads) {
    running.push_back(cluster.start(0, [&cluster, &ended, &thread, transport] {
      thread->run(transport);
      ++ended;
      cluster.simulation().wake_all_at(&ended);
    }));
  }
  cluster.simulation().run_until([&] { return ended == kPostingThreads; });
  const uint64_t took_ns = now_ns() - begin_ns;
  for (Thread& thread : running) thread.join();
  cluster.settle();
  uint64_t arrived = 0;
  for (const auto& thread : threads) {
    for (const auto& receiver : thread->receivers) arrived += take_all(*receiver).size();
  }
  EXPECT_EQ(arrived, kPostingThreads * kMessagesOfThread);
  return 1e3 * kPostingThreads * kMessagesOfThread / static_cast<double>(took_ns);
}

// With more peers than the RNIC has room for contexts, each message over a connection waits for
// one. That is decided in virtual time, so the numbers are always the same.
TEST(SimulatedPeersTest, DatagramsToManyPeersKeepTheirRateWhereConnectionsFall) {
  ASSERT_LT(test_profile().context_cache_entries, 400u);
  const double datagrams_few = messages_per_us(Transport::kUd, 160);
  const double datagrams_many = messages_per_us(Transport::kUd, 480);
  EXPECT_GT(datagrams_many, 0.98 * datagrams_few);
  for (const Transport transport : {Transport::kRc, Transport::kUc}) {
    const double connected_few = messages_per_us(transport, 160);
    const double connected_many = messages_per_us(transport, 480);
    // Where all contexts are on chip, an address in each WQE costs a little.
    EXPECT_GE(connected_few, datagrams_few);
    EXPECT_LT(connected_many, 0.5 * connected_few);
    EXPECT_GT(datagrams_many, 2 * connected_many);
  }
}

}  // namespace
}  // namespace verbena::sim
