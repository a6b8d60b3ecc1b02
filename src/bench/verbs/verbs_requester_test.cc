// That operations move what they should from where to where, on the software RNIC and in a
// simulation.
#include "src/bench/verbs/verbs_requester.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "src/base/runtime.h"
#include "src/bench/verbs/mark_poller.h"
#include "src/bench/verbs/verbs_settings.h"
#include "src/bench/verbs/verbs_workload.h"
#include "src/device/sim/cluster_for_test.h"
#include "verbena/connection.h"

namespace verbena {

static std::ostream& operator<<(std::ostream& out, VectorMethod method) {
  return out << vector_method_name(method);
}

namespace bench {
namespace {

using sim::must;

// One thread's run to its end, and the memory of both sides afterwards.
struct Moved {
  std::vector<char> own;
  std::vector<char> other;
  uint64_t taken = 0;
  std::string error;
};

constexpr int64_t kTimeoutNs = 120'000'000'000;
constexpr uint32_t kFilled = 1;
constexpr uint32_t kDone = 2;

// Fills its region, then keeps `pending` operations on their way until `operations` are done.
void request(const Device& device, const ProtectionDomain& domain, const Point& point,
             ControlConnection& control, uint64_t operations, Moved& moved) {
  VerbsConnection connection = must(connect_verbs(device, domain, point, false, control));
  const VerbsSettings& verbs = verbs_settings(point);
  char* const region = connection.endpoint.arena.data();
  const bool reads = verbs.operation == Operation::kRead || is_atomic(verbs.operation);
  for (uint64_t i = 0; !reads && i < verbs.region_bytes; ++i) {
    region[i] = static_cast<char>(i % verbs.size_bytes + i / verbs.size_bytes % 7 + 1);
  }
  must(control.receive_value<uint8_t>(kFilled, kTimeoutNs));
  VerbsRequester requester(point, std::move(connection), run_seed());
  uint64_t posted = 0;
  const auto post = [&](uint32_t slot) {
    if (posted == operations) return;
    ++posted;
    ASSERT_EQ(requester.try_post(slot, 0), PostResult::kPosted);
  };
  for (uint32_t slot = 0; slot < point.pending; ++slot) post(slot);
  Waiter waiter;
  while (moved.taken < posted && requester.status().ok()) {
    const uint32_t found = requester.poll([&](uint32_t slot, std::span<const char>) {
      ++moved.taken;
      post(slot);
    });
    if (found > 0) {
      waiter.progress();
    } else {
      waiter.idle();
    }
  }
  moved.error = requester.status().message();
  moved.own.assign(region, region + verbs.region_bytes);
  must(control.send_value(kDone, uint8_t{1}));
}

void respond(const Device& device, const ProtectionDomain& domain, const Point& point,
             ControlConnection& control, Moved& moved) {
  VerbsConnection connection = must(connect_verbs(device, domain, point, true, control));
  const VerbsSettings& verbs = verbs_settings(point);
  char* const region = connection.endpoint.arena.data();
  if (verbs.operation == Operation::kRead) {
    for (uint64_t i = 0; i < verbs.region_bytes; ++i) region[i] = static_cast<char>(i * 7 + 3);
  }
  must(control.send_value(kFilled, uint8_t{1}));
  // Short SENDs are put into their receives when these are polled for.
  const uint64_t receives = verbs.operation == Operation::kSend
                                ? uint64_t{point.pending} * verbs.requests_per_operation()
                                : 0;
  Waiter waiter;
  for (uint64_t received = 0; received < receives;) {
    ibv_wc completion;
    const int found = ibv_poll_cq(connection.endpoint.receive_completions.get(), 1, &completion);
    if (found == 0) {
      waiter.idle();
      continue;
    }
    ASSERT_EQ(found, 1);
    ASSERT_EQ(completion.status, IBV_WC_SUCCESS);
    ++received;
  }
  must(control.receive_value<uint8_t>(kDone, kTimeoutNs));
  moved.other.assign(region, region + verbs.region_bytes);
}

Moved run_pair(const Point& point, uint64_t operations, bool simulated) {
  Moved moved;
  const JobSecret secret = JobSecret::random();
  const auto pair = [&](const Device& a, const ProtectionDomain& domain_a, const Device& b,
                        const ProtectionDomain& domain_b,
                        const std::function<Thread(int, std::function<void()>)>& start,
                        const std::string& address) {
    uint16_t port = 0;
    std::optional<ControlListener> listener;
    Thread responder = start(1, [&] {
      if (!listener) listener = must(ControlListener::listen(address, 0, secret));
      port = listener->port();
      ControlConnection control = must(listener->accept(kTimeoutNs));
      respond(b, domain_b, point, control, moved);
    });
    Thread requester = start(0, [&] {
      while (__atomic_load_n(&port, __ATOMIC_ACQUIRE) == 0) sleep_ns(100'000);
      ControlConnection control = must(ControlConnection::connect(
          address, __atomic_load_n(&port, __ATOMIC_ACQUIRE), secret, kTimeoutNs));
      request(a, domain_a, point, control, operations, moved);
    });
    requester.join();
    responder.join();
  };
  if (simulated) {
    sim::Cluster cluster;
    pair(
        cluster[0].device, cluster[0].domain, cluster[1].device, cluster[1].domain,
        [&](int node, std::function<void()> body) {
          return cluster.start(static_cast<size_t>(node), std::move(body));
        },
        "simulated");
  } else {
    const Device device = must(Device::open("soft0"));
    const ProtectionDomain domain = must(ProtectionDomain::create(device));
    pair(
        device, domain, device, domain,
        [](int, std::function<void()> body) { return start_thread("test", std::move(body)); },
        "127.0.0.1");
  }
  return moved;
}

using Case = std::tuple<bool, VectorMethod, uint32_t, uint32_t>;
class MovesBytes : public testing::TestWithParam<Case> {
 protected:
  // So many operations as use each place of the region once.
  static constexpr uint64_t kOperations = 48;

  Point point(Operation operation) const {
    const auto [simulated, method, entries, signal_interval] = GetParam();
    Point point = verbs_workload().point();
    VerbsSettings& verbs = verbs_settings(point);
    verbs.operation = operation;
    verbs.method = method;
    verbs.entries = entries;
    point.signal_interval = signal_interval;
    verbs.size_bytes = 40;
    point.pending = 5;
    point.post_batch = 2;
    point.inline_bytes = entries == 1 ? kDeviceInlineLimit : 0;
    verbs.region_bytes = kOperations * verbs.operation_bytes();
    return point;
  }
  Moved run(const Point& point, uint64_t operations) const {
    return run_pair(point, operations, std::get<0>(GetParam()));
  }
};

TEST_P(MovesBytes, OfSequentialOperationsFromBeginToEnd) {
  for (const Operation operation : {Operation::kWrite, Operation::kRead, Operation::kSend}) {
    SCOPED_TRACE(operation_name(operation));
    const Point one = point(operation);
    const VerbsSettings& verbs = verbs_settings(one);
    // A SEND's receives are posted ahead of time and not posted again here.
    const uint64_t operations = operation == Operation::kSend ? one.pending : kOperations;
    const Moved moved = run(one, operations);
    EXPECT_EQ(moved.error, "");
    EXPECT_EQ(moved.taken, operations);
    const uint64_t bytes = operations * verbs.operation_bytes();
    ASSERT_EQ(moved.own.size(), verbs.region_bytes);
    ASSERT_EQ(moved.other.size(), verbs.region_bytes);
    EXPECT_EQ(std::memcmp(moved.own.data(), moved.other.data(), bytes), 0);
    EXPECT_NE(moved.other[bytes - 1], 0);
  }
}

TEST_P(MovesBytes, OfRandomPlacesInWholePieces) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Point one = point(Operation::kWrite);
  VerbsSettings& verbs = verbs_settings(one);
  verbs.remote = AccessPattern::kRandom;
  const uint64_t piece = verbs.request_bytes();
  const Moved moved = run(one, kOperations);
  EXPECT_EQ(moved.error, "");
  uint64_t touched = 0;
  for (uint64_t at = 0; at + piece <= verbs.region_bytes; at += piece) {
    if (moved.other[at] == 0) {
      EXPECT_EQ(moved.other[at + piece - 1], 0);
      continue;
    }
    ++touched;
    // It is one of the own region's pieces.
    bool known = false;
    for (uint64_t from = 0; from + piece <= verbs.region_bytes && !known; from += piece) {
      known = std::memcmp(&moved.own[from], &moved.other[at], piece) == 0;
    }
    EXPECT_TRUE(known) << at;
  }
  // By chance 1 - 1/e of them.
  EXPECT_GT(touched, verbs.region_bytes / piece / 4);
}

TEST_P(MovesBytes, AtomicsCountEveryOperation) {
  Point one = point(Operation::kFetchAdd);
  VerbsSettings& verbs = verbs_settings(one);
  if (verbs.entries > 1) verbs.method = VectorMethod::kDoorbell;
  verbs.size_bytes = 8;
  verbs.remote = AccessPattern::kRandom;
  verbs.region_bytes = 64;
  verbs.region_bytes = std::max<uint64_t>(verbs.region_bytes, verbs.operation_bytes());
  const Moved moved = run(one, kOperations);
  EXPECT_EQ(moved.error, "");
  uint64_t sum = 0;
  for (uint64_t at = 0; at < verbs.region_bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, &moved.other[at], sizeof(word));
    sum += word;
  }
  EXPECT_EQ(sum, kOperations * verbs.entries);
}

std::string case_name(const testing::TestParamInfo<Case>& one) {
  const auto& [simulated, method, entries, interval] = one.param;
  return std::string(simulated ? "sim" : "soft") + "_" + testing::PrintToString(method) + "_" +
         std::to_string(entries) + "_signal" + std::to_string(interval);
}

INSTANTIATE_TEST_SUITE_P(Of, MovesBytes,
                         testing::Combine(testing::Bool(),
                                          testing::Values(VectorMethod::kSp, VectorMethod::kSgl,
                                                          VectorMethod::kDoorbell),
                                          testing::Values(1u, 7u), testing::Values(0u, 4u)),
                         case_name);

// Hands a thread of the first node its end of a connection to the second.
void connect_in(sim::Cluster& cluster, const Point& point,
                const std::function<void(VerbsConnection)>& use) {
  const JobSecret secret = JobSecret::random();
  uint16_t port = 0;
  Thread responder = cluster.start(1, [&] {
    ControlListener listener = must(ControlListener::listen("simulated", 0, secret));
    port = listener.port();
    ControlConnection control = must(listener.accept(kTimeoutNs));
    const VerbsConnection connection =
        must(connect_verbs(cluster[1].device, cluster[1].domain, point, true, control));
    must(control.receive_value<uint8_t>(kDone, kTimeoutNs));
  });
  Thread requester = cluster.start(0, [&] {
    while (port == 0) sleep_ns(1000);
    ControlConnection control =
        must(ControlConnection::connect("simulated", port, secret, kTimeoutNs));
    use(must(connect_verbs(cluster[0].device, cluster[0].domain, point, false, control)));
    must(control.send_value(kDone, uint8_t{1}));
  });
  requester.join();
  responder.join();
}

TEST(MarkPoller, FindsTheMarksThatAreSetInEveryRound) {
  Point point = verbs_workload().point();
  VerbsSettings& verbs = verbs_settings(point);
  verbs.operation = Operation::kPoll;
  verbs.entries = 5;
  verbs.size_bytes = 3;
  point.pending = 2;
  verbs.region_bytes = 64;
  sim::Cluster cluster;
  connect_in(cluster, point, [&](VerbsConnection connection) {
    char* const region = connection.endpoint.arena.data();
    region[2] = 1;              // of the first channel
    region[4 * 3 + 2] = 1;      // of the last
    region[5 * 3 + 2] = 1;      // of none
    region[3] = region[4] = 1;  // data
    MarkPoller poller(point, std::move(connection));
    const uint64_t begun_ns = now_ns();
    uint32_t taken = 0;
    for (uint32_t slot = 0; slot < 2; ++slot) poller.try_post(slot, 0);
    EXPECT_EQ(poller.poll([&](uint32_t slot, std::span<const char>) { taken += slot + 1; }), 2u);
    EXPECT_EQ(taken, 3u);
    EXPECT_EQ(poller.found(), 4u);
    EXPECT_GT(now_ns(), begun_ns);
    EXPECT_EQ(poller.poll([](uint32_t, std::span<const char>) {}), 0u);
  });
}

TEST(VerbsRequester, AnErrorEndsItWithItsCause) {
  Point point = verbs_workload().point();
  VerbsSettings& verbs = verbs_settings(point);
  verbs.operation = Operation::kWrite;
  verbs.size_bytes = 4096;
  verbs.region_bytes = 4096;
  sim::Cluster cluster;
  connect_in(cluster, point, [&](VerbsConnection connection) {
    connection.remote.rkey ^= 0xffff;
    VerbsRequester requester(point, std::move(connection), 1);
    EXPECT_EQ(requester.try_post(0, 0), PostResult::kPosted);
    Waiter waiter;
    while (requester.status().ok()) {
      EXPECT_EQ(requester.poll([](uint32_t, std::span<const char>) {}), 0u);
      waiter.idle();
    }
    EXPECT_NE(requester.status().message().find("remote access"), std::string::npos)
        << requester.status().message();
    EXPECT_EQ(requester.try_post(0, 0), PostResult::kFailed);
  });
}

}  // namespace
}  // namespace bench
}  // namespace verbena
