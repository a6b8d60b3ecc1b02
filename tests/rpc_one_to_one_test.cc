// Requester and responder on one device (soft0, or VERBENA_TEST_DEVICE), in two threads and in two
// processes: every protocol with every mark layout, sizes at random, every byte checked; and what
// each side says when the other dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc_peer.h"
#include "tests/rpc_support.h"

namespace verbena::rpc_test {
namespace {

using testing::HasSubstr;

// This process's side of a connection, on a device of its own.
struct Side {
  static Result<Side> open() {
    VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
    VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
    return Side{std::move(device), std::move(domain)};
  }
  Device device;
  ProtectionDomain domain;
};

class RpcOneToOneTest : public testing::Test {
 protected:
  void SetUp() override {
    auto side = Side::open();
    if (!side.ok()) GTEST_SKIP() << "no " << test_device() << " here: " << side.status().message();
    side_.emplace(std::move(*side));
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_.emplace(std::move(*listener));
  }

  ControlConnection accept() {
    auto control = listener_->accept(kTimeoutNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    return std::move(*control);
  }

  // Starts a process and tells it what to do.
  ControlConnection start(std::optional<PeerProcess>& process, const Task& task) {
    process.emplace("rpc_peer_process", listener_->port(), secret_);
    ControlConnection control = accept();
    EXPECT_TRUE(control.send_value(kTaskType, task).ok());
    return control;
  }

  std::unique_ptr<Requester> requester(const Case& c, ControlConnection& control) {
    auto requester = make_requester(c.protocol, c.layout, side_->device, side_->domain, control,
                                    requester_options(c));
    EXPECT_TRUE(requester.ok()) << requester.status().message();
    return requester.ok() ? std::move(*requester) : nullptr;
  }

  // A thread that serves one case: it connects to the listener and answers until the other side
  // leaves.
  Thread start_server(const Case& c, Server& server) {
    return start_thread("responder", [this, c, &server] {
      auto side = Side::open();
      ASSERT_TRUE(side.ok()) << side.status().message();
      auto control =
          ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
      ASSERT_TRUE(control.ok()) << control.status().message();
      std::vector<char> readable = readable_memory();
      auto responder = make_responder(c.protocol, c.layout, side->device, side->domain,
                                      responder_options(c, readable));
      ASSERT_TRUE(responder.ok()) << responder.status().message();
      const Status connected = (*responder)->connect(*control);
      ASSERT_TRUE(connected.ok()) << connected.message();
      serve(**responder, server);
      EXPECT_EQ((*responder)->status().code(), StatusCode::kUnavailable);
      EXPECT_EQ((*responder)->connections(), 0u);
    });
  }

  Outcome run_in_two_threads(Case c) {
    c.messages = thinned(c.messages);
    SCOPED_TRACE(name_of(c) + ", VERBENA_SEED=" + std::to_string(c.seed));
    Server server;
    Thread thread = start_server(c, server);
    std::optional<ControlConnection> control(accept());
    Outcome outcome;
    {
      const std::unique_ptr<Requester> requester = this->requester(c, *control);
      if (requester != nullptr) {
        EXPECT_EQ(requester->pending(), c.pending);
        outcome = Client(c).run(*requester, [](uint64_t) {});
        requester->close();
      }
      control.reset();
    }
    thread.join();
    expect_complete(c, outcome);
    EXPECT_EQ(server.bad_requests, 0u);
    EXPECT_EQ(server.requests, c.protocol == Protocol::kRead ? 0 : c.messages);
    return outcome;
  }

  void run_in_two_processes(Case c) {
    c.messages = thinned(c.messages);
    SCOPED_TRACE(name_of(c) + ", VERBENA_SEED=" + std::to_string(c.seed));
    std::optional<PeerProcess> process;
    ControlConnection control = start(process, {Role::kResponder, c});
    std::unique_ptr<Requester> requester = this->requester(c, control);
    if (requester == nullptr) return;
    const Outcome outcome = Client(c).run(*requester, [](uint64_t) {});
    requester.reset();  // which the responder learns, though nobody closes `control`
    EXPECT_EQ(process->wait(), 0);
    expect_complete(c, outcome);
  }

  static void expect_complete(const Case& c, const Outcome& outcome) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_FALSE(outcome.stuck);
    EXPECT_EQ(outcome.responses, c.messages);
    EXPECT_EQ(outcome.wrong, 0u);
  }

