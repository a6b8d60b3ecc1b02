// Writers and stores of a log that are killed (SIGKILL) at random moments: nothing that was
// acknowledged is lost, all readers agree, and nobody who is left hangs.
//
// The moment is drawn as a number of records or pauses, not as a time; VERBENA_SEED=N draws the
// same ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "log/log_for_test.h"
#include "tests/log/log_peer.h"
#include "tests/rpc_peer.h"
#include "tests/test_seed.h"

namespace verbena::log_test {
namespace {

using log_app::StoreForTest;
using rpc_test::PeerProcess;
using testing::HasSubstr;

constexpr uint32_t kWriterKills = 50;  // for each number of stores
constexpr uint32_t kStoreKills = 30;
constexpr uint64_t kHoleLeaseNs = 20'000'000;

// What a reader has read: records with their positions, in the log's order.
using Records = std::vector<std::pair<LogPosition, std::string>>;

class LogKillTest : public testing::Test {
 protected:
  struct Peer {
    std::unique_ptr<PeerProcess> process;
    std::unique_ptr<ControlConnection> control;
    uint16_t port = 0;  // of a store
  };
  Peer start(const Task& task) {
    Peer peer;
    peer.process = std::make_unique<PeerProcess>("log_peer_process", listener_.port(), secret_);
    peer.control = std::make_unique<ControlConnection>(test::must(listener_.accept(kTimeoutNs)));
    test::must(peer.control->send_value(kTaskTag, task));
    if (task.stores == 0) {
      peer.port = test::must(peer.control->receive_value<uint16_t>(kPortTag, kTimeoutNs));
    }
    return peer;
  }

  // A front-end of the stores at `ports`; its connections stay until the test's end.
  // None if one of them was killed.
  std::vector<ControlConnection*> connect(const std::vector<uint16_t>& ports,
                                          int64_t timeout_ns = kTimeoutNs) {
    std::vector<ControlConnection*> controls;
    for (const uint16_t port : ports) {
      auto control = ControlConnection::connect("127.0.0.1", port, secret_, timeout_ns);
      if (!control.ok()) {
        for (ControlConnection* const other : controls) other->hang_up();
        return {};
      }
      controls_.push_back(std::make_unique<ControlConnection>(std::move(*control)));
      controls.push_back(controls_.back().get());
    }
    return controls;
  }
  Result<std::unique_ptr<LogWriter>> open_writer(const std::vector<uint16_t>& ports) {
    return open_log_writer(node_.device, node_.domain, connect(ports));
  }
  Result<std::unique_ptr<LogReader>> open_reader(const std::vector<uint16_t>& ports) {
    return open_log_reader(node_.device, node_.domain, connect(ports),
                           {.hole_lease_ns = kHoleLeaseNs});
  }
  static void read_some(LogReader& reader, Records* records) {
    const auto read = reader.next();
    ASSERT_TRUE(read.ok()) << read.status().message();
    for (const LogRecord& record : *read) records->emplace_back(record.position, record.bytes);
  }
  // Appends a record; that a reader found the writer too slow is no failure.
  static LogPosition append(LogWriter& writer, const std::string& record) {
    for (;;) {
      const auto position = writer.append(record);
      if (position.ok()) return *position;
      EXPECT_EQ(position.status().code(), StatusCode::kTimeout) << position.status().message();
      if (position.status().code() != StatusCode::kTimeout) return 0;
    }
  }
  // Until the reader has come to a record that is at the end.
  static void read_until(LogReader& reader, const std::string& last, Records* records) {
    Waiter waiter;
    const uint64_t begun_ns = now_ns();
    while ((records->empty() || records->back().second != last) && !HasFatalFailure()) {
      read_some(reader, records);
      waiter.idle();
      ASSERT_LT(now_ns() - begun_ns, static_cast<uint64_t>(kTimeoutNs)) << "the reader hangs";
    }
  }
  // Each once, each writer's own in order, and all that was acknowledged.
  static void check(const Records& records,
                    const std::map<LogPosition, std::string>& acknowledged) {
    std::map<std::string, uint64_t> next;
    for (size_t i = 0; i < records.size(); ++i) {
      ASSERT_TRUE(i == 0 || records[i - 1].first < records[i].first) << i;
      const std::string& record = records[i].second;
      const size_t slash = record.find('/');
      const uint64_t number = std::stoull(record.substr(slash + 1));
      uint64_t& least = next[record.substr(0, slash)];
      ASSERT_GE(number, least) << record;
      least = number + 1;
    }
    for (const auto& [position, record] : acknowledged) {
      const auto at = std::ranges::lower_bound(records, position, {},
                                               [](const auto& entry) { return entry.first; });
      ASSERT_TRUE(at != records.end() && at->first == position) << record << " is lost";
      ASSERT_EQ(at->second, record);
    }
  }

