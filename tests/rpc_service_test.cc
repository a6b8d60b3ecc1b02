// Services: calls of any size over every protocol, by callback and by future; time-outs, refusals,
// disconnection, and clients that do not keep to the rules. Client and server take turns in one
// thread, so that the test decides what happens when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "tests/rpc_support.h"
#include "verbena/client.h"
#include "verbena/design.h"
#include "verbena/design_estimate.h"
#include "verbena/server.h"

namespace verbena {
namespace {

using rpc_test::fill_pattern;
using rpc_test::has_pattern;
using rpc_test::kTimeoutNs;
using rpc_test::test_device;

using testing::HasSubstr;

constexpr uint16_t kEcho = 7;      // the request, reversed
constexpr uint16_t kGenerate = 8;  // as many bytes as the request says
constexpr uint16_t kRefuse = 9;
constexpr uint16_t kNobody = 10;

class RpcServiceTest : public testing::Test {
 protected:
  void start(ServerOptions options, uint32_t clients = 1) {
    client_ = nullptr;
    clients_.clear();
    server_.reset();
    controls_.clear();
    if (!device_) {
      Result<Device> device = Device::open(test_device());
      ASSERT_TRUE(device.ok()) << device.status().message();
      device_.emplace(std::move(*device));
      domain_.emplace(std::move(*ProtectionDomain::create(*device_)));
    }
    auto server = Server::create(*device_, *domain_, options);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
    server_->handle(kEcho, [](const Call& call, Reply& reply) {
      const std::span<char> to = reply.buffer(call.request.size());
      if (to.size() != call.request.size()) return CallResult::kTooLarge;
      std::reverse_copy(call.request.begin(), call.request.end(), to.begin());
      return CallResult::kOk;
    });
    server_->handle(kGenerate, [](const Call& call, Reply& reply) {
      uint32_t bytes = 0;
      std::memcpy(&bytes, call.request.data(), sizeof(bytes));
      const std::span<char> to = reply.buffer(bytes);
      if (to.size() != bytes) return CallResult::kTooLarge;
      fill_pattern(to, bytes);
      return CallResult::kOk;
    });
    server_->handle(kRefuse, [](const Call&, Reply& reply) {
      std::memcpy(reply.buffer(3).data(), "no!", 3);
      return CallResult::kFailed;
    });
    for (uint32_t i = 0; i < clients; ++i) add_client(options);
    client_ = clients_[0].get();
  }

  void add_client(const ServerOptions& server) {
    ClientOptions options;
    options.protocol = server.protocol;
    options.layout = server.layout;
    options.request_slot_bytes = server.request_slot_bytes;
    options.response_slot_bytes = server.response_slot_bytes;
    options.pending = server.pending;
    options.response_max_bytes = server.response_max_bytes;
    connect([&](ControlConnection& control) {
      auto client = Client::connect(*device_, *domain_, control, options);
      ASSERT_TRUE(client.ok()) << client.status().message();
      clients_.push_back(std::move(*client));
    });
  }

