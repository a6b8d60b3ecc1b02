// Sockets of simulated nodes: who runs where, where memory lies, and what that costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/socket_port.h"
#include "src/memory/arena.h"
#include "verbena/clock.h"
#include "verbena/data_path.h"
#include "verbena/sockets.h"

namespace verbena {
namespace {

using test::must;
using testing::HasSubstr;

// Two sockets, and work that takes the same time whenever it is done.
const sim::Profile& two_sockets() {
  static const sim::Profile profile = [] {
    sim::Profile one = must(sim::load_profile("connectx3-40g"));
    one.jitter_percent = 0;
    return one;
  }();
  return profile;
}

class SimulatedSocketsTest : public testing::Test {
 protected:
  static constexpr uint64_t kPageBytes = 4096;

  // Where things are; the ports of both nodes are on one socket.
  struct Places {
    int core = 0;
    int memory = 0;
    int remote_memory = 0;
    int port = 0;
  };

  // What an operation on 8 bytes takes, from its post until its completion is taken.
  uint64_t operation_ns(ibv_wr_opcode opcode, const Places& places) {
    uint64_t took_ns = 0;
    const sim::OnNode other(cluster_.simulation(), cluster_.node(1));
    const test::Node there = node(places.port);
    const RegisteredArena remote = arena(there, places.remote_memory);
    test::End theirs(there);
    Thread thread = cluster_.start(0, [&] {
      must(run_on_socket(places.core));
      const test::Node here = node(places.port);
      const RegisteredArena memory = arena(here, places.memory);
      test::End mine(here);
      test::connect(mine, theirs);
      for (int i = 0; i < 2; ++i) {  // the first one finds no state in the RNICs' caches
        const uint64_t begun_ns = now_ns();
        ASSERT_EQ(
            test::post(mine.qp(),
                       {.opcode = opcode,
                        .sges = {{reinterpret_cast<uint64_t>(memory.data()), 8, memory.lkey()}},
                        .remote_address = reinterpret_cast<uint64_t>(remote.data()),
                        .rkey = remote.rkey()}),
            0);
        ibv_wc done;
        Waiter waiter;
        while (poll_completions(mine.cq(), 1, &done) == 0) waiter.idle();
        ASSERT_EQ(done.status, IBV_WC_SUCCESS);
        took_ns = now_ns() - begun_ns;
      }
    });
    thread.join();
    return took_ns;
  }

  // What `count` additions by each thread to one word take, with thread i on socket sockets[i].
  uint64_t additions_ns(const std::vector<int>& sockets, uint64_t count) {
    uint64_t& word = words_.emplace_back(0);
    uint64_t end_ns = 0;
    const uint64_t begun_ns = now_ns();
    std::vector<Thread> threads;
    for (const int socket : sockets) {
      threads.push_back(cluster_.start(0, [&word, &end_ns, socket, count] {
        must(run_on_socket(socket));
        for (uint64_t i = 0; i < count; ++i) fetch_and_add_word(&word, uint64_t{1});
        end_ns = std::max(end_ns, now_ns());
      }));
    }
    for (Thread& thread : threads) thread.join();
    EXPECT_EQ(word, sockets.size() * count);
    return end_ns - begun_ns;
  }

  sim::Cluster cluster_{2, 1, two_sockets()};

 private:
  static test::Node node(int port) {
    Device device = must(open_port("sim:connectx3-40g", port));
    ProtectionDomain domain = must(ProtectionDomain::create(device));
    return {std::move(device), std::move(domain)};
  }
  static RegisteredArena arena(const test::Node& node, int socket) {
    return must(RegisteredArena::create(node.domain, kPageBytes, test::kAllAccess,
                                        /*huge_pages=*/false, socket));
  }

