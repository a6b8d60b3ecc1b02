// The promises of log.h in clusters in virtual time, each from a seed, with faults: stores, writers
// and readers crash, links fail, and stores that are left form the log anew.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "src/remote/simulated_regions_for_test.h"
#include "tests/test_seed.h"
#include "verbena/apps/log.h"

namespace verbena::log_app {
namespace {

constexpr uint64_t kClusters = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 20 : 300;
constexpr int64_t kPatienceNs = 20'000'000'000;
constexpr uint64_t kEndNs = 1'000'000'000'000;

struct Shape {
  uint32_t stores = 1;
  uint32_t writers = 1;
  uint32_t readers = 1;
  uint32_t batches = 30;  // of each writer
  bool trims = false;     // the first reader
  uint64_t hole_lease_ns = 300'000;
  LogWriterOptions writer;
  sim::FaultSchedule faults;

  explicit Shape(Random& random) {
    stores = 1 + static_cast<uint32_t>(random.below(3));
    writers = 1 + static_cast<uint32_t>(random.below(3));
    readers = 1 + static_cast<uint32_t>(random.below(3));
    batches = 10 + static_cast<uint32_t>(random.below(40));
    trims = random.below(2) == 0;
    // Sometimes so short that writers are often late.
    if (random.below(4) == 0) hole_lease_ns = 3'000;
    writer = {.pending = 1 + static_cast<uint32_t>(random.below(6)),
              .max_batch = 1 + static_cast<uint32_t>(random.below(12)),
              .max_batch_bytes = 8192,
              .handshake_timeout_ns = kPatienceNs};
    faults = remote::draw_faults(random);
  }
  uint32_t nodes() const { return stores + writers + readers + 1; }
  uint32_t writer_node(uint32_t number) const { return stores + number; }
  uint32_t reader_node(uint32_t number) const { return stores + writers + number; }
  uint32_t observer_node() const { return stores + writers + readers; }
};

std::string describe(const Shape& shape) {
  return fmt::format("{} stores, {} writers, {} readers, {} batches, trims {}, lease {} ns; {}",
                     shape.stores, shape.writers, shape.readers, shape.batches, shape.trims,
                     shape.hole_lease_ns, sim::describe(shape.faults));
}

using Records = std::map<LogPosition, std::string>;

struct Written {
  std::vector<std::string> posted;
  std::map<LogPosition, std::string> acknowledged;
  std::set<std::string> refused;  // known not to be in the log
  Status status;
  bool ended = false;
};
struct Read {
  Records records;
  bool in_order = true;
  Status status;
  bool ended = false;
};

class SimulatedLog {
 public:
  SimulatedLog(uint64_t seed, const Shape& shape)
      : shape_(shape),
        cluster_(shape.nodes(), seed),
        written_(shape.writers),
        read_(shape.readers) {
    stores_.resize(shape.stores);
    for (uint32_t i = 0; i < shape.stores; ++i) {
      const sim::OnNode here(cluster_.simulation(), cluster_.node(i));
      stores_[i].store = test::must(LogStore::expose(cluster_[i].device, cluster_[i].domain,
                                                     {.capacity_bytes = 64 << 10,
                                                      .replicated = shape.stores > 1,
                                                      .handshake_timeout_ns = kPatienceNs}));
      stores_[i].listener = std::make_unique<ControlListener>(
          test::must(ControlListener::listen("127.0.0.1", 0, secret_)));
    }
  }

  // What is not promised, in words; empty if all holds.
  std::string run(uint64_t seed) {
    for (uint32_t i = 0; i < shape_.stores; ++i) {
      stores_[i].thread = cluster_.start(i, [this, i] { serve(stores_[i]); });
    }
    std::string broken = work(seed);
    if (broken.empty()) broken = check_written();
    if (broken.empty()) broken = check_readers();
    if (broken.empty()) broken = check_what_is_left();
    stop_ = true;
    if (!cluster_.simulation().run_until(
            [this] {
              for (uint32_t i = 0; i < shape_.stores; ++i) {
                if (!stores_[i].ended && !cluster_.node(i).crashed) return false;
              }
              return true;
            },
            kEndNs) &&
        broken.empty()) {
      broken = "a store hangs";
    }
    return broken;
  }

