// Nodes that joined and say nothing any more.
#include "src/bench/run/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/run/coordination.h"
#include "src/control/peers_for_test.h"

namespace verbena::bench {
namespace {

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
