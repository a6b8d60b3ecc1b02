// What a connection takes where a cluster has millions of them.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "verbena/connection.h"
#include "verbena/rpc.h"

namespace verbena::rpc {
namespace {

using test::must;

constexpr uint32_t kConnections = 512;
constexpr int64_t kHandshakeNs = 100'000'000'000;

size_t allocated_bytes() { return mallinfo2().uordblks; }

TEST(ConnectionMemoryTest, ASimulatedQueuePairTakesTwoKibibytes) {
  if (VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER)
    GTEST_SKIP() << "a sanitizer has an allocator of its own";
  sim::Cluster cluster;
  const JobSecret secret = JobSecret::random();
  std::optional<ControlListener> listener;
  {
    const sim::OnNode here(cluster.simulation(), cluster.node(0));
    listener.emplace(must(ControlListener::listen("127.0.0.1", 0, secret)));
  }
  std::deque<ControlConnection> accepted;
  std::deque<ControlConnection> connected;
  ResponderOptions offered;
  offered.max_connections = kConnections;
  const auto responder = must(make_responder(Protocol::kWriteWrite, MarkLayout::kLastBit,
                                             cluster[0].device, cluster[0].domain, offered));
  RequesterOptions options;
  options.request_max_bytes = options.response_max_bytes = 32;
  std::vector<std::unique_ptr<Requester>> requesters;
  const auto connect = [&](uint32_t count) {
    Thread responding = cluster.start(0, [&] {
      for (uint32_t i = 0; i < count; ++i) {
        accepted.push_back(must(listener->accept(kHandshakeNs)));
        EXPECT_TRUE(responder->connect(accepted.back()).ok());
      }
    });
    Thread requesting = cluster.start(1, [&] {
      for (uint32_t i = 0; i < count; ++i) {
        connected.push_back(
            must(ControlConnection::connect("127.0.0.1", listener->port(), secret, kHandshakeNs)));
        requesters.push_back(
            must(make_requester(Protocol::kWriteWrite, MarkLayout::kLastBit, cluster[1].device,
                                cluster[1].domain, connected.back(), options)));
      }
    });
    responding.join();
    requesting.join();
  };
  // What there is once, and tables that grow by doubling, are left out.
  connect(kConnections / 2);
  const size_t before = allocated_bytes();
  connect(kConnections / 2);
  const size_t bytes = allocated_bytes() - before;
  EXPECT_LE(bytes / kConnections, 2048u);  // two queue pairs to a connection
}

}  // namespace
}  // namespace verbena::rpc