  std::deque<uint64_t> words_;  // one per call: the simulation knows them by their address
};

TEST_F(SimulatedSocketsTest, ANodeHasTheSocketsOfItsProfile) {
  EXPECT_EQ(machine_sockets().size(), 1u) << "outside of all nodes";
  Thread thread = cluster_.start(0, [&] {
    EXPECT_EQ(machine_sockets().size(), 2u);
    EXPECT_EQ(socket_of(cluster_[0].device), 0);
    EXPECT_EQ(socket_of(must(open_port(cluster_[0].device.info().name, 1))), 1);
    EXPECT_THAT(open_port(cluster_[0].device.info().name, 2).status().message(),
                HasSubstr("names no socket of this node; choose @0 to @1"));
    EXPECT_TRUE(run_on_socket(1).ok());
    EXPECT_EQ(run_on_socket(2).code(), StatusCode::kInvalidArgument);
  });
  thread.join();
}

TEST_F(SimulatedSocketsTest, MemoryLiesWhereItWasPlacedUntilItIsDeregistered) {
  Thread thread = cluster_.start(0, [&] {
    std::vector<char> memory(1000);
    EXPECT_EQ(socket_of_memory(memory.data(), memory.size()), kAnySocket);
    must(place_on_socket(memory.data(), memory.size(), 1));
    EXPECT_EQ(socket_of_memory(memory.data() + 10, 990), 1);
    EXPECT_EQ(socket_of_memory(memory.data() + 10, 991), kAnySocket);
    {
      const MemoryRegion region = must(MemoryRegion::create(cluster_[0].domain, memory.data(),
                                                            memory.size(), IBV_ACCESS_LOCAL_WRITE));
      EXPECT_EQ(socket_of_memory(memory.data(), memory.size()), 1);
    }
    EXPECT_EQ(socket_of_memory(memory.data(), memory.size()), kAnySocket);
    const RegisteredArena arena =
        must(RegisteredArena::create(cluster_[0].domain, kPageBytes, IBV_ACCESS_LOCAL_WRITE));
    EXPECT_EQ(socket_of_memory(arena.data(), kPageBytes), 0) << "near its device";
  });
  thread.join();
}

TEST_F(SimulatedSocketsTest, EachWayBetweenSocketsTakesItsTime) {
  const sim::Profile& profile = two_sockets();
  const auto ns = [](sim::Time time) { return time / sim::kPsPerNs; };
  const uint64_t near = operation_ns(IBV_WR_RDMA_READ, {});
  EXPECT_EQ(operation_ns(IBV_WR_RDMA_READ, {.remote_memory = 1}), near + ns(profile.dma_remote));
  // The data comes later, and its completion behind it.
  const uint64_t placed_far = operation_ns(IBV_WR_RDMA_READ, {.memory = 1});
  EXPECT_GT(placed_far, near);
  EXPECT_LE(placed_far, near + ns(profile.dma_remote));
  EXPECT_EQ(operation_ns(IBV_WR_RDMA_READ, {.core = 1}),
            near + ns(profile.cpu_remote_mmio + profile.cpu_remote_line));
  EXPECT_EQ(operation_ns(IBV_WR_RDMA_READ, {.core = 1, .memory = 1, .remote_memory = 1, .port = 1}),
            near)
      << "all is on one socket again";
}

TEST_F(SimulatedSocketsTest, AWordThatSeveralThreadsChangeMovesBetweenTheirCores) {
  const sim::Profile& profile = two_sockets();
  constexpr uint64_t kCount = 100;
  const auto ns = [](sim::Time time) { return kCount * time / sim::kPsPerNs; };
  EXPECT_EQ(additions_ns({0}, kCount), ns(profile.cpu_atomic));
  // In turn, each after the one before; only the very first time nobody has the line.
  const uint64_t two = additions_ns({0, 0}, kCount);
  const sim::Time moved = profile.cpu_atomic + profile.cpu_line_transfer;
  EXPECT_LE(two, ns(2 * moved));
  EXPECT_GE(two, ns(2 * moved) - ns(profile.cpu_line_transfer) / kCount);
  const uint64_t four = additions_ns({0, 0, 0, 0}, kCount);
  EXPECT_LE(four, ns(4 * moved));
  EXPECT_GE(four, 2 * two - ns(profile.cpu_line_transfer) / kCount);
  const uint64_t apart = additions_ns({0, 1}, kCount);
  EXPECT_LE(apart, ns(2 * (moved + profile.cpu_remote_line)));
  EXPECT_GE(apart, two + ns(2 * profile.cpu_remote_line) * 9 / 10);
}

}  // namespace
}  // namespace verbena