  // Runs `connect_client` beside the server's connect().
  template <typename ConnectClient>
  void connect(ConnectClient&& connect_client) {
    Result<ControlListener> listener = ControlListener::listen("127.0.0.1", 0, secret_);
    ASSERT_TRUE(listener.ok());
    Thread accepting = start_thread("accept", [&] {
      Result<ControlConnection> control = listener->accept(kTimeoutNs);
      ASSERT_TRUE(control.ok()) << control.status().message();
      controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
      const Status status = server_->connect(*controls_.back());
      ASSERT_TRUE(status.ok()) << status.message();
    });
    Result<ControlConnection> control =
        ControlConnection::connect("127.0.0.1", listener->port(), secret_, kTimeoutNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    auto kept = std::make_unique<ControlConnection>(std::move(*control));
    connect_client(*kept);
    accepting.join();
    controls_.push_back(std::move(kept));
  }

  void both_poll() {
    server_->poll();
    for (const auto& client : clients_) client->poll();
  }
  template <typename Condition>
  bool poll_until(Condition&& condition) {
    const uint64_t start_ns = now_ns();
    while (!condition()) {
      if (now_ns() - start_ns > uint64_t{kTimeoutNs}) return false;
      both_poll();
    }
    return true;
  }

  // Two calls whose responses come together, and the callback of the first waits for the second;
  // then it uses both slots anew.
  template <typename AnyClient>
  void expect_that_callbacks_wait(AnyClient& client) {
    struct Calls {
      AnyClient* client;
      std::optional<typename AnyClient::Future> second;
      uint32_t ok = 0;

      void done(const CallOutcome& outcome) { ok += outcome.result == CallResult::kOk ? 1 : 0; }
      void first_done(const CallOutcome& outcome) {
        done(outcome);
        EXPECT_TRUE(second->wait(kTimeoutNs));
        if (second->ready()) done(second->outcome());
        second.reset();
        for (int i = 0; i < 2; ++i) {
          client->call_with(kEcho, {}, [this](const CallOutcome& last) { done(last); });
        }
      }
    } calls{&client, {}, 0};
    const uint64_t before = server_->calls();
    ASSERT_TRUE(client.call_with(
        kEcho, {}, [&calls](const CallOutcome& outcome) { calls.first_done(outcome); }));
    std::optional<typename AnyClient::Future> second = client.call_future_with(kEcho, {});
    ASSERT_TRUE(second);
    calls.second.emplace(std::move(*second));
    while (server_->calls() < before + 2) server_->poll();
    ASSERT_TRUE(poll_until([&] {
      client.poll();
      return client.outstanding() == 0;
    }));
    EXPECT_EQ(calls.ok, 4u);
    EXPECT_TRUE(client.status().ok()) << client.status().message();
  }

  template <typename Design>
  void expect_that_callbacks_wait_with() {
    start({.protocol = Design::kProtocol, .layout = Design::kLayout, .pending = 2});
    std::unique_ptr<BasicClient<typename Design::Requester>> compiled;
    connect([&](ControlConnection& control) {
      auto client = connect_client<Design>(*device_, *domain_, control, {.pending = 2});
      ASSERT_TRUE(client.ok()) << client.status().message();
      compiled = std::move(*client);
    });
    expect_that_callbacks_wait(*compiled);
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<Client>> clients_;
  Client* client_ = nullptr;
};

TEST_F(RpcServiceTest, CallsOfEverySizeOverEveryProtocol) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (Protocol protocol : all_protocols()) {
    for (MarkLayout layout : all_mark_layouts()) {
      if (protocol == Protocol::kRead) continue;
      if (!uses_mark_layout(protocol) && layout != MarkLayout::kLastBit) continue;
      SCOPED_TRACE(std::string(protocol_name(protocol)) + " " + mark_layout_name(layout));
      start({.protocol = protocol,
             .layout = layout,
             .request_slot_bytes = 64,
             .response_slot_bytes = 100,
             .pending = 3,
             .request_max_bytes = 3000,
             .response_max_bytes = 3000});
      if (HasFatalFailure()) return;
      std::vector<std::vector<char>> requests(3);
      uint64_t wrong = 0;
      for (int i = 0; i < 200; ++i) {
        // Sizes at the edges of a slot, and anything.
        const uint64_t edges[] = {0, 1, 63, 64, 65, 100, 101, 128, 200, 3000};
        const uint64_t size = random.below(2) == 0 ? edges[random.below(10)] : random.below(3001);
        std::vector<char>& request = requests[static_cast<size_t>(i) % 3];
        ASSERT_TRUE(poll_until([&] { return client_->outstanding() == 0 || i % 3 != 0; }));
        request.resize(size);
        fill_pattern(request, random.next());
        struct Check {
          const std::vector<char>* request;
          uint64_t* wrong;
        };
        ASSERT_TRUE(client_->call_with(
            kEcho, request, [check = Check{&request, &wrong}](const CallOutcome& outcome) {
              if (outcome.result != CallResult::kOk ||
                  !std::equal(outcome.response.begin(), outcome.response.end(),
                              check.request->rbegin(), check.request->rend())) {
                ++*check.wrong;
              }
            }));
      }
      ASSERT_TRUE(poll_until([&] { return client_->outstanding() == 0; }));
      EXPECT_EQ(wrong, 0u);
      EXPECT_EQ(client_->statistics().calls, 200u);
      EXPECT_GT(client_->statistics().fragments, 0u);
      EXPECT_EQ(server_->calls(), 200u);
      EXPECT_TRUE(client_->status().ok()) << client_->status().message();
    }
  }
}

TEST_F(RpcServiceTest, AutomaticConnectsWithWhatTheServerChose) {
  start({.protocol = Protocol::kAutomatic, .layout = MarkLayout::kAutomatic});
  const DesignChoice served = server_->design();
  const DesignChoice used = client_->design();
  EXPECT_TRUE(served.design.usable);
  EXPECT_THAT(served.why, HasSubstr("automatic: the cheapest of"));
  EXPECT_EQ(used.why, "automatic: the responder's design");
  EXPECT_EQ(used.design.protocol, served.design.protocol);
  EXPECT_EQ(used.design.layout, served.design.layout);
  EXPECT_EQ(client_->requester().mark_layout(), served.design.layout);
  EXPECT_THAT(used.design.why, HasSubstr("limited by"));

  const std::string request = "abc";
  bool done = false;
  ASSERT_TRUE(client_->call_with(kEcho, request, [&done](const CallOutcome& outcome) {
    done = true;
    EXPECT_EQ(outcome.result, CallResult::kOk);
    EXPECT_EQ(std::string(outcome.response.begin(), outcome.response.end()), "cba");
  }));
  EXPECT_TRUE(poll_until([&done] { return done; }));
}

TEST_F(RpcServiceTest, RequestsAndResponsesInPlace) {
  start({});
  const std::optional<CallSlot> slot = client_->acquire();
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->buffer.size(), 256u);
  std::memcpy(slot->buffer.data(), "abc", 3);
  std::string answer;
  client_->call(*slot, kEcho, 3, [&answer](const CallOutcome& outcome) {
    answer.assign(outcome.response.begin(), outcome.response.end());
  });
  EXPECT_EQ(client_->outstanding(), 1u);
  ASSERT_TRUE(poll_until([&] { return client_->outstanding() == 0; }));
  EXPECT_EQ(answer, "cba");
  EXPECT_EQ(server_->statistics(0).requests, 1u);
  EXPECT_EQ(client_->connection_statistics().response_bytes, 3u + kServiceHeaderBytes);
}

TEST_F(RpcServiceTest, ACallbackMakesTheNextCallInTheSameSlot) {
  start({.pending = 1});
  struct Chain {
    Client* client;
    uint32_t left = 50;
    void step() {
      const std::optional<CallSlot> slot = client->acquire();
      ASSERT_TRUE(slot);
      client->call(*slot, kEcho, 8, [this](const CallOutcome& outcome) {
        EXPECT_EQ(outcome.result, CallResult::kOk);
        if (--left > 0) step();
      });
    }
  } chain{client_};
  chain.step();
  ASSERT_TRUE(poll_until([&] { return chain.left == 0; }));
  EXPECT_EQ(client_->outstanding(), 0u);
}

TEST_F(RpcServiceTest, ACallbackWaitsForAnotherCall) {
  start({.pending = 2});
  expect_that_callbacks_wait(*client_);
  expect_that_callbacks_wait_with<DesignPoint<Protocol::kSendSend>>();
  expect_that_callbacks_wait_with<DesignPoint<Protocol::kWriteWrite, MarkLayout::kDense>>();
}

TEST_F(RpcServiceTest, FullSlotsAreAValue) {
  start({.pending = 2});
  const auto ignore = [](const CallOutcome&) {};
  EXPECT_TRUE(client_->call_with(kEcho, {}, ignore));
  EXPECT_TRUE(client_->call_with(kEcho, {}, ignore));
  EXPECT_FALSE(client_->call_with(kEcho, {}, ignore));
  EXPECT_FALSE(client_->acquire());
  EXPECT_EQ(client_->statistics().no_slot, 2u);
  ASSERT_TRUE(poll_until([&] { return client_->outstanding() == 0; }));
  const std::optional<CallSlot> slot = client_->acquire();
  ASSERT_TRUE(slot);
  client_->give_back(*slot);
  EXPECT_TRUE(client_->acquire());
  EXPECT_TRUE(client_->acquire());
}

TEST_F(RpcServiceTest, FuturesHoldTheirOutcome) {
  start({.pending = 2, .response_max_bytes = 100'000});
  const uint32_t bytes = 50'000;
  char request[sizeof(bytes)];
  std::memcpy(request, &bytes, sizeof(bytes));
  {
    std::optional<CallFuture> large = client_->call_future_with(kGenerate, request);
    ASSERT_TRUE(large);
    CallFuture small = client_->call_future(*client_->acquire(), kRefuse, 0);
    EXPECT_FALSE(client_->acquire());
    EXPECT_FALSE(small.ready());
    EXPECT_FALSE(small.wait(1000)) << "nobody answers yet";
    ASSERT_TRUE(poll_until([&] { return small.ready() && large->ready(); }));
    EXPECT_EQ(small.outcome().result, CallResult::kFailed);
    EXPECT_EQ(std::string(small.outcome().response.data(), 3), "no!");
    EXPECT_EQ(large->outcome().response.size(), bytes);
    EXPECT_TRUE(has_pattern(large->outcome().response, bytes));
    EXPECT_FALSE(client_->acquire());
    CallFuture moved = std::move(small);
    EXPECT_TRUE(moved.ready());
  }
  EXPECT_TRUE(client_->acquire());
  EXPECT_TRUE(client_->acquire());
}

TEST_F(RpcServiceTest, AFutureThatNobodyWaitsForGivesItsSlotBack) {
  start({.pending = 1});
  { CallFuture dropped = client_->call_future(*client_->acquire(), kEcho, 0); }
  EXPECT_FALSE(client_->acquire());
  ASSERT_TRUE(poll_until([&] { return client_->outstanding() == 0; }));
  EXPECT_TRUE(client_->acquire());
}

TEST_F(RpcServiceTest, ARequestIsNotReadAfterItsFuture) {
  start({.request_slot_bytes = 64, .pending = 1, .request_max_bytes = 4096});
  uint32_t calls = 0;
  server_->handle(kNobody, [&calls](const Call&, Reply&) {
    ++calls;
    return CallResult::kOk;
  });
  auto request = std::make_unique<std::vector<char>>(4096, 'a');
  {
    std::optional<CallFuture> dropped =
        client_->call_future_with(kNobody, *request, 3'600'000'000'000);
    ASSERT_TRUE(dropped);
    // In the middle of the request.
    ASSERT_TRUE(poll_until([&] { return client_->statistics().fragments > 2; }));
  }
  const uint64_t fragments = client_->statistics().fragments;
  request.reset();
  EXPECT_EQ(client_->outstanding(), 0u);

  // The slot comes back, and the server takes the next call in it from its beginning.
  std::optional<CallFuture> next;
  const std::vector<char> text(1000, 'b');
  ASSERT_TRUE(poll_until([&] {
    if (std::optional<CallFuture> call = client_->call_future_with(kNobody, text)) {
      next.emplace(std::move(*call));
    }
    return next.has_value();
  }));
  EXPECT_EQ(client_->statistics().fragments, fragments);
  ASSERT_TRUE(poll_until([&] { return next->ready(); }));
  EXPECT_EQ(next->outcome().result, CallResult::kOk);
  EXPECT_EQ(calls, 1u) << "a request that was given up runs";
}

TEST_F(RpcServiceTest, TimeOutsEndACallButNotItsSlot) {
  start({.pending = 2});
  CallResult result = CallResult::kOk;
  client_->call(
      *client_->acquire(), kEcho, 4,
      [&result](const CallOutcome& outcome) { result = outcome.result; }, 1'000'000);
  CallFuture future = client_->call_future(*client_->acquire(), kEcho, 4, 1'000'000);
  const uint64_t start_ns = now_ns();
  while (client_->outstanding() > 0 && now_ns() - start_ns < uint64_t{kTimeoutNs}) client_->poll();
  EXPECT_EQ(result, CallResult::kTimedOut);
  ASSERT_TRUE(future.ready());
  EXPECT_EQ(future.outcome().result, CallResult::kTimedOut);
  // The server may still write into the slots.
  EXPECT_FALSE(client_->acquire());
  ASSERT_TRUE(poll_until([&] { return client_->statistics().late == 2; }));
  EXPECT_TRUE(client_->acquire());
  EXPECT_FALSE(client_->acquire()) << "the future has the other one";
  EXPECT_EQ(client_->statistics().timed_out, 2u);
  EXPECT_TRUE(client_->status().ok());
}

TEST_F(RpcServiceTest, RefusalsAreOutcomes) {
  start({.request_slot_bytes = 64, .response_slot_bytes = 64, .request_max_bytes = 1000});
  const auto outcome_of = [&](uint16_t type, std::span<const char> request) {
    std::optional<CallFuture> future = client_->call_future_with(type, request);
    EXPECT_TRUE(poll_until([&] { return future->ready(); }));
    return future->outcome().result;
  };
  EXPECT_EQ(outcome_of(kNobody, {}), CallResult::kUnknownType);
  EXPECT_EQ(outcome_of(60'000, {}), CallResult::kUnknownType);
  EXPECT_EQ(outcome_of(kEcho, std::vector<char>(1001)), CallResult::kTooLarge);
  EXPECT_EQ(outcome_of(kEcho, std::vector<char>(1000)), CallResult::kTooLarge) << "the response";
  EXPECT_EQ(outcome_of(kEcho, std::vector<char>(64)), CallResult::kOk);
  server_->shut_down();
  EXPECT_EQ(outcome_of(kEcho, std::vector<char>(64)), CallResult::kShuttingDown);
  EXPECT_EQ(outcome_of(kEcho, std::vector<char>(1000)), CallResult::kShuttingDown);
  EXPECT_TRUE(client_->status().ok());
}

TEST_F(RpcServiceTest, AServerThatShutsDownFinishesCallsThatTravelInParts) {
  start({.request_slot_bytes = 64,
         .response_slot_bytes = 64,
         .request_max_bytes = 1000,
         .response_max_bytes = 1000});
  const std::vector<char> request(1000, 'a');
  std::optional<CallFuture> begun = client_->call_future_with(kEcho, request);
  ASSERT_TRUE(begun);
  // In the middle of the request.
  ASSERT_TRUE(poll_until([&] { return client_->statistics().fragments > 2; }));
  server_->shut_down();
  std::optional<CallFuture> next = client_->call_future_with(kEcho, request);
  ASSERT_TRUE(next);
  ASSERT_TRUE(poll_until([&] { return begun->ready() && next->ready(); }));
  EXPECT_EQ(begun->outcome().result, CallResult::kOk);
  EXPECT_EQ(begun->outcome().response.size(), request.size());
  EXPECT_EQ(next->outcome().result, CallResult::kShuttingDown);
}

TEST_F(RpcServiceTest, ARequestOfMoreThan32BitsIsTooLarge) {
  start({.request_slot_bytes = 64, .request_max_bytes = 1000});
  constexpr size_t kBytes = (size_t{1} << 32) + 32;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<const char> whole(static_cast<const char*>(memory), kBytes);
  // Their low 32 bits alone are nothing, a part of a slot, or more than one.
  for (const size_t bytes : {kBytes - 32, kBytes - 31, kBytes}) {
    SCOPED_TRACE(bytes);
    CallResult result = CallResult::kOk;
    ASSERT_TRUE(
        client_->call_with(kEcho, whole.first(bytes),
                           [&result](const CallOutcome& outcome) { result = outcome.result; }));
    std::optional<CallFuture> future = client_->call_future_with(kEcho, whole.first(bytes));
    ASSERT_TRUE(future);
    ASSERT_TRUE(poll_until([&] { return client_->outstanding() == 0; }));
    EXPECT_EQ(result, CallResult::kTooLarge);
    EXPECT_EQ(future->outcome().result, CallResult::kTooLarge);
  }
  EXPECT_EQ(server_->calls(), 0u);
  EXPECT_TRUE(client_->status().ok()) << client_->status().message();
  munmap(memory, kBytes);
}

TEST_F(RpcServiceTest, AClientThatShutsDownWaitsForItsCalls) {
  start({});
  uint32_t done = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(client_->call_with(kEcho, {}, [&done](const CallOutcome& outcome) {
      done += outcome.result == CallResult::kOk ? 1 : 0;
    }));
  }
  Thread serving = start_thread("serve", [&] {
    while (server_->calls() < 4) server_->poll();
  });
  EXPECT_TRUE(client_->shut_down(kTimeoutNs));
  serving.join();
  EXPECT_EQ(done, 4u);
  CallResult after = CallResult::kOk;
  client_->call(*client_->acquire(), kEcho, 0,
                [&after](const CallOutcome& outcome) { after = outcome.result; });
  client_->poll();
  EXPECT_EQ(after, CallResult::kDisconnected);
}

TEST_F(RpcServiceTest, ACallbackMayShutDownThoughMoreResponsesHaveCome) {
  start({});
  struct Ended {
    Client* client;
    uint32_t calls = 0;
    void operator()(const CallOutcome&) {
      if (++calls == 1) client->shut_down(0);
    }
  } ended{client_};
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(client_->call_with(kEcho, {}, [&ended](const CallOutcome& one) { ended(one); }));
  }
  while (server_->calls() < 4) server_->poll();
  ASSERT_TRUE(poll_until([&] { return ended.calls > 0; }));
  EXPECT_EQ(ended.calls, 4u) << "each has its outcome";
  EXPECT_EQ(client_->status().code(), StatusCode::kUnavailable) << client_->status().message();
}

TEST_F(RpcServiceTest, OutstandingCallsLearnThatTheServerIsGone) {
  start({});
  uint32_t disconnected = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client_->call_with(kEcho, {}, [&disconnected](const CallOutcome& outcome) {
      disconnected += outcome.result == CallResult::kDisconnected ? 1 : 0;
    }));
  }
  server_.reset();  // its end of the control connection is still there
  const uint64_t start_ns = now_ns();
  while (client_->outstanding() > 0 && now_ns() - start_ns < uint64_t{kTimeoutNs}) client_->poll();
  EXPECT_EQ(disconnected, 3u);
  EXPECT_EQ(client_->status().code(), StatusCode::kUnavailable);
}

TEST_F(RpcServiceTest, AServerLearnsThatAClientIsGone) {
  start({}, 2);
  clients_.pop_back();  // its end of the control connection is still there
  EXPECT_TRUE(poll_until([&] { return server_->connections() == 1; }));
  EXPECT_EQ(server_->status(1).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(server_->status(0).ok()) << server_->status(0).message();
}

// Clients that break the service's rules lose their connection; the others do not notice.
TEST_F(RpcServiceTest, MalformedCallsEndOneConnectionOnly) {
  using internal::ServiceHeader;
  using internal::ServiceStep;
  struct Attack {
    const char* what;
    std::vector<ServiceHeader> headers;
    uint32_t payload_bytes;
  };
  const std::vector<Attack> attacks = {
      {"no header", {}, 0},
      {"a step that there is not", {{.type = kEcho, .step = ServiceStep{77}}}, 8},
      {"a fragment without a beginning",
       {{.type = kEcho, .step = ServiceStep::kFragment, .total_bytes = 500, .call = 1}},
       8},
      {"more bytes than in all", {{.type = kEcho, .total_bytes = 4, .call = 1}}, 8},
      {"a beginning in the middle", {{.type = kEcho, .total_bytes = 500, .offset = 9}}, 8},
      {"a fragment at another place",
       {{.type = kEcho, .total_bytes = 500, .call = 1},
        {.type = kEcho,
         .step = ServiceStep::kFragment,
         .total_bytes = 500,
         .offset = 99,
         .call = 1}},
       8},
      {"a response that there is not",
       {{.type = kEcho, .step = ServiceStep::kFetch, .offset = 0, .call = 0}},
       0},
      {"a response of another call",
       {{.type = kGenerate, .total_bytes = 8, .call = 5},
        {.step = ServiceStep::kFetch, .offset = 64, .call = 6}},
       8},
  };
  for (const Attack& attack : attacks) {
    SCOPED_TRACE(attack.what);
    start({.request_slot_bytes = 64,
           .response_slot_bytes = 64,
           .pending = 1,
           .request_max_bytes = 1000,
           .response_max_bytes = 1000});
    if (HasFatalFailure()) return;
    std::unique_ptr<Requester> hostile;
    connect([&](ControlConnection& control) {
      RequesterOptions options;
      options.request_max_bytes = options.response_max_bytes = 64 + kServiceHeaderBytes;
      auto requester = make_requester(Protocol::kWriteWrite, MarkLayout::kLastBit, *device_,
                                      *domain_, control, options);
      ASSERT_TRUE(requester.ok()) << requester.status().message();
      hostile = std::move(*requester);
    });
    const auto send = [&](uint32_t bytes) {
      ASSERT_EQ(hostile->try_post(0, bytes), PostResult::kPosted);
    };
    if (attack.headers.empty()) send(3);
    for (const ServiceHeader& header : attack.headers) {
      header.write_to(hostile->request_buffer(0));
      const uint32_t wanted = 500;  // for kGenerate
      std::memcpy(hostile->request_buffer(0) + kServiceHeaderBytes, &wanted, sizeof(wanted));
      send(kServiceHeaderBytes + attack.payload_bytes);
      uint32_t answered = 0;
      poll_until([&] {
        answered += hostile->poll([](uint32_t, std::span<const char>) {});
        return answered > 0 || !server_->status(1).ok();
      });
    }
    EXPECT_TRUE(poll_until([&] { return !server_->status(1).ok(); }));
    EXPECT_EQ(server_->status(1).code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(server_->status(1).message(), HasSubstr("malformed request"));
    EXPECT_EQ(server_->connections(), 1u);
    CallFuture future = client_->call_future(*client_->acquire(), kEcho, 4);
    EXPECT_TRUE(poll_until([&] { return future.ready(); }));
    EXPECT_EQ(future.outcome().result, CallResult::kOk);
  }
}

TEST_F(RpcServiceTest, AServerThatMakesNoSenseLosesItsClient) {
  start({.pending = 1});
  // A responder below the service's level answers the client's call with garbage.
  std::optional<CallFuture> future = client_->call_future(*client_->acquire(), kEcho, 4);
  server_->responder().poll([](const Request&, std::span<char> response) {
    std::memset(response.data(), 0x5a, 40);
    return 40u;
  });
  const uint64_t start_ns = now_ns();
  while (!future->ready() && now_ns() - start_ns < uint64_t{kTimeoutNs}) client_->poll();
  EXPECT_EQ(future->outcome().result, CallResult::kDisconnected);
  EXPECT_EQ(client_->status().code(), StatusCode::kProtocolViolation);
}

// Within the options' ranges, but more than any machine's address space.
TEST_F(RpcServiceTest, MemoryThatTheSystemHasNotIsRefused) {
  if (VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER) {
    GTEST_SKIP() << "the sanitizer ends a process that asks for so much";
  }
  start({});
  if (!device_->info().writes_in_order) {
    GTEST_SKIP() << "its messages need receives, of which a queue has not so many";
  }
  const auto refused = [&](const ServerOptions& options) {
    const Status status = Server::create(*device_, *domain_, options).status();
    EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
    return status.message();
  };
  constexpr uint32_t kMost = kMaxServiceMessageBytes;
  const ServerOptions many{.request_slot_bytes = 64,
                           .response_slot_bytes = 64,
                           .pending = 1024,
                           .max_connections = 1024};
  ServerOptions options = many;
  options.request_max_bytes = kMost;
  EXPECT_THAT(refused(options),
              HasSubstr("no 1125899906842624 bytes of memory for 1048576 slots whose "
                        "request_max_bytes is 1073741824; choose fewer slots or"));
  options = many;
  options.response_max_bytes = kMost;
  EXPECT_THAT(refused(options), HasSubstr("response_max_bytes is 1073741824"));
  const auto compiled =
      create_server<DesignPoint<Protocol::kWriteWrite>>(*device_, *domain_, options);
  EXPECT_THAT(compiled.status().message(), HasSubstr("response_max_bytes is 1073741824"));
}

TEST_F(RpcServiceTest, OptionsThatCannotBe) {
  start({});
  ServerOptions options;
  options.protocol = Protocol::kRead;
  EXPECT_EQ(Server::create(*device_, *domain_, options).status().code(),
            StatusCode::kInvalidArgument);
  options = {.request_slot_bytes = 0};
  EXPECT_THAT(Server::create(*device_, *domain_, options).status().message(),
              HasSubstr("request_slot_bytes is 0"));
  options = {.response_max_bytes = ~0u};
  EXPECT_THAT(Server::create(*device_, *domain_, options).status().message(),
              HasSubstr("response_max_bytes"));
}

}  // namespace
}  // namespace verbena
