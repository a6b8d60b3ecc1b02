// Requests and responses over UC and UD queue pairs of a network that loses messages, between two
// threads and between two processes: each request is answered once, its handler runs once, and
// every byte is right. The losses are those of soft0's faults, by a fixed seed; how long anything
// takes decides nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc_peer.h"
#include "tests/rpc_support.h"
#include "tests/support/parameter_names.h"

namespace verbena::rpc_test {
namespace {

using testing::HasSubstr;

// Each message that is sent is lost with this probability, in both directions.
constexpr const char* kFaultVariable = "VERBENA_FAULT";
constexpr const char* kFaults = "drop=0.03,seed=15";

struct Way {
  Transport transport;
  Protocol protocol;
  ReceiveQueues receive_queues = ReceiveQueues::kPerConnection;

  friend std::ostream& operator<<(std::ostream& out, const Way& way) {
    out << protocol_name(way.protocol) << " over " << transport_name(way.transport);
    return way.receive_queues == ReceiveQueues::kShared ? out << " shared" : out;
  }
};

class RpcUnreliableTest : public testing::TestWithParam<Way> {
 protected:
  // Before soft0 is opened in this process; those it starts inherit it.
  static void SetUpTestSuite() { setenv(kFaultVariable, kFaults, 1); }

  void SetUp() override {
    device_.emplace(Device::open("soft0"));
    if (!device_->ok()) GTEST_SKIP() << "no soft0 here: " << device_->status().message();
    domain_.emplace(ProtectionDomain::create(**device_));
    listener_.emplace(ControlListener::listen("127.0.0.1", 0, secret_));
    ASSERT_TRUE(domain_->ok() && listener_->ok());
  }

  static Case base_case() {
    Case c;
    c.protocol = GetParam().protocol;
    c.transport = GetParam().transport;
    c.receive_queues = GetParam().receive_queues;
    c.seed = run_seed();
    c.messages = 2000;
    return c;
  }

  // How much is lost of one message after the other, of several at once; with every option that
  // changes when messages and receives are posted.
  static std::vector<Case> cases() {
    std::vector<Case> cases;
    for (const uint32_t pending : {1u, 7u, 64u}) {
      Case c = base_case();
      c.pending = pending;
      cases.push_back(c);
      c.in_turn = false;
      c.post_batch = 4;
      c.signal_interval = 1;
      cases.push_back(c);
      c.receive_slack = false;
      c.inline_bytes = 0;
      cases.push_back(c);
    }
    Case large = base_case();
    large.pending = 5;
    large.messages = 500;
    const bool datagrams = GetParam().transport == Transport::kUd;
    large.request_max_bytes = datagrams ? 4096 : 20'000;
    large.response_max_bytes = datagrams ? 4096 : 20'000;
    cases.push_back(large);
    Case asleep = base_case();
    asleep.pending = 3;
    asleep.messages = 300;
    asleep.blocking = true;
    cases.push_back(asleep);
    return cases;
  }

  std::unique_ptr<Requester> requester(const Case& c, ControlConnection& control) {
    auto requester =
        make_requester(c.protocol, c.layout, **device_, **domain_, control, requester_options(c));
    EXPECT_TRUE(requester.ok()) << requester.status().message();
    return requester.ok() ? std::move(*requester) : nullptr;
  }

