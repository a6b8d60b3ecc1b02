// The promises of shuffle.h in clusters in virtual time, each from a seed, with faults: executors
// crash, links fail, queue pairs break.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shuffle/receiver.h"
#include "shuffle/sender.h"
#include "shuffle/shuffle_for_test.h"
#include "src/base/runtime.h"
#include "src/base/sanitizer.h"
#include "src/device/sim/cluster_for_test.h"
#include "src/device/sim/fault_schedule_for_test.h"
#include "src/remote/simulated_regions_for_test.h"
#include "tests/test_seed.h"

namespace verbena::shuffle_app {
namespace {

constexpr uint64_t kClusters = VERBENA_ADDRESS_SANITIZER || VERBENA_THREAD_SANITIZER ? 20 : 200;
constexpr int64_t kPatienceNs = 20'000'000'000;
constexpr uint64_t kEndNs = 100'000'000'000;
constexpr uint64_t kSliceNs = 100'000;

struct Shape {
  uint32_t senders = 1;
  uint32_t receivers = 1;
  uint64_t records = 100;  // of each sender
  uint64_t most_bytes = 100;
  uint64_t hold_ns = 0;  // for which receivers work on a span
  uint32_t skew = 0;     // of ten records, so many to receiver 0
  bool registered = false;
  ShuffleReceiverOptions receiver;
  ShuffleSenderOptions sender;
  sim::FaultSchedule faults;

