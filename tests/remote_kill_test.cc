// Back-ends and front-ends of remote memory that are killed (SIGKILL) at random moments: those that
// are left go on undisturbed or say what happened, nobody hangs, and nothing in the region is torn.
//
// The moment is drawn as a number of operations, not as a time; VERBENA_SEED=N draws the same ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/remote_support.h"
#include "tests/rpc_peer.h"

namespace verbena::remote_test {
namespace {

using rpc_test::PeerProcess;
using testing::HasSubstr;

constexpr uint32_t kKills = 50;  // of each side

class RemoteKillTest : public testing::Test {
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
  }

  struct Peer {
    std::unique_ptr<PeerProcess> process;
    std::unique_ptr<ControlConnection> control;
  };
  Peer start(Role role, uint32_t pending) {
    Peer peer;
    peer.process = std::make_unique<PeerProcess>("remote_peer_process", listener_->port(), secret_);
    auto control = listener_->accept(kTimeoutNs);
    EXPECT_TRUE(control.ok()) << control.status().message();
    if (!control.ok()) return peer;
    peer.control = std::make_unique<ControlConnection>(std::move(*control));
    EXPECT_TRUE(peer.control->send_value(kTaskTag, Task{role, pending}).ok());
    return peer;
  }

  // When to kill, in operations; a quarter dies during the handshake, after so many pauses.
  struct Moment {
    bool in_handshake;
    uint64_t pauses;
    uint64_t operations;
  };
  static Moment draw_moment(Random& random) {
    return {random.below(4) == 0, random.below(2'000'000), random.below(2'000)};
  }
  static Thread kill_beside(const Moment& moment, PeerProcess& process) {
    if (!moment.in_handshake) return {};
    return start_thread("killer", [&process, pauses = moment.pauses] {
      for (uint64_t i = 0; i < pauses; ++i) cpu_relax();
      process.signal(SIGKILL);
    });
  }

  JobSecret secret_ = JobSecret::random();
  std::optional<Device> device_;
  std::optional<ProtectionDomain> domain_;
  std::optional<ControlListener> listener_;
};

uint64_t word_at(const ExposedRegion& region, RemotePointer<uint64_t> pointer) {
  return std::atomic_ref(*reinterpret_cast<uint64_t*>(region.data() + pointer.offset_bytes)).load();
}

TEST_F(RemoteKillTest, AFrontEndNamesItsBackEndAndFindsANewOne) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  Peer survivor = start(Role::kBackEnd, 0);
  ASSERT_NE(survivor.control, nullptr);
  auto other = open_region(*device_, *domain_, *survivor.control, {});
  ASSERT_TRUE(other.ok()) << other.status().message();
  for (uint32_t kill = 0; kill < kKills && !HasFailure(); ++kill) {
    const Moment moment = draw_moment(random);
    const bool one_at_a_time = random.below(2) == 0;
    Peer victim = start(Role::kBackEnd, 0);
    ASSERT_NE(victim.control, nullptr);
    Thread killer = kill_beside(moment, *victim.process);
    auto region = open_region(*device_, *domain_, *victim.control, {});
    EXPECT_TRUE(region.ok() || moment.in_handshake) << region.status().message();
    if (region.ok()) {
      uint64_t done = 0;
      if (!moment.in_handshake && moment.operations == 0) victim.process->signal(SIGKILL);
      if (one_at_a_time) {
        while ((*region)->fetch_and_add(kCounter, 1).ok()) {
          if (!moment.in_handshake && ++done >= moment.operations) victim.process->signal(SIGKILL);
        }
      } else {
        take_numbers(**region, ~uint64_t{0}, [&](uint64_t written) {
          if (!moment.in_handshake && written >= moment.operations) {
            victim.process->signal(SIGKILL);
          }
        });
      }
      EXPECT_EQ((*region)->status().code(), StatusCode::kUnavailable) << "it hangs";
      EXPECT_THAT((*region)->status().message(), HasSubstr("the back-end 127.0.0.1:"));
      EXPECT_EQ((*region)->status().message().find('\n'), std::string::npos);
    }
    killer.join();
    EXPECT_EQ(take_numbers(**other, 50, [](uint64_t) {}), 50u) << (*other)->status().message();
  }
  other->reset();
  EXPECT_EQ(survivor.process->wait(), 0);
}

TEST_F(RemoteKillTest, ABackEndOutlivesItsFrontEnds) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  auto region = expose_region(*device_, *domain_, {.size_bytes = kRegionBytes});
  ASSERT_TRUE(region.ok()) << region.status().message();
  // One front-end lives on beside those that are killed.
  Peer survivor = start(Role::kFrontEnd, 4);
  ASSERT_NE(survivor.control, nullptr);
  ASSERT_TRUE((*region)->accept(*survivor.control).ok());
  std::vector<Peer> victims;
  for (uint32_t kill = 0; kill < kKills && !HasFailure(); ++kill) {
    const Moment moment = draw_moment(random);
    victims.push_back(start(Role::kFrontEnd, 1 + static_cast<uint32_t>(random.below(16))));
    Peer& victim = victims.back();
    ASSERT_NE(victim.control, nullptr);
    Thread killer = kill_beside(moment, *victim.process);
    const Status accepted = (*region)->accept(*victim.control);
    EXPECT_TRUE(accepted.ok() || moment.in_handshake) << accepted.message();
    const uint64_t before = word_at(**region, kCounter);
    Waiter waiter;
    const uint64_t start_ns = now_ns();
    bool killed = moment.in_handshake;
    while ((*region)->remove_ended() > 1) {
      if (!killed && word_at(**region, kCounter) - before >= moment.operations) {
        victim.process->signal(SIGKILL);
        killed = true;
      }
      waiter.idle();
      ASSERT_LT(now_ns() - start_ns, static_cast<uint64_t>(kTimeoutNs)) << "it hangs";
    }
    if (accepted.ok()) {
      EXPECT_THAT((*region)->last_end().message(), HasSubstr("the front-end 127.0.0.1:"));
    }
    killer.join();
  }
  // The survivor goes on.
  Waiter waiter;
  const uint64_t before = word_at(**region, kCounter);
  while (word_at(**region, kCounter) - before < 100) waiter.idle();
  EXPECT_TRUE(survivor.process->is_running());
  // Each word has a number that was its own, or none yet.
  for (uint64_t i = 0; i < kWords; ++i) {
    const uint64_t word = word_at(**region, kFirstWord + i);
    ASSERT_TRUE(word == 0 || (word - 1) % kWords == i) << "word " << i << " is " << word;
    ASSERT_LE(word, word_at(**region, kCounter));
  }
  region->reset();
  EXPECT_EQ(survivor.process->wait(), 1) << "it must report that its back-end is gone";
}

}  // namespace
}  // namespace verbena::remote_test
