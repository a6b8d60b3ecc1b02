// Three processes with an endpoint each, of which one is killed (SIGKILL) at a random moment: all
// operations of the others that involve it end with an error, and they go on with each other.
//
// The moment is drawn as a number of messages, not as a time; VERBENA_SEED=N draws the same ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "src/base/runtime.h"
#include "tests/ofi/exchange.h"
#include "tests/support/child_process.h"
#include "verbena/clock.h"

namespace verbena::ofi_test {
namespace {

constexpr uint32_t kKilled = 2;
constexpr uint32_t kStays = 1;
constexpr uint64_t kPatienceNs = 120'000'000'000;

class OfiKillTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("FI_PROVIDER_PATH", VERBENA_PROVIDER_PATH, 1);
    setenv("FI_PROVIDER", "verbena", 1);
    setenv("VERBENA_JOB_SECRET", "a secret of these tests alone", 1);
  }
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ofi_kill_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  test::ChildProcess start(uint32_t number) {
    return test::ChildProcess({VERBENA_TEST_PROCESSES "/ofi_peer_process", folder_.string(),
                               std::to_string(number), std::to_string(kKilled)});
  }
  template <typename Ready>
  bool run_until(Exchange& exchange, Ready&& ready) {
    const uint64_t start_ns = now_ns();
    Waiter waiter;
    while (!ready() && now_ns() - start_ns < kPatienceNs) {
      exchange.step() ? waiter.progress() : waiter.idle();
    }
    return ready();
  }

  std::filesystem::path folder_;
};

TEST_F(OfiKillTest, TheOthersHaveErrorsForItAloneAndGoOn) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  constexpr int kKills = 8;
  for (int kill = 0; kill < kKills; ++kill) {
    SCOPED_TRACE("kill " + std::to_string(kill));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    // Some die before there is a connection, or while it is made.
    const uint64_t moment = kill < 3 ? 0 : random.below(2'000);
    const uint64_t rounds = kill == 0 ? 0 : random.below(200);
    const auto exchange = std::make_unique<Exchange>(folder_, 0);
    ASSERT_EQ(exchange->open(), "");
    test::ChildProcess stays = start(kStays);
    test::ChildProcess killed = start(kKilled);
    const uint64_t start_ns = now_ns();
    while (!exchange->meet()) {
      ASSERT_LT(now_ns() - start_ns, kPatienceNs) << "a process has no endpoint";
      sleep_ns(1'000'000);
    }
    for (uint64_t i = 0; i < rounds; ++i) exchange->step();
    ASSERT_TRUE(run_until(*exchange, [&] { return exchange->received(kKilled) >= moment; }));
    killed.signal(SIGKILL);
    EXPECT_TRUE(run_until(*exchange, [&] {
      return exchange->is_lost(kKilled) && exchange->outstanding(kKilled) == 0;
    }));
    const uint64_t before = exchange->received(kStays);
    EXPECT_TRUE(run_until(*exchange, [&] { return exchange->received(kStays) >= before + 500; }));
    EXPECT_EQ(exchange->wrong(), 0u);
    std::ofstream(exchange->end_file()).put('\n');
    EXPECT_TRUE(run_until(*exchange, [&] { return !stays.is_running(); }));
    EXPECT_EQ(stays.wait(), 0);
  }
}

}  // namespace
}  // namespace verbena::ofi_test
