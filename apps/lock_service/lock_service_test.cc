#include "verbena/apps/lock_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lock_service/messages.h"
#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "src/device/verbs_for_test.h"

namespace verbena {
namespace {

using test::must;
using testing::HasSubstr;

constexpr int64_t kPatienceNs = 120'000'000'000;
// Never over while a test runs.
constexpr uint64_t kLongNs = 3'600'000'000'000;

// A server whose thread polls, and its clients, on soft0.
class LockServiceTest : public testing::Test {
 protected:
  struct Connected {
    std::unique_ptr<ControlConnection> control;
    std::unique_ptr<LockClient> client;

    LockClient& operator*() const { return *client; }
    LockClient* operator->() const { return client.get(); }
  };

  ~LockServiceTest() override { stop(); }

  void start(const LockServerOptions& options) {
    server_ = must(LockServer::create(node_.device, node_.domain, options));
    polls();
  }
  void polls() {
    halt_ = false;
    thread_ = start_thread("lock server", [this] {
      Waiter waiter;
      while (!halt_) server_->poll() > 0 ? waiter.progress() : waiter.idle();
    });
  }
  void stop() {
    halt_ = true;
    if (thread_.joinable()) thread_.join();
  }

  Connected connect(const LockClientOptions& options = {}) {
    stop();  // one thread at a time uses a server
    Connected connected;
    auto listener = must(ControlListener::listen("127.0.0.1", 0, secret_));
    Thread client = start_thread("client", [&] {
      connected.control = std::make_unique<ControlConnection>(
          must(ControlConnection::connect("127.0.0.1", listener.port(), secret_, kPatienceNs)));
      connected.client =
          must(LockClient::connect(node_.device, node_.domain, *connected.control, options));
    });
    controls_.push_back(std::make_unique<ControlConnection>(must(listener.accept(kPatienceNs))));
    must(server_->connect(*controls_.back()));
    client.join();
    polls();
    return connected;
  }

  const LockServerStatistics& statistics() {
    stop();
    return server_->statistics();
  }