  ControlConnection accept() {
    auto control = (*listener_)->accept(kTimeoutNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    return std::move(*control);
  }

  Thread start_server(const Case& c, Server& server) {
    return start_thread("responder", [this, c, &server] {
      auto control =
          ControlConnection::connect("127.0.0.1", (*listener_)->port(), secret_, kTimeoutNs);
      ASSERT_TRUE(control.ok()) << control.status().message();
      auto responder =
          make_responder(c.protocol, c.layout, **device_, **domain_, responder_options(c, {}));
      ASSERT_TRUE(responder.ok()) << responder.status().message();
      const Status connected = (*responder)->connect(*control);
      ASSERT_TRUE(connected.ok()) << connected.message();
      serve(**responder, server);
      const ConnectionStatistics& statistics = (*responder)->statistics(0);
      EXPECT_EQ(statistics.requests, server.requests);
      copies_ += statistics.duplicates;
    });
  }

  static void expect_complete(const Case& c, const Outcome& outcome) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_FALSE(outcome.stuck);
    EXPECT_EQ(outcome.responses, c.messages);
    EXPECT_EQ(outcome.wrong, 0u);
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Result<Device>> device_;
  std::optional<Result<ProtectionDomain>> domain_;
  std::optional<Result<ControlListener>> listener_;
  uint64_t copies_ = 0;  // of requests, at responders
};

TEST_P(RpcUnreliableTest, TwoThreadsLoseMessagesButNoRequest) {
  uint64_t resent = 0;
  for (Case c : cases()) {
    c.messages = thinned(c.messages);
    SCOPED_TRACE(name_of(c) + ", VERBENA_SEED=" + std::to_string(c.seed));
    Server server;
    Thread thread = start_server(c, server);
    std::optional<ControlConnection> control(accept());
    Outcome outcome;
    {
      const std::unique_ptr<Requester> requester = this->requester(c, *control);
      if (requester != nullptr) {
        outcome = Client(c).run(*requester, [](uint64_t) {});
        resent += requester->statistics().resent;
        requester->close();
      }
      control.reset();
    }
    thread.join();
    expect_complete(c, outcome);
    EXPECT_EQ(server.bad_requests, 0u);
    EXPECT_EQ(server.requests, c.messages);
  }
  // Else nothing was tested: requests were lost, and responses.
  EXPECT_GT(resent, 100u);
  EXPECT_GT(copies_, 50u);
}

TEST_P(RpcUnreliableTest, TwoProcessesLoseMessagesButNoRequest) {
  for (Case c : cases()) {
    c.messages = thinned(c.messages);
    SCOPED_TRACE(name_of(c) + ", VERBENA_SEED=" + std::to_string(c.seed));
    PeerProcess process("rpc_peer_process", (*listener_)->port(), secret_);
    ControlConnection control = accept();
    ASSERT_TRUE(control.send_value(kTaskType, Task{Role::kResponder, c}).ok());
    std::unique_ptr<Requester> requester = this->requester(c, control);
    ASSERT_NE(requester, nullptr);
    const Outcome outcome = Client(c).run(*requester, [](uint64_t) {});
    requester.reset();  // which the responder learns, though nobody closes `control`
    EXPECT_EQ(process.wait(), 0);
    expect_complete(c, outcome);
  }
}

TEST_P(RpcUnreliableTest, ADeadResponderIsNamed) {
  Case c = base_case();
  c.pending = 4;
  c.messages = ~uint64_t{0};
  PeerProcess process("rpc_peer_process", (*listener_)->port(), secret_);
  ControlConnection control = accept();
  ASSERT_TRUE(control.send_value(kTaskType, Task{Role::kResponder, c}).ok());
  const std::unique_ptr<Requester> requester = this->requester(c, control);
  ASSERT_NE(requester, nullptr);
  const Outcome outcome = Client(c).run(*requester, [&](uint64_t responses) {
    if (responses == 100) process.signal(SIGKILL);
  });
  EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(outcome.status.message(), HasSubstr("is gone"));
  EXPECT_FALSE(outcome.stuck);
  EXPECT_EQ(outcome.wrong, 0u);
}

TEST_P(RpcUnreliableTest, ADeadRequesterEndsItsConnection) {
  Case c = base_case();
  c.pending = 4;
  c.messages = ~uint64_t{0};
  auto responder =
      make_responder(c.protocol, c.layout, **device_, **domain_, responder_options(c, {}));
  ASSERT_TRUE(responder.ok()) << responder.status().message();
  PeerProcess process("rpc_peer_process", (*listener_)->port(), secret_);
  ControlConnection control = accept();
  ASSERT_TRUE(control.send_value(kTaskType, Task{Role::kRequester, c}).ok());
  const Status connected = (*responder)->connect(control);
  ASSERT_TRUE(connected.ok()) << connected.message();
  Server server;
  bool killed = false;
  Waiter waiter;
  const uint64_t start_ns = now_ns();
  while ((*responder)->status().ok() && now_ns() - start_ns < static_cast<uint64_t>(kTimeoutNs)) {
    if ((*responder)->poll(server) > 0) {
      waiter.progress();
    } else {
      waiter.idle();
    }
    if (!killed && server.requests >= 100) {
      killed = true;
      process.signal(SIGKILL);
    }
  }
  EXPECT_THAT((*responder)->status().message(), HasSubstr("is gone"));
  EXPECT_EQ(server.bad_requests, 0u);
}

// One responder for four processes, of which one is killed and replaced.
TEST_P(RpcUnreliableTest, ManyRequestersLoseMessagesButNoRequest) {
  Case c = base_case();
  c.pending = 3;
  c.messages = thinned(c.messages);
  constexpr uint32_t kProcesses = 4;
  ResponderOptions options = responder_options(c, {});
  options.max_connections = kProcesses;
  auto responder = make_responder(c.protocol, c.layout, **device_, **domain_, options);
  ASSERT_TRUE(responder.ok()) << responder.status().message();
  std::vector<std::unique_ptr<PeerProcess>> processes;
  std::vector<std::unique_ptr<ControlConnection>> controls;
  const auto start = [&](const Case& of_process) {
    processes.push_back(
        std::make_unique<PeerProcess>("rpc_peer_process", (*listener_)->port(), secret_));
    controls.push_back(std::make_unique<ControlConnection>(accept()));
    ASSERT_TRUE(controls.back()->send_value(kTaskType, Task{Role::kRequester, of_process}).ok());
    const Status connected = (*responder)->connect(*controls.back());
    ASSERT_TRUE(connected.ok()) << connected.message();
  };
  Case endless = c;
  endless.messages = ~uint64_t{0};
  start(endless);
  for (uint32_t process = 1; process < kProcesses; ++process) start(c);
  ASSERT_FALSE(HasFailure());
  Server server;
  bool replaced = false;
  Waiter waiter;
  const uint64_t start_ns = now_ns();
  while ((*responder)->connections() > 0 &&
         now_ns() - start_ns < static_cast<uint64_t>(kTimeoutNs)) {
    if ((*responder)->poll(server) > 0) {
      waiter.progress();
    } else {
      waiter.idle();
    }
    if (!replaced && (*responder)->statistics(0).requests >= 100) {
      processes[0]->signal(SIGKILL);
      while ((*responder)->status(0).ok()) (*responder)->poll(server);
      start(c);
      EXPECT_EQ((*responder)->latest_connection(), 0u);
      replaced = true;
    }
  }
  EXPECT_TRUE(replaced);
  EXPECT_EQ((*responder)->connections(), 0u);
  EXPECT_EQ(server.bad_requests, 0u);
  for (uint32_t process = 0; process < kProcesses; ++process) {
    EXPECT_EQ((*responder)->statistics(process).requests, c.messages) << process;
    EXPECT_EQ(processes[process + 1]->wait(), 0) << process + 1;
  }
  responder->reset();
}

TEST_P(RpcUnreliableTest, BothSidesNeedTheSameTransport) {
  Case c = base_case();
  PeerProcess process("rpc_peer_process", (*listener_)->port(), secret_);
  ControlConnection control = accept();
  ASSERT_TRUE(control.send_value(kTaskType, Task{Role::kResponder, c}).ok());
  RequesterOptions options = requester_options(c);
  options.transport = Transport::kRc;
  const auto requester =
      make_requester(c.protocol, c.layout, **device_, **domain_, control, options);
  EXPECT_EQ(requester.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(requester.status().message(), HasSubstr("start both with the same one"));
  EXPECT_EQ(process.wait(), kExitFailed);
}

TEST_P(RpcUnreliableTest, WhatDoesNotFitIsRefused) {
  Case c = base_case();
  c.response_max_bytes = 4097;
  const auto refused =
      make_responder(c.protocol, c.layout, **device_, **domain_, responder_options(c, {}));
  EXPECT_EQ(refused.ok(), GetParam().transport == Transport::kUc);
  if (!refused.ok()) {
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(),
                testing::AllOf(HasSubstr("4097 bytes"), HasSubstr("at most 4096"),
                               HasSubstr("lower the size")));
  }
  c.protocol = Protocol::kSendWrite;
  EXPECT_EQ(make_responder(c.protocol, c.layout, **device_, **domain_, responder_options(c, {}))
                .status()
                .code(),
            StatusCode::kUnsupported);
}

INSTANTIATE_TEST_SUITE_P(Transports, RpcUnreliableTest,
                         testing::Values(Way{Transport::kUc, Protocol::kSendSend},
                                         Way{Transport::kUc, Protocol::kWriteWrite},
                                         Way{Transport::kUd, Protocol::kSendSend},
                                         Way{Transport::kUd, Protocol::kSendSend,
                                             ReceiveQueues::kShared}),
                         test::printed_name<Way>);

}  // namespace
}  // namespace verbena::rpc_test