 private:
  struct Store {
    std::vector<std::unique_ptr<ControlConnection>> controls;
    std::unique_ptr<LogStore> store;
    std::unique_ptr<ControlListener> listener;
    bool ended = false;
    Thread thread;
  };

  void serve(Store& store) {
    while (!stop_) {
      auto control = store.listener->accept(50'000);
      if (control.ok()) {
        store.controls.push_back(std::make_unique<ControlConnection>(std::move(*control)));
        static_cast<void>(store.store->accept(*store.controls.back()));
      }
      store.store->maintain();
    }
    store.ended = true;
  }

  // Connections to the stores that are alive, which stay until the end.
  Result<std::vector<ControlConnection*>> connect() {
    std::vector<ControlConnection*> controls;
    held_.emplace_back();
    auto& held = held_.back();
    for (uint32_t i = 0; i < shape_.stores; ++i) {
      if (cluster_.node(i).crashed) continue;
      VERBENA_ASSIGN_OR_RETURN(ControlConnection control,
                               ControlConnection::connect("127.0.0.1", stores_[i].listener->port(),
                                                          secret_, kPatienceNs));
      held.push_back(std::make_unique<ControlConnection>(std::move(control)));
      controls.push_back(held.back().get());
    }
    return controls;
  }

  std::string work(uint64_t seed) {
    if (shape_.stores > 1) {
      const std::string failed = on_observer([this] { return form(); });
      if (!failed.empty()) return failed;
    }
    const sim::ScheduledFaults faults(shape_.faults, seed, cluster_.simulation());
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < shape_.writers; ++i) {
      threads.push_back(cluster_.start(shape_.writer_node(i), [this, i, seed] {
        written_[i].status = write(i, seed);
        written_[i].ended = true;
      }));
    }
    for (uint32_t i = 0; i < shape_.readers; ++i) {
      threads.push_back(cluster_.start(shape_.reader_node(i), [this, i] {
        read_[i].status = read(shape_.reader_node(i), {.hole_lease_ns = shape_.hole_lease_ns},
                               shape_.trims && i == 0, &read_[i]);
        read_[i].ended = true;
      }));
    }
    const bool ended = cluster_.simulation().run_until(
        [this] {
          for (uint32_t i = 0; i < shape_.readers; ++i) {
            if (!read_[i].ended && !cluster_.node(shape_.reader_node(i)).crashed) return false;
          }
          return writers_have_ended();
        },
        kEndNs);
    // Until the last link is up again, and nothing of those who crashed is on its way.
    cluster_.pass(1'000'000);
    return ended ? "" : "a writer or a reader hangs";
  }

  bool writers_have_ended() {
    for (uint32_t i = 0; i < shape_.writers; ++i) {
      if (!written_[i].ended && !cluster_.node(shape_.writer_node(i)).crashed) return false;
    }
    return true;
  }