  JobSecret secret_ = JobSecret::random();
  test::Node node_;
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<LockServer> server_;
  std::atomic<bool> halt_{true};
  Thread thread_;
};

TEST_F(LockServiceTest, OneHasItAndTokensRise) {
  start({.locks = 4, .lease_ns = kLongNs});
  const Connected a = connect();
  const Connected b = connect();
  EXPECT_EQ(a->locks(), 4u);
  EXPECT_EQ(a->sequencers(), 64u);
  EXPECT_EQ(a->lease_ns(), kLongNs);
  RpcSpinlock first(*a, 3);
  RpcSpinlock second(*b, 3);
  RpcSpinlock other(*b, 2);
  ASSERT_TRUE(*first.try_lock());
  EXPECT_EQ(first.token(), 1u);
  EXPECT_FALSE(*second.try_lock());
  ASSERT_TRUE(*other.try_lock()) << "a lock of its own";
  const Status late = second.lock(1'000'000);
  EXPECT_EQ(late.code(), StatusCode::kTimeout);
  EXPECT_THAT(late.message(), HasSubstr("not free within 1000 us, token 1 has it"));
  ASSERT_TRUE(first.renew().ok());
  ASSERT_TRUE(first.unlock().ok());
  ASSERT_TRUE(second.lock(-1).ok());
  EXPECT_EQ(second.token(), 3u);
  ASSERT_TRUE(second.unlock().ok());
  const LockServerStatistics& seen = statistics();
  EXPECT_EQ(seen.grants, 3u);
  EXPECT_EQ(seen.takeovers, 0u);
  EXPECT_EQ(seen.renewals, 1u);
  EXPECT_EQ(seen.releases, 2u);
  EXPECT_GT(seen.busy, 0u);
  EXPECT_EQ(seen.refused, 0u);
}

TEST_F(LockServiceTest, ALeaseThatEndedIsTakenOver) {
  start({.locks = 1, .lease_ns = 1'000'000});
  const Connected a = connect();
  const Connected b = connect();
  RpcSpinlock dead(*a, 0);
  RpcSpinlock next(*b, 0);
  ASSERT_TRUE(*dead.try_lock());
  ASSERT_TRUE(next.lock(-1).ok());
  EXPECT_EQ(dead.lease_left_ns(), 0u);
  EXPECT_EQ(next.token(), 2u);
  EXPECT_EQ(next.statistics().takeovers, 1u);
  const Status lost = dead.unlock();
  EXPECT_EQ(lost.code(), StatusCode::kTimeout);
  EXPECT_THAT(lost.message(), HasSubstr("with token 1 ended"));
  ASSERT_TRUE(next.unlock().ok()) << "a lease that ended, and that nobody took over";
  EXPECT_EQ(statistics().takeovers, 1u);
}

// Its connection ends, too, and another client gets the connection's number.
TEST_F(LockServiceTest, AHolderThatIsGoneBlocksNobodyForLongerThanItsLease) {
  start({.locks = 1, .lease_ns = 20'000'000, .max_connections = 1});
  {
    const Connected gone = connect();
    RpcSpinlock lock(*gone, 0);
    ASSERT_TRUE(*lock.try_lock());
  }
  stop();
  Waiter waiter;
  while (server_->connections() > 0) server_->poll() > 0 ? waiter.progress() : waiter.idle();
  const Connected next = connect();
  RpcSpinlock lock(*next, 0);
  const uint64_t stale = LockWord{1, true}.word();
  EXPECT_THAT(next->compare_and_swap(0, stale, LockWord{1, false}.word()).status().message(),
              HasSubstr("lock 0 with token 1 is held"))
      << "it is not the holder";
  ASSERT_TRUE(lock.lock(-1).ok());
  EXPECT_EQ(lock.token(), 2u);
}

TEST_F(LockServiceTest, NoStepIsGrantedThatALockDoesNotTake) {
  start({.locks = 2, .sequencers = 1, .lease_ns = UINT64_MAX});  // whose end no clock can tell
  const Connected holder = connect();
  const Connected other = connect();
  RpcSpinlock lock(*holder, 1);
  ASSERT_TRUE(*lock.try_lock());
  const uint64_t held = LockWord{1, true}.word();
  const struct {
    uint32_t lock;
    uint64_t expected;
    uint64_t desired;
    const char* message;
  } kCases[] = {
      {1, held, LockWord{2, true}.word(), "lock 1 with token 1 is held"},   // its lease lasts
      {1, held, LockWord{1, false}.word(), "lock 1 with token 1 is held"},  // not the holder
      {1, held, LockWord{7, true}.word(), "lock 1 with token 1 is held"},
      {0, 0, LockWord{2, true}.word(), "lock 0 with token 0 is free"},  // no token is left out
      {0, 0, LockWord{0, false}.word(), "lock 0 with token 0 is free"},
      {2, 0, LockWord{1, true}.word(), "there is no lock 2: the server has 2"},
      {UINT32_MAX, 0, LockWord{1, true}.word(), "there is no lock 4294967295"},
  };
  for (const auto& one : kCases) {
    const Status refused = other->compare_and_swap(one.lock, one.expected, one.desired).status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr(one.message));
  }
  EXPECT_THAT(other->fetch_and_add(1, 1).status().message(),
              HasSubstr("there is no sequencer 1: the server has 1"));
  EXPECT_EQ(*other->compare_and_swap(1, 0, LockWord{1, true}.word()), held)
      << "a token that it does not know";
  EXPECT_TRUE(lock.is_held());
  ASSERT_TRUE(lock.unlock().ok()) << "nothing of it has changed the lock";
  EXPECT_EQ(*other->compare_and_swap(0, 1, 3), 0u);
  EXPECT_EQ(statistics().refused, std::size(kCases) + 1);
}

TEST_F(LockServiceTest, EachNumberIsGivenOnce) {
  start({.sequencers = 2});
  const Connected a = connect({.pending = 4});
  const Connected b = connect();
  RpcSequencer first(*a, 0);
  RpcSequencer second(*b, 0);
  EXPECT_EQ(*first.next(), 0u);
  EXPECT_EQ(*second.next(10), 1u);
  EXPECT_EQ(*first.next(), 11u);
  EXPECT_EQ(*RpcSequencer(*b, 1).next(), 0u);
  for (uint64_t token = 0; token < 4; ++token) {
    ASSERT_EQ(first.post_next(token, 5), PostResult::kPosted);
  }
  EXPECT_EQ(first.post_next(4, 5), PostResult::kWouldBlock);
  EXPECT_EQ(a->outstanding(), 4u);
  const Result<uint64_t> between = first.next();  // beside those that are posted
  ASSERT_TRUE(between.ok()) << between.status().message();
  std::vector<uint64_t> numbers(4, UINT64_MAX);
  Waiter waiter;
  while (a->outstanding() > 0) {
    const uint32_t found = a->poll([&](const LockCompletion& done) {
      EXPECT_TRUE(done.status.ok());
      numbers.at(done.token) = done.number;
    });
    found > 0 ? waiter.progress() : waiter.idle();
  }
  std::sort(numbers.begin(), numbers.end());
  for (size_t i = 1; i < numbers.size(); ++i) EXPECT_GE(numbers[i], numbers[i - 1] + 5);
  EXPECT_EQ(*second.next(), 33u);
}

TEST_F(LockServiceTest, BadOptionsAreRefused) {
  const auto message = [this](const LockServerOptions& options) {
    return LockServer::create(node_.device, node_.domain, options).status().message();
  };
  EXPECT_THAT(message({.locks = kMostLocks + 1}), HasSubstr("choose at most 1048576"));
  EXPECT_THAT(message({.sequencers = kMostLocks + 1}), HasSubstr("choose at most 1048576"));
  EXPECT_THAT(message({.lease_ns = 0}), HasSubstr("lease_ns is 0"));
  for (const uint32_t pending : {uint32_t{4096}, UINT32_MAX}) {
    const std::string refused = "pending is " + std::to_string(pending) + "; choose at most 4095";
    EXPECT_EQ(message({.pending = pending}), refused);
  }
  start({});
  const Connected client = connect();
  EXPECT_THAT(
      LockClient::connect(node_.device, node_.domain, *client.control, {.call_timeout_ns = 0})
          .status()
          .message(),
      HasSubstr("call_timeout_ns"));
  EXPECT_THAT(
      LockClient::connect(node_.device, node_.domain, *client.control, {.pending = UINT32_MAX})
          .status()
          .message(),
      HasSubstr("pending is 4294967295; choose at most 4095"));
}

TEST_F(LockServiceTest, AServerThatDoesNotAnswerIsATimeout) {
  start({});
  const Connected client = connect({.pending = 1, .call_timeout_ns = 1'000'000});
  stop();
  RpcSpinlock lock(*client, 0);
  const Status late = lock.lock(-1);
  EXPECT_EQ(late.code(), StatusCode::kTimeout);
  EXPECT_THAT(late.message(), HasSubstr("did not answer within 1000 us"));
  EXPECT_FALSE(lock.is_held());
  ASSERT_EQ(client->fetch_and_add(0, 1).status().code(), StatusCode::kTimeout);
  EXPECT_THAT(client->fetch_and_add(0, 1).status().message(),
              HasSubstr("the answers of all earlier calls are late"));
}

TEST_F(LockServiceTest, TheEndOfTheServerIsTold) {
  start({});
  const Connected client = connect();
  RpcSequencer sequencer(*client, 0);
  ASSERT_TRUE(sequencer.next().ok());
  stop();
  server_->shut_down();
  polls();
  EXPECT_EQ(sequencer.next().status().code(), StatusCode::kUnavailable);
  stop();
  server_.reset();
  const Status gone = sequencer.next().status();
  EXPECT_EQ(gone.code(), StatusCode::kUnavailable) << gone.message();
  EXPECT_EQ(sequencer.post_next(1), PostResult::kFailed);
}

TEST_F(LockServiceTest, ClientsExcludeEachOther) {
  constexpr uint32_t kClients = 3;
  constexpr uint64_t kEach = 500;
  start({.locks = 1, .lease_ns = kLongNs});
  std::vector<Connected> clients;
  for (uint32_t i = 0; i < kClients; ++i) clients.push_back(connect());
  uint64_t guarded = 0;  // not atomic: the lock alone protects it
  std::vector<Thread> threads;
  for (const Connected& client : clients) {
    threads.push_back(start_thread("locker", [&] {
      RpcSpinlock lock(*client, 0);
      for (uint64_t n = 0; n < kEach; ++n) {
        ASSERT_TRUE(lock.lock(-1).ok());
        ++guarded;
        ASSERT_TRUE(lock.unlock().ok());
      }
    }));
  }
  threads.clear();
  EXPECT_EQ(guarded, kClients * kEach);
  EXPECT_EQ(statistics().grants, kClients * kEach);
}

// A server and its clients as nodes of a simulated cluster, with faults.
class SimulatedService {
 public:
  using Body = std::function<void(uint32_t number, LockClient& client)>;

