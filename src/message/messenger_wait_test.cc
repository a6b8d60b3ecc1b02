// Messengers that sleep. A lost wake-up would take an hour or a day here, so that no test gets past
// one.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "src/message/messengers_for_test.h"

namespace verbena::message {
namespace {

constexpr int64_t kSleepHourNs = 3'600'000'000'000;
constexpr int64_t kSleepDayNs = 24 * kSleepHourNs;
constexpr uint64_t kSleepTag = 1;

// One end of an exchange of numbers: receives number after number from a peer, and sleeps between.
class Sleeper {
 public:
  Sleeper(Messenger& messenger, PeerNumber peer) : messenger_(messenger), peer_(peer) {}

  // The next number; false where the peer is lost.
  bool receive(uint64_t* number) {
    const iovec piece{number, sizeof(*number)};
    if (!post([&] {
          return messenger_.receive({.source = peer_, .tag = kSleepTag, .pieces = {&piece, 1}});
        })) {
      return false;
    }
    for (;;) {
      MessageCompletion done;
      if (messenger_.poll({&done, 1}) == 1) return done.outcome == MessageOutcome::kOk;
      messenger_.wait(-1);
    }
  }
  bool send(uint64_t number) {
    const iovec piece{&number, sizeof(number)};
    return post([&] {
      return messenger_.send(
          {.peer = peer_, .tag = kSleepTag, .pieces = {&piece, 1}, .flags = kMessageSilent});
    });
  }

 private:
  template <typename Post>
  bool post(Post&& one) {
    PostResult result = PostResult::kWouldBlock;
    while ((result = one()) == PostResult::kWouldBlock) {
      if (messenger_.progress() == 0) messenger_.wait(-1);
    }
    return result == PostResult::kPosted;
  }

  Messenger& messenger_;
  const PeerNumber peer_;
};

class MessengerWaitTest : public testing::Test {
 protected:
  void make(uint32_t count, int64_t max_sleep_ns) {
    messengers_ = std::make_unique<MessengersForTest>(
        count, MessengerOptions{.events = true, .max_sleep_ns = max_sleep_ns});
  }
  MessengersForTest& all() { return *messengers_; }