  // Every protocol, with every layout where it has one.
  static std::vector<Case> design_points() {
    std::vector<Case> cases;
    for (Protocol protocol : all_protocols()) {
      for (MarkLayout layout : all_mark_layouts()) {
        if (!uses_mark_layout(protocol) && layout != MarkLayout::kLastBit) continue;
        Case c;
        c.protocol = protocol;
        c.layout = layout;
        c.seed = run_seed();
        cases.push_back(c);
        const bool request_consumes_receive =
            protocol == Protocol::kSendSend || protocol == Protocol::kSendWrite ||
            (protocol != Protocol::kRead && layout == MarkLayout::kImmediate);
        if (!request_consumes_receive) continue;
        c.receive_queues = ReceiveQueues::kPerConnection;
        cases.push_back(c);
      }
    }
    return cases;
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Side> side_;
  std::optional<ControlListener> listener_;
};

TEST_F(RpcOneToOneTest, TwoThreadsOneAtATime) {
  for (Case c : design_points()) {
    c.messages = 2000;
    run_in_two_threads(c);
  }
}

TEST_F(RpcOneToOneTest, TwoThreadsManyPending) {
  Random random(run_seed());
  for (Case c : design_points()) {
    for (uint32_t pending : {2u, 7u, 64u}) {
      c.pending = pending;
      c.request_max_bytes = static_cast<uint32_t>(1 + random.below(300));
      c.response_max_bytes =
          static_cast<uint32_t>(std::max<uint64_t>(c.request_max_bytes, random.below(5000)));
      c.messages = 2000;
      run_in_two_threads(c);
    }
  }
}

TEST_F(RpcOneToOneTest, TwoThreadsSlotsInAnyOrder) {
  for (Case c : design_points()) {
    c.pending = 9;
    c.in_turn = false;
    c.messages = 2000;
    run_in_two_threads(c);
  }
}

TEST_F(RpcOneToOneTest, TwoThreadsWithEveryQueueOption) {
  for (Case c : design_points()) {
    c.pending = 6;
    c.post_batch = 4;
    c.signal_interval = 1;
    run_in_two_threads(c);
    c.post_batch = 1;
    c.signal_interval = 100;
    c.inline_bytes = 0;
    run_in_two_threads(c);
  }
}

TEST_F(RpcOneToOneTest, TwoThreadsThatSleep) {
  for (Case c : design_points()) {
    c.blocking = true;
    c.huge_pages = true;
    c.pending = 3;
    c.messages = 300;
    run_in_two_threads(c);
  }
}

// A receive per pending request, each posted before its request: none is ever missing.
TEST_F(RpcOneToOneTest, TwoThreadsWithoutReceiveSlack) {
  for (Case c : design_points()) {
    c.receive_slack = false;
    for (uint32_t pending : {1u, 5u}) {
      c.pending = pending;
      run_in_two_threads(c);
    }
  }
}

TEST_F(RpcOneToOneTest, TwoThreadsThatTakeFewResponsesAtOnce) {
  for (Case c : design_points()) {
    c.pending = 6;
    for (uint32_t batch : {1u, 2u}) {
      c.poll_batch = batch;
      EXPECT_LE(run_in_two_threads(c).most_at_once, batch) << name_of(c);
    }
    c.blocking = true;
    c.messages = 300;
    run_in_two_threads(c);
  }
}

// Fewer receives than messages on their way: the device retries, nothing is lost.
TEST_F(RpcOneToOneTest, TwoThreadsWithTooFewSharedReceives) {
  for (Protocol protocol : {Protocol::kSendSend, Protocol::kSendWrite}) {
    Case c;
    c.protocol = protocol;
    c.pending = 8;
    c.seed = run_seed();
    for (uint32_t depth : {1u, 3u}) {
      c.receive_depth = depth;
      c.messages = 300;
      run_in_two_threads(c);
    }
  }
}

TEST_F(RpcOneToOneTest, TwoProcesses) {
  for (Case c : design_points()) {
    c.messages = 3000;
    for (uint32_t pending : {1u, 16u}) {
      c.pending = pending;
      run_in_two_processes(c);
    }
  }
}

TEST_F(RpcOneToOneTest, TwoProcessesWithLargeMessages) {
  for (Case c : design_points()) {
    c.request_max_bytes = 100'000;
    c.response_max_bytes = 4 << 20;
    c.pending = 2;
    c.messages = 20;
    run_in_two_processes(c);
  }
}

TEST_F(RpcOneToOneTest, RequesterReportsAKilledResponder) {
  for (Case c : design_points()) {
    SCOPED_TRACE(name_of(c));
    c.pending = 4;
    c.messages = ~uint64_t{0};
    std::optional<PeerProcess> process;
    ControlConnection control = start(process, {Role::kResponder, c});
    const std::unique_ptr<Requester> requester = this->requester(c, control);
    ASSERT_NE(requester, nullptr);
    const Outcome outcome = Client(c).run(*requester, [&](uint64_t responses) {
      if (responses == thinned(500)) process->signal(SIGKILL);
    });
    EXPECT_FALSE(outcome.stuck);
    EXPECT_EQ(outcome.wrong, 0u);
    EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(outcome.status.message(), HasSubstr("the responder 127.0.0.1:"));
    EXPECT_EQ(requester->try_post(0, sizeof(ReadRequest)), PostResult::kFailed);
    EXPECT_EQ(requester->poll([](uint32_t, std::span<const char>) { FAIL(); }), 0u);
  }
}

TEST_F(RpcOneToOneTest, ResponderReportsAKilledRequester) {
  for (Case c : design_points()) {
    SCOPED_TRACE(name_of(c));
    c.pending = 4;
    c.messages = ~uint64_t{0};
    std::vector<char> readable = readable_memory();
    auto responder = make_responder(c.protocol, c.layout, side_->device, side_->domain,
                                    responder_options(c, readable));
    ASSERT_TRUE(responder.ok()) << responder.status().message();
    // The second requester takes the first one's place.
    for (int life = 0; life < 2; ++life) {
      std::optional<PeerProcess> process;
      ControlConnection control = start(process, {Role::kRequester, c});
      const Status connected = (*responder)->connect(control);
      ASSERT_TRUE(connected.ok()) << connected.message();
      EXPECT_EQ((*responder)->connections(), 1u);
      EXPECT_TRUE((*responder)->status().ok());
      Server server;
      Waiter waiter;
      uint64_t polls = 0;
      while ((*responder)->status().ok()) {
        (*responder)->poll(server) > 0 ? waiter.progress() : waiter.idle();
        ++polls;
        // READs are not seen here: a few polls, of which each may let others run for milliseconds.
        if (server.requests >= thinned(500) || (c.protocol == Protocol::kRead && polls > 1000)) {
          process->signal(SIGKILL);
        }
      }
      EXPECT_EQ(server.bad_requests, 0u);
      EXPECT_EQ((*responder)->connections(), 0u);
      EXPECT_EQ((*responder)->status().code(), StatusCode::kUnavailable);
      EXPECT_EQ((*responder)->status(0).code(), StatusCode::kUnavailable);
      EXPECT_THAT((*responder)->status().message(), HasSubstr("the requester 127.0.0.1:"));
    }
  }
}

// One responder, several requesters at once, of which one leaves early.
TEST_F(RpcOneToOneTest, ResponderServesSeveralConnections) {
  constexpr uint32_t kRequesters = 3;
  for (Case c : design_points()) {
    SCOPED_TRACE(name_of(c) + ", VERBENA_SEED=" + std::to_string(c.seed));
    c.pending = 3;
    c.max_connections = kRequesters;
    std::vector<char> readable = readable_memory();
    auto responder = make_responder(c.protocol, c.layout, side_->device, side_->domain,
                                    responder_options(c, readable));
    ASSERT_TRUE(responder.ok()) << responder.status().message();
    std::vector<Thread> threads;
    std::vector<ControlConnection> controls;
    controls.reserve(kRequesters);
    for (uint32_t i = 0; i < kRequesters; ++i) {
      threads.push_back(start_thread("requester", [this, c, i] {
        auto side = Side::open();
        ASSERT_TRUE(side.ok()) << side.status().message();
        auto control =
            ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
        ASSERT_TRUE(control.ok()) << control.status().message();
        Case mine = c;
        mine.seed += i;
        mine.messages = thinned(i == 0 ? 100 : 2000);
        auto requester = make_requester(c.protocol, c.layout, side->device, side->domain, *control,
                                        requester_options(mine));
        ASSERT_TRUE(requester.ok()) << requester.status().message();
        expect_complete(mine, Client(mine).run(**requester, [](uint64_t) {}));
      }));
      controls.push_back(accept());
      const Status connected = (*responder)->connect(controls.back());
      ASSERT_TRUE(connected.ok()) << connected.message();
    }
    Server server;
    serve(**responder, server);
    for (Thread& thread : threads) thread.join();
    EXPECT_EQ(server.bad_requests, 0u);
    EXPECT_EQ(server.requests,
              c.protocol == Protocol::kRead ? 0u : thinned(100) + 2 * thinned(2000));
  }
}

// --- refusals and misuse ---

TEST_F(RpcOneToOneTest, OneConnectionTooManyIsRefusedWithTheReason) {
  Case c;
  Server server;
  std::vector<char> readable;
  auto responder = make_responder(c.protocol, c.layout, side_->device, side_->domain,
                                  responder_options(c, readable));
  ASSERT_TRUE(responder.ok());
  std::atomic<bool> refused{false};
  Thread thread = start_thread("requesters", [&] {
    auto side = Side::open();
    ASSERT_TRUE(side.ok());
    const uint16_t port = listener_->port();
    auto first = ControlConnection::connect("127.0.0.1", port, secret_, kTimeoutNs);
    ASSERT_TRUE(first.ok());
    auto requester = make_requester(c.protocol, c.layout, side->device, side->domain, *first,
                                    requester_options(c));
    ASSERT_TRUE(requester.ok()) << requester.status().message();
    auto second = ControlConnection::connect("127.0.0.1", port, secret_, kTimeoutNs);
    ASSERT_TRUE(second.ok());
    auto another = make_requester(c.protocol, c.layout, side->device, side->domain, *second,
                                  requester_options(c));
    EXPECT_EQ(another.status().code(), StatusCode::kLimitExceeded);
    EXPECT_THAT(another.status().message(), HasSubstr("max_connections"));
    refused = true;
    // The first one works on.
    c.messages = 100;
    expect_complete(c, Client(c).run(**requester, [](uint64_t) {}));
  });
  ControlConnection first = accept();
  ASSERT_TRUE((*responder)->connect(first).ok());
  ControlConnection second = accept();
  EXPECT_EQ((*responder)->connect(second).code(), StatusCode::kLimitExceeded);
  serve(**responder, server);
  thread.join();
  EXPECT_TRUE(refused);
  EXPECT_EQ(server.requests, 100u);
}

TEST_F(RpcOneToOneTest, DifferentDesignsAreRefusedOnBothSides) {
  Case c;
  Thread thread = start_thread("requester", [&] {
    auto side = Side::open();
    ASSERT_TRUE(side.ok());
    auto control = ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
    ASSERT_TRUE(control.ok());
    auto requester = make_requester(Protocol::kSendWrite, c.layout, side->device, side->domain,
                                    *control, requester_options(c));
    EXPECT_EQ(requester.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(requester.status().message(), HasSubstr("the responder serves write/write"));
  });
  auto responder =
      make_responder(c.protocol, c.layout, side_->device, side_->domain, responder_options(c, {}));
  ASSERT_TRUE(responder.ok());
  ControlConnection control = accept();
  EXPECT_EQ((*responder)->connect(control).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ((*responder)->connections(), 0u);
  thread.join();
}

TEST_F(RpcOneToOneTest, AControlConnectionIsUsedAgainAfterARefusal) {
  Case c;
  c.messages = 100;
  Thread thread = start_thread("requester", [&] {
    auto side = Side::open();
    ASSERT_TRUE(side.ok());
    auto control = ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
    ASSERT_TRUE(control.ok());
    EXPECT_FALSE(make_requester(Protocol::kSendWrite, c.layout, side->device, side->domain,
                                *control, requester_options(c))
                     .ok());
    auto requester = make_requester(c.protocol, c.layout, side->device, side->domain, *control,
                                    requester_options(c));
    ASSERT_TRUE(requester.ok()) << requester.status().message();
    expect_complete(c, Client(c).run(**requester, [](uint64_t) {}));
  });
  ControlConnection control = accept();
  auto responder =
      make_responder(c.protocol, c.layout, side_->device, side_->domain, responder_options(c, {}));
  ASSERT_TRUE(responder.ok());
  EXPECT_FALSE((*responder)->connect(control).ok());
  const Status connected = (*responder)->connect(control);
  ASSERT_TRUE(connected.ok()) << connected.message();
  Server server;
  serve(**responder, server);
  thread.join();
  EXPECT_EQ(server.requests, c.messages);
}

TEST_F(RpcOneToOneTest, MisusedPostsFailWithTheNumbers) {
  for (Case c : design_points()) {
    SCOPED_TRACE(name_of(c));
    struct Misuse {
      uint32_t slot;
      uint32_t bytes;
      const char* message;
    };
    for (const Misuse& misuse : {Misuse{c.pending, 16, "slot 1; this requester has 1 slots"},
                                 Misuse{0, c.request_max_bytes + 1, "65 bytes"}}) {
      Server server;
      Thread thread = start_server(c, server);
      std::optional<ControlConnection> control(accept());
      const std::unique_ptr<Requester> requester = this->requester(c, *control);
      ASSERT_NE(requester, nullptr);
      EXPECT_EQ(requester->try_post(misuse.slot, misuse.bytes), PostResult::kFailed);
      EXPECT_EQ(requester->status().code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(requester->status().message(), HasSubstr(misuse.message));
      control.reset();
      thread.join();
    }
  }
}

TEST_F(RpcOneToOneTest, ASlotThatWaitsWouldBlock) {
  Case c;
  c.pending = 2;
  Server server;
  Thread thread = start_server(c, server);
  ControlConnection control = accept();
  std::unique_ptr<Requester> requester = this->requester(c, control);
  ASSERT_NE(requester, nullptr);
  EXPECT_EQ(requester->try_post(0, 0), PostResult::kPosted);
  EXPECT_EQ(requester->try_post(0, 0), PostResult::kWouldBlock);
  EXPECT_EQ(requester->try_post(1, 0), PostResult::kPosted);
  uint32_t responses = 0;
  while (responses < 2 && requester->status().ok()) {
    responses +=
        requester->poll([&](uint32_t slot, std::span<const char>) { EXPECT_LT(slot, 2u); });
  }
  EXPECT_EQ(requester->try_post(0, 0), PostResult::kPosted) << "free again";
  requester.reset();
  thread.join();
}

TEST_F(RpcOneToOneTest, AReadOutsideTheReadableMemoryIsRefusedHere) {
  Case c;
  c.protocol = Protocol::kRead;
  for (const ReadRequest& read :
       {ReadRequest{kReadableBytes, 1}, ReadRequest{~uint64_t{0}, 2},
        ReadRequest{0, c.response_max_bytes + 1}, ReadRequest{kReadableBytes - 1, 2}}) {
    Server server;
    Thread thread = start_server(c, server);
    std::optional<ControlConnection> control(accept());
    const std::unique_ptr<Requester> requester = this->requester(c, *control);
    ASSERT_NE(requester, nullptr);
    std::memcpy(requester->request_buffer(0), &read, sizeof(read));
    EXPECT_EQ(requester->try_post(0, sizeof(read)), PostResult::kFailed);
    EXPECT_THAT(requester->status().message(), HasSubstr("the responder offers 1048576 bytes"));
    control.reset();
    thread.join();
  }
}

TEST_F(RpcOneToOneTest, AHandlerThatReturnsTooMuchEndsItsConnection) {
  for (Protocol protocol : {Protocol::kSendSend, Protocol::kWriteWrite}) {
    Case c;
    c.protocol = protocol;
    Thread thread = start_thread("requester", [&] {
      auto side = Side::open();
      ASSERT_TRUE(side.ok());
      auto control =
          ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
      ASSERT_TRUE(control.ok());
      auto requester = make_requester(c.protocol, c.layout, side->device, side->domain, *control,
                                      requester_options(c));
      ASSERT_TRUE(requester.ok());
      EXPECT_EQ((*requester)->try_post(0, 1), PostResult::kPosted);
      // Until the test has seen the end, and hangs up.
      while (!control->peer_closed()) {
        EXPECT_EQ((*requester)->poll([](uint32_t, std::span<const char>) {}), 0u);
      }
    });
    auto responder = make_responder(c.protocol, c.layout, side_->device, side_->domain,
                                    responder_options(c, {}));
    ASSERT_TRUE(responder.ok());
    std::optional<ControlConnection> control(accept());
    ASSERT_TRUE((*responder)->connect(*control).ok());
    Waiter waiter;
    while ((*responder)->status().ok()) {
      (*responder)->poll([](const Request&, std::span<char> response) {
        return static_cast<uint32_t>(response.size() + 1);
      });
      waiter.idle();
    }
    EXPECT_EQ((*responder)->status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT((*responder)->status().message(), HasSubstr("returned 257 bytes"));
    responder->reset();
    control.reset();
    thread.join();
  }
}

}  // namespace
}  // namespace verbena::rpc_test
