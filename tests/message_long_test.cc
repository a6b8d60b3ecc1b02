// Long messages between three processes, by each way that they can travel, with registrations that
// are kept and without: every byte arrives, and what was sent stays as it was. VERBENA_SEED=N draws
// the same messages.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/message_long_traffic.h"
#include "tests/rpc_peer.h"

namespace verbena::message_test {
namespace {

using rpc_test::PeerProcess;

struct LongCase {
  LongMessages way;
  bool keeps_registrations;
};
std::string name_of(const LongCase& one) {
  constexpr const char* kNames[] = {"Automatic", "Read", "Write", "Chunks"};
  return std::string(kNames[static_cast<size_t>(one.way)]) +
         (one.keeps_registrations ? "" : "RegistersEachTime");
}
std::ostream& operator<<(std::ostream& out, const LongCase& one) { return out << name_of(one); }

class MessageLongTest : public testing::TestWithParam<LongCase> {};

struct Rank {
  std::unique_ptr<PeerProcess> process;
  std::unique_ptr<ControlConnection> control;
};

// All ranks' results, that of this process first; empty where the test is skipped.
void run_ranks(const LongPlan& plan, std::vector<LongResult>* results) {
  auto device = Device::open(test_device());
  if (!device.ok()) GTEST_SKIP() << "no " << test_device() << ": " << device.status().message();
  auto domain = ProtectionDomain::create(*device);
  ASSERT_TRUE(domain.ok()) << domain.status().message();
  const JobSecret secret = JobSecret::random();
  auto listener = ControlListener::listen("127.0.0.1", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(plan.seed));
  auto messenger = open_messenger(*device, *domain, secret, long_options(plan));
  ASSERT_TRUE(messenger.ok()) << messenger.status().message();

  std::vector<Rank> others;
  LongAddresses addresses{};
  addresses.of[0] = (*messenger)->address();
  for (uint32_t rank = 1; rank < kLongRanks; ++rank) {
    Rank other;
    other.process = std::make_unique<PeerProcess>("message_long_process", listener->port(), secret);
    auto control = listener->accept(kTimeoutNs);
    ASSERT_TRUE(control.ok()) << control.status().message();
    other.control = std::make_unique<ControlConnection>(std::move(*control));
    LongPlan theirs = plan;
    theirs.rank = rank;
    ASSERT_TRUE(other.control->send_value(kLongPlanTag, theirs).ok());
    auto address = other.control->receive_value<MessengerAddress>(kAddressTag, kTimeoutNs);
    ASSERT_TRUE(address.ok()) << address.status().message();
    addresses.of[rank] = *address;
    others.push_back(std::move(other));
  }
  std::array<PeerNumber, kLongRanks> peers{};
  for (uint32_t rank = 0; rank < kLongRanks; ++rank) {
    peers[rank] = *(*messenger)->add_peer(addresses.of[rank]);
  }
  for (const Rank& other : others) {
    ASSERT_TRUE(other.control->send_value(kLongAddressesTag, addresses).ok());
  }

  LongTraffic traffic(**messenger, peers, plan);
  ASSERT_TRUE(traffic.run());
  *results = {traffic.result()};
  for (const Rank& other : others) {
    auto result = other.control->receive_value<LongResult>(kLongResultTag, kTimeoutNs);
    ASSERT_TRUE(result.ok()) << result.status().message();
    results->push_back(*result);
  }
}

TEST_P(MessageLongTest, EveryByteArrives) {
  const LongPlan plan{.way = GetParam().way,
                      .keeps_registrations = GetParam().keeps_registrations,
                      .rounds = static_cast<uint32_t>(rpc_test::thinned(32)),
                      .seed = run_seed()};
  std::vector<LongResult> results;
  ASSERT_NO_FATAL_FAILURE(run_ranks(plan, &results));
  for (const LongResult& result : results) {
    EXPECT_GT(result.messages, plan.rounds);
    EXPECT_EQ(result.wrong, 0u);
    if (plan.way == LongMessages::kPipelined) {
      EXPECT_EQ(result.registrations, 0u);
    }
  }
}

// Of memory that is used once no pages move on soft0, at neither end; of what is sent from often
// they do later, while messages from there are under way.
TEST(MessageLongChangeTest, WhatIsSentFromOftenIsSharedLater) {
  const LongPlan plan{
      .way = LongMessages::kRead, .repeats = true, .rounds = 24, .seed = run_seed()};
  std::vector<LongResult> results;
  ASSERT_NO_FATAL_FAILURE(run_ranks(plan, &results));
  if (results.empty() || std::string(test_device()) != "soft0") return;
  for (const LongResult& result : results) {
    EXPECT_EQ(result.wrong, 0u);
    EXPECT_FALSE(result.moved_at_first);
    EXPECT_GT(result.in_place_at_first, 0u);
  }
  EXPECT_EQ(results[0].shared_later, 1u);
  EXPECT_TRUE(results[0].moved);
  for (size_t rank = 1; rank < results.size(); ++rank) {
    // Its own READs alone fill what it receives into.
    EXPECT_EQ(results[rank].shared_later, 0u);
    EXPECT_FALSE(results[rank].moved);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, MessageLongTest,
    testing::Values(LongCase{LongMessages::kAutomatic, true},
                    LongCase{LongMessages::kAutomatic, false}, LongCase{LongMessages::kRead, true},
                    LongCase{LongMessages::kRead, false}, LongCase{LongMessages::kWrite, true},
                    LongCase{LongMessages::kWrite, false},
                    LongCase{LongMessages::kPipelined, true}),
    [](const testing::TestParamInfo<LongCase>& one) { return name_of(one.param); });

}  // namespace
}  // namespace verbena::message_test
