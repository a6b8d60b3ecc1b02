// Messengers whose peer is killed (SIGKILL) at a random moment: every operation that involves it
// ends with an error, what came before is whole and in order, and other peers go on undisturbed.
//
// The moment is drawn as a number of messages, not as a time; VERBENA_SEED=N draws the same ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/message_support.h"
#include "tests/rpc_peer.h"

namespace verbena::message_test {
namespace {

using rpc_test::PeerProcess;

constexpr uint32_t kKills = 20;

class MessageKillTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::open(test_device());
    if (!device.ok()) GTEST_SKIP() << "no " << test_device() << ": " << device.status().message();
    device_.emplace(std::move(*device));
    auto domain = ProtectionDomain::create(*device_);
    ASSERT_TRUE(domain.ok()) << domain.status().message();
    domain_.emplace(std::move(*domain));
    auto listener = ControlListener::listen("127.0.0.1", 0, secret_);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    listener_.emplace(std::move(*listener));
    auto messenger = open_messenger(*device_, *domain_, secret_);
    ASSERT_TRUE(messenger.ok()) << messenger.status().message();
    messenger_ = std::move(*messenger);
  }

  struct Peer {
    std::unique_ptr<PeerProcess> process;
    std::unique_ptr<ControlConnection> control;
    PeerNumber number = 0;
    std::unique_ptr<NumberTraffic> traffic;
  };
  Peer start() {
    Peer peer;
    peer.process =
        std::make_unique<PeerProcess>("message_peer_process", listener_->port(), secret_);
    auto control = listener_->accept(kTimeoutNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    if (!control.ok()) return peer;
    peer.control = std::make_unique<ControlConnection>(std::move(*control));
    auto address = peer.control->exchange(kAddressTag, messenger_->address(), kTimeoutNs);
    EXPECT_TRUE(address.ok()) << address.status().message();
    if (!address.ok()) return peer;
    peer.number = *messenger_->add_peer(*address);
    return peer;
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
  std::optional<ControlListener> listener_;
  std::unique_ptr<Messenger> messenger_;
};

TEST_F(MessageKillTest, ASurvivorHasAnErrorForEveryOperation) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (uint32_t kill = 0; kill < kKills; ++kill) {
    SCOPED_TRACE("kill " + std::to_string(kill));
    Peer peer = start();
    ASSERT_NE(peer.control, nullptr);
    // Some die while the connection is made, or soon after.
    const uint64_t moment = random.below(8) == 0 ? 0 : random.below(3'000);
    const uint64_t pauses = random.below(2'000'000);
    Thread killer;
    if (moment == 0) {
      killer = start_thread("killer", [&] {
        for (uint64_t i = 0; i < pauses; ++i) cpu_relax();
        peer.process->signal(SIGKILL);
      });
    }
    peer.traffic = std::make_unique<NumberTraffic>(*messenger_, peer.number);
    NumberTraffic& traffic = *peer.traffic;
    bool killed = moment == 0;
    Waiter waiter;
    const uint64_t end_ns = now_ns() + static_cast<uint64_t>(kTimeoutNs);
    while (traffic.outstanding() > 0 && now_ns() < end_ns) {
      traffic.step() > 0 ? waiter.progress() : waiter.idle();
      if (!killed && traffic.received() >= moment) {
        peer.process->signal(SIGKILL);
        killed = true;
      }
    }
    killer.join();
    EXPECT_EQ(traffic.outstanding(), 0u);
    EXPECT_GE(traffic.lost(), 1u);
    EXPECT_EQ(traffic.wrong(), 0u);
    EXPECT_FALSE(traffic.peer_works());
    EXPECT_FALSE(messenger_->peer_status(peer.number).message().empty());
  }
}

TEST_F(MessageKillTest, OtherPeersGoOn) {
  Peer stays = start();
  Peer dies = start();
  ASSERT_NE(dies.control, nullptr);
  stays.traffic = std::make_unique<NumberTraffic>(*messenger_, stays.number);
  // What the other one has outstanding ends with it, beside the traffic.
  char memory[8] = {};
  const iovec piece{memory, sizeof(memory)};
  ASSERT_EQ(messenger_->receive({.source = dies.number,
                                 .tag = kNeverTag,
                                 .pieces = {&piece, 1},
                                 .flags = kMessageSilent}),
            PostResult::kPosted);
  Waiter waiter;
  const auto run_until = [&](auto&& ready) {
    const uint64_t end_ns = now_ns() + static_cast<uint64_t>(kTimeoutNs);
    while (!ready() && stays.traffic->peer_works() && now_ns() < end_ns) {
      stays.traffic->step() > 0 ? waiter.progress() : waiter.idle();
      static_cast<void>(messenger_->send({.peer = dies.number, .flags = kMessageSilent}));
    }
    return ready();
  };
  ASSERT_TRUE(run_until([&] { return stays.traffic->received() > 200; }));
  dies.process->signal(SIGKILL);
  ASSERT_TRUE(run_until([&] { return !messenger_->peer_status(dies.number).ok(); }));
  const uint64_t before = stays.traffic->received();
  EXPECT_TRUE(run_until([&] { return stays.traffic->received() > before + 2000; }));
  EXPECT_EQ(stays.traffic->wrong(), 0u);
  EXPECT_EQ(stays.traffic->lost(), 0u);
}

}  // namespace
}  // namespace verbena::message_test
