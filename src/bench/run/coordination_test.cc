#include "src/bench/run/coordination.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "src/base/runtime.h"
#include "src/base/wire.h"
#include "src/bench/experiment/plan.h"
#include "src/bench/request_response/request_response_settings.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/verbs/verbs_workload.h"

namespace verbena::bench {
namespace {

constexpr int64_t kTimeoutNs = 120'000'000'000;

class Coordination : public testing::Test {
 protected:
  void SetUp() override {
    const JobSecret secret = JobSecret::random();
    Result<ControlListener> listener = ControlListener::listen("127.0.0.1", 0, secret);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    Thread thread = start_thread("requester", [&] {
      Result<ControlConnection> control =
          ControlConnection::connect("127.0.0.1", listener->port(), secret, kTimeoutNs);
      if (control.ok()) requester_.emplace(std::move(*control));
    });
    Result<ControlConnection> control = listener->accept(kTimeoutNs);
    thread.join();
    ASSERT_TRUE(control.ok() && requester_.has_value());
    responder_.emplace(std::move(*control));
  }

  Result<Message> pass(const Message& message) {
    EXPECT_TRUE(send_message(*requester_, message).ok());
    return receive_message(*responder_, kTimeoutNs);
  }
  Status refusal_of(const WireWriter& writer) {
    EXPECT_TRUE(requester_->send(writer.bytes()).ok());
    return receive_message(*responder_, kTimeoutNs).status();
  }

  std::optional<ControlConnection> requester_;
  std::optional<ControlConnection> responder_;
};

TEST_F(Coordination, KnowsTheOwnAddressOfAConnection) {
  const JobSecret secret = JobSecret::random();
  Result<ControlListener> listener = ControlListener::listen("127.0.0.2", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  std::optional<ControlConnection> reached;
  Thread thread = start_thread("reach", [&] {
    Result<ControlConnection> control =
        ControlConnection::connect("127.0.0.2", listener->port(), secret, kTimeoutNs);
    if (control.ok()) reached.emplace(std::move(*control));
  });
  Result<ControlConnection> control = listener->accept(kTimeoutNs);
  thread.join();
  ASSERT_TRUE(control.ok() && reached.has_value());
  EXPECT_EQ(own_address(*control), "127.0.0.2");
  EXPECT_EQ(own_address(*responder_), "127.0.0.1");
}

TEST_F(Coordination, ArriveAsTheyWereSent) {
  Point point{.workload = &request_response_workload(),
              .topology = Topology::kManyToMany,
              .nodes = 3,
              .threads = 4,
              .responder_nodes = 5,
              .responder_threads = 6,
              .pending = kMaxPending,
              .active_ppm = 100'000,
              .think_ns = 5,
              .settings = RequestResponseSettings{.protocol = Protocol::kSendWrite,
                                                  .layout = MarkLayout::kHeadTail,
                                                  .request_bytes = 5,
                                                  .response_bytes = kMaxMessageBytes}};
  Result<Message> message =
      pass({.kind = MessageKind::kSetup,
            .setup = {.point = point, .node = 7, .run_key = 77, .seed = 78, .cpus = {3, -1}}});
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->kind, MessageKind::kSetup);
  EXPECT_EQ(message->setup.point, point);
  EXPECT_EQ(message->setup.point.responder_threads, 6u);
  EXPECT_EQ(message->setup.node, 7u);
  EXPECT_EQ(message->setup.run_key, 77u);
  EXPECT_EQ(message->setup.seed, 78u);
  EXPECT_THAT(message->setup.cpus, testing::ElementsAre(3, -1));

  message =
      pass({.kind = MessageKind::kHello, .hello = {.host = "here", .cpus = {1, 0}, .token = 9}});
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->hello.host, "here");
  EXPECT_THAT(message->hello.cpus, testing::ElementsAre(1, 0));
  EXPECT_EQ(message->hello.token, 9u);

  const std::vector<ThreadAddress> addresses = {{"127.0.0.1", 1}, {"::1", 65535}};
  message = pass({.kind = MessageKind::kConnect, .addresses = addresses});
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->addresses, addresses);

  message = pass({.kind = MessageKind::kPhase,
                  .phase = {.kind = PhaseKind::kTimed,
                            .verify = true,
                            .number = 3,
                            .length = {.requests = 4, .duration_ns = 5},
                            .stall_ns = 6}});
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->phase.kind, PhaseKind::kTimed);
  EXPECT_TRUE(message->phase.verify);
  EXPECT_EQ(message->phase.number, 3u);
  EXPECT_EQ(message->phase.length.requests, 4u);
  EXPECT_EQ(message->phase.length.duration_ns, 5u);
  EXPECT_EQ(message->phase.stall_ns, 6u);

  message = pass({.kind = MessageKind::kGo, .go = {.host = "here", .now_ns = 12}});
  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->go.host, "here");
  EXPECT_EQ(message->go.now_ns, 12u);

  for (const MessageKind kind : {MessageKind::kFinished, MessageKind::kReport}) {
    message = pass({.kind = kind,
                    .report = {.requests = 9,
                               .unanswered = 8,
                               .mismatches = 1,
                               .first_ns = 2,
                               .last_ns = 3,
                               .arrivals = 21,
                               .arrivals_ns = 22,
                               .counters = {4, 5, 6, 7, 8, 9, 10, 11, 12},
                               .layout = MarkLayout::kImmediate,
                               .costs = {{CpuCost{.cycles = 12.5, .instructions = 30.5}, 6}},
                               .dispatcher_costs = {{CpuCost{.cycles = 7}, 5}},
                               .latencies = {{100, 1}, {200, 2, 1}}}});
    ASSERT_TRUE(message.ok()) << message.status().message();
    const Report& report = message->report;
    EXPECT_EQ(report.requests, 9u);
    EXPECT_EQ(report.unanswered, 8u);
    EXPECT_EQ(report.mismatches, 1u);
    EXPECT_EQ(report.first_ns, 2u);
    EXPECT_EQ(report.last_ns, 3u);
    EXPECT_EQ(report.arrivals, 21u);
    EXPECT_EQ(report.arrivals_ns, 22u);
    EXPECT_THAT(report.counters, testing::ElementsAre(4u, 5u, 6u, 7u, 8u, 9u, 10u, 11u, 12u));
    EXPECT_EQ(report.layout, MarkLayout::kImmediate);
    ASSERT_EQ(report.costs.size(), 1u);
    EXPECT_EQ(report.costs[0].cost, (CpuCost{.cycles = 12.5, .instructions = 30.5}));
    EXPECT_EQ(report.costs[0].messages, 6u);
    ASSERT_EQ(report.dispatcher_costs.size(), 1u);
    EXPECT_EQ(report.dispatcher_costs[0].cost, CpuCost{.cycles = 7});
    EXPECT_EQ(report.dispatcher_costs[0].messages, 5u);
    ASSERT_EQ(report.latencies.size(), 2u);
    EXPECT_EQ(report.latencies[1].ns, 200u);
    EXPECT_EQ(report.latencies[1].count, 2u);
    EXPECT_EQ(report.latencies[0].kind, 0u);
    EXPECT_EQ(report.latencies[1].kind, 1u);
  }
}

