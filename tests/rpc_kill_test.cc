// Requesters and responders that are killed (SIGKILL) at random moments, 200 times over all tests:
// those that are left go on undisturbed or say what happened, and whoever connects next is served.
//
// The moment is drawn as a number of messages or of looks, not as a time; VERBENA_SEED=N draws the
// same ones. VERBENA_SOAK=1 kills twenty times as often.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/rpc_peer.h"
#include "tests/rpc_support.h"
#include "tests/support/parameter_names.h"

namespace verbena::rpc_test {
namespace {

using testing::HasSubstr;

// For each protocol and role; ten of these make 200.
constexpr uint32_t kKills = 20;

struct Side {
  static Result<std::unique_ptr<Side>> open() {
    VERBENA_ASSIGN_OR_RETURN(Device device, Device::open(test_device()));
    VERBENA_ASSIGN_OR_RETURN(ProtectionDomain domain, ProtectionDomain::create(device));
    return std::make_unique<Side>(Side{std::move(device), std::move(domain)});
  }
  Device device;
  ProtectionDomain domain;
};

class RpcKillTest : public testing::TestWithParam<Protocol> {
 protected:
  void SetUp() override {
    auto side = Side::open();
    if (!side.ok()) GTEST_SKIP() << "no " << test_device() << " here: " << side.status().message();
    side_ = std::move(*side);
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_.emplace(std::move(*listener));
  }

  // The cases of this protocol, one for each mark layout, which share the kills.
  static std::vector<Case> cases() {
    std::vector<Case> cases;
    for (const MarkLayout layout : all_mark_layouts()) {
      if (!uses_mark_layout(GetParam()) && layout != MarkLayout::kLastBit) continue;
      Case c;
      c.protocol = GetParam();
      c.layout = layout;
      c.pending = 4;
      c.max_connections = 2;
      c.seed = run_seed();
      cases.push_back(c);
    }
    return cases;
  }
  static uint32_t kills_of_each(const std::vector<Case>& cases) {
    const uint32_t kills = kKills * (std::getenv("VERBENA_SOAK") != nullptr ? 20 : 1);
    const auto count = static_cast<uint32_t>(cases.size());
    return (kills + count - 1) / count;
  }

  // A process that is on its way to the listener, and the connection to it.
  struct Victim {
    std::unique_ptr<PeerProcess> process;
    std::unique_ptr<ControlConnection> control;
  };
  Victim start(Role role, Case c) {
    Victim victim;
    c.messages = ~uint64_t{0};
    victim.process = std::make_unique<PeerProcess>("rpc_peer_process", listener_->port(), secret_);
    auto control = listener_->accept(kTimeoutNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    if (!control.ok()) return victim;
    victim.control = std::make_unique<ControlConnection>(std::move(*control));
    EXPECT_TRUE(victim.control->send_value(kTaskType, Task{role, c}).ok());
    return victim;
  }

  // When to kill, in requests or responses; a quarter dies during the handshake.
  struct Moment {
    bool in_handshake;
    uint64_t spins;     // before a kill in the handshake
    uint64_t messages;  // else
  };
  static Moment draw_moment(Random& random) {
    return {random.below(4) == 0, random.below(2'000'000), random.below(400)};
  }
  // Kills beside whatever this thread does next.
  static Thread kill_beside(const Moment& moment, PeerProcess& process) {
    return start_thread("killer", [&process, spins = moment.spins] {
      for (uint64_t i = 0; i < spins; ++i) cpu_relax();
      process.signal(SIGKILL);
    });
  }

  // A requester that works all the time, and checks every response.
  void survive(const Case& c, const std::atomic<bool>& over) {
    auto side = Side::open();
    ASSERT_TRUE(side.ok()) << side.status().message();
    auto control = ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kTimeoutNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    auto requester = make_requester(c.protocol, c.layout, (*side)->device, (*side)->domain,
                                    *control, requester_options(c));
    ASSERT_TRUE(requester.ok()) << requester.status().message();
    Case some = c;
    some.messages = 100;
    do {
      ++some.seed;
      expect_complete(some, Client(some).run(**requester, [](uint64_t) {}));
    } while (!over && !HasFailure());
  }

  static void expect_complete(const Case& c, const Outcome& outcome) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_FALSE(outcome.stuck);
    EXPECT_EQ(outcome.responses, c.messages);
    EXPECT_EQ(outcome.wrong, 0u);
  }

  // Serves until the number of connections alive has fallen to `left`. Kills once the moment is
  // there.
  void serve_until(Responder& responder, Server& server, uint32_t left, const Moment& moment,
                   PeerProcess& process) {
    Waiter waiter;
    uint64_t from_victim = 0;
    uint64_t looks = 0;
    const uint64_t start_ns = now_ns();
    const auto handler = [&](const Request& request, std::span<char> response) {
      if (request.connection == 1) ++from_victim;
      return server(request, response);
    };
    while (responder.connections() > left) {
      responder.poll(handler) > 0 ? waiter.progress() : waiter.idle();
      // READs are not seen here.
      const uint64_t progress = GetParam() == Protocol::kRead ? ++looks : from_victim;
      if (!moment.in_handshake && progress >= moment.messages) process.signal(SIGKILL);
      ASSERT_LT(now_ns() - start_ns, static_cast<uint64_t>(kTimeoutNs)) << "it hangs";
    }
  }