  JobSecret secret_ = JobSecret::random();
  test::Node node_;
  ControlListener listener_ = test::must(ControlListener::listen("127.0.0.1", 0, secret_));
  std::vector<std::unique_ptr<ControlConnection>> controls_;
};

TEST_F(LogKillTest, WritersLeaveNothingButHoles) {
  for (const uint32_t stores : {1u, 2u}) {
    const uint64_t seed = run_seed();
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<std::unique_ptr<StoreForTest>> log;
    std::vector<uint16_t> ports;
    Task task{.stores = stores};
    for (uint32_t i = 0; i < stores; ++i) {
      log.push_back(std::make_unique<StoreForTest>(
          node_, secret_,
          LogStoreOptions{.capacity_bytes = 16 << 20, .max_writers = 8, .replicated = stores > 1}));
      ports.push_back(task.ports[i] = log.back()->port());
    }
    if (stores > 1) {
      test::must(form_log(node_.device, node_.domain, connect(ports)));
    }
    auto survivor = test::must(open_writer(ports));
    auto tailer = test::must(open_reader(ports));
    std::map<LogPosition, std::string> acknowledged;
    Records tailed;
    for (uint32_t kill = 0; kill < kWriterKills && !HasFailure(); ++kill) {
      task.writer = 1 + kill;
      task.pending = 1 + static_cast<uint32_t>(random.below(16));
      const bool early = random.below(4) == 0;
      const uint64_t pauses = random.below(2'000'000);
      const uint64_t records = random.below(300);
      Peer victim = start(task);
      Thread killer;
      if (early) {
        killer = start_thread("killer", [&] {
          for (uint64_t i = 0; i < pauses; ++i) cpu_relax();
          victim.process->signal(SIGKILL);
        });
      }
      for (uint64_t told = 0;; ++told) {
        if (!early && told == records) victim.process->signal(SIGKILL);
        const auto one = victim.control->receive_value<Acknowledged>(kAcknowledgedTag, kTimeoutNs);
        if (!one.ok()) {
          ASSERT_EQ(one.status().code(), StatusCode::kUnavailable) << one.status().message();
          break;
        }
        acknowledged[one->position] = record_text(task.writer, one->number);
        if (told % 16 == 0) read_some(*tailer, &tailed);
      }
      if (killer.joinable()) killer.join();
      const std::string record = record_text(0, kill);
      acknowledged[append(*survivor, record)] = record;
      read_until(*tailer, record, &tailed);
    }
    // One that comes later finds the same.
    auto second = test::must(open_reader(ports));
    Records again;
    read_until(*second, tailed.back().second, &again);
    EXPECT_EQ(tailed, again);
    check(tailed, acknowledged);
    EXPECT_TRUE(survivor->status().ok());
    report_count("kills", kWriterKills);
  }
}

TEST_F(LogKillTest, AStoreIsReplacedAndNothingIsLost) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE(seed);
  Random random(seed);
  std::vector<Peer> stores;
  std::vector<uint16_t> ports;
  const auto add_store = [&] {
    stores.push_back(start({}));
    ports.push_back(stores.back().port);
  };
  const auto drop_store = [&](size_t number) {
    stores.erase(stores.begin() + static_cast<ptrdiff_t>(number));
    ports.erase(ports.begin() + static_cast<ptrdiff_t>(number));
  };
  add_store();
  add_store();
  test::must(form_log(node_.device, node_.domain, connect(ports)));
  std::map<LogPosition, std::string> acknowledged;
  Records before;
  uint64_t number = 0;
  for (uint32_t kill = 0; kill < kStoreKills && !HasFailure(); ++kill) {
    const size_t victim = random.below(2);
    const uint64_t records = random.below(200);
    const uint64_t pauses = random.below(200'000);
    {
      auto writer = test::must(open_writer(ports));
      auto tailer = test::must(open_reader(ports));
      Records tailed;
      Thread killer = start_thread("killer", [&] {
        for (uint64_t i = 0; i < pauses; ++i) cpu_relax();
        stores[victim].process->signal(SIGKILL);
      });
      std::map<uint64_t, std::string> posted;
      Waiter waiter;
      const uint64_t begun_ns = now_ns();
      uint64_t left = records;
      while (writer->status().ok()) {
        if (left > 0) {
          std::string record = record_text(0, number);
          const std::string_view view = record;
          if (writer->post_append({&view, 1}, number) == PostResult::kPosted) {
            posted[number++] = std::move(record);
            --left;
          }
        }
        writer->poll([&](const LogCompletion& done) {
          if (done.outcome == LogOutcome::kAppended) {
            acknowledged[done.first] = posted.at(done.token);
          }
        });
        // What a reader has got while both stores were there stays.
        if (random.below(8) == 0) {
          const auto read = tailer->next();
          if (read.ok()) {
            for (const LogRecord& record : *read) {
              tailed.emplace_back(record.position, record.bytes);
            }
          }
        }
        waiter.idle();
        ASSERT_LT(now_ns() - begun_ns, static_cast<uint64_t>(kTimeoutNs)) << "the writer hangs";
      }
      killer.join();
      EXPECT_EQ(writer->status().code(), StatusCode::kUnavailable);
      EXPECT_THAT(writer->status().message(), HasSubstr("127.0.0.1:"));
      for (const auto& [position, record] : tailed) acknowledged[position] = record;
    }
    drop_store(victim);
    add_store();
    // Sometimes the new one goes, too, before it has the contents.
    if (random.below(4) == 0) {
      Thread killer = start_thread("killer", [&] {
        for (uint64_t i = 0; i < pauses; ++i) cpu_relax();
        stores.back().process->signal(SIGKILL);
      });
      const auto controls = connect(ports, /*timeout_ns=*/500'000'000);
      if (!controls.empty()) {
        static_cast<void>(form_log(node_.device, node_.domain, controls));
      }
      killer.join();
      drop_store(1);
      add_store();
    }
    const auto formed = form_log(node_.device, node_.domain, connect(ports));
    ASSERT_TRUE(formed.ok()) << formed.status().message();
    EXPECT_EQ(formed->kept, 1u);
    auto reader = test::must(open_reader(ports));
    auto writer = test::must(open_writer(ports));
    const std::string last = record_text(0, number++);
    acknowledged[append(*writer, last)] = last;
    Records after;
    read_until(*reader, last, &after);
    ASSERT_LE(before.size(), after.size());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
    check(after, acknowledged);
    before = std::move(after);
  }
  report_count("kills", kStoreKills);
}

}  // namespace
}  // namespace verbena::log_test