  SimulatedService(uint64_t seed, uint32_t clients, const sim::FaultSchedule& faults,
                   uint64_t lease_ns)
      : cluster_(clients + 1, seed), faults_(faults, seed, cluster_.simulation()) {
    const sim::OnNode here(cluster_.simulation(), cluster_.node(0));
    server_ = must(LockServer::create(cluster_[0].device, cluster_[0].domain,
                                      {.locks = 1, .sequencers = 1, .lease_ns = lease_ns}));
    listener_ =
        std::make_unique<ControlListener>(must(ControlListener::listen("127.0.0.1", 0, secret_)));
    ends_.resize(clients);
  }

  // Lets all clients do their part. False: one of a node that lives hangs.
  bool run(const Body& body) {
    thread_ = cluster_.start(0, [this] {
      for (size_t i = 0; i < ends_.size(); ++i) {
        auto control = listener_->accept(kPatienceNs);
        if (!control.ok()) return;
        controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
        static_cast<void>(server_->connect(*controls_.back()));
      }
      Waiter waiter;
      while (!all_ended()) server_->poll() > 0 ? waiter.progress() : waiter.idle();
    });
    for (uint32_t i = 0; i < ends_.size(); ++i) {
      ends_[i].thread = cluster_.start(i + 1, [this, i, &body] {
        ends_[i].status = connect_and_use(i, body);
        ends_[i].ended = true;
      });
    }
    return cluster_.simulation().run_until([this] { return all_ended(); }, 1'000'000'000'000);
  }

