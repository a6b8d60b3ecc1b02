// Front-ends of a hashtable that die at random instructions: the others finish, and the history of
// each key is linearizable, so nothing that was answered is lost. Where updates are answered before
// they are published, that is the moment that counts.
//
// The kernel's timer kills them, so that it finds them at work however busy the machine is.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/hashtable/journal.h"
#include "tests/support/child_process.h"
#include "tests/test_seed.h"

namespace verbena::hashtable_test {
namespace {

using rpc_test::kTimeoutNs;

constexpr uint32_t kSurvivors = 2;
constexpr uint32_t kVictims = 4;  // at once
// A table goes through so many rounds, then its history is checked.
constexpr uint64_t kRoundsOfTable = 5;

// A front-end and what it has done.
class Peer {
 public:
  Peer(ControlListener& listener, const JobSecret& secret, const Task& task)
      : file_(memfd_create("journal", MFD_CLOEXEC)) {
    if (file_ < 0 || ftruncate(file_, sizeof(Journal)) != 0) return;
    journal_ = map_journal(file_);
    if (journal_ == nullptr) return;
    process_.emplace(
        std::vector<std::string>{
            VERBENA_TEST_PROCESSES "/hashtable_peer_process", std::to_string(listener.port()),
            "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_)},
        SpawnOptions{.environment = {{rpc_test::kSecretVariable, std::string(secret.text())}}});
    auto control = listener.accept(kTimeoutNs);
    if (!control.ok()) return;
    control_ = std::make_unique<ControlConnection>(std::move(*control));
    has_come_ = control_->send_value(kTaskTag, task).ok();
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    if (journal_ != nullptr) munmap(journal_, sizeof(Journal));
    if (file_ >= 0) close(file_);
  }

  bool has_come() const { return has_come_; }
  ControlConnection& control() { return *control_; }
  test::ChildProcess& process() { return *process_; }
  Journal& journal() { return *journal_; }

 private:
  int file_;
  Journal* journal_ = nullptr;
  std::optional<test::ChildProcess> process_;
  std::unique_ptr<ControlConnection> control_;
  bool has_come_ = false;
};

class HashtableKillTest : public testing::TestWithParam<Area> {};

TEST_P(HashtableKillTest, NothingThatWasAnsweredIsLost) {
  const bool has_hot_area = GetParam() != Area::kCold;
  const HashtableFormat format = table_format(has_hot_area);
  auto device = Device::open(rpc_test::test_device());
  if (!device.ok())
    GTEST_SKIP() << "no " << rpc_test::test_device() << ": " << device.status().message();
  const auto domain = ProtectionDomain::create(*device);
  ASSERT_TRUE(domain.ok()) << domain.status().message();
  const JobSecret secret = JobSecret::random();
  auto listener = ControlListener::listen("127.0.0.1", 0, secret);
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  auto region = expose_region(*device, *domain, {.size_bytes = *hashtable_bytes(format)});
  ASSERT_TRUE(region.ok()) << region.status().message();
  const std::span<char> memory((*region)->data(), (*region)->size_bytes());
  ASSERT_TRUE(format_hashtable(memory, format).ok());

  const uint64_t rounds = rpc_test::thinned(50);
  uint64_t reclaimed = 0;
  uint64_t hot = 0;
  uint64_t kept = 0;
  uint64_t lost = 0;
  uint64_t number = 0;
  std::vector<test::MapCall> calls;
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    std::vector<std::unique_ptr<Peer>> peers;
    for (uint32_t i = 0; i < kSurvivors + kVictims; ++i) {
      Task task{.number = number++, .pending = 1 + static_cast<uint32_t>(random.below(6))};
      task.area = GetParam();
      if (i >= kSurvivors) task.dies_after_us = 1 + static_cast<uint32_t>(random.below(3'000));
      peers.push_back(std::make_unique<Peer>(*listener, secret, task));
      ASSERT_TRUE(peers[i]->has_come());
      const Status accepted = (*region)->accept(peers[i]->control());
      ASSERT_TRUE(accepted.ok()) << accepted.message();
    }
    for (const auto& peer : peers) store(peer->journal().go, 1);
    for (size_t i = 0; i < peers.size(); ++i) {
      EXPECT_EQ(peers[i]->process().wait(), i < kSurvivors ? 0 : 128 + SIGALRM);
      const auto history = calls_of(peers[i]->journal(), number + i);
      EXPECT_TRUE(i >= kSurvivors || history.size() == Journal::kMostCalls);
      hot += load(peers[i]->journal().hot);
      kept += load(peers[i]->journal().kept);
      for (const test::MapCall& call : history) {
        lost += call.reply_ns != test::kUnanswered && call.end_ns == test::kUnanswered ? 1 : 0;
        EXPECT_TRUE(i >= kSurvivors || call.end_ns != test::kUnanswered);
      }
      calls.insert(calls.end(), history.begin(), history.end());
    }
    Waiter waiter;
    const uint64_t start_ns = now_ns();
    while ((*region)->remove_ended() > 0) {
      waiter.idle();
      ASSERT_LT(now_ns() - start_ns, static_cast<uint64_t>(kTimeoutNs)) << "one does not go";
    }
    const auto found = reclaim_hashtable(memory);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_LE(*found, uint64_t{kVictims} * 160 * (has_hot_area ? 2 : 1));
    reclaimed += *found;
    if (round % kRoundsOfTable != kRoundsOfTable - 1 && round + 1 < rounds) continue;
    ASSERT_EQ(test::broken_history(calls), "");
    calls.clear();
    ASSERT_TRUE(format_hashtable(memory, format).ok());
  }
  report_count("kills", rounds * kVictims);
  EXPECT_GT(reclaimed, 0u);
  EXPECT_EQ(hot > 0, has_hot_area);
  EXPECT_EQ(kept > 0, GetParam() == Area::kBuffered);
  EXPECT_TRUE(lost == 0 || GetParam() == Area::kBuffered) << lost;
}

INSTANTIATE_TEST_SUITE_P(HotArea, HashtableKillTest,
                         testing::Values(Area::kCold, Area::kHot, Area::kBuffered),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace verbena::hashtable_test