  JobSecret secret_ = JobSecret::random();
  std::unique_ptr<Side> side_;
  std::optional<ControlListener> listener_;
};

TEST_P(RpcKillTest, AResponderOutlivesItsRequesters) {
  Random random(run_seed());
  const std::vector<Case> cases = this->cases();
  for (const Case& c : cases) {
    SCOPED_TRACE(name_of(c) + ", VERBENA_SEED=" + std::to_string(run_seed()));
    std::vector<char> readable = readable_memory();
    auto responder = make_responder(c.protocol, c.layout, side_->device, side_->domain,
                                    responder_options(c, readable));
    ASSERT_TRUE(responder.ok()) << responder.status().message();
    std::atomic<bool> over{false};
    Thread survivor = start_thread("survivor", [&] { survive(c, over); });
    auto survivor_control = listener_->accept(kTimeoutNs);
    ASSERT_TRUE(survivor_control.ok()) << survivor_control.status().message();
    ASSERT_TRUE((*responder)->connect(*survivor_control).ok());

    Server server;
    std::vector<std::unique_ptr<ControlConnection>> controls;  // outlive the connections
    for (uint32_t kill = 0; kill < kills_of_each(cases) && !HasFailure(); ++kill) {
      const Moment moment = draw_moment(random);
      Victim victim = start(Role::kRequester, c);
      ASSERT_NE(victim.control, nullptr);
      Thread killer;
      if (moment.in_handshake) killer = kill_beside(moment, *victim.process);
      const Status connected = (*responder)->connect(*victim.control);
      EXPECT_TRUE(connected.ok() || moment.in_handshake) << connected.message();
      serve_until(**responder, server, 1, moment, *victim.process);
      if (connected.ok()) {
        EXPECT_EQ((*responder)->status(1).code(), StatusCode::kUnavailable);
        EXPECT_THAT((*responder)->status(1).message(), HasSubstr("the requester 127.0.0.1:"));
      }
      EXPECT_TRUE((*responder)->status(0).ok()) << (*responder)->status(0).message();
      killer.join();
      controls.push_back(std::move(victim.control));
    }
    EXPECT_EQ(server.bad_requests, 0u);
    over = true;
    serve(**responder, server);
    survivor.join();
  }
}

TEST_P(RpcKillTest, ARequesterReportsItsResponderAndFindsANewOne) {
  Random random(run_seed());
  const std::vector<Case> cases = this->cases();
  for (Case c : cases) {
    SCOPED_TRACE(name_of(c) + ", VERBENA_SEED=" + std::to_string(run_seed()));
    // One responder lives on beside those that are killed.
    Victim survivor = start(Role::kResponder, c);
    ASSERT_NE(survivor.control, nullptr);
    auto other = make_requester(c.protocol, c.layout, side_->device, side_->domain,
                                *survivor.control, requester_options(c));
    ASSERT_TRUE(other.ok()) << other.status().message();
    Case some = c;
    some.messages = 50;
    for (uint32_t kill = 0; kill < kills_of_each(cases) && !HasFailure(); ++kill) {
      const Moment moment = draw_moment(random);
      Victim victim = start(Role::kResponder, c);
      ASSERT_NE(victim.control, nullptr);
      Thread killer;
      if (moment.in_handshake) killer = kill_beside(moment, *victim.process);
      auto requester = make_requester(c.protocol, c.layout, side_->device, side_->domain,
                                      *victim.control, requester_options(c));
      EXPECT_TRUE(requester.ok() || moment.in_handshake) << requester.status().message();
      if (requester.ok()) {
        Case endless = c;
        endless.messages = ~uint64_t{0};
        endless.seed = random.next();
        if (!moment.in_handshake && moment.messages == 0) victim.process->signal(SIGKILL);
        const Outcome outcome = Client(endless).run(**requester, [&](uint64_t responses) {
          if (!moment.in_handshake && responses >= moment.messages) victim.process->signal(SIGKILL);
        });
        EXPECT_FALSE(outcome.stuck);
        EXPECT_EQ(outcome.wrong, 0u);
        EXPECT_EQ(outcome.status.code(), StatusCode::kUnavailable);
        EXPECT_THAT(outcome.status.message(), HasSubstr("the responder 127.0.0.1:"));
      }
      killer.join();
      ++some.seed;
      expect_complete(some, Client(some).run(**other, [](uint64_t) {}));
    }
    other->reset();
    survivor.control.reset();
    EXPECT_EQ(survivor.process->wait(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, RpcKillTest, testing::ValuesIn(all_protocols()),
                         test::printed_name<Protocol>);

}  // namespace
}  // namespace verbena::rpc_test