  Status write(uint32_t number, uint64_t seed) {
    Written& written = written_[number];
    sim::Cluster::Member& member = cluster_[shape_.writer_node(number)];
    VERBENA_ASSIGN_OR_RETURN(const auto controls, connect());
    auto opened = open_log_writer(member.device, member.domain, controls, shape_.writer);
    VERBENA_RETURN_IF_ERROR(opened.status());
    LogWriter* const writer = writers_.emplace_back(std::move(*opened)).get();
    Random random(seed * 31 + number);
    std::map<uint64_t, std::vector<std::string>> posted;
    uint64_t next_record = 0;
    uint32_t left = shape_.batches;
    const auto take = [&](const LogCompletion& done) {
      const std::vector<std::string>& records = posted.at(done.token);
      for (size_t i = 0; i < records.size(); ++i) {
        if (done.outcome == LogOutcome::kAppended) {
          written.acknowledged[done.first + i] = records[i];
        } else {
          written.refused.insert(records[i]);
        }
      }
    };
    Waiter waiter;
    const uint64_t begun_ns = now_ns();
    while ((left > 0 || writer->outstanding() > 0) && writer->status().ok()) {
      if (left > 0 && random.below(3) != 0) {
        std::vector<std::string> records(1 + random.below(shape_.writer.max_batch));
        for (std::string& record : records) {
          record = fmt::format("{}/{}/", number, next_record++);
          record.append(random.below(400), 'x');
        }
        const std::vector<std::string_view> views(records.begin(), records.end());
        switch (writer->post_append(views, left)) {
          case PostResult::kPosted:
            written.posted.insert(written.posted.end(), records.begin(), records.end());
            posted[left--] = std::move(records);
            continue;
          case PostResult::kFailed:
            if (!writer->status().ok()) return writer->status();
            if (writer->error().code() != StatusCode::kLimitExceeded) return writer->error();
            // Full: whoever trims may be gone.
            if (now_ns() - begun_ns > 5'000'000) left = 0;
            next_record -= records.size();
            break;
          case PostResult::kWouldBlock:
            next_record -= records.size();
        }
      }
      writer->poll(take) > 0 ? waiter.progress() : waiter.idle();
    }
    return writer->status();
  }

