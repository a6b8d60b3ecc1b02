// Control connections in virtual time whose peer's node crashes.
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/virtual_time.h"
#include "src/device/sim/cluster_for_test.h"
#include "verbena/connection.h"

namespace verbena {
namespace {

using test::must;

constexpr int64_t kLongNs = 100'000'000'000;
constexpr uint64_t kEndNs = 2 * kLongNs;

// Connections from node 1 to node 0, which accepts one and does nothing more.
class SimulatedConnectionTest : public testing::Test {
 protected:
  SimulatedConnectionTest() {
    const sim::OnNode here(cluster_.simulation(), cluster_.node(0));
    listener_.emplace(must(ControlListener::listen("127.0.0.1", 0, secret_)));
  }

  void crash_listening_node() {
    EXPECT_FALSE(accepted_.has_value());
    Thread accepting = cluster_.start(0, [&] { accepted_ = must(listener_->accept(kLongNs)); });
    Thread connecting = cluster_.start(1, [&] { connection_ = must(connect()); });
    ASSERT_TRUE(cluster_.simulation().run_until(
        [&] { return connection_.has_value() && accepted_.has_value(); }, kEndNs));
    cluster_.node(0).crash();
    crashed_ns_ = now_ns();
  }
  Result<ControlConnection> connect() {
    return ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kLongNs);
  }
  // After the crash.
  uint64_t passed_ns() const { return now_ns() - crashed_ns_; }

  sim::Cluster cluster_;
  JobSecret secret_ = JobSecret::random();
  std::optional<ControlListener> listener_;
  std::optional<ControlConnection> accepted_;
  std::optional<ControlConnection> connection_;
  uint64_t crashed_ns_ = 0;
};

TEST_F(SimulatedConnectionTest, ACrashEndsAReceiveThatWaits) {
  crash_listening_node();
  Thread receiving = cluster_.start(1, [&] {
    const auto frame = connection_->receive(kLongNs);
    EXPECT_EQ(frame.status().code(), StatusCode::kUnavailable) << frame.status().message();
    EXPECT_EQ(passed_ns(), VirtualTime::kSilenceLimitNs);
  });
  receiving.join();
  EXPECT_EQ(connection_->send({}).code(), StatusCode::kUnavailable);
}

TEST_F(SimulatedConnectionTest, APollerSeesThatThePeerHasCrashed) {
  crash_listening_node();
  Thread polling = cluster_.start(1, [&] {
    Waiter waiter;
    while (!connection_->peer_closed() && passed_ns() < kEndNs) waiter.idle();
    EXPECT_GE(passed_ns(), VirtualTime::kSilenceLimitNs);
    EXPECT_LT(passed_ns(), VirtualTime::kSilenceLimitNs + 10'000'000);
  });
  polling.join();
}

TEST_F(SimulatedConnectionTest, AConnectionThatADeadNodeDidNotAcceptEndsAsWell) {
  crash_listening_node();
  Thread late = cluster_.start(1, [&] {
    ControlConnection before = must(connect());
    EXPECT_EQ(before.receive(kLongNs).status().code(), StatusCode::kUnavailable);
    ControlConnection after = must(connect());
    EXPECT_EQ(after.receive(kLongNs).status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(passed_ns(), VirtualTime::kSilenceLimitNs);
  });
  late.join();
}

TEST_F(SimulatedConnectionTest, TheConnectionsOfLivingNodesStay) {
  crash_listening_node();
  Thread living = cluster_.start(1, [&] {
    auto listener = must(ControlListener::listen("127.0.0.1", 0, secret_));
    ControlConnection here =
        must(ControlConnection::connect("127.0.0.1", listener.port(), secret_, kLongNs));
    ControlConnection there = must(listener.accept(kLongNs));
    EXPECT_EQ(here.receive(kLongNs).status().code(), StatusCode::kTimeout);
    EXPECT_FALSE(here.peer_closed());
    EXPECT_TRUE(there.send({}).ok());
    EXPECT_TRUE(here.receive(kLongNs).ok());
  });
  living.join();
}

}  // namespace
}  // namespace verbena