  const Status& status(uint32_t client) const { return ends_[client].status; }
  sim::Cluster& cluster() { return cluster_; }

 private:
  struct End {
    std::unique_ptr<ControlConnection> control;
    std::unique_ptr<LockClient> client;
    Status status;
    bool ended = false;
    Thread thread;
  };

  Status connect_and_use(uint32_t number, const Body& body) {
    End& end = ends_[number];
    VERBENA_ASSIGN_OR_RETURN(
        ControlConnection control,
        ControlConnection::connect("127.0.0.1", listener_->port(), secret_, kPatienceNs));
    end.control = std::make_unique<ControlConnection>(std::move(control));
    test::Node& member = cluster_[number + 1];
    VERBENA_ASSIGN_OR_RETURN(end.client,
                             LockClient::connect(member.device, member.domain, *end.control, {}));
    body(number, *end.client);
    return end.client->status();
  }
  bool all_ended() {
    for (uint32_t i = 0; i < ends_.size(); ++i) {
      if (!ends_[i].ended && !cluster_.node(i + 1).crashed) return false;
    }
    return true;
  }

  sim::Cluster cluster_;
  sim::ScheduledFaults faults_;
  JobSecret secret_ = JobSecret::random();
  std::vector<std::unique_ptr<ControlConnection>> controls_;
  std::unique_ptr<LockServer> server_;
  std::unique_ptr<ControlListener> listener_;
  std::vector<End> ends_;
  Thread thread_;  // reads ends_ to its end
};

sim::FaultSchedule draw_faults(Random& random) {
  sim::FaultSchedule faults;
  if (random.below(2) == 0) faults.loss_ppm = random.below(2) == 0 ? 1'000 : 20'000;
  if (random.below(4) == 0) {
    faults.delay_ppm = 10'000;
    faults.delay_most_ns = 300'000;
  }
  if (random.below(4) == 0) faults.slow_percent = 200 + random.below(4'800);
  if (random.below(2) == 0) return faults;
  faults.within_ns = 200'000;
  if (random.below(2) == 0) {
    faults.crashes = 1;
  } else {
    faults.queue_pair_errors = 1;
  }
  return faults;
}

// Clients that hold the lock, die or lose their connection: at no time do two believe to have it
// while its lease lasts, no token and no number comes twice, and nobody hangs.
TEST(LockServiceSimulationTest, ClientsExcludeEachOtherWhateverGoesWrong) {
  constexpr uint64_t kClusters = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 10 : 100;
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    Random random(seed);
    const auto clients = 2 + static_cast<uint32_t>(random.below(4));
    const sim::FaultSchedule faults = draw_faults(random);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", " << clients << " clients; " << sim::describe(faults));
    SimulatedService service(seed, clients, faults, /*lease_ns=*/5'000'000);
    struct Held {
      uint64_t token;
      uint64_t from_ns;
      uint64_t to_ns;  // when it was used last, but not after its lease
    };
    struct Notes {
      std::vector<Held> held;
      std::vector<uint64_t> numbers;
      uint32_t done = 0;
    };
    std::vector<Notes> notes(clients);
    ASSERT_TRUE(service.run([&](uint32_t number, LockClient& client) {
      RpcSpinlock lock(client, 0);
      RpcSequencer sequencer(client, 0);
      Notes& mine = notes[number];
      for (int i = 0; i < 10; ++i) {
        if (!lock.lock(-1).ok()) return;
        // 0 where the answer came after the lease that it grants: then nothing may be done.
        const uint64_t left_ns = lock.lease_left_ns();
        const uint64_t from_ns = now_ns();
        const Result<uint64_t> next = sequencer.next();
        if (left_ns > 0) {
          mine.held.push_back({lock.token(), from_ns, std::min(now_ns(), from_ns + left_ns)});
        }
        if (!next.ok()) return;
        mine.numbers.push_back(*next);
        // Where retries took longer than the lease, the lock may be another one's by now.
        const Status unlocked = lock.unlock();
        if (!unlocked.ok() && unlocked.code() != StatusCode::kTimeout) return;
        ++mine.done;
      }
    })) << "a client hangs";
    std::vector<Held> held;
    std::vector<uint64_t> numbers;
    for (uint32_t i = 0; i < clients; ++i) {
      const Notes& mine = notes[i];
      if (faults.is_survivable()) {
        EXPECT_TRUE(service.status(i).ok()) << service.status(i).message();
        EXPECT_EQ(mine.done, 10u);
      }
      held.insert(held.end(), mine.held.begin(), mine.held.end());
      numbers.insert(numbers.end(), mine.numbers.begin(), mine.numbers.end());
    }
    std::sort(held.begin(), held.end(),
              [](const Held& a, const Held& b) { return a.token < b.token; });
    for (size_t i = 1; i < held.size(); ++i) {
      ASSERT_LT(held[i - 1].token, held[i].token);
      ASSERT_LE(held[i - 1].to_ns, held[i].from_ns) << "two had it at once";
    }
    std::sort(numbers.begin(), numbers.end());
    ASSERT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end());
  }
}

TEST(LockServiceSimulationTest, ACrashOfTheServerEndsEveryWait) {
  SimulatedService service(run_seed(), 1, {}, kLongNs);
  ASSERT_TRUE(service.run([&](uint32_t, LockClient& client) {
    RpcSpinlock lock(client, 0);
    ASSERT_TRUE(lock.lock(-1).ok());
    service.cluster().node(0).crash();
    const Status status = lock.unlock();
    EXPECT_TRUE(status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kTimeout)
        << status.message();
  })) << "it hangs";
}

}  // namespace
}  // namespace verbena