  std::unique_ptr<MessengersForTest> messengers_;
};

void short_pause(Random& random) {
  if (random.below(4) != 0) {
    const uint64_t spins = random.below(3'000);
    for (uint64_t i = 0; i < spins; ++i) cpu_relax();
  } else {
    sleep_ns(random.below(100'000));
  }
}

TEST_F(MessengerWaitTest, NoWakeUpIsLostBetweenTwoThreads) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  constexpr uint64_t kNumbers = 3'000;
  make(2, kSleepHourNs);
  uint64_t wrong = 0;
  Thread answering = start_thread("answering", [&] {
    Random random(seed + 1);
    Sleeper end(all()[1], all().peer(1, 0));
    for (uint64_t i = 0; i < kNumbers; ++i) {
      uint64_t number = 0;
      if (!end.receive(&number) || number != i) ++wrong;
      short_pause(random);
      if (!end.send(number)) ++wrong;
    }
  });
  Random random(seed);
  Sleeper end(all()[0], all().peer(0, 1));
  for (uint64_t i = 0; i < kNumbers; ++i) {
    short_pause(random);
    uint64_t number = 0;
    ASSERT_TRUE(end.send(i));
    ASSERT_TRUE(end.receive(&number));
    ASSERT_EQ(number, i);
  }
  answering.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(all()[0].statistics().sleeps + all()[1].statistics().sleeps, 0u);
}

TEST_F(MessengerWaitTest, ASleeperIsWokenByAPeerThatConnects) {
  make(2, kSleepHourNs);
  Thread sending = start_thread("sending", [&] {
    sleep_ns(20'000'000);
    EXPECT_TRUE(Sleeper(all()[1], all().peer(1, 0)).send(7));
  });
  uint64_t number = 0;
  EXPECT_TRUE(Sleeper(all()[0], all().peer(0, 1)).receive(&number));
  EXPECT_EQ(number, 7u);
  sending.join();
}

TEST_F(MessengerWaitTest, ASleeperNoticesThatItsPeerIsLost) {
  make(2, MessengerOptions().max_sleep_ns);
  Thread leaving = start_thread("leaving", [&] {
    EXPECT_TRUE(Sleeper(all()[1], all().peer(1, 0)).send(7));
    sleep_ns(20'000'000);
    all().close(1);
  });
  Sleeper end(all()[0], all().peer(0, 1));
  uint64_t number = 0;
  EXPECT_TRUE(end.receive(&number));
  EXPECT_FALSE(end.receive(&number));
  leaving.join();
}

TEST_F(MessengerWaitTest, WhoSleepsNeedsHardlyAnyCpuTime) {
  constexpr uint64_t kIdleNs = 500'000'000;
  make(2, MessengerOptions().max_sleep_ns);
  ASSERT_TRUE(all().send(0, 1, kSleepTag, "hello"));
  ASSERT_TRUE(all().until([this] { return all()[1].statistics().unexpected == 1; }));
  const auto used_ns = [] {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return static_cast<uint64_t>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000'000 +
           static_cast<uint64_t>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1'000;
  };
  const uint64_t before_ns = used_ns();
  const uint64_t end_ns = now_ns() + kIdleNs;
  while (now_ns() < end_ns) {
    EXPECT_EQ(all().poll_all(), 0u);
    all()[1].wait(static_cast<int64_t>(end_ns - now_ns()));
  }
  EXPECT_LT(used_ns() - before_ns, kIdleNs / 5);
}

TEST_F(MessengerWaitTest, TheDescriptorBecomesReadableOnceAMessageComes) {
  make(2, kSleepHourNs);
  ASSERT_TRUE(all().send(0, 1, kSleepTag, "first"));
  ASSERT_TRUE(all().until([this] { return all()[1].statistics().unexpected == 1; }));
  ASSERT_GE(all()[1].event_descriptor(), 0);
  pollfd readable{.fd = all()[1].event_descriptor(), .events = POLLIN, .revents = 0};
  // Until its peer has left the ring, it becomes readable without a message.
  const uint64_t before = all()[1].statistics().sleeps;
  ASSERT_TRUE(all().until(
      [&] { return all()[1].prepare_to_sleep() && all()[1].statistics().sleeps > before; }));
  EXPECT_EQ(poll(&readable, 1, 0), 0);
  ASSERT_TRUE(all().send(0, 1, kSleepTag, "second"));
  EXPECT_EQ(poll(&readable, 1, 60'000), 1);
  EXPECT_TRUE(all().until([this] { return all()[1].statistics().unexpected == 2; }));
}

TEST_F(MessengerWaitTest, RingsAreGivenAgainOnceNobodySleeps) {
  make(2, kSleepHourNs);
  ASSERT_TRUE(all().send(0, 1, kSleepTag, "hello"));
  const uint64_t before = all()[1].statistics().sleeps;
  ASSERT_TRUE(all().until(
      [&] { return all()[1].prepare_to_sleep() && all()[1].statistics().sleeps > before; }));
  const uint64_t taken = all()[0].statistics().ring_messages;
  std::string text(8, 'x');
  const iovec piece{text.data(), text.size()};
  ASSERT_TRUE(all().until([&] {
    // Both sides' messages are used up at once.
    if (all()[1].receive({.tag = kSleepTag, .pieces = {&piece, 1}, .flags = kMessageSilent}) ==
        PostResult::kPosted) {
      EXPECT_TRUE(all().send(0, 1, kSleepTag, text, kMessageSilent));
    }
    return all()[0].statistics().ring_messages > taken;
  }));
}

TEST_F(MessengerWaitTest, WithoutEventsNobodySleeps) {
  messengers_ = std::make_unique<MessengersForTest>(1);
  EXPECT_EQ(all()[0].event_descriptor(), -1);
  EXPECT_FALSE(all()[0].prepare_to_sleep());
  all()[0].wait(-1);
}

// Two nodes with a messenger each, in virtual time.
class SimulatedPair {
 public:
  explicit SimulatedPair(uint64_t seed) : cluster_(2, seed) {}

  sim::Cluster& cluster() { return cluster_; }
  // Of the calling thread's side; the other one is its peer then.
  std::unique_ptr<Messenger> open(uint32_t me, const MessengerOptions& options, PeerNumber* peer) {
    auto messenger =
        test::must(open_messenger(cluster_[me].device, cluster_[me].domain, secret_, options));
    addresses_[me] = messenger->address();
    while (addresses_[1 - me] == MessengerAddress{}) sleep_ns(1'000);
    *peer = test::must(messenger->add_peer(addresses_[1 - me]));
    return messenger;
  }
  // Goes on until the other side has finished, too.
  void finish(uint32_t me, Messenger& messenger) {
    finished_[me] = true;
    while (!finished_[1 - me]) {
      messenger.progress();
      sleep_ns(10'000);
    }
  }
  // `side(number)` in a thread of each node. False, and a failure, if they do not come to an end.
  bool run(const std::function<void(uint32_t)>& side) {
    constexpr uint64_t kEndNs = 20'000'000'000;
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < 2; ++i) threads.push_back(cluster_.start(i, [&, i] { side(i); }));
    const bool ended =
        cluster_.simulation().run_until([&] { return finished_[0] && finished_[1]; }, kEndNs);
    EXPECT_TRUE(ended) << "somebody sleeps for ever";
    if (!ended) {
      for (uint32_t i = 0; i < 2; ++i) cluster_.node(i).crash();
    }
    cluster_.settle();
    return ended;
  }

 private:
  sim::Cluster cluster_;
  const JobSecret secret_ = JobSecret::random();
  MessengerAddress addresses_[2];
  bool finished_[2] = {};
};

// In virtual time the order of everything follows from the seed, and each seed is another one.
TEST(SimulatedWaitTest, NoWakeUpIsLostWhateverComesFirst) {
  constexpr uint64_t kSeeds = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 10 : 100;
  constexpr uint64_t kNumbers = 60;
  const uint64_t first = run_seed();
  uint64_t sleeps = 0;
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
    Random drawn(seed);
    sim::FaultSchedule delays;
    delays.delay_ppm = 300'000;
    delays.delay_most_ns = drawn.below(2) == 0 ? 3'000 : 200'000;
    SimulatedPair pair(seed);
    const sim::ScheduledFaults faults(delays, seed, pair.cluster().simulation());
    const uint64_t longest_pause_ns = drawn.below(2) == 0 ? 5'000 : 300'000;
    const auto body = [&](uint32_t me) {
      PeerNumber peer;
      const auto messenger = pair.open(me, {.events = true, .max_sleep_ns = kSleepDayNs}, &peer);
      Sleeper end(*messenger, peer);
      Random random(seed * 2 + me);
      for (uint64_t i = 0; i < kNumbers; ++i) {
        uint64_t number = 0;
        const bool answers = me == 1;
        EXPECT_TRUE(!answers || end.receive(&number));
        sleep_ns(random.below(longest_pause_ns));
        EXPECT_TRUE(end.send(i));
        EXPECT_TRUE(answers || end.receive(&number));
        EXPECT_EQ(number, i);
      }
      sleeps += messenger->statistics().sleeps;
      pair.finish(me, *messenger);
    };
    if (!pair.run(body)) return;
  }
  EXPECT_GT(sleeps, kSeeds);
}

// Over an RNIC a message waits for a ring's credits before it goes by SEND. Its sender must not
// fall asleep over it: here nothing wakes it, since the receiver waits for this very message.
TEST(SimulatedWaitTest, AMessageThatFindsTheRingFullIsNotSleptOver) {
  constexpr uint64_t kUrgentTag = 2;
  constexpr uint64_t kWarmUp = 0;
  constexpr uint64_t kReady = 1;
  constexpr uint32_t kHeld = 4;  // messages that stay in their slots
  MessengerOptions options{.events = true, .max_sleep_ns = kSleepDayNs};
  options.ring_slots = kHeld;
  options.unexpected_bytes = 1024;
  SimulatedPair pair(run_seed());
  const auto body = [&](uint32_t me) {
    PeerNumber peer;
    const auto messenger = pair.open(me, options, &peer);
    std::string text(options.unexpected_bytes + 8, 'x');
    const iovec piece{text.data(), text.size()};
    if (me == 0) {
      Sleeper end(*messenger, peer);
      while (messenger->statistics().ring_messages == 0) EXPECT_TRUE(end.send(kWarmUp));
      EXPECT_TRUE(end.send(kReady));
      const auto send = [&](uint64_t tag) {
        const SendRequest request{
            .peer = peer, .tag = tag, .pieces = {&piece, 1}, .flags = kMessageSilent};
        while (messenger->send(request) == PostResult::kWouldBlock) {
          if (messenger->progress() == 0) messenger->wait(-1);
        }
      };
      for (uint32_t i = 0; i < kHeld; ++i) send(kSleepTag);
      send(kUrgentTag);
    } else {
      const auto receive = [&](uint64_t tag) {
        EXPECT_EQ(messenger->receive({.source = peer, .tag = tag, .pieces = {&piece, 1}}),
                  PostResult::kPosted);
        MessageCompletion done;
        while (messenger->poll({&done, 1}) == 0) continue;
        EXPECT_EQ(done.outcome, MessageOutcome::kOk);
      };
      uint64_t number = kWarmUp;
      while (number == kWarmUp) {
        receive(kSleepTag);
        copy_bytes(&number, text.data(), sizeof(number));
      }
      receive(kUrgentTag);
      for (uint32_t i = 0; i < kHeld; ++i) receive(kSleepTag);
    }
    pair.finish(me, *messenger);
  };
  pair.run(body);
}

}  // namespace
}  // namespace verbena::message