// Of raw verbs the topology is on no axis.
TEST_F(Coordination, APointHasTheTopologyThatItFits) {
  Sweep sweep = Sweep::of(verbs_workload());
  ASSERT_TRUE(sweep.set("threads", "3").ok());
  Plan plan;
  plan.sweeps.push_back(std::move(sweep));
  const Point point = point_groups(plan).value()[0][0];
  const Result<Message> message =
      pass({.kind = MessageKind::kSetup, .setup = {.point = point, .cpus = {}}});
  ASSERT_TRUE(message.ok()) << message.status().message();
  EXPECT_EQ(message->setup.point, point);
  EXPECT_EQ(wire_connections(message->setup.point).value().queue_pairs(), 3u);
}

TEST_F(Coordination, AFailureIsTheFailureOfWhoWaits) {
  ASSERT_TRUE(send_failure(*requester_, Status(StatusCode::kLimitExceeded, "no room")).ok());
  const Result<Message> message = expect_message(*responder_, MessageKind::kBegun, kTimeoutNs);
  ASSERT_FALSE(message.ok());
  EXPECT_EQ(message.status().code(), StatusCode::kLimitExceeded);
  EXPECT_EQ(message.status().message(), "no room");

  ASSERT_TRUE(send_message(*requester_, {.kind = MessageKind::kDone}).ok());
  EXPECT_EQ(expect_message(*responder_, MessageKind::kBegun, kTimeoutNs).status().code(),
            StatusCode::kProtocolViolation);
}

TEST_F(Coordination, ImpossibleOnesAreRefused) {
  const auto begin = [](uint16_t version, MessageKind kind) {
    WireWriter writer;
    writer.u16(version);
    writer.u8(static_cast<uint8_t>(kind));
    return writer;
  };
  // A set-up in which one axis has this value.
  const auto setup = [&](std::string_view name, uint64_t value) {
    WireWriter writer = begin(6, MessageKind::kSetup);
    const WorkloadTraits& workload = request_response_workload().traits();
    const Point point = request_response_workload().point();
    writer.string(name == "workload" ? "none" : workload.name);
    writer.u8(0);
    for (int i = 0; i < 4; ++i) writer.u32(1);
    writer.u8(static_cast<uint8_t>(workload.axes.size()));
    for (const Axis& axis : workload.axes) {
      writer.u64(axis.name == name ? value : axis.get(point));
    }
    writer.u32(0);
    writer.u64(0);
    writer.u64(0);
    writer.u32(0);
    return writer;
  };
  EXPECT_EQ(refusal_of(setup("protocol", 0)).code(), StatusCode::kOk);
  EXPECT_EQ(refusal_of(setup("workload", 0)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup("protocol", 5)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup("mark", 99)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup("request", uint64_t{kMaxMessageBytes} + 1)).code(),
            StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup("pending", 0)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup("pending", kMaxPending + 1)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(setup("nodes", kMaxNodes + 1)).code(), StatusCode::kProtocolViolation);
  // A list that claims to be longer than its frame.
  WireWriter endless = begin(6, MessageKind::kConnect);
  endless.u32(~0u);
  EXPECT_EQ(refusal_of(endless).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(begin(1, MessageKind::kDone)).code(), StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(begin(6, static_cast<MessageKind>(99))).code(),
            StatusCode::kProtocolViolation);
  EXPECT_EQ(refusal_of(WireWriter()).code(), StatusCode::kProtocolViolation);
  WireWriter longer = begin(6, MessageKind::kDone);
  longer.u8(0);
  EXPECT_EQ(refusal_of(longer).code(), StatusCode::kProtocolViolation);
}

TEST_F(Coordination, AWaitEndsWithTimeOrPeer) {
  EXPECT_EQ(receive_message(*responder_, 0).status().code(), StatusCode::kTimeout);
  // It looks for an interrupt now and then; the limit that it names is the caller's.
  const Status late = receive_message(*responder_, 120'000'000).status();
  EXPECT_EQ(late.code(), StatusCode::kTimeout);
  EXPECT_THAT(late.message(), testing::HasSubstr("120 ms"));
  requester_.reset();
  EXPECT_EQ(receive_message(*responder_, kTimeoutNs).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace verbena::bench