  Shape() = default;
  explicit Shape(Random& random) {
    senders = 1 + static_cast<uint32_t>(random.below(4));
    receivers = 1 + static_cast<uint32_t>(random.below(4));
    records = 20 + random.below(300);
    most_bytes = 1 + random.below(random.below(4) == 0 ? 3000 : 200);
    hold_ns = random.below(3) == 0 ? random.below(20'000) : 0;
    skew = static_cast<uint32_t>(random.below(11));
    registered = random.below(2) == 0;
    const bool one_size = random.below(3) == 0;
    receiver = {.receivers = receivers,
                .senders = senders,
                .record_bytes = one_size ? static_cast<uint32_t>(most_bytes) : 0,
                .buffer_bytes = 4096 + random.below(40'000),
                .max_record_bytes = one_size ? uint64_t{0} : uint64_t{1} << 20,
                .checksum = random.below(2) == 0,
                .handshake_timeout_ns = kPatienceNs};
    constexpr ShuffleMethod kMethods[] = {ShuffleMethod::kBasic, ShuffleMethod::kSp,
                                          ShuffleMethod::kSgl, ShuffleMethod::kAutomatic};
    sender = {.method = kMethods[random.below(4)],
              .batch = static_cast<uint32_t>(1 + random.below(16)),
              .pending = static_cast<uint32_t>(1 + random.below(10)),
              .handshake_timeout_ns = kPatienceNs};
    faults = remote::draw_faults(random);
  }
  uint32_t nodes() const { return senders + receivers; }
  uint32_t receiver_node(uint32_t number) const { return senders + number; }
};

std::string describe(const Shape& shape) {
  return fmt::format(
      "{} senders, {} receivers, {} records of {} to {} bytes, held {} ns, skew {}, registered {}, "
      "buffers of {} bytes, {}, batch {}, pending {}; {}",
      shape.senders, shape.receivers, shape.records, shape.receiver.record_bytes, shape.most_bytes,
      shape.hold_ns, shape.skew, shape.registered, shape.receiver.buffer_bytes,
      shuffle_method_name(shape.sender.method), shape.sender.batch, shape.sender.pending,
      sim::describe(shape.faults));
}

struct Executor {
  Status status;
  bool opened = false;
  bool dead = false;
  bool ended = false;
};

class SimulatedShuffle {
 public:
  SimulatedShuffle(uint64_t seed, const Shape& shape)
      : seed_(seed),
        shape_(shape),
        cluster_(shape.nodes(), seed),
        executors_(shape.nodes()),
        listeners_(shape.receivers),
        receivers_(shape.receivers),
        senders_(shape.senders),
        sources_(shape.senders),
        received_(shape.receivers, Received(shape.senders)) {
    for (uint32_t i = 0; i < shape_.receivers; ++i) {
      const sim::OnNode here(cluster_.simulation(), cluster_.node(shape_.receiver_node(i)));
      listeners_[i] =
          std::make_unique<ControlListener>(must(ControlListener::listen("127.0.0.1", 0, secret_)));
    }
  }

  // What is not promised, in words; empty if all holds.
  std::string run() {
    std::vector<Thread> threads;
    for (uint32_t i = 0; i < shape_.nodes(); ++i) {
      threads.push_back(cluster_.start(i, [this, i] {
        executors_[i].status = i < shape_.senders ? send(i) : receive(i - shape_.senders);
        // As a program that ends with its failure.
        if (!executors_[i].status.ok()) end(i);
        executors_[i].ended = true;
      }));
    }
    const auto all_opened = [this] {
      return std::ranges::all_of(executors_, [](const Executor& one) { return one.opened; });
    };
    if (!run_until(all_opened)) return "not all have opened";
    const sim::ScheduledFaults faults(shape_.faults, seed_, cluster_.simulation());
    begun_ = true;
    const bool ended = run_until([this] { return all_have_ended(); });
    if (!ended) {
      // To join their threads would take for ever.
      for (uint32_t i = 0; i < shape_.nodes(); ++i) cluster_.node(i).crash();
      return "an executor hangs";
    }
    return check();
  }

  // From the first record to the last sender's end.
  uint64_t duration_ns() const { return last_ns_ - first_ns_; }

 private:
  void end(uint32_t node) {
    if (node < shape_.senders) {
      senders_[node].reset();
    } else {
      receivers_[node - shape_.senders].reset();
    }
  }
  bool crashed(uint32_t node) { return cluster_.node(node).crashed; }
  // In slices: neither a crash nor a variable of this test lets the simulation look again.
  template <typename Condition>
  bool run_until(const Condition& holds) {
    while (!holds()) {
      if (now_ns() > kEndNs) return false;
      cluster_.simulation().run_until([] { return false; }, now_ns() + kSliceNs);
    }
    return true;
  }
  bool all_have_ended() {
    bool all = true;
    for (uint32_t i = 0; i < shape_.nodes(); ++i) {
      if (crashed(i)) {
        die(i);
      } else {
        all = all && executors_[i].ended;
      }
    }
    return all;
  }
  // As where a process alone dies: its host ends its connections at once. Those of a node that has
  // crashed end after VirtualTime::kSilenceLimitNs.
  void die(uint32_t node) {
    if (std::exchange(executors_[node].dead, true)) return;
    if (node < shape_.senders) {
      if (senders_[node]) static_cast<Sender&>(*senders_[node]).die_for_test();
    } else if (receivers_[node - shape_.senders]) {
      static_cast<Receiver&>(*receivers_[node - shape_.senders]).die_for_test();
    }
  }
  void wait_for_others(uint32_t node) {
    executors_[node].opened = true;
    while (!begun_) sleep_ns(10'000);
  }

  // Whom a sender's record goes to, and what is in it, follow from its number.
  uint32_t receiver_of(uint32_t sender, uint64_t number) const {
    Random random(seed_ * 7 + sender * 1'000'003 + number);
    if (random.below(10) < shape_.skew) return 0;
    return static_cast<uint32_t>(random.below(shape_.receivers));
  }
  std::string record(uint32_t sender, uint64_t number) const {
    Random random(seed_ * 11 + sender * 1'000'003 + number);
    const uint64_t bytes =
        shape_.receiver.record_bytes != 0 ? shape_.most_bytes : random.below(shape_.most_bytes + 1);
    return record_of(seed_ + sender, number, bytes);
  }

  Status send(uint32_t number) {
    sim::Cluster::Member& member = cluster_[number];
    std::vector<ControlConnection> controls;
    for (const auto& listener : listeners_) {
      VERBENA_ASSIGN_OR_RETURN(
          ControlConnection control,
          ControlConnection::connect("127.0.0.1", listener->port(), secret_, kPatienceNs));
      controls.push_back(std::move(control));
    }
    ShuffleSenderOptions options = shape_.sender;
    options.sender = number;
    VERBENA_ASSIGN_OR_RETURN(senders_[number], open_shuffle_sender(member.device, member.domain,
                                                                   std::move(controls), options));
    ShuffleSender& sender = *senders_[number];
    // Every record has a place of its own: it is never too early to change it.
    sources_[number] =
        std::make_unique<Registered>(member, shape_.records * (shape_.most_bytes + 1));
    Registered& source = *sources_[number];
    wait_for_others(number);
    first_ns_ = std::min(first_ns_, now_ns());
    uint64_t offset = 0;
    for (uint64_t i = 0; i < shape_.records; ++i) {
      const std::string one = record(number, i);
      const uint32_t to = receiver_of(number, i);
      if (shape_.registered) {
        std::copy(one.begin(), one.end(), source.pages.data() + offset);
        VERBENA_RETURN_IF_ERROR(
            sender.put(to, LocalSlice{&source.memory, offset, static_cast<uint32_t>(one.size())}));
        offset += one.size();
      } else {
        VERBENA_RETURN_IF_ERROR(sender.put(to, one));
      }
    }
    const Status status = sender.finish();
    last_ns_ = std::max(last_ns_, now_ns());
    return status;
  }

  Status receive(uint32_t number) {
    sim::Cluster::Member& member = cluster_[shape_.receiver_node(number)];
    ShuffleReceiverOptions options = shape_.receiver;
    options.receiver = number;
    VERBENA_ASSIGN_OR_RETURN(receivers_[number],
                             ShuffleReceiver::expose(member.device, member.domain, options));
    ShuffleReceiver& receiver = *receivers_[number];
    VERBENA_RETURN_IF_ERROR(receiver.accept_all(*listeners_[number], kPatienceNs));
    wait_for_others(shape_.receiver_node(number));
    for (;;) {
      VERBENA_ASSIGN_OR_RETURN(const ShuffleSpan span, receiver.wait_next());
      if (span.empty()) return Status::ok_status();
      if (shape_.hold_ns > 0) sleep_ns(shape_.hold_ns);
      received_[number].take(span);
      receiver.release(span);
    }
  }

  // --- what must hold ---

  std::string check() {
    for (uint32_t i = 0; i < shape_.nodes(); ++i) {
      const Status& status = executors_[i].status;
      if (crashed(i) || status.ok()) continue;
      if (shape_.faults.is_survivable()) return status.message();
      if (status.code() != StatusCode::kUnavailable && status.code() != StatusCode::kTimeout) {
        return "an unexpected failure: " + status.message();
      }
    }
    for (uint32_t to = 0; to < shape_.receivers; ++to) {
      if (received_[to].broken()) return "a span is broken";
      // A receiver that says that it has all has all; else it has a beginning.
      const bool has_all = executors_[shape_.receiver_node(to)].ended &&
                           executors_[shape_.receiver_node(to)].status.ok();
      for (uint32_t from = 0; from < shape_.senders; ++from) {
        const std::vector<std::string>& records = received_[to].from(from);
        size_t found = 0;
        for (uint64_t i = 0; i < shape_.records; ++i) {
          if (receiver_of(from, i) != to) continue;
          if (found == records.size()) {
            if (has_all) return fmt::format("{} has lost record {} of {}", to, i, from);
            break;
          }
          if (records[found++] != record(from, i)) {
            return fmt::format("{} has something else than record {} of {}", to, i, from);
          }
        }
        if (found != records.size()) return fmt::format("{} has too much of {}", to, from);
      }
    }
    return "";
  }

  const uint64_t seed_;
  const Shape& shape_;
  sim::Cluster cluster_;
  JobSecret secret_ = JobSecret::random();
  std::vector<Executor> executors_;
  std::vector<std::unique_ptr<ControlListener>> listeners_;
  // Not on the stacks of threads, which end nothing where their node crashes.
  std::vector<std::unique_ptr<ShuffleReceiver>> receivers_;
  std::vector<std::unique_ptr<ShuffleSender>> senders_;
  std::vector<std::unique_ptr<Registered>> sources_;
  std::vector<Received> received_;
  bool begun_ = false;
  uint64_t first_ns_ = UINT64_MAX;
  uint64_t last_ns_ = 0;
};

TEST(ShuffleSimulationTest, PromisesHoldWhateverGoesWrong) {
  for (uint64_t seed = run_seed(); seed < run_seed() + kClusters; ++seed) {
    Random random(seed);
    const Shape shape(random);
    SimulatedShuffle shuffle(seed, shape);
    ASSERT_EQ(shuffle.run(), "") << describe(shape) << "\nagain: VERBENA_SEED=" << seed
                                 << " build/release/bin/shuffle_test "
                                    "--gtest_filter=ShuffleSimulation*";
  }
  report_count("seeds", kClusters);
}

// Records from registered memory, of which so many are one WRITE, by four senders to four
// receivers: per millisecond.
double rate(ShuffleMethod method, uint32_t batch) {
  Shape shape;
  shape.senders = 4;
  shape.receivers = 4;
  shape.records = 10'000;
  shape.most_bytes = 64;
  shape.registered = true;
  shape.receiver = {.receivers = 4, .senders = 4, .record_bytes = 64, .buffer_bytes = 1 << 20};
  shape.sender = {.method = method, .batch = batch};
  SimulatedShuffle shuffle(run_seed(), shape);
  EXPECT_EQ(shuffle.run(), "");
  return 1e6 * static_cast<double>(shape.records * shape.senders) /
         static_cast<double>(shuffle.duration_ns());
}

// SP copies records into staging memory, of which each part is in use until its WRITE has
// completed, which takes microseconds here. Whoever waits for that instead of taking another part
// has half of SGL's rate, and less with more receivers.
TEST(ShuffleSimulationTest, CopiedRecordsDoNotWaitForTheWritesBefore) {
  for (const uint32_t batch : {4u, 16u}) {
    const double gathered = rate(ShuffleMethod::kSgl, batch);
    const double copied = rate(ShuffleMethod::kSp, batch);
    EXPECT_GT(copied, 0.8 * gathered) << copied << " and " << gathered << " records per ms";
  }
}

}  // namespace
}  // namespace verbena::shuffle_app