  // Reads until the writers have ended, and nothing came for long: a call that begins so long after
  // another one found nothing finds nothing, either. One call may take longer than that, where
  // packets are lost, and only begin to wait for a hole's writer.
  Status read(uint32_t node, LogReaderOptions options, bool trims, Read* read) {
    options.chunk_bytes = 8192;
    options.handshake_timeout_ns = kPatienceNs;
    VERBENA_ASSIGN_OR_RETURN(const auto controls, connect());
    auto opened = open_log_reader(cluster_[node].device, cluster_[node].domain, controls, options);
    VERBENA_RETURN_IF_ERROR(opened.status());
    LogReader* const reader = readers_.emplace_back(std::move(*opened)).get();
    std::optional<uint64_t> silent_since_ns;
    LogPosition before = reader->position();
    for (;;) {
      const uint64_t begun_ns = now_ns();
      const auto records = reader->next();
      VERBENA_RETURN_IF_ERROR(records.status());
      for (const LogRecord& record : *records) {
        if (record.position < before) read->in_order = false;
        before = record.position;
        read->records.emplace(record.position, record.bytes);
      }
      if (reader->position() != before || !writers_have_ended()) {
        silent_since_ns.reset();
      } else if (!silent_since_ns) {
        silent_since_ns = now_ns();
      } else if (begun_ns > *silent_since_ns + 3 * options.hole_lease_ns + 100'000) {
        return Status::ok_status();
      }
      before = reader->position();
      if (trims && !records->empty()) VERBENA_RETURN_IF_ERROR(reader->trim());
      if (records->empty()) sleep_ns(1'000);
    }
  }

  Status form() {
    VERBENA_ASSIGN_OR_RETURN(const auto controls, connect());
    sim::Cluster::Member& member = cluster_[shape_.observer_node()];
    return form_log(member.device, member.domain, controls, kPatienceNs).status();
  }

  std::string on_observer(const std::function<Status()>& body) {
    Status status;
    bool ended = false;
    Thread thread = cluster_.start(shape_.observer_node(), [&] {
      status = body();
      ended = true;
    });
    if (!cluster_.simulation().run_until([&] { return ended; }, kEndNs))
      return "the observer hangs";
    return status.message();
  }

  // --- what must hold ---

  std::string check_written() const {
    for (const Written& written : written_) {
      if (!is_expected(written.status)) return written.status.message();
      LogPosition before = 0;
      uint64_t next = 0;
      for (const auto& [position, record] : written.acknowledged) {
        if (position <= before && before != 0) return "positions are not in order";
        before = position;
        const uint64_t number = number_of(record);
        if (number < next) return "a writer's records are not in its order";
        next = number + 1;
      }
    }
    return "";
  }
  bool is_expected(const Status& status) const {
    if (status.ok()) return true;
    if (shape_.faults.is_survivable()) return false;
    return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kTimeout;
  }
  static uint64_t number_of(const std::string& record) {
    return std::stoull(record.substr(record.find('/') + 1));
  }

  std::string check_readers() {
    for (const Read& read : read_) {
      const bool overtaken = shape_.trims && read.status.code() == StatusCode::kLimitExceeded;
      if (!overtaken && !is_expected(read.status)) return read.status.message();
      if (!read.in_order) return "a reader went back";
      const std::string broken = agree(read.records);
      if (!broken.empty()) return broken;
    }
    return "";
  }

  // Adds what a reader read: in its range, it must be what the others read there.
  std::string agree(const Records& records) {
    for (const auto& [position, record] : records) {
      const auto [known, is_new] = seen_.emplace(position, record);
      if (known->second != record) return fmt::format("two records at {}", position);
      for (const auto& [first, last] : ranges_) {
        if (is_new && first <= position && position <= last) {
          return fmt::format("a reader did not see the record at {}", position);
        }
      }
    }
    if (records.empty()) return "";
    const LogPosition first = records.begin()->first;
    const LogPosition last = records.rbegin()->first;
    const auto count = std::distance(seen_.lower_bound(first), seen_.upper_bound(last));
    if (static_cast<size_t>(count) != records.size()) {
      return fmt::format("a reader saw {} of {} records", records.size(), count);
    }
    ranges_.emplace_back(first, last);
    return "";
  }

  // All that was acknowledged is there, and nothing that was refused.
  std::string check_what_is_left() {
    uint32_t lost = 0;
    for (uint32_t i = 0; i < shape_.stores; ++i) lost += cluster_.node(i).crashed ? 1 : 0;
    if (lost == shape_.stores || cluster_.node(shape_.observer_node()).crashed) return "";
    Read rest;
    const std::string failed = on_observer([&]() -> Status {
      if (lost > 0) VERBENA_RETURN_IF_ERROR(form());
      return read(shape_.observer_node(), {.hole_lease_ns = 1'000}, false, &rest);
    });
    if (!failed.empty()) return "the observer: " + failed;
    std::string broken = agree(rest.records);
    if (!broken.empty()) return broken;
    std::set<std::string> found;
    for (const auto& [position, record] : seen_) {
      if (!found.insert(record).second) return "a record is in the log twice: " + record;
    }
    for (const Written& written : written_) {
      for (const auto& [position, record] : written.acknowledged) {
        const auto at = seen_.find(position);
        if (at == seen_.end()) {
          // Trimmed by a reader that crashed before it could tell what it had read.
          if (shape_.trims && cluster_.node(shape_.reader_node(0)).crashed) continue;
          return fmt::format("the record at {} is lost: {}", position, record);
        }
        if (at->second != record) return fmt::format("another record is at {}", position);
      }
      for (const std::string& record : written.refused) {
        if (found.contains(record)) return "a refused record is in the log: " + record;
      }
    }
    return "";
  }

  const Shape& shape_;
  sim::Cluster cluster_;
  JobSecret secret_ = JobSecret::random();
  std::vector<Store> stores_;
  std::deque<std::vector<std::unique_ptr<ControlConnection>>> held_;
  // Not on the stacks of threads, which end nothing where their node crashes.
  std::deque<std::unique_ptr<LogWriter>> writers_;
  std::deque<std::unique_ptr<LogReader>> readers_;
  std::vector<Written> written_;
  std::vector<Read> read_;
  Records seen_;
  std::vector<std::pair<LogPosition, LogPosition>> ranges_;
  bool stop_ = false;
};

TEST(LogSimulationTest, PromisesHoldWhateverGoesWrong) {
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    Random random(seed);
    const Shape shape(random);
    SimulatedLog log(seed, shape);
    ASSERT_EQ(log.run(seed), "") << describe(shape) << "\nagain: VERBENA_SEED=" << seed
                                 << " build/release/bin/log_test --gtest_filter=LogSimulation*";
  }
  report_count("seeds", kClusters);
}

}  // namespace
}  // namespace verbena::log_app
