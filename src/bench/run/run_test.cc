// Nodes that joined and say nothing any more, and nodes that take their time.
#include "src/bench/run/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "src/bench/experiment/plan.h"
#include "src/bench/experiment/topology.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/node_group.h"
#include "src/control/peers_for_test.h"

namespace verbena::bench {
namespace {

// Each phase takes an hour of theirs.
class SlowNodes final : public PointNodes {
 public:
  explicit SlowNodes(const Wiring& wiring) : wiring_(wiring) {}

  uint32_t size() const override { return static_cast<uint32_t>(wiring_.nodes.size()); }
  const Hello& hello(uint32_t /*number*/) const override { return hello_; }
  std::vector<pid_t> processes() const override { return {}; }
  Status tell(uint32_t /*number*/, const Message& /*message*/) override {
    return Status::ok_status();
  }
  Status collect(MessageKind kind, int64_t timeout_ns, uint64_t /*stall_ns*/,
                 const Take& take) override {
    constexpr int64_t kHourNs = 3'600'000'000'000;
    if (kind == MessageKind::kFinished && timeout_ns < kHourNs) {
      return {StatusCode::kTimeout, "an hour is too long"};
    }
    for (uint32_t number = 0; number < size(); ++number) {
      Message message{.kind = kind};
      if (kind == MessageKind::kListening) {
        message.addresses.resize(wiring_.nodes[number].responding);
      }
      message.report.requests = kind == MessageKind::kFinished ? 1 : 0;
      take(number, message);
    }
    return Status::ok_status();
  }

 private:
  const Wiring& wiring_;
  Hello hello_;
};

// One operation may be longer than the phase, such as the replay of a program; that nothing moves
// is noticed by the nodes.
TEST(RunTest, APhaseMayTakeLongerThanItsLength) {
  const Point point = request_response_workload().point();
  const Result<Wiring> wiring = wire(shape_of(point));
  ASSERT_TRUE(wiring.ok()) << wiring.status().message();
  SlowNodes nodes(*wiring);
  for (const uint64_t duration_ns : {uint64_t{1'000'000}, kUnlimitedRunNs, UINT64_MAX}) {
    RunOptions options;
    options.length = {.requests = 1, .duration_ns = duration_ns};
    RunFailure failure;
    const auto result = run_on_nodes(nodes, *wiring, point, options, /*seed=*/1, &failure);
    EXPECT_TRUE(result.ok()) << duration_ns << ": " << result.status().message();
  }
}

TEST(RunTest, ASilentNodeEndsTheSetUpByTheStallTimeout) {
  auto listener = ControlListener::listen("127.0.0.1", 0, secret());
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  std::vector<ControlConnection> nodes;
  std::vector<std::unique_ptr<NodeLink>> links;
  for (int node = 0; node < 2; ++node) {
    Thread connecting = start_thread("node", [&] {
      auto control = ControlConnection::connect("127.0.0.1", listener->port(), secret(), kLongNs);
      ASSERT_TRUE(control.ok()) << control.status().message();
      ASSERT_TRUE(send_message(*control, {.kind = MessageKind::kHello}).ok());
      nodes.push_back(std::move(*control));
    });
    auto control = listener->accept(kLongNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    auto link = NodeLink::join(std::move(*control), uint64_t{kLongNs});
    ASSERT_TRUE(link.ok()) << link.status().message();
    links.push_back(std::move(*link));
    connecting.join();
  }
  const auto pool = NodePool::of_joined(std::move(links));
  RunOptions options;
  options.stall_ns = 1;
  RunFailure failure;
  const auto result = run_point(*pool, request_response_workload().point(), options, 0, &failure);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kTimeout);
  EXPECT_THAT(result.status().message(), testing::ContainsRegex("no sign of life for [2-9][.]"));
  EXPECT_FALSE(failure.nodes_remain);
}

}  // namespace
}  // namespace verbena::bench
