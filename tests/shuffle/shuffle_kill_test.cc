// Executors of a shuffle that are killed (SIGKILL) at random moments: who is left gets one error or
// has all, nothing comes twice, and nobody hangs.
//
// The moment is drawn as a number of pauses, not as a time; VERBENA_SEED=N draws the same ones.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/device/verbs_for_test.h"
#include "tests/rpc_peer.h"
#include "tests/shuffle/shuffle_peer.h"
#include "tests/test_seed.h"

namespace verbena::shuffle_test {
namespace {

using rpc_test::PeerProcess;

constexpr uint32_t kRounds = 40;

class ShuffleKillTest : public testing::Test {
 protected:
  struct Peer {
    std::unique_ptr<PeerProcess> process;
    std::unique_ptr<ControlConnection> control;
    bool killed = false;
  };
  Peer start(const Task& task) {
    Peer peer;
    peer.process = std::make_unique<PeerProcess>("shuffle_peer_process", listener_.port(), secret_);
    peer.control = std::make_unique<ControlConnection>(test::must(listener_.accept(kTimeoutNs)));
    test::must(peer.control->send_value(kTaskTag, task));
    return peer;
  }

  test::Node node_;
  JobSecret secret_ = JobSecret::random();
  ControlListener listener_ = test::must(ControlListener::listen("127.0.0.1", 0, secret_));
};

// Receiver 0 is here, receiver 1 and the senders are processes.
TEST_F(ShuffleKillTest, WhoIsLeftHasAllOrAnError) {
  Random random(run_seed());
  uint64_t kills = 0;
  for (uint32_t round = 0; round < kRounds && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const uint64_t victim = random.below(kSenders + 2);  // the last one: nobody
    const uint64_t pauses = random.below(3'000'000);
    const uint64_t records = 1000 + random.below(10'000);
    auto receiver =
        test::must(ShuffleReceiver::expose(node_.device, node_.domain, receiver_options(0)));
    auto listener = test::must(ControlListener::listen("127.0.0.1", 0, secret_));
    std::vector<Peer> peers;
    Task task{.number = 1};
    Peer other = start(task);
    task = {.sends = true, .records = records};
    task.ports[0] = listener.port();
    task.ports[1] = test::must(other.control->receive_value<uint16_t>(kPortTag, kTimeoutNs));
    for (uint32_t i = 0; i < kSenders; ++i) {
      task.number = i;
      peers.push_back(start(task));
    }
    peers.push_back(std::move(other));
    test::must(receiver->accept_all(listener, kTimeoutNs));
    for (Peer& peer : peers) {
      test::must(peer.control->receive_value<uint32_t>(kOpenedTag, kTimeoutNs).status());
    }
    Thread killer;
    if (victim < peers.size()) {
      peers[victim].killed = true;
      ++kills;
      killer = start_thread("killer", [&] {
        for (uint64_t i = 0; i < pauses; ++i) cpu_relax();
        peers[victim].process->signal(SIGKILL);
      });
    }
    std::vector<std::vector<std::string>> received(kSenders);
    const Status status = receive(*receiver, &received);
    if (killer.joinable()) killer.join();
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kUnavailable) << status.message();
    EXPECT_TRUE(status.ok() || victim < peers.size()) << status.message();
    // Others wait for this one, too.
    receiver.reset();
    for (Peer& peer : peers) {
      if (peer.killed) continue;
      const auto outcome = peer.control->receive_value<Outcome>(kOutcomeTag, kTimeoutNs);
      ASSERT_TRUE(outcome.ok()) << "an executor hangs: " << outcome.status().message();
      EXPECT_TRUE(outcome->code == StatusCode::kUnavailable || outcome->code == StatusCode::kOk)
          << outcome->message;
      EXPECT_TRUE(outcome->code == StatusCode::kOk || victim < peers.size()) << outcome->message;
    }
    for (uint32_t from = 0; from < kSenders; ++from) {
      uint64_t number = 0;
      for (const std::string& record : received[from]) {
        ASSERT_EQ(record, record_text(from, number));
        number += kReceivers;
      }
      EXPECT_TRUE(!status.ok() || number >= records);
    }
  }
  report_count("kills", kills);
}

}  // namespace
}  // namespace verbena::shuffle_test
